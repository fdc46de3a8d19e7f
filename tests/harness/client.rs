//! A small Kafka client on `highwater_wire`: one connection, one request after the other, raw frames where a test wants
//! to send nonsense. It neither retries nor caches: what the broker said is what the test sees.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use highwater_wire::api::ApiKey;
use highwater_wire::batch::{BatchIter, RecordBatch};
use highwater_wire::frame::{FrameBuffer, FrameLimits};
use highwater_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use highwater_wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use highwater_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use highwater_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use highwater_wire::messages::list_offsets_response::ListOffsetsPartitionResponse;
use highwater_wire::messages::metadata_request::MetadataRequestTopic;
use highwater_wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use highwater_wire::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use highwater_wire::messages::offset_for_leader_epoch_response::EpochEndOffset;
use highwater_wire::messages::produce_response::PartitionProduceResponse;
use highwater_wire::produce::{ProducePartition, ProduceRequest, ProduceTopic};
use highwater_wire::request::{
    AlterConfigsRequest, ApiVersionsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest,
    DeleteRecordsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest, DescribeTopicPartitionsRequest,
    ElectLeadersRequest, FetchRequest, FindCoordinatorRequest, HeartbeatRequest, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest, SyncGroupRequest,
    UnregisterBrokerRequest,
};
use highwater_wire::response::{
    AlterConfigsResponse, ApiVersionsResponse, CreatePartitionsResponse, CreateTopicsResponse, DeleteGroupsResponse,
    DeleteRecordsResponse, DeleteTopicsResponse, DescribeClusterResponse, DescribeConfigsResponse,
    DescribeGroupsResponse, DescribeLogDirsResponse, DescribeProducersResponse, DescribeQuorumResponse,
    DescribeTopicPartitionsResponse, ElectLeadersResponse, FindCoordinatorResponse, HeartbeatResponse,
    IncrementalAlterConfigsResponse, InitProducerIdResponse, JoinGroupResponse, LeaveGroupResponse, ListGroupsResponse,
    ListOffsetsResponse, MetadataResponse, OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse,
    OffsetForLeaderEpochResponse, ProduceResponse, SyncGroupResponse, UnregisterBrokerResponse, response_limits,
};
use highwater_wire::{
    ErrorCode, FetchResponse, FetchedPartition, Offset, ProducerEpoch, ProducerId, Record, RecordBatchBuilder, Request,
    Response, StrBytes, Timestamp, TopicId,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long an answer may take before the test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Between two looks at an end that may not be told yet.
const PAUSE: Duration = Duration::from_millis(10);

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request and the answer that belongs to it.
pub trait Question: Into<Request> {
    type Answer: TryFromResponse;
}

/// The body of one API's answer.
pub trait TryFromResponse: Sized {
    /// `None`: the answer of another API.
    fn try_from_response(response: Response) -> Option<Self>;
}

macro_rules! questions {
    ($($api:ident: $request:ty => $answer:ty,)*) => {
        $(impl Question for $request {
            type Answer = $answer;
        }

        impl TryFromResponse for $answer {
            fn try_from_response(response: Response) -> Option<Self> {
                match response { Response::$api(answer) => Some(answer), _ => None }
            }
        })*
    };
}

questions! {
    Produce: ProduceRequest => ProduceResponse,
    Fetch: FetchRequest => FetchResponse,
    ListOffsets: ListOffsetsRequest => ListOffsetsResponse,
    Metadata: MetadataRequest => MetadataResponse,
    FindCoordinator: FindCoordinatorRequest => FindCoordinatorResponse,
    ApiVersions: ApiVersionsRequest => ApiVersionsResponse,
    CreateTopics: CreateTopicsRequest => CreateTopicsResponse,
    DeleteTopics: DeleteTopicsRequest => DeleteTopicsResponse,
    InitProducerId: InitProducerIdRequest => InitProducerIdResponse,
    OffsetForLeaderEpoch: OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse,
    DescribeCluster: DescribeClusterRequest => DescribeClusterResponse,
    DeleteRecords: DeleteRecordsRequest => DeleteRecordsResponse,
    DescribeConfigs: DescribeConfigsRequest => DescribeConfigsResponse,
    AlterConfigs: AlterConfigsRequest => AlterConfigsResponse,
    DescribeLogDirs: DescribeLogDirsRequest => DescribeLogDirsResponse,
    CreatePartitions: CreatePartitionsRequest => CreatePartitionsResponse,
    ElectLeaders: ElectLeadersRequest => ElectLeadersResponse,
    IncrementalAlterConfigs: IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse,
    DescribeQuorum: DescribeQuorumRequest => DescribeQuorumResponse,
    DescribeProducers: DescribeProducersRequest => DescribeProducersResponse,
    UnregisterBroker: UnregisterBrokerRequest => UnregisterBrokerResponse,
    DescribeTopicPartitions: DescribeTopicPartitionsRequest => DescribeTopicPartitionsResponse,
    OffsetCommit: OffsetCommitRequest => OffsetCommitResponse,
    OffsetFetch: OffsetFetchRequest => OffsetFetchResponse,
    JoinGroup: JoinGroupRequest => JoinGroupResponse,
    SyncGroup: SyncGroupRequest => SyncGroupResponse,
    Heartbeat: HeartbeatRequest => HeartbeatResponse,
    LeaveGroup: LeaveGroupRequest => LeaveGroupResponse,
    DescribeGroups: DescribeGroupsRequest => DescribeGroupsResponse,
    ListGroups: ListGroupsRequest => ListGroupsResponse,
    DeleteGroups: DeleteGroupsRequest => DeleteGroupsResponse,
    OffsetDelete: OffsetDeleteRequest => OffsetDeleteResponse,
}

/// One connection to one broker.
pub struct Client {
    stream: TcpStream,
    frames: FrameBuffer,
    correlation_id: i32,
    /// Sent with every request.
    pub client_id: StrBytes,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = within(TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        let frames = FrameBuffer::new(FrameLimits::same(ANSWER_BYTES_MAX));
        Ok(Self { stream, frames, correlation_id: 0, client_id: "highwater-tests".into() })
    }

    /// Sends a request and returns its correlation id; several may be on their way.
    pub async fn send(&mut self, version: i16, request: &Request) -> io::Result<i32> {
        self.correlation_id += 1;
        let frame = request.encode(version, self.correlation_id, Some(&self.client_id)).map_err(invalid)?;
        self.send_bytes(&frame.to_bytes()).await?;
        Ok(self.correlation_id)
    }

    /// The next answer, which must be one of this API and version.
    pub async fn receive(&mut self, api: ApiKey, version: i16) -> io::Result<(i32, Response)> {
        let frame = self.receive_frame().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Response::decode(api, version, frame, response_limits()).map_err(invalid)
    }

    /// Asks and waits for the answer. `UnexpectedEof`: the broker closed the connection instead.
    pub async fn ask<Q: Question>(&mut self, version: i16, question: Q) -> io::Result<Q::Answer> {
        let request: Request = question.into();
        let sent = self.send(version, &request).await?;
        let (correlation_id, response) = self.receive(request.api(), version).await?;
        if correlation_id != sent {
            return Err(invalid(format!("the answer to {correlation_id} came where {sent} was asked")));
        }
        Q::Answer::try_from_response(response).ok_or_else(|| invalid("an answer of another API"))
    }

    /// Bytes as they are.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        within(self.stream.write_all(bytes)).await
    }

    /// The next frame without its length field; `None`: the broker closed the connection.
    pub async fn receive_frame(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(frame) = self.frames.pop().map_err(invalid)? {
                return Ok(Some(frame));
            }
            match within(self.stream.read_buf(self.frames.read_space())).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A broker that closes with our bytes unread resets.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the broker closes the connection; an error if it answers instead or does nothing.
    pub async fn closed(&mut self) -> io::Result<()> {
        match self.receive_frame().await? {
            None => Ok(()),
            Some(frame) => Err(invalid(format!("an answer of {} bytes where the end was expected", frame.len()))),
        }
    }

    /// Ends our side, so that a frame that was begun stays incomplete.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    /// One batch to one partition by name (version 9).
    pub async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        acks: i16,
        batch: Bytes,
    ) -> io::Result<PartitionProduceResponse> {
        self.produce_as(9, produce_request(topic, partition, acks, Some(batch))).await
    }

    /// A Produce request for one partition, in a version; the answer of that partition.
    pub async fn produce_as(&mut self, version: i16, request: ProduceRequest) -> io::Result<PartitionProduceResponse> {
        let answer = self.ask(version, request).await?;
        only(answer.responses.into_iter().flat_map(|topic| topic.partition_responses))
    }

    /// Reads one partition from `offset` without a session, as a consumer (version 12); waits up to `wait` for data.
    pub async fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
        wait: Duration,
    ) -> io::Result<FetchedPartition> {
        let mut request = fetch_request(vec![fetch_topic(topic, vec![fetch_partition(partition, offset)])]);
        request.max_wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        let answer = self.ask(12, request).await?;
        only(answer.topics.into_iter().flat_map(|topic| topic.partitions))
    }

    /// The first offset, or the high watermark once the leader may tell it.
    ///
    /// A leader that has just been elected may be behind what its predecessor acknowledged, and says so
    /// (`OFFSET_NOT_AVAILABLE`) until its followers have fetched; whoever reads before that reads less.
    async fn edge(&mut self, topic: &str, partition: i32, which: i64) -> io::Result<i64> {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = self.list_offset(topic, partition, which).await?;
            match ErrorCode::from_code(told.error_code) {
                ErrorCode::None => return Ok(told.offset),
                ErrorCode::OffsetNotAvailable if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                error => return Err(invalid(format!("ListOffsets for {topic}-{partition}: {error:?}"))),
            }
        }
    }

    /// All records of a partition that were ever acknowledged, from the log start to the high watermark.
    pub async fn read_all(&mut self, topic: &str, partition: i32) -> io::Result<Vec<Record>> {
        self.edge(topic, partition, LATEST).await?;
        let mut next = self.edge(topic, partition, EARLIEST).await?;
        let mut records: Vec<Record> = Vec::new();
        loop {
            let fetched = self.fetch(topic, partition, next, Duration::ZERO).await?;
            if fetched.error.code() != 0 {
                return Err(invalid(format!("Fetch of {topic}-{partition} at {next}: {:?}", fetched.error)));
            }
            if fetched.records.is_empty() {
                return Ok(records);
            }
            for batch in BatchIter::new(fetched.records) {
                let batch = batch.map_err(invalid)?;
                batch.check_crc().map_err(invalid)?;
                for record in batch.records().map_err(invalid)? {
                    let record = record.map_err(invalid)?;
                    if record.offset.0 >= next {
                        records.push(record);
                    }
                }
                // Compaction leaves batches without their last records, or without any.
                next = batch.next_offset().0;
            }
        }
    }

    /// ListOffsets for one partition as a consumer (version 8): [`EARLIEST`], [`LATEST`], [`MAX_TIMESTAMP`] or a time.
    pub async fn list_offset(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> io::Result<ListOffsetsPartitionResponse> {
        let answer = self.ask(8, list_offsets_request(topic, partition, timestamp, -1)).await?;
        only(answer.topics.into_iter().flat_map(|topic| topic.partitions))
    }

    /// DeleteRecords for one partition (version 2): the low watermark, or the error. `before` −1: up to the watermark.
    pub async fn delete_records(
        &mut self,
        topic: &str,
        partition: i32,
        before: i64,
    ) -> io::Result<Result<i64, ErrorCode>> {
        let mut row = DeleteRecordsPartition::default();
        row.partition_index = partition;
        row.offset = before;
        let mut named = DeleteRecordsTopic::default();
        named.name = topic.into();
        named.partitions = vec![row];
        let mut request = DeleteRecordsRequest::default();
        request.topics = vec![named];
        request.timeout_ms = 20_000;
        let answer = self.ask(2, request).await?;
        let told = only(answer.topics.into_iter().flat_map(|topic| topic.partitions))?;
        match told.error_code {
            0 => Ok(Ok(told.low_watermark)),
            code if told.low_watermark == -1 => Ok(Err(ErrorCode::from_code(code))),
            code => Err(invalid(format!("error {code} beside low watermark {}", told.low_watermark))),
        }
    }

    /// Has the topic of the groups made, if it is not there; the error code (FindCoordinator, version 4).
    pub async fn find_coordinator(&mut self, group: &str) -> io::Result<i16> {
        let mut request = FindCoordinatorRequest::default();
        request.coordinator_keys = vec![group.into()];
        let answer = self.ask(4, request).await?;
        only(answer.coordinators.into_iter()).map(|told| told.error_code)
    }

    /// Commits a position for a group that nobody is in (OffsetCommit, version 8); the error code.
    pub async fn commit_offset(&mut self, group: &str, topic: &str, partition: i32, offset: i64) -> io::Result<i16> {
        let mut row = OffsetCommitRequestPartition::default();
        row.partition_index = partition;
        row.committed_offset = offset;
        row.committed_leader_epoch = -1;
        row.committed_metadata = Some("".into());
        let mut named = OffsetCommitRequestTopic::default();
        named.name = topic.into();
        named.partitions = vec![row];
        let mut request = OffsetCommitRequest::default();
        request.group_id = group.into();
        request.generation_id_or_member_epoch = -1;
        request.topics = vec![named];
        let answer = self.ask(8, request).await?;
        only(answer.topics.into_iter().flat_map(|topic| topic.partitions)).map(|told| told.error_code)
    }

    /// Where the records of an epoch end, as the leader knows it (version 4).
    pub async fn epoch_end(&mut self, topic: &str, partition: i32, epoch: i32) -> io::Result<EpochEndOffset> {
        let mut asked = OffsetForLeaderPartition::default();
        asked.partition = partition;
        asked.current_leader_epoch = -1;
        asked.leader_epoch = epoch;
        let mut named = OffsetForLeaderTopic::default();
        named.topic = topic.into();
        named.partitions = vec![asked];
        let mut request = OffsetForLeaderEpochRequest::default();
        request.replica_id = -1;
        request.topics = vec![named];
        let answer = self.ask(4, request).await?;
        only(answer.topics.into_iter().flat_map(|topic| topic.partitions))
    }

    /// Metadata of one topic, never creating it (version 12).
    pub async fn metadata(&mut self, topic: &str) -> io::Result<MetadataResponse> {
        let mut named = MetadataRequestTopic::default();
        named.name = Some(topic.into());
        let mut request = MetadataRequest::default();
        request.topics = Some(vec![named]);
        request.allow_auto_topic_creation = false;
        self.ask(12, request).await
    }

    /// A fresh producer id and its epoch (version 4).
    pub async fn init_producer_id(&mut self) -> io::Result<(ProducerId, ProducerEpoch)> {
        let mut request = InitProducerIdRequest::default();
        request.transactional_id = None;
        request.transaction_timeout_ms = 60_000;
        request.producer_id = -1;
        request.producer_epoch = -1;
        let answer = self.ask(4, request).await?;
        match (answer.error_code, ProducerEpoch::from_wire(answer.producer_epoch)) {
            (0, Some(epoch)) => Ok((ProducerId(answer.producer_id), epoch)),
            (code, _) => Err(invalid(format!("InitProducerId: error {code}"))),
        }
    }

    /// CreateTopics for one topic (version 7); the error code and message.
    pub async fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        replication_factor: i16,
        configs: &[(&str, &str)],
    ) -> io::Result<(i16, Option<String>)> {
        let mut topic = CreatableTopic::default();
        topic.name = name.into();
        topic.num_partitions = partitions;
        topic.replication_factor = replication_factor;
        for (key, value) in configs {
            let mut config = CreatableTopicConfig::default();
            config.name = (*key).into();
            config.value = Some((*value).into());
            topic.configs.push(config);
        }
        let mut request = CreateTopicsRequest::default();
        request.topics = vec![topic];
        request.timeout_ms = 10_000;
        let answer = self.ask(7, request).await?;
        let told = only(answer.topics.into_iter())?;
        Ok((told.error_code, told.error_message.map(|why| why.as_str().to_owned())))
    }

    /// DeleteTopics for one topic by name (version 5); the error code.
    pub async fn delete_topic(&mut self, name: &str) -> io::Result<i16> {
        let mut request = DeleteTopicsRequest::default();
        request.topic_names = vec![name.into()];
        request.timeout_ms = 10_000;
        let answer = self.ask(5, request).await?;
        Ok(only(answer.responses.into_iter())?.error_code)
    }
}

