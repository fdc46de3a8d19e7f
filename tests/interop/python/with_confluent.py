"""What a program with confluent-kafka does, and so one with librdkafka. One line a step: ok or FAIL, the step, what came of it."""

import sys
import time
import uuid

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, ElectionType, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

BOOTSTRAP = sys.argv[1]
TOPIC = "ck-" + uuid.uuid4().hex[:6]
GROUP = "g-" + TOPIC
SENDERS = [{"compression.type": codec} for codec in ("none", "gzip", "snappy", "lz4", "zstd")]
SENDERS += [{"enable.idempotence": True}, {"acks": "1"}, {"acks": "0"}]
STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]
admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


def step(name, act):
    try:
        told = act()
        print("ok", name, "" if told is None else str(told)[:100], sep="\t", flush=True)
    except Exception as error:
        print("FAIL", name, f"{type(error).__name__}: {str(error)[:200]}", sep="\t", flush=True)


def all_of(futures):
    return [future.result(60) for future in futures.values()]


def expect(holds, told):
    assert holds, told
    return told


def produce(config):
    errors = []
    producer = Producer({"bootstrap.servers": BOOTSTRAP, **config})
    for n in range(50):
        producer.produce(TOPIC, key=b"k%d" % n, value=b"v%d" % n, on_delivery=lambda e, _: errors.append(e) if e else None)
    return expect((producer.flush(60), errors) == (0, []), errors[:1] or None)


def consume(strategy):
    """Two members; static ones where the strategy is range. What acks=0 sent may be missing."""
    wanted, read, until = 50 * (len(SENDERS) - 1), 0, time.time() + 90
    members = []
    for n in range(2):
        config = {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": GROUP + strategy,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": strategy,
            "enable.auto.commit": False,
        }
        if strategy == "range":
            config["group.instance.id"] = f"instance-{n}"
        members.append(Consumer(config))
        members[n].subscribe([TOPIC])
    while read < wanted and time.time() < until:
        for member in members:
            message = member.poll(0.1)
            read += 1 if message and not message.error() else 0
    for member in members:
        if member.assignment():
            member.commit(offsets=member.position(member.assignment()), asynchronous=False)
        member.close()
    return expect(read >= wanted, read)


def topic_config():
    entry = ConfigEntry("retention.ms", "100000", incremental_operation=AlterConfigOpType.SET)
    return [ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])]


def partitions(offset=None):
    return [TopicPartition(TOPIC, n) if offset is None else TopicPartition(TOPIC, n, offset) for n in range(4)]


def group_offsets():
    told = all_of(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP + "roundrobin")]))
    return len(told[0].topic_partitions)


def alter_group_offsets():
    wish = ConsumerGroupTopicPartitions(GROUP + "roundrobin", partitions(0))
    return all_of(admin.alter_consumer_group_offsets([wish])) and None


step("create topic", lambda: all_of(admin.create_topics([NewTopic(TOPIC, 3, 3)])) and None)
step("describe configs", lambda: len(all_of(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, TOPIC)]))[0]))
step("alter configs one by one", lambda: all_of(admin.incremental_alter_configs(topic_config())) and None)
step("create partitions", lambda: all_of(admin.create_partitions([NewPartitions(TOPIC, 4)])) and None)
step("describe cluster", lambda: expect(len(admin.describe_cluster().result(60).nodes) >= 2, None))
step("describe topics", lambda: len(all_of(admin.describe_topics(TopicCollection([TOPIC])))[0].partitions))
for sender in SENDERS:
    step("produce, " + " ".join(f"{key}={value}" for key, value in sender.items()), lambda: produce(sender))
for strategy in STRATEGIES:
    step(f"two members, {strategy}{', static' if strategy == 'range' else ''}", lambda: consume(strategy))
step("list groups", lambda: expect(len(admin.list_consumer_groups().result(60).valid) >= 3, None))
step("describe groups", lambda: str(all_of(admin.describe_consumer_groups([GROUP + "roundrobin"]))[0].state))
step("list group offsets", group_offsets)
step("alter group offsets", alter_group_offsets)
step("list offsets", lambda: [one.offset for one in all_of(admin.list_offsets({p: OffsetSpec.latest() for p in partitions()}))])
step("delete records", lambda: all_of(admin.delete_records([TopicPartition(TOPIC, 0, 3)]))[0].low_watermark)
step("elect leaders", lambda: admin.elect_leaders(ElectionType.PREFERRED).result(60) and None)
step("delete groups", lambda: all_of(admin.delete_consumer_groups([GROUP + "roundrobin"])) and None)
step("delete topic", lambda: all_of(admin.delete_topics([TOPIC])) and None)
