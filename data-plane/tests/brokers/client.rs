//! A small Kafka client: one connection, one request after the other, the shipped codec facing the other way.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use highwater_wire::batch::RecordBatch;
use highwater_wire::fetch::{FetchResponse, FetchedPartition};
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::produce::{ProducePartition, ProduceRequest, ProduceTopic};
use highwater_wire::records::RecordBatchBuilder;
use highwater_wire::request::{CreateTopicsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest, Request};
use highwater_wire::response::{MetadataResponse, Response, response_limits};
use highwater_wire::{ErrorCode, Timestamp, TopicId};
use kafka_wire::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_wire::fetch_request::{FetchPartition, FetchTopic};
use kafka_wire::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_wire::metadata_request::MetadataRequestTopic;
use kafka_wire::produce_response::PartitionProduceResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct Client {
    stream: TcpStream,
    frames: FrameBuffer,
    next: i32,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, frames: FrameBuffer::new(FrameLimits::same(1 << 30)), next: 0 }
    }

    /// Sends without waiting; gives the correlation id.
    pub async fn send(&mut self, version: i16, request: impl Into<Request>) -> i32 {
        let id = self.next;
        self.next += 1;
        let frame = request.into().encode(version, id, Some(&"test".into())).unwrap();
        self.stream.write_all(&frame.to_bytes()).await.unwrap();
        id
    }

    /// The next answer; `None`: the broker closed the connection.
    pub async fn receive(&mut self) -> Option<bytes::Bytes> {
        loop {
            if let Some(frame) = self.frames.pop().unwrap() {
                return Some(frame);
            }
            match self.stream.read_buf(self.frames.read_space()).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub async fn call(&mut self, version: i16, request: impl Into<Request>) -> Response {
        let request = request.into();
        let api = request.api();
        let id = self.send(version, request).await;
        let frame = self.receive().await.expect("an answer, not the end of the connection");
        let (answered, response) = Response::decode(api, version, frame, response_limits()).unwrap();
        assert_eq!(answered, id, "answers come in request order");
        response
    }

    /// Metadata v12 of some topics.
    pub async fn metadata(&mut self, topics: &[&str], create: bool) -> MetadataResponse {
        let mut request = MetadataRequest::default();
        request.allow_auto_topic_creation = create;
        request.topics = Some(
            topics
                .iter()
                .map(|name| {
                    let mut topic = MetadataRequestTopic::default();
                    topic.name = Some((*name).into());
                    topic
                })
                .collect(),
        );
        match self.call(12, request).await {
            Response::Metadata(metadata) => metadata,
            other => panic!("{other:?}"),
        }
    }

    /// CreateTopics v7; the topic's id.
    pub async fn create(&mut self, name: &str, partitions: i32, factor: i16, configs: &[(&str, &str)]) -> TopicId {
        let mut topic = CreatableTopic::default();
        topic.name = name.into();
        topic.num_partitions = partitions;
        topic.replication_factor = factor;
        for (key, value) in configs {
            let mut config = CreatableTopicConfig::default();
            config.name = (*key).into();
            config.value = Some((*value).into());
            topic.configs.push(config);
        }
        let mut request = CreateTopicsRequest::default();
        request.timeout_ms = 10_000;
        request.topics.push(topic);
        match self.call(7, request).await {
            Response::CreateTopics(response) => {
                let topic = &response.topics[0];
                assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
                topic.topic_id.into()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Produce v9 of one batch.
    pub async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batch: RecordBatch,
    ) -> PartitionProduceResponse {
        match self.call(9, produce(topic, partition, acks, batch)).await {
            Response::Produce(response) => response.responses[0].partition_responses[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Produces one record with acks=all as soon as the broker knows that it leads; the record's offset.
    pub async fn produce_until_led(&mut self, topic: &str, partition: i32, value: &str) -> i64 {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let told = self.produce(topic, partition, -1, batch(&[value])).await;
            let error = ErrorCode::from_code(told.error_code);
            if error == ErrorCode::None {
                return told.base_offset;
            }
            assert!(error.is_retriable() && Instant::now() < deadline, "{error}: {:?}", told.error_message);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Fetch v13 of one partition, without a session, as a consumer.
    pub async fn fetch(&mut self, topic: TopicId, partition: i32, offset: i64, wait_ms: i32) -> FetchedPartition {
        let mut response = self.fetch_all(fetch(topic, &[(partition, offset)], wait_ms)).await;
        assert_eq!(response.error, ErrorCode::None);
        response.topics.remove(0).partitions.remove(0)
    }

    pub async fn fetch_all(&mut self, request: FetchRequest) -> FetchResponse {
        match self.call(13, request).await {
            Response::Fetch(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// ListOffsets v7 of one partition: (error, offset).
    pub async fn list_offset(&mut self, topic: &str, partition: i32, timestamp: i64) -> (ErrorCode, i64) {
        let mut asked = ListOffsetsPartition::default();
        asked.partition_index = partition;
        asked.current_leader_epoch = -1;
        asked.timestamp = timestamp;
        let mut named = ListOffsetsTopic::default();
        named.name = topic.into();
        named.partitions.push(asked);
        let mut request = ListOffsetsRequest::default();
        request.replica_id = -1;
        request.topics.push(named);
        match self.call(7, request).await {
            Response::ListOffsets(response) => {
                let told = &response.topics[0].partitions[0];
                (ErrorCode::from_code(told.error_code), told.offset)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A batch of text records, created now.
pub fn batch(values: &[&str]) -> RecordBatch {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let mut builder = RecordBatchBuilder::new();
    for value in values {
        builder = builder.value(Timestamp(i64::try_from(now).unwrap()), value.as_bytes());
    }
    builder.build()
}

pub fn produce(topic: &str, partition: i32, acks: i16, batch: RecordBatch) -> ProduceRequest {
    let partition = ProducePartition { index: partition, records: Some(batch.into_bytes()) };
    let topic = ProduceTopic { name: topic.into(), id: TopicId::from_bytes([0; 16]), partitions: vec![partition] };
    ProduceRequest { transactional_id: None, acks, timeout_ms: 5_000, topics: vec![topic] }
}

pub fn fetch(topic: TopicId, partitions: &[(i32, i64)], wait_ms: i32) -> FetchRequest {
    let mut asked = FetchTopic::default();
    asked.topic_id = topic.into();
    for (partition, offset) in partitions {
        let mut part = FetchPartition::default();
        part.partition = *partition;
        part.current_leader_epoch = -1;
        part.fetch_offset = *offset;
        part.last_fetched_epoch = -1;
        part.log_start_offset = -1;
        part.partition_max_bytes = 1 << 20;
        asked.partitions.push(part);
    }
    let mut request = FetchRequest::default();
    request.replica_id = -1;
    request.max_wait_ms = wait_ms;
    request.min_bytes = 1;
    request.max_bytes = 50 << 20;
    request.session_id = 0;
    request.session_epoch = -1;
    request.topics.push(asked);
    request
}

/// The values of all records in an answer.
pub fn values(partition: &FetchedPartition) -> Vec<String> {
    let mut values = Vec::new();
    for batch in highwater_wire::batch::BatchIter::new(partition.records.clone()) {
        for record in batch.unwrap().records().unwrap() {
            values.push(String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap());
        }
    }
    values
}
