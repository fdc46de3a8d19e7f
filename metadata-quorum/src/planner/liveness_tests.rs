//! Who is fenced when: sessions, proofs and the limits of proofs, by example.

use super::*;
use crate::controller::testing::{broker, cluster_of, process};
use crate::image::{BrokerState, Change};

const SESSION: Millis = Millis(9_000);
const EPOCH: BrokerEpoch = BrokerEpoch(1);

fn named(fenced: &[FencedBroker]) -> Vec<i32> {
    fenced.iter().map(|fenced| fenced.broker.0).collect()
}

/// Looks every 500 ms from `from` to `to`, with the heartbeats of `alive` every 2 s; what was found last.
fn watch(liveness: &mut Liveness, image: &MetadataImage, from: u64, to: u64, alive: &[i32]) -> Vec<FencedBroker> {
    let mut found = Vec::new();
    for now in (from..=to).step_by(500) {
        if now % 2_000 == 0 {
            for id in alive {
                liveness.heartbeat(BrokerId(*id), EPOCH, process(*id, 1), Millis(now));
            }
        }
        found = liveness.expired(image, Millis(now));
    }
    found
}

#[test]
fn silence_for_a_session_fences_the_stalest_first() {
    let image = cluster_of(&[1, 2, 3]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    assert!(watch(&mut liveness, &image, 0, 4_000, &[1, 2, 3]).is_empty());
    watch(&mut liveness, &image, 4_500, 6_000, &[1, 2]);
    assert_eq!(named(&watch(&mut liveness, &image, 6_500, 13_000, &[1])), [3]);
    let found = watch(&mut liveness, &image, 13_500, 15_000, &[1]);
    assert_eq!(named(&found), [3, 2]);
    assert_eq!(found[0].note, "session of 9000 ms ended: silent for 11000 ms");
}

#[test]
fn a_new_raft_leader_gives_everybody_a_full_fresh_session() {
    // D8.
    let image = cluster_of(&[1, 2]);
    let mut liveness = Liveness::new(SESSION, Millis(100_000));
    assert!(watch(&mut liveness, &image, 100_000, 108_500, &[]).is_empty());
    assert_eq!(named(&liveness.expired(&image, Millis(109_000))), [1, 2]);
}

#[test]
fn a_leader_that_stood_still_itself_fences_nobody_for_that() {
    let image = cluster_of(&[1, 2]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    watch(&mut liveness, &image, 0, 2_000, &[1, 2]);
    assert!(liveness.expired(&image, Millis(60_000)).is_empty());
    assert_eq!(named(&watch(&mut liveness, &image, 60_500, 69_000, &[1])), [2]);
    // The same of one that has led for long: what it heard counts from when it goes on.
    let mut liveness = Liveness::new(SESSION, Millis(0));
    watch(&mut liveness, &image, 0, 40_000, &[1, 2]);
    assert!(liveness.expired(&image, Millis(60_000)).is_empty());
    assert!(watch(&mut liveness, &image, 60_500, 68_000, &[]).is_empty(), "a whole session from then on");
}

#[test]
fn whoever_looks_when_asked_to_finds_the_end_of_a_session_at_once_and_is_never_taken_for_stalled() {
    let image = cluster_of(&[1, 2]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    let (mut now, mut heard, mut looks) = (Millis(0), Millis(0), 0);
    let found = loop {
        let next = now + liveness.next_look(&image, now);
        while heard <= next {
            liveness.heartbeat(BrokerId(1), EPOCH, process(1, 1), heard);
            heard = heard + Millis(2_000);
        }
        now = next;
        looks += 1;
        let found = liveness.expired(&image, now);
        if !found.is_empty() {
            break found;
        }
    };
    assert_eq!((named(&found), now), (vec![2], SESSION));
    assert!(looks < 20, "{looks} looks in one session");
}

#[test]
fn heartbeats_of_a_former_process_do_not_count() {
    let image = cluster_of(&[1]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    for now in (0..=9_000).step_by(500) {
        liveness.heartbeat(BrokerId(1), BrokerEpoch(0), process(1, 0), Millis(now));
        let fenced = named(&liveness.expired(&image, Millis(now)));
        assert_eq!(fenced.is_empty(), now < 9_000);
    }
}

#[test]
fn only_active_brokers_are_fenced() {
    let mut image = cluster_of(&[]);
    image.apply(&Change::Broker(broker(1, BrokerState::Fenced).into()));
    image.apply(&Change::Broker(broker(2, BrokerState::ShuttingDown).into()));
    let mut liveness = Liveness::new(Millis(1_000), Millis(0));
    assert!(watch(&mut liveness, &image, 0, 5_000, &[]).is_empty());
}

fn prove(
    liveness: &mut Liveness,
    image: &MetadataImage,
    id: i32,
    suspected: u64,
    now: u64,
) -> Result<(), ProofRefusal> {
    liveness.prove_dead(image, BrokerId(id), EPOCH, Millis(suspected), "connection refused twice", Millis(now)).map(
        |f| {
            assert_eq!((f.broker, f.epoch, f.note.as_str()), (BrokerId(id), EPOCH, "connection refused twice"));
        },
    )
}

#[test]
fn a_proof_counts_only_for_the_present_process_and_if_nothing_was_heard_since() {
    // D7.
    let mut image = cluster_of(&[1, 2, 3]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    let stale = liveness.prove_dead(&image, BrokerId(1), BrokerEpoch(0), Millis(5), "", Millis(60));
    assert_eq!(stale, Err(ProofRefusal::NotCurrent));
    liveness.heartbeat(BrokerId(1), EPOCH, process(1, 1), Millis(50));
    assert_eq!(prove(&mut liveness, &image, 1, 10, 60), Err(ProofRefusal::HeardSince));
    assert_eq!(prove(&mut liveness, &image, 1, 60, 120), Ok(()));
    image.apply(&Change::Broker(broker(2, BrokerState::Fenced).into()));
    assert_eq!(prove(&mut liveness, &image, 2, 60, 120), Err(ProofRefusal::NotCurrent));
}

#[test]
fn at_most_a_minority_is_out_by_proof_at_one_time_and_a_return_frees_the_place() {
    let mut image = cluster_of(&[1, 2, 3, 4, 5]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    assert_eq!(prove(&mut liveness, &image, 1, 10, 60), Ok(()));
    assert_eq!(prove(&mut liveness, &image, 1, 10, 60), Ok(()), "the same one again takes no second place");
    assert_eq!(prove(&mut liveness, &image, 2, 10, 60), Ok(()));
    let refused = Err(ProofRefusal::TooMany { fenced: 2, most: 2 });
    assert_eq!(prove(&mut liveness, &image, 3, 10, 60), refused);
    let anew = BrokerRegistration { epoch: BrokerEpoch(9), ..broker(1, BrokerState::Fenced) };
    image.apply(&Change::Broker(anew.into()));
    assert_eq!(prove(&mut liveness, &image, 3, 10, 60), Ok(()));
    liveness.proof_withdrawn(BrokerId(3));
    assert_eq!(prove(&mut liveness, &image, 4, 10, 60), Ok(()));
    // Two brokers are allowed one.
    let two = cluster_of(&[1, 2]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    assert_eq!(prove(&mut liveness, &two, 1, 10, 60), Ok(()));
    assert!(prove(&mut liveness, &two, 2, 10, 60).is_err());
}

#[test]
fn a_broker_wrongly_proved_dead_is_spared_for_five_sessions() {
    let image = cluster_of(&[1, 2, 3]);
    let mut liveness = Liveness::new(SESSION, Millis(0));
    assert_eq!(prove(&mut liveness, &image, 1, 10, 60), Ok(()));
    liveness.heartbeat(BrokerId(1), EPOCH, process(1, 1), Millis(1_000));
    assert_eq!(prove(&mut liveness, &image, 1, 2_000, 2_060), Err(ProofRefusal::Spared(Millis(43_940))));
    assert_eq!(prove(&mut liveness, &image, 1, 46_000, 46_060), Ok(()));
    // A new process is no flapping one.
    liveness.heartbeat(BrokerId(1), EPOCH, process(1, 2), Millis(47_000));
    assert_eq!(prove(&mut liveness, &image, 1, 48_000, 48_060), Ok(()));
}
