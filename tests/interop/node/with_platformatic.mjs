// What a program with @platformatic/kafka does. One line a step: ok or FAIL, the step, what came of it.

import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from "@platformatic/kafka";

const bootstrapBrokers = process.argv[2].split(",");
const topic = "pk-" + Math.random().toString(36).slice(2, 8);
const groupId = "g-" + topic;
// zstd: not with this version of Node.js.
const codecs = ["none", "gzip", "snappy", "lz4"];
const retry = { retries: 20, retryDelay: 500 };

async function step(name, act) {
  try {
    const told = await act();
    const text = JSON.stringify(told, (_, value) => (typeof value === "bigint" ? String(value) : value));
    console.log(["ok", name, text === undefined ? "" : text.slice(0, 100)].join("\t"));
  } catch (error) {
    const why = error.errors?.[0]?.message ?? "";
    console.log(["FAIL", name, `${error.name}: ${String(error.message).slice(0, 150)} ${why}`].join("\t"));
  }
}

const admin = new Admin({ clientId: "interop", bootstrapBrokers, ...retry });
const producer = new Producer({ clientId: "interop", bootstrapBrokers, serializers: stringSerializers, ...retry });

async function consume(wanted) {
  const consumer = new Consumer({ groupId, clientId: "interop", bootstrapBrokers, deserializers: stringDeserializers, ...retry });
  const options = { autocommit: true, topics: [topic], mode: "earliest", sessionTimeout: 10000, heartbeatInterval: 500 };
  const stream = await consumer.consume(options);
  let read = 0;
  await new Promise((done, failed) => {
    const late = setTimeout(() => failed(new Error(`only ${read} of ${wanted}`)), 90000);
    stream.on("data", () => {
      read += 1;
      if (read === wanted) {
        clearTimeout(late);
        done();
      }
    });
    stream.on("error", failed);
  });
  await stream.close();
  await consumer.close(true);
  return read;
}

await step("create topic", async () => {
  await admin.createTopics({ topics: [topic], partitions: 3, replicas: 3 });
});
for (const compression of codecs) {
  await step(`produce, ${compression}`, async () => {
    const messages = Array.from({ length: 40 }, (_, n) => ({ topic, key: "k" + n, value: "v" + n }));
    await producer.send({ compression, messages });
  });
}
await step("produce, idempotent", async () => {
  const other = new Producer({
    clientId: "interop",
    bootstrapBrokers,
    idempotent: true,
    serializers: stringSerializers,
    ...retry,
  });
  await other.send({ messages: [{ topic, key: "a", value: "b" }], acks: -1 });
  await other.close();
});
await step("consume as a group, commit", () => consume(40 * codecs.length + 1));
await step("list groups", async () => (await admin.listGroups()).has(groupId));
await step("describe groups", async () => (await admin.describeGroups({ groups: [groupId] })).get(groupId).state);
await step("delete groups", () => admin.deleteGroups({ groups: [groupId] }));
await step("delete topic", () => admin.deleteTopics({ topics: [topic] }));
await admin.close();
await producer.close();
process.exit(0);
