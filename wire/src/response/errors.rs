//! Which error an answer stands for: the one counter of a request has room for one.

use super::Response;
use crate::error_code::ErrorCode;

impl Response {
    /// The first error in it: its own, else that of the first part that failed; `None` when all went well.
    pub fn first_error(&self) -> ErrorCode {
        fn first(own: i16, parts: impl IntoIterator<Item = i16>) -> i16 {
            std::iter::once(own).chain(parts).find(|code| *code != 0).unwrap_or(0)
        }
        let code = match self {
            Self::Fetch(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions).map(|part| part.error);
                return std::iter::once(body.error).chain(parts).find(|e| *e != ErrorCode::None).unwrap_or(body.error);
            }
            Self::Produce(body) => {
                let parts = body.responses.iter().flat_map(|topic| &topic.partition_responses);
                first(0, parts.map(|part| part.error_code))
            }
            Self::ListOffsets(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(0, parts.map(|part| part.error_code))
            }
            Self::OffsetForLeaderEpoch(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(0, parts.map(|part| part.error_code))
            }
            Self::Metadata(body) => {
                let parts = body.topics.iter().flat_map(|topic| {
                    std::iter::once(topic.error_code).chain(topic.partitions.iter().map(|part| part.error_code))
                });
                first(body.error_code, parts)
            }
            Self::FindCoordinator(body) => first(body.error_code, body.coordinators.iter().map(|part| part.error_code)),
            Self::ApiVersions(body) => body.error_code,
            Self::CreateTopics(body) => first(0, body.topics.iter().map(|part| part.error_code)),
            Self::DeleteTopics(body) => first(0, body.responses.iter().map(|part| part.error_code)),
            Self::InitProducerId(body) => body.error_code,
            Self::DescribeCluster(body) => body.error_code,
            Self::DeleteRecords(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(0, parts.map(|part| part.error_code))
            }
            Self::DescribeConfigs(body) => first(0, body.results.iter().map(|part| part.error_code)),
            Self::AlterConfigs(body) => first(0, body.responses.iter().map(|part| part.error_code)),
            Self::DescribeLogDirs(body) => first(body.error_code, body.results.iter().map(|part| part.error_code)),
            Self::CreatePartitions(body) => first(0, body.results.iter().map(|part| part.error_code)),
            Self::ElectLeaders(body) => {
                let parts = body.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
                first(body.error_code, parts.map(|part| part.error_code))
            }
            Self::IncrementalAlterConfigs(body) => first(0, body.responses.iter().map(|part| part.error_code)),
            Self::DescribeQuorum(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(body.error_code, parts.map(|part| part.error_code))
            }
            Self::DescribeProducers(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(0, parts.map(|part| part.error_code))
            }
            Self::UnregisterBroker(body) => body.error_code,
            Self::DescribeTopicPartitions(body) => first(0, body.topics.iter().map(|part| part.error_code)),
            Self::OffsetCommit(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(0, parts.map(|part| part.error_code))
            }
            Self::OffsetFetch(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions).map(|part| part.error_code);
                let groups = body.groups.iter().flat_map(|group| {
                    let parts = group.topics.iter().flat_map(|topic| &topic.partitions);
                    std::iter::once(group.error_code).chain(parts.map(|part| part.error_code))
                });
                first(body.error_code, parts.chain(groups))
            }
            Self::JoinGroup(body) => body.error_code,
            Self::Heartbeat(body) => body.error_code,
            Self::SyncGroup(body) => body.error_code,
            Self::LeaveGroup(body) => first(body.error_code, body.members.iter().map(|part| part.error_code)),
            Self::DescribeGroups(body) => first(0, body.groups.iter().map(|part| part.error_code)),
            Self::ListGroups(body) => body.error_code,
            Self::DeleteGroups(body) => first(0, body.results.iter().map(|part| part.error_code)),
            Self::OffsetDelete(body) => {
                let parts = body.topics.iter().flat_map(|topic| &topic.partitions);
                first(body.error_code, parts.map(|part| part.error_code))
            }
        };
        ErrorCode::from_code(code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MetadataResponse, ProduceResponse, Response};
    use super::ErrorCode;
    use crate::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};

    #[test]
    fn the_first_part_that_failed_speaks_for_the_answer() {
        let part = |error_code: &i16| {
            let mut part = PartitionProduceResponse::default();
            part.error_code = *error_code;
            part
        };
        let topic = |codes: &[i16]| {
            let mut topic = TopicProduceResponse::default();
            topic.partition_responses = codes.iter().map(part).collect();
            topic
        };
        let answer = |topics: Vec<TopicProduceResponse>| {
            let mut answer = ProduceResponse::default();
            answer.responses = topics;
            Response::from(answer).first_error()
        };
        assert_eq!(answer(vec![topic(&[0, 0]), topic(&[0])]), ErrorCode::None);
        assert_eq!(answer(vec![topic(&[0, 6]), topic(&[19])]), ErrorCode::NotLeaderOrFollower);
        let mut refused = MetadataResponse::default();
        refused.error_code = 41;
        assert_eq!(Response::from(refused).first_error(), ErrorCode::NotController);
    }
}
