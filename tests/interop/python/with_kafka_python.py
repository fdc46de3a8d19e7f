"""What a program with kafka-python does. One line a step: ok or FAIL, the step, what came of it."""

import sys
import time
import uuid

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

BOOTSTRAP = sys.argv[1].split(",")
TOPIC = "kp-" + uuid.uuid4().hex[:6]
GROUP = "g-" + TOPIC
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


def step(name, act):
    try:
        told = act()
        print("ok", name, "" if told is None else str(told)[:100], sep="\t", flush=True)
    except Exception as error:
        print("FAIL", name, f"{type(error).__name__}: {str(error)[:200]}", sep="\t", flush=True)


def expect(holds, told):
    assert holds, told
    return told


def produce(codec):
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, compression_type=codec, acks="all")
    sent = [producer.send(TOPIC, key=b"k%d" % n, value=b"v%d" % n, headers=[("h", b"x")]) for n in range(50)]
    offsets = [one.get(60).offset for one in sent]
    producer.close()
    return len(offsets)


def consume():
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=60000,
    )
    wanted, read = 50 * len(CODECS), 0
    for _ in consumer:
        read += 1
        if read == wanted:
            break
    consumer.commit()
    positions = sum(consumer.committed(TopicPartition(TOPIC, n)) or 0 for n in range(4))
    consumer.close()
    return expect(read == wanted and positions == wanted, (read, positions))


def seek_and_times():
    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP)
    partitions = [TopicPartition(TOPIC, n) for n in range(4)]
    hour_ago = int((time.time() - 3600) * 1000)
    found = consumer.offsets_for_times({partition: hour_ago for partition in partitions})
    ends, wanted = consumer.end_offsets(partitions), 50 * len(CODECS)
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    read, until = 0, time.time() + 60
    while read < wanted and time.time() < until:
        read += sum(len(records) for records in consumer.poll(500).values())
    consumer.close()
    assert all(one is None or one.offset == 0 for one in found.values()), found
    return expect(read == wanted == sum(ends.values()), (read, ends))


step("create topic", lambda: admin.create_topics([NewTopic(TOPIC, 3, 3)]) and None)
step("list topics", lambda: expect(TOPIC in admin.list_topics(), None))
step("describe topics", lambda: len(admin.describe_topics([TOPIC])))
step("describe configs", lambda: admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC)]) and None)
config = ConfigResource(ConfigResourceType.TOPIC, TOPIC, configs={"retention.ms": "100000"})
step("alter configs", lambda: admin.alter_configs([config]) and None)
step("create partitions", lambda: admin.create_partitions({TOPIC: NewPartitions(4)}) and None)
step("describe cluster", lambda: expect(len(admin.describe_cluster()["brokers"]) >= 2, None))
for codec in CODECS:
    step(f"produce, {codec or 'no'} compression", lambda: produce(codec))
step("consume as a group, commit", consume)
step("seek, offsets for times", seek_and_times)
step("list groups", lambda: expect(GROUP in str(admin.list_groups()), None))
step("describe groups", lambda: expect("Empty" in str(admin.describe_groups([GROUP])), None))
step("list group offsets", lambda: len(admin.list_group_offsets(GROUP)))
step("delete group", lambda: expect("OK" in str(admin.delete_groups([GROUP])), None))
step("delete records", lambda: admin.delete_records({TopicPartition(TOPIC, 0): 5}) and None)
step("delete topic", lambda: admin.delete_topics([TOPIC]) and None)
