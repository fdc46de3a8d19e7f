//! What a request names – topics, resources – each answered once, and what a person is told of a refusal.

use std::collections::BTreeMap;
use std::future::Future;

use futures::future::join_all;
use highwater_wire::ErrorCode;
use highwater_wire::request::StrBytes;

/// What is answered instead of a result.
pub(super) type Fault = (ErrorCode, String);

/// Bytes of a message that are told. Strings of the old versions end at 32,767 bytes, and nobody reads more than this.
const MESSAGE_BYTES_MAX: usize = 4_096;

/// Handles each thing that a request names, all of them side by side; one that is refused does not touch the others.
/// What is named more than once is answered once, with 42, and not done. `name`: tells the things apart, and stands in
/// that answer.
pub(super) async fn each_once<'a, R, T, F>(
    asked: &'a [R],
    name: impl Fn(&'a R) -> String,
    handle: impl Fn(&'a R) -> F,
) -> Vec<(&'a R, Result<T, Fault>)>
where
    F: Future<Output = Result<T, Fault>>,
{
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for one in asked {
        *times.entry(name(one)).or_default() += 1;
    }
    let mut handled = Vec::new();
    for one in asked {
        // Taken away with the first answer.
        let Some((name, times)) = times.remove_entry(&name(one)) else { continue };
        let handling = (times == 1).then(|| handle(one));
        handled.push(async move {
            let twice = || (ErrorCode::InvalidRequest, format!("{name} is named twice in one request"));
            let result = match handling {
                Some(handling) => handling.await,
                None => Err(twice()),
            };
            (one, result)
        });
    }
    join_all(handled).await
}

/// The message beside an error, cut off where it becomes too long to be read or sent.
pub(super) fn message(why: &str) -> Option<StrBytes> {
    let (shown, rest) = why.split_at(why.floor_char_boundary(MESSAGE_BYTES_MAX));
    Some(if rest.is_empty() { why.to_owned() } else { format!("{shown}…") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_named_twice_is_refused_once_and_the_others_are_handled_in_order() {
        let handle = |one: &&'static str| std::future::ready(Ok::<_, Fault>(one.len()));
        let told = each_once(&["a", "bb", "a", "ccc", "a"], |one| (*one).to_owned(), handle).await;
        let twice = (ErrorCode::InvalidRequest, "a is named twice in one request".to_owned());
        assert_eq!(told, [(&"a", Err(twice)), (&"bb", Ok(2)), (&"ccc", Ok(3))]);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(message("short").unwrap().as_str(), "short");
        let long = "ä".repeat(MESSAGE_BYTES_MAX);
        let told = message(&long).unwrap();
        assert_eq!(told.as_str(), format!("{}…", "ä".repeat(MESSAGE_BYTES_MAX / 2)));
    }
}
