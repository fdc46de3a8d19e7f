// What a program with kafkajs does. One line a step: ok or FAIL, the step, what came of it.

const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const topic = "kj-" + Math.random().toString(36).slice(2, 8);
const groupId = "g-" + topic;
const kafka = new Kafka({
  clientId: "interop",
  brokers: process.argv[2].split(","),
  logLevel: logLevel.NOTHING,
  retry: { retries: 20 },
});
const TOPIC = 2;

async function step(name, act) {
  try {
    const told = await act();
    console.log(["ok", name, told === undefined ? "" : JSON.stringify(told).slice(0, 100)].join("\t"));
  } catch (error) {
    console.log(["FAIL", name, `${error.name}: ${String(error.message).slice(0, 200)}`].join("\t"));
  }
}

async function produce(producerOptions, sendOptions) {
  const producer = kafka.producer(producerOptions);
  await producer.connect();
  const messages = Array.from({ length: 50 }, (_, n) => ({ key: "k" + n, value: "v" + n, headers: { h: "x" } }));
  await producer.send({ topic, ...sendOptions, messages });
  await producer.disconnect();
}

async function consume(wanted) {
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let read = 0;
  await new Promise((done, failed) => {
    const late = setTimeout(() => failed(new Error(`only ${read} of ${wanted}`)), 90000);
    consumer.run({
      eachMessage: async () => {
        read += 1;
        if (read === wanted) {
          clearTimeout(late);
          done();
        }
      },
    });
  });
  await consumer.disconnect();
  return read;
}

(async () => {
  const admin = kafka.admin();
  await admin.connect();
  const configEntries = [{ name: "retention.ms", value: "100000" }];
  await step("create topic", () => admin.createTopics({ topics: [{ topic, numPartitions: 3, replicationFactor: 3 }] }));
  await step("metadata", async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length);
  await step("describe configs", async () => {
    const told = await admin.describeConfigs({ includeSynonyms: true, resources: [{ type: TOPIC, name: topic }] });
    return told.resources[0].configEntries.length;
  });
  await step("alter configs", async () => {
    await admin.alterConfigs({ resources: [{ type: TOPIC, name: topic, configEntries }] });
  });
  await step("create partitions", () => admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] }));
  await step("produce", () => produce({}, {}));
  await step("produce, gzip", () => produce({}, { compression: CompressionTypes.GZIP }));
  await step("produce, acks=1", () => produce({}, { acks: 1 }));
  await step("produce, idempotent", () => produce({ idempotent: true, maxInFlightRequests: 1 }, {}));
  await step("consume as a group, commit", () => consume(200));
  await step("fetch offsets of a group", async () => {
    const told = await admin.fetchOffsets({ groupId, topics: [topic] });
    return told[0].partitions.map((one) => one.offset);
  });
  await step("list groups", async () => (await admin.listGroups()).groups.length);
  await step("describe groups", async () => (await admin.describeGroups([groupId])).groups[0].state);
  await step("fetch topic offsets", async () => (await admin.fetchTopicOffsets(topic)).map((one) => one.high));
  await step("offsets for times", async () => {
    return (await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() - 3600000)).length;
  });
  await step("reset offsets", () => admin.resetOffsets({ groupId, topic, earliest: true }));
  await step("delete records", () => admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "3" }] }));
  await step("describe cluster", async () => (await admin.describeCluster()).brokers.length);
  await step("delete groups", async () => (await admin.deleteGroups([groupId]))[0].errorCode);
  await step("delete topic", () => admin.deleteTopics({ topics: [topic] }));
  await admin.disconnect();
  process.exit(0);
})();
