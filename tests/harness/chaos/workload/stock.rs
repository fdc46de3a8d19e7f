//! librdkafka as it is: an idempotent producer with several requests in flight, one that repeats as it likes, a consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::super::board::{Board, Place, SLOTS};
use super::super::history::{Event, History, Outcome};
use super::{payload, value_of};
use crate::sim::rng::Rng;

/// Between two sends of one producer; longer than our own, for it sends to all slots.
const PACE: Duration = Duration::from_millis(15);

struct Reports(Arc<History>);

impl ClientContext for Reports {
    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Reports {
    /// The op, and which of its values.
    type DeliveryOpaque = Box<(u64, usize)>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Box<(u64, usize)>) {
        let (op, first) = *opaque;
        self.0.write(match result {
            Ok(message) => Event::Sent { op, first, count: 1, offset: message.offset() },
            Err((error, _)) => Event::Unsent { op, first, count: 1, outcome: Outcome::Unknown, why: error.to_string() },
        });
    }
}

fn config(board: &Board) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", board.fleet.bootstrap())
        .set("retry.backoff.ms", "20")
        .set("retry.backoff.max.ms", "100")
        .set("reconnect.backoff.ms", "20")
        .set("reconnect.backoff.max.ms", "200")
        .set("socket.timeout.ms", "5000")
        .set("topic.metadata.refresh.interval.ms", "2000")
        .set("topic.metadata.refresh.fast.interval.ms", "50");
    config
}

/// Runs on a thread of its own.
pub fn producer(board: &Board, name: &str, idempotent: bool, mut rng: Rng) {
    let mut settings = config(board);
    settings.set("acks", "all").set("linger.ms", "2").set("delivery.timeout.ms", "300000");
    settings.set("enable.idempotence", if idempotent { "true" } else { "false" });
    let mut made = 0;
    while !board.is_stopped() {
        made += 1;
        let producer: ThreadedProducer<Reports> =
            settings.create_with_context(Reports(board.history.clone())).expect("a producer");
        let by = format!("{name}.{made}");
        while !board.is_stopped() && producer.client().fatal_error().is_none() {
            std::thread::sleep(Duration::from_micros(rng.around(PACE.as_micros() as u64)));
            let slot = rng.below(SLOTS.into()) as u8;
            send(board, &producer, &by, idempotent, board.slot(slot), rng.within(1, 4));
        }
        if producer.client().fatal_error().is_some() {
            board.producer_resets.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        // Everything that was sent gets its report.
        let _ = producer.flush(Duration::from_secs(20));
    }
}

fn send(board: &Board, producer: &ThreadedProducer<Reports>, by: &str, idempotent: bool, place: Place, count: u64) {
    let values = board.history.next_values(count);
    let op = board.history.next_op();
    board.count(&place, values.len());
    let event = Event::Send {
        op,
        by: by.to_owned(),
        at: place.name(),
        values: values.clone(),
        once: idempotent,
        ordered: idempotent,
    };
    board.history.write(event);
    for (first, value) in values.into_iter().enumerate() {
        let text = payload(value);
        let record = BaseRecord::with_opaque_to(&place.topic, Box::new((op, first)))
            .partition(place.partition)
            .payload(&text)
            .key("");
        if let Err((error, _)) = producer.send(record) {
            // It never left this process.
            let (outcome, why) = (Outcome::Failed, error.to_string());
            board.history.write(Event::Unsent { op, first, count: 1, outcome, why });
        }
    }
}

fn new_consumer(board: &Board, group: &str) -> BaseConsumer {
    config(board)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("fetch.wait.max.ms", "200")
        .create()
        .expect("a consumer")
}

fn assign(board: &Board, consumer: &BaseConsumer, name: &str, places: &[Place]) {
    let mut list = TopicPartitionList::new();
    for place in places {
        list.add_partition_offset(&place.topic, place.partition, Offset::Offset(0)).expect("a partition");
        board.history.write(Event::Assign { by: name.to_owned(), at: place.name(), offset: 0 });
    }
    consumer.assign(&list).expect("assigned");
}

fn note(board: &Board, by: &str, message: &rdkafka::message::BorrowedMessage<'_>) {
    let at = format!("{}/{}", message.topic(), message.partition());
    let records = vec![(message.offset(), value_of(message.payload()))];
    board.history.write(Event::Poll { by: by.to_owned(), at, records });
}

/// Follows all that is written to, from the beginning; runs on a thread of its own.
pub fn consumer(board: &Board, name: &str) {
    let mut made = 0;
    while !board.is_stopped() {
        made += 1;
        // Another assignment is another reader: librdkafka may still hand out what it had fetched for the old one.
        let by = format!("{name}.{made}");
        let consumer = new_consumer(board, &by);
        let places = board.live();
        assign(board, &consumer, &by, &places);
        while !board.is_stopped() && places == board.live() {
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => note(board, &by, &message),
                Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset))) => {
                    out_of_range(board, &consumer, &by, &places);
                    break;
                }
                Some(Err(_)) | None => {}
            }
        }
    }
}

/// librdkafka says that a position is gone, not which.
fn out_of_range(board: &Board, consumer: &BaseConsumer, by: &str, places: &[Place]) {
    let positions = consumer.position().map(|list| format!("{list:?}")).unwrap_or_default();
    let at = places.first().map(Place::name).unwrap_or_default();
    board.history.write(Event::OutOfRange { by: format!("{by}, one of {positions}"), at, offset: -1 });
}

/// Reads these from the beginning to their end, one after the other; what did not end in time stays out of the answer.
/// Blocks.
pub fn drain(board: &Board, name: &str, places: &[Place], limit: Duration) -> BTreeMap<Place, i64> {
    let consumer = new_consumer(board, name);
    let mut ends = BTreeMap::new();
    let until = Instant::now() + limit;
    for place in places {
        assign(board, &consumer, name, std::slice::from_ref(place));
        let mut end = 0;
        while Instant::now() < until {
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    note(board, name, &message);
                    end = message.offset() + 1;
                }
                Some(Err(KafkaError::PartitionEOF(partition))) if partition == place.partition => {
                    ends.insert(place.clone(), end);
                    break;
                }
                Some(Err(_)) | None => {}
            }
        }
    }
    ends
}