/// ListOffsets: where the log begins.
pub const EARLIEST: i64 = -2;
/// ListOffsets: the high watermark.
pub const LATEST: i64 = -1;
/// ListOffsets: the record with the greatest timestamp.
pub const MAX_TIMESTAMP: i64 = -3;

/// A batch of these values, all with the same time, not compressed.
pub fn batch(timestamp: i64, values: &[&str]) -> Bytes {
    build(RecordBatchBuilder::new(), timestamp, values).into_bytes()
}

/// The same from an idempotent producer.
pub fn idempotent_batch(
    producer: (ProducerId, ProducerEpoch),
    sequence: i32,
    timestamp: i64,
    values: &[&str],
) -> Bytes {
    build(RecordBatchBuilder::new().producer(producer.0, producer.1, sequence), timestamp, values).into_bytes()
}

fn build(mut builder: RecordBatchBuilder, timestamp: i64, values: &[&str]) -> RecordBatch {
    for value in values {
        builder.push(&Record::new(Timestamp(timestamp), None, Some(value.as_bytes())));
    }
    builder.build()
}

/// One partition of one topic by name; waits up to ten seconds for the replicas.
pub fn produce_request(topic: &str, partition: i32, acks: i16, records: Option<Bytes>) -> ProduceRequest {
    ProduceRequest {
        transactional_id: None,
        acks,
        timeout_ms: 10_000,
        topics: vec![ProduceTopic {
            name: topic.into(),
            id: TopicId::from_bytes([0; 16]),
            partitions: vec![ProducePartition { index: partition, records }],
        }],
    }
}

