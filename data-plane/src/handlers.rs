//! Request → handler → answer. One Kafka API a file: translate, ask the partitions or the quorum, translate back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater_wire::api::ApiKey;
use highwater_wire::error_code::ErrorCode;
use highwater_wire::request::{Request, RequestError, RequestHeader, request_limits};
use highwater_wire::response::{Response, unsupported_api_versions};
use tracing::error;

use crate::replica::message::Isolation;
use crate::server::answers::{AnswerBytes, Answers, Place};
use crate::server::connection::Waiting;

pub mod alter_configs;
pub mod api_versions;
mod broker_loggers;
mod configs;
pub mod context;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod elect_leaders;
pub mod fetch;
pub mod find_coordinator;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_groups;
pub mod list_offsets;
pub mod metadata;
mod named;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod sync_group;
pub mod unregister_broker;

use context::{Caller, Context};

/// What became of a request.
pub enum Handled {
    /// Answered, or its answer comes from elsewhere: the next one may be handled.
    Done,
    /// The next one is handled when this is finished.
    Later(Waiting),
}

/// What one connection's requests share.
pub struct Session {
    pub context: Arc<Context>,
    pub caller: Arc<Caller>,
    answers: Arc<Answers>,
    /// Name and version of the client's software, or the client id of its last request; for the log.
    client: String,
    fetches: fetch::ConnectionFetches,
    /// Requests handled so far.
    handled: usize,
}

/// Of one request in so many it is told how long it took until it had to wait: the clock is read once more for it.
const TIMED: usize = 16;

/// Where an answer goes.
pub struct Respond {
    answers: Arc<Answers>,
    place: Place,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    /// When the request had arrived.
    began: Instant,
}

impl Respond {
    /// Queues the answer; the connection, or whoever completes it, flushes.
    pub fn send(self, response: &Response) {
        let answer = match response.encode(self.version, self.correlation_id) {
            Ok(chunks) => AnswerBytes::Frame(chunks.into_vec()),
            Err(fault) => {
                error!(api = %response.api(), version = self.version, %fault, "an answer cannot be encoded; this is a bug");
                AnswerBytes::Close
            }
        };
        self.answers.metrics.answered(self.api, self.version, response.first_error(), self.began.elapsed());
        self.answers.put(self.place, answer);
    }

    /// acks=0: no answer, or the end of the connection (R46).
    pub fn send_nothing(self, failed: bool) {
        let error = if failed { ErrorCode::UnknownServerError } else { ErrorCode::None };
        self.answers.metrics.answered(self.api, self.version, error, self.began.elapsed());
        self.answers.put(self.place, if failed { AnswerBytes::Close } else { AnswerBytes::Nothing });
    }

    /// The version of the request.
    pub const fn version(&self) -> i16 {
        self.version
    }

    /// What must be flushed when the answer is queued.
    pub fn answers(&self) -> Arc<Answers> {
        self.answers.clone()
    }
}

impl Session {
    pub fn new(context: Arc<Context>, caller: Caller, answers: Arc<Answers>) -> Self {
        let fetches = fetch::ConnectionFetches::new(&context);
        Self { context, caller: Arc::new(caller), answers, client: String::new(), fetches, handled: 0 }
    }

    /// Who the peer says it is; for the log.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Handles one frame.
    ///
    /// # Errors
    /// The frame is no request that is served: close the connection.
    pub fn handle(&mut self, frame: bytes::Bytes) -> Result<Handled, RequestError> {
        let began = self.context.partitions.clock.precise();
        let (header, request) = match Request::decode(frame, request_limits()) {
            Ok(decoded) => decoded,
            Err(RequestError::UnknownApiVersions { correlation_id, .. }) => {
                let place = self.answers.reserve();
                let answer = unsupported_api_versions(correlation_id);
                let answer = answer.map_or(AnswerBytes::Close, |chunks| AnswerBytes::Frame(chunks.into_vec()));
                self.answers.put(place, answer);
                return Ok(Handled::Done);
            }
            Err(fault) => return Err(fault),
        };
        let api = header.api;
        let handled = self.dispatch(header, request, began);
        self.handled += 1;
        if self.handled.is_multiple_of(TIMED) && self.context.metrics.tells_local(api) {
            self.context.metrics.handled_here(api, began.elapsed());
        }
        Ok(handled)
    }

