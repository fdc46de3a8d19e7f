//! What each request under way asked for. A session tells its server only what changes, so an answer has to be laid beside what
//! its own request asked, not beside what was asked last (R152). Pure.

use std::collections::{BTreeMap, VecDeque};

/// By partition (`K`), from where it is fetched (`P`).
#[derive(Debug)]
pub struct Questions<K, P> {
    /// What the server knows us to ask, as of the last request sent.
    last: BTreeMap<K, P>,
    /// Of each request under way, oldest first: what it asked, where a later one has asked something else since.
    replaced: VecDeque<BTreeMap<K, P>>,
}

impl<K, P> Default for Questions<K, P> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), replaced: VecDeque::new() }
    }
}

impl<K: Ord + Copy, P: Copy> Questions<K, P> {
    /// A request is sent that asks these anew, or from elsewhere, and those no more.
    pub fn sent(&mut self, asked: &BTreeMap<K, P>, dropped: &[K]) {
        for at in asked.keys().chain(dropped) {
            if let (Some(before), Some(newest)) = (self.last.get(at), self.replaced.back_mut()) {
                newest.entry(*at).or_insert(*before);
            }
        }
        for at in dropped {
            self.last.remove(at);
        }
        self.last.extend(asked.iter().map(|(at, point)| (*at, *point)));
        self.replaced.push_back(BTreeMap::new());
    }

    /// The oldest request is answered; see [`Self::of`].
    pub fn answered(&mut self) -> Answered<K, P> {
        Answered(self.replaced.pop_front().unwrap_or_default())
    }

    /// From where that request fetched this partition; `None`: nobody asks for it. (What only a later request asks for cannot be in
    /// its answer.)
    pub fn of(&self, answered: &Answered<K, P>, at: &K) -> Option<P> {
        answered.0.get(at).or_else(|| self.last.get(at)).copied()
    }

    /// The session is over, and with it all that was under way.
    pub fn clear(&mut self) {
        self.last.clear();
        self.replaced.clear();
    }
}

/// The request that is answered.
pub struct Answered<K, P>(BTreeMap<K, P>);

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(asked: &mut Questions<u8, u8>, points: &[(u8, u8)], dropped: &[u8]) {
        asked.sent(&points.iter().copied().collect(), dropped);
    }

    fn answered(asked: &mut Questions<u8, u8>) -> [Option<u8>; 3] {
        let answered = asked.answered();
        [0, 1, 2].map(|at| asked.of(&answered, &at))
    }

    #[test]
    fn an_answer_is_laid_beside_what_its_own_request_asked() {
        let mut asked = Questions::default();
        sent(&mut asked, &[(0, 10), (1, 11)], &[]);
        // While it is under way: another point, one dropped, one new.
        sent(&mut asked, &[(0, 20), (2, 22)], &[1]);
        assert_eq!(answered(&mut asked)[..2], [Some(10), Some(11)]);
        assert_eq!(answered(&mut asked), [Some(20), None, Some(22)]);
        sent(&mut asked, &[(0, 30)], &[]);
        assert_eq!(answered(&mut asked), [Some(30), None, Some(22)], "what did not change is still asked");
    }

    #[test]
    fn what_is_asked_twice_while_an_answer_is_out_keeps_what_came_first() {
        let mut asked = Questions::default();
        sent(&mut asked, &[(0, 10)], &[]);
        sent(&mut asked, &[(0, 20)], &[]);
        assert_eq!(answered(&mut asked)[0], Some(10));
        sent(&mut asked, &[(0, 30)], &[]);
        assert_eq!(answered(&mut asked)[0], Some(20));
        assert_eq!(answered(&mut asked)[0], Some(30));
    }

    #[test]
    fn a_new_session_knows_nothing_of_the_last() {
        let mut asked = Questions::default();
        sent(&mut asked, &[(0, 10)], &[]);
        asked.clear();
        sent(&mut asked, &[(1, 11)], &[]);
        assert_eq!(answered(&mut asked)[..2], [None, Some(11)]);
    }
}