/// A consumer's fetch without a session that does not wait.
pub fn fetch_request(topics: Vec<FetchTopic>) -> FetchRequest {
    let mut request = FetchRequest::default();
    request.replica_id = -1;
    request.max_wait_ms = 0;
    request.min_bytes = 1;
    request.max_bytes = 50 << 20;
    request.session_id = 0;
    request.session_epoch = -1;
    request.topics = topics;
    request
}

/// A topic of a fetch, by name.
pub fn fetch_topic(name: &str, partitions: Vec<FetchPartition>) -> FetchTopic {
    let mut topic = FetchTopic::default();
    topic.topic = name.into();
    topic.partitions = partitions;
    topic
}

/// A partition of a fetch, with no epoch to check.
pub fn fetch_partition(partition: i32, offset: i64) -> FetchPartition {
    let mut asked = FetchPartition::default();
    asked.partition = partition;
    asked.current_leader_epoch = -1;
    asked.fetch_offset = offset;
    asked.last_fetched_epoch = -1;
    asked.log_start_offset = -1;
    asked.partition_max_bytes = 10 << 20;
    asked
}

/// ListOffsets for one partition with an epoch to check (−1: none).
pub fn list_offsets_request(topic: &str, partition: i32, timestamp: i64, leader_epoch: i32) -> ListOffsetsRequest {
    let mut asked = ListOffsetsPartition::default();
    asked.partition_index = partition;
    asked.current_leader_epoch = leader_epoch;
    asked.timestamp = timestamp;
    let mut named = ListOffsetsTopic::default();
    named.name = topic.into();
    named.partitions = vec![asked];
    let mut request = ListOffsetsRequest::default();
    request.replica_id = -1;
    request.topics = vec![named];
    request
}

/// Offset and value of each record, for comparing.
pub fn contents(records: &[Record]) -> Vec<(i64, String)> {
    let text = |record: &Record| String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
    records.iter().map(|record| (record.offset.0, text(record))).collect()
}

/// The high watermark of a fetched partition, −1 for none.
pub fn watermark(fetched: &FetchedPartition) -> i64 {
    Offset::to_wire(fetched.high_watermark)
}

fn only<T>(mut items: impl Iterator<Item = T>) -> io::Result<T> {
    match (items.next(), items.next()) {
        (Some(item), None) => Ok(item),
        (None, _) => Err(invalid("the answer names no partition")),
        (Some(_), Some(_)) => Err(invalid("the answer names more than was asked")),
    }
}

fn invalid(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

async fn within<T>(io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, io).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("the broker did nothing for {PATIENCE:?}"))),
    }
}
