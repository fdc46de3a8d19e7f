"""What a program with aiokafka does. One line a step: ok or FAIL, the step, what came of it."""

import asyncio
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

BOOTSTRAP = sys.argv[1]
TOPIC = "ak-" + uuid.uuid4().hex[:6]
GROUP = "g-" + TOPIC
SENDERS = [{"compression_type": codec} for codec in (None, "gzip", "snappy", "lz4", "zstd")]
SENDERS += [{"enable_idempotence": True}]


async def step(name, act):
    try:
        told = await act
        print("ok", name, "" if told is None else str(told)[:100], sep="\t", flush=True)
    except Exception as error:
        print("FAIL", name, f"{type(error).__name__}: {str(error)[:200]}", sep="\t", flush=True)


async def produce(config):
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", **config)
    await producer.start()
    for n in range(30):
        await producer.send_and_wait(TOPIC, b"v%d" % n, key=b"k%d" % n)
    await producer.stop()


async def consume():
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=GROUP, auto_offset_reset="earliest")
    await consumer.start()
    wanted, read = 30 * len(SENDERS), 0

    async def all_of_them():
        nonlocal read
        async for _ in consumer:
            read += 1
            if read == wanted:
                return

    await asyncio.wait_for(all_of_them(), 90)
    await consumer.commit()
    await consumer.stop()
    return read


async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    await step("create topic", admin.create_topics([NewTopic(TOPIC, 3, 3)]))
    for config in SENDERS:
        name = " ".join(f"{key}={value}" for key, value in config.items())
        await step(f"produce, {name}", produce(config))
    await step("consume as a group, commit", consume())
    await step("list groups", admin.list_consumer_groups())
    await step("describe groups", admin.describe_consumer_groups([GROUP]))
    await step("list group offsets", admin.list_consumer_group_offsets(GROUP))
    await step("delete topic", admin.delete_topics([TOPIC]))
    await admin.close()


asyncio.run(main())