    fn dispatch(&mut self, header: RequestHeader, request: Request, began: Instant) -> Handled {
        let RequestHeader { api, version, correlation_id, client_id, .. } = header;
        let (answers, place) = (self.answers.clone(), self.answers.reserve());
        let respond = Respond { answers, place, api, version, correlation_id, began };
        if self.client.is_empty()
            && let Some(id) = &client_id
        {
            self.client = id.as_str().to_owned();
        }
        let (context, caller) = (&self.context, &self.caller);
        match request {
            Request::Produce(request) if produce::must_wait_for_opening(context, version, &request) => {
                let (context, caller) = (context.clone(), caller.clone());
                Handled::Later(Box::pin(async move {
                    produce::opened(&context, version, &request).await;
                    produce::handle(&context, &caller, respond, request);
                }))
            }
            Request::Produce(request) => {
                produce::handle(context, caller, respond, request);
                Handled::Done
            }
            Request::Fetch(request) => self.fetches.handle(context, caller, respond, request),
            Request::ApiVersions(request) => {
                if let Some(software) = api_versions::software(&request) {
                    self.client = software;
                }
                respond.send(&api_versions::handle(context, version).into());
                Handled::Done
            }
            Request::ListOffsets(request) => {
                respond.send(&list_offsets::handle(context, version, &request).into());
                Handled::Done
            }
            Request::OffsetForLeaderEpoch(request) => {
                respond.send(&offset_for_leader_epoch::handle(context, &request).into());
                Handled::Done
            }
            Request::DescribeProducers(request) => {
                respond.send(&describe_producers::handle(context, &request).into());
                Handled::Done
            }
            Request::FindCoordinator(request) => {
                let (context, caller) = (context.clone(), caller.clone());
                Handled::Later(Box::pin(async move {
                    respond.send(&find_coordinator::handle(&context, &caller, version, request).await.into());
                }))
            }
            Request::JoinGroup(request) => {
                let (context, caller) = (context.clone(), caller.clone());
                let client_id = client_id.map(|id| id.as_str().to_owned()).unwrap_or_default();
                Handled::Later(Box::pin(async move {
                    respond.send(&join_group::handle(&context, &caller, &client_id, version, request).await.into());
                }))
            }
            Request::SyncGroup(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&sync_group::handle(&context, version, request).await.into());
                }))
            }
            Request::Heartbeat(request) => {
                respond.send(&heartbeat::handle(context, &request).into());
                Handled::Done
            }
            Request::LeaveGroup(request) => {
                respond.send(&leave_group::handle(context, version, &request).into());
                Handled::Done
            }
            Request::OffsetCommit(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&offset_commit::handle(&context, version, request).await.into());
                }))
            }
            Request::OffsetFetch(request) => {
                respond.send(&offset_fetch::handle(context, version, request).into());
                Handled::Done
            }
            Request::OffsetDelete(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&offset_delete::handle(&context, request).await.into());
                }))
            }
            Request::DescribeGroups(request) => {
                respond.send(&describe_groups::handle(context, version, &request).into());
                Handled::Done
            }
            Request::ListGroups(request) => {
                respond.send(&list_groups::handle(context, version, &request).into());
                Handled::Done
            }
            Request::DeleteGroups(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&delete_groups::handle(&context, request).await.into());
                }))
            }
            Request::DescribeCluster(request) => {
                respond.send(&describe_cluster::handle(context, caller, version, &request).into());
                Handled::Done
            }
            Request::Metadata(request) => {
                let (context, caller) = (context.clone(), caller.clone());
                Handled::Later(Box::pin(async move {
                    respond.send(&metadata::handle(&context, &caller, version, request).await.into());
                }))
            }
            Request::InitProducerId(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&init_producer_id::handle(&context, &request).await.into());
                }))
            }
            Request::CreateTopics(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&create_topics::handle(&context, version, &request).await.into());
                }))
            }
            Request::DeleteTopics(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&delete_topics::handle(&context, version, &request).await.into());
                }))
            }
            Request::DeleteRecords(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&delete_records::handle(&context, request).await.into());
                }))
            }
            Request::DescribeConfigs(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&describe_configs::handle(&context, version, request).await.into());
                }))
            }
            Request::AlterConfigs(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&alter_configs::handle(&context, request).await.into());
                }))
            }
            Request::DescribeLogDirs(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&describe_log_dirs::handle(&context, version, request).await.into());
                }))
            }
            Request::CreatePartitions(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&create_partitions::handle(&context, request).await.into());
                }))
            }
            Request::ElectLeaders(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&elect_leaders::handle(&context, version, request).await.into());
                }))
            }
            Request::IncrementalAlterConfigs(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&incremental_alter_configs::handle(&context, request).await.into());
                }))
            }
            Request::DescribeQuorum(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&describe_quorum::handle(&context, version, request).await.into());
                }))
            }
            Request::UnregisterBroker(request) => {
                let context = context.clone();
                Handled::Later(Box::pin(async move {
                    respond.send(&unregister_broker::handle(&context, request).await.into());
                }))
            }
            Request::DescribeTopicPartitions(request) => {
                let (context, caller) = (context.clone(), caller.clone());
                Handled::Later(Box::pin(async move {
                    respond.send(&describe_topic_partitions::handle(&context, &caller, request).await.into());
                }))
            }
        }
    }

    /// The peer closed the connection, or it broke.
    pub fn peer_gone(&self, error: Option<&std::io::Error>, truncated: Option<highwater_wire::frame::FrameError>) {
        if let Some((broker, epoch)) = self.fetches.follower() {
            self.context.suspects.suspect(broker, epoch, self.context.partitions.clock.mono());
        }
        let caller = &self.caller;
        tracing::debug!(peer = %caller.peer, client = self.client, ?error, ?truncated, "connection closed by its peer");
    }

    /// A fetch that waits is answered now: the client has sent its next request, or the server stops.
    pub fn interrupt(&self) {
        self.fetches.wake();
    }

    /// The connection is gone.
    pub fn close(&mut self) {
        self.fetches.close(&self.context);
    }
}

/// `IsolationLevel` of the wire: 1 is read_committed.
pub(crate) const fn isolation(level: i8) -> Isolation {
    if level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}

/// A span of the wire, in milliseconds; negative ones are none.
pub(crate) fn millis(span: i32) -> Duration {
    Duration::from_millis(u64::try_from(span).unwrap_or(0))
}
