//! DeleteTopics (20, v1–6): by name, or by id from v6 on (R185). The name is free when it answers.

use futures::future::join_all;
use highwater_wire::{ErrorCode, TopicId};
use kafka_wire::delete_topics_response::DeletableTopicResult;
use kafka_wire::{DeleteTopicsRequest, DeleteTopicsResponse};
use kafka_wire_core::{StrBytes, Uuid};

use super::context::Context;
use super::create_topics::{explain, timeout};
use super::named::message;

/// One topic as named by the client.
struct Named {
    name: Option<StrBytes>,
    id: TopicId,
}

pub async fn handle(context: &Context, version: i16, request: &DeleteTopicsRequest) -> DeleteTopicsResponse {
    let named: Vec<Named> = if version >= 6 {
        let topics = request.topics.iter();
        topics
            .map(|topic| Named { name: topic.name.clone(), id: TopicId::from_bytes(topic.topic_id.to_bytes()) })
            .collect()
    } else {
        let zero = TopicId::from_bytes([0; 16]);
        request.topic_names.iter().map(|name| Named { name: Some(name.clone()), id: zero }).collect()
    };
    let deletions = named.into_iter().map(|named| async move {
        let result = delete(context, version, &named, timeout(request.timeout_ms)).await;
        let mut told = DeletableTopicResult::default();
        told.name = named.name;
        if version >= 6 {
            told.topic_id = Uuid::from_bytes(named.id.to_bytes());
        }
        match result {
            Ok((name, id)) => {
                told.name = Some(name);
                if version >= 6 {
                    told.topic_id = Uuid::from_bytes(id.to_bytes());
                }
            }
            Err((code, why)) => {
                told.error_code = code.code();
                if version >= 5 {
                    told.error_message = message(&why);
                }
            }
        }
        told
    });
    let mut response = DeleteTopicsResponse::default();
    response.responses = join_all(deletions).await;
    response
}

async fn delete(
    context: &Context,
    version: i16,
    named: &Named,
    timeout: std::time::Duration,
) -> Result<(StrBytes, TopicId), (ErrorCode, String)> {
    if !context.may_delete_topics(&context.image()) {
        let code = if version >= 3 { ErrorCode::TopicDeletionDisabled } else { ErrorCode::InvalidRequest };
        return Err((code, "delete.topic.enable is false on this broker".to_owned()));
    }
    let image = context.image();
    let topic = match &named.name {
        Some(name) if !named.id.is_zero() => {
            let why = format!("topic {:?} is named by name and by id {}: give one", name.as_str(), named.id);
            return Err((ErrorCode::InvalidRequest, why));
        }
        Some(name) => image
            .topic_named(name.as_str())
            .ok_or_else(|| (ErrorCode::UnknownTopicOrPartition, format!("there is no topic {:?}", name.as_str())))?,
        None => image
            .topics
            .get(&named.id)
            .ok_or_else(|| (ErrorCode::UnknownTopicId, format!("there is no topic with id {}", named.id)))?,
    };
    let deleted = context.quorum.delete_topic(topic.id, timeout).await;
    deleted.map_err(|error| (ErrorCode::from(&error), explain(&error)))?;
    Ok(((&*topic.name).into(), topic.id))
}
