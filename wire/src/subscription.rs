//! What a consumer says of itself when it joins a group, the topics it reads, and what it is given by the leader of the group: the
//! consumer protocol inside JoinGroup and SyncGroup.
//!
//! Every version begins alike, and only that beginning is read, so that newer ones are understood too.

use bytes::Buf as _;

/// The topics subscribed to; `None`: this is no subscription.
pub fn topics(metadata: &[u8]) -> Option<Vec<String>> {
    let mut rest = metadata;
    let _version = rest.try_get_i16().ok().filter(|version| *version >= 0)?;
    let count = usize::try_from(rest.try_get_i32().ok()?).ok()?;
    // Each takes two bytes at least.
    if count > rest.len() / 2 {
        return None;
    }
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        let length = usize::try_from(rest.try_get_i16().ok()?).ok()?;
        let (name, after) = rest.split_at_checked(length)?;
        topics.push(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(topics)
}

/// The partitions that a member was given, by topic; `None`: this is no assignment of consumers.
pub fn assigned(assignment: &[u8]) -> Option<Vec<(String, Vec<i32>)>> {
    let mut rest = assignment;
    let _version = rest.try_get_i16().ok().filter(|version| *version >= 0)?;
    let count = usize::try_from(rest.try_get_i32().ok()?).ok()?;
    // Each topic takes six bytes at least, each partition four.
    if count > rest.len() / 6 {
        return None;
    }
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        let length = usize::try_from(rest.try_get_i16().ok()?).ok()?;
        let (name, after) = rest.split_at_checked(length)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        rest = after;
        let count = usize::try_from(rest.try_get_i32().ok()?).ok().filter(|count| *count <= rest.len() / 4)?;
        let partitions: Result<Vec<i32>, _> = (0..count).map(|_| rest.try_get_i32()).collect();
        topics.push((name, partitions.ok()?));
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_from_every_version_and_from_nothing_else() {
        let body = [0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 0xff, 0xff, 0xff, 0xff];
        for version in [0u8, 3, 9] {
            let bytes = [&[0, version][..], &body].concat();
            assert_eq!(topics(&bytes), Some(vec!["a".to_owned(), "bc".to_owned()]));
        }
        assert_eq!(topics(&[0, 0, 0, 0, 0, 0]), Some(vec![]));
        for wrong in [
            &[][..],
            &[0],
            &[0, 0],
            &[0, 0, 0x7f, 0xff, 0xff, 0xff],
            &[0, 0, 0, 0, 0, 1, 0, 9, b'a'],
            &[0xff, 0xff, 0, 0, 0, 0],
        ] {
            assert_eq!(topics(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_a_member_was_given_is_read_and_nothing_else() {
        let given = [0, 1, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(assigned(&given), Some(vec![("a".to_owned(), vec![5, 9])]));
        assert_eq!(assigned(&[0, 0, 0, 0, 0, 0]), Some(vec![]));
        for end in 0..given.len() - 4 {
            assert_eq!(assigned(&given[..end]), None, "{end} bytes of it");
        }
        assert_eq!(assigned(&[0, 0, 0, 0, 0, 1, 0, 0, 0x7f, 0xff, 0xff, 0xff]), None);
    }
}
