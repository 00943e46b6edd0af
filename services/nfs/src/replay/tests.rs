//! What counts as a retransmission, and for how long.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;

const LIMITS: ReplayLimits = ReplayLimits { bytes: 8 * (ENTRY_BYTES + 10), age: Duration::from_secs(120) };

fn host(no: u8) -> ClientHost {
    ClientHost::Address([192, 0, 2, no].into())
}

fn key_of(client: u8, xid: u32) -> RequestKey {
    RequestKey::new(host(client), &Credentials::None, (xid, 12), b"arguments", None)
}

fn key(xid: u32) -> RequestKey {
    key_of(1, xid)
}

fn at(seconds: u64) -> Instant {
    Instant::from_ns(seconds * 1_000_000_000)
}

/// The result if it does not wait.
fn begin(replay: &Replay, key: RequestKey, connection: u64, now: u64) -> Option<Known<'_>> {
    let known = pin!(replay.begin(key, ConnectionNo(connection), || at(now)));
    match known.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(known) => Some(known),
        Poll::Pending => None,
    }
}

fn new<'a>(known: Option<Known<'a>>) -> InProgress<'a> {
    match known {
        Some(Known::New(request)) => request,
        Some(Known::Answered) => panic!("answered"),
        Some(Known::Done(_)) => panic!("done"),
        None => panic!("under way elsewhere"),
    }
}

fn is_done(known: &Option<Known<'_>>) -> bool {
    matches!(known, Some(Known::Done(_)))
}

#[test]
fn requests_differ_in_client_user_number_procedure_and_arguments() {
    let nobody = Credentials::None;
    let user = Credentials::Unix { uid: 1, gid: 1, groups: [].into_iter().collect() };
    let keys = [
        RequestKey::new(host(1), &nobody, (1, 12), b"a", None),
        RequestKey::new(host(2), &nobody, (1, 12), b"a", None),
        RequestKey::new(ClientHost::User(0), &nobody, (1, 12), b"a", None),
        RequestKey::new(host(1), &nobody, (2, 12), b"a", None),
        RequestKey::new(host(1), &nobody, (1, 13), b"a", None),
        RequestKey::new(host(1), &nobody, (1, 12), b"b", None),
        RequestKey::new(host(1), &nobody, (1, 12), &[0; CHECKSUM_BYTES], None),
        RequestKey::new(host(1), &nobody, (1, 12), &[0; CHECKSUM_BYTES + 1], None),
        RequestKey::new(host(1), &user, (1, 12), b"a", None),
    ];
    for (at, one) in keys.iter().enumerate() {
        assert!(keys[at + 1..].iter().all(|other| other != one), "{one:?}");
    }
}

/// As of a client that uses one number for all calls: a REMOVE and an RMDIR of one name have equal arguments.
#[test]
fn calls_that_differ_in_the_procedure_alone_are_both_answered_again() {
    let replay = Replay::new(LIMITS);
    let called = |procedure| RequestKey::new(host(1), &Credentials::None, (7, procedure), b"name", None);
    for (procedure, reply) in [(12, b"removed"), (13, b"no such")] {
        new(begin(&replay, called(procedure), 1, 0)).finish(reply, at(0));
    }
    for (procedure, reply) in [(12, b"removed"), (13, b"no such")] {
        let Some(Known::Done(again)) = begin(&replay, called(procedure), 2, 1) else { panic!("done twice") };
        assert_eq!(again, reply);
    }
}

/// Whatever the checksums are, a reply is that to the same call.
#[test]
fn of_two_calls_with_one_checksum_neither_is_answered_for_the_other() {
    let replay = Replay::new(LIMITS);
    let [older, newer] = [1, 2].map(|xid| RequestKey { checksum: 0, ..key(xid) });
    let first = new(begin(&replay, older, 1, 0));
    new(begin(&replay, newer, 1, 0)).finish(b"newer", at(0));
    first.finish(b"older", at(0));
    let Some(Known::Done(again)) = begin(&replay, newer, 2, 1) else { panic!("it is known") };
    assert_eq!(again, b"newer");
    assert!(matches!(begin(&replay, older, 2, 1), Some(Known::New(_))));
}

#[test]
fn a_request_that_broke_off_is_done_when_it_comes_again() {
    let replay = Replay::new(LIMITS);
    drop(new(begin(&replay, key(1), 1, 0)));
    assert!(replay.state.lock().clients.is_empty(), "nothing stays of it");
    new(begin(&replay, key(1), 1, 1)).finish(b"reply", at(1));
}

#[test]
fn a_reply_that_is_too_old_is_not_given_again() {
    let replay = Replay::new(LIMITS);
    new(begin(&replay, key(1), 1, 0)).finish(b"reply", at(0));
    assert!(is_done(&begin(&replay, key(1), 2, 120)));
    assert!(matches!(begin(&replay, key(1), 3, 121), Some(Known::New(_))));
}

#[test]
fn a_number_that_is_done_is_a_new_call_on_the_connection_that_had_the_reply() {
    let replay = Replay::new(LIMITS);
    new(begin(&replay, key(1), 1, 0)).finish(b"one", at(0));
    new(begin(&replay, key(1), 1, 1)).finish(b"two", at(1));
    let Some(Known::Done(reply)) = begin(&replay, key(1), 2, 2) else { panic!("a repetition") };
    assert_eq!(&reply[..], b"two");
    // Now the second connection has had it, too.
    new(begin(&replay, key(1), 2, 3)).finish(b"three", at(3));
    assert!(is_done(&begin(&replay, key(1), 1, 4)));
}

#[test]
fn a_copy_on_the_same_connection_that_crossed_a_slow_reply_is_not_done_again() {
    let replay = Replay::new(LIMITS);
    let slow = new(begin(&replay, key(1), 1, 0));
    assert!(matches!(begin(&replay, key(1), 1, 60), Some(Known::Answered)), "under way");
    slow.finish(b"reply", at(65));
    assert!(matches!(begin(&replay, key(1), 1, 66), Some(Known::Answered)), "it lay in the socket");
    assert!(matches!(begin(&replay, key(1), 1, 65 + 66), Some(Known::New(_))), "no timer is that late");
}

#[test]
fn a_copy_on_another_connection_waits_for_the_reply() {
    let replay = Replay::new(LIMITS);
    let first = new(begin(&replay, key(1), 1, 0));
    let mut copies: Vec<_> = [2, 2, 3]
        .into_iter()
        .map(|connection| Box::pin(replay.begin(key(1), ConnectionNo(connection), || at(1))))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    assert!(copies.iter_mut().all(|copy| copy.as_mut().poll(&mut context).is_pending()));
    first.finish(b"reply", at(1));
    let known: Vec<_> = copies
        .iter_mut()
        .map(|copy| match copy.as_mut().poll(&mut context) {
            Poll::Ready(Known::New(_)) => panic!("done twice"),
            Poll::Ready(Known::Answered) => false,
            Poll::Ready(Known::Done(_)) => true,
            Poll::Pending => panic!("waits for ever"),
        })
        .collect();
    assert_eq!(known, [true, false, true], "one reply for each connection");
}

#[test]
fn a_reply_larger_than_all_that_is_kept_is_forgotten_at_once() {
    let replay = Replay::new(LIMITS);
    new(begin(&replay, key(1), 1, 0)).finish(&[0; 8 * (ENTRY_BYTES + 10)], at(0));
    let left = replay.state.lock().bytes;
    assert_eq!(left, 0);
    assert!(matches!(begin(&replay, key(1), 2, 0), Some(Known::New(_))));
}

#[test]
fn a_busy_client_forgets_its_own_replies_and_no_others() {
    let replay = Replay::new(LIMITS);
    // A client with its share, one with less, and one that exceeds any.
    for xid in 0..2 {
        new(begin(&replay, key_of(1, xid), 1, 0)).finish(b"reply", at(0));
    }
    new(begin(&replay, key_of(2, 0), 2, 0)).finish(b"reply", at(0));
    for xid in 0..10_000 {
        new(begin(&replay, key_of(3, xid), 3, 0)).finish(b"reply", at(0));
    }
    for (client, xid) in [(1, 0), (1, 1), (2, 0), (3, 9_999), (3, 9_998)] {
        assert!(is_done(&begin(&replay, key_of(client, xid), 4, 1)), "call {xid} of {client}");
    }
    // A late client gets its share from the one with most.
    for xid in 0..2 {
        new(begin(&replay, key_of(4, xid), 5, 1)).finish(b"reply", at(1));
    }
    assert!((0..2).all(|xid| is_done(&begin(&replay, key_of(4, xid), 6, 1))));
    assert!((0..2).all(|xid| is_done(&begin(&replay, key_of(1, xid), 6, 1))));
}

#[test]
fn of_clients_that_say_nothing_more_nothing_stays() {
    let replay = Replay::new(LIMITS);
    for client in 1..=4 {
        new(begin(&replay, key_of(client, 0), 1, 0)).finish(b"reply", at(0));
    }
    drop(begin(&replay, key_of(5, 0), 1, 200));
    let state = replay.state.lock();
    assert_eq!((state.clients.len(), state.bytes), (0, 0));
}

#[test]
fn one_number_over_and_over_fills_no_memory() {
    let replay = Replay::new(LIMITS);
    for _ in 0..1000 {
        new(begin(&replay, key(1), 1, 0)).finish(b"reply", at(0));
    }
    let state = replay.state.lock();
    assert!(state.bytes <= LIMITS.bytes && state.clients[&host(1)].done.len() <= 8);
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u32, u64),
    Finish(usize, usize),
    BreakOff(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u32, 1..4_u64).prop_map(|(xid, connection)| Step::Begin(xid, connection)),
        3 => (any::<usize>(), 0..300_usize).prop_map(|(which, len)| Step::Finish(which, len)),
        1 => any::<usize>().prop_map(Step::BreakOff),
        1 => (0..100_u64).prop_map(Step::Pass),
    ]
}

/// A reply that must still be retained.
struct Kept {
    xid: u32,
    reply: Vec<u8>,
    since: u64,
    done: u64,
    connection: u64,
    /// Another call with that id on that connection followed it.
    is_superseded: bool,
}

proptest! {
    /// In any interleaving of requests and retransmissions, a request is executed by one call at a time, and a copy on
    /// another connection gets its reply while that is retained, within the bounds.
    #[test]
    fn a_request_is_done_once_and_answered_alike(steps in prop::collection::vec(step(), 0..200)) {
        let replay = Replay::new(LIMITS);
        let mut now = 0;
        let mut under_way: Vec<(u32, u64, u64, InProgress<'_>)> = Vec::new();
        // Oldest first.
        let mut kept: Vec<Kept> = Vec::new();
        for (serial, step) in steps.into_iter().enumerate() {
            match step {
                Step::Begin(xid, connection) => {
                    kept.retain(|kept| now - kept.done <= 120);
                    let running = under_way.iter().find(|(other, ..)| *other == xid).map(|(_, _, whose, _)| *whose);
                    let reply = kept.iter_mut().find(|kept| kept.xid == xid && !kept.is_superseded);
                    match begin(&replay, key(xid), connection, now) {
                        Some(Known::New(request)) => {
                            prop_assert!(running.is_none());
                            if let Some(kept) = reply {
                                prop_assert_eq!(kept.connection, connection);
                                kept.is_superseded = true;
                                kept.reply.clear();
                            }
                            under_way.push((xid, now, connection, request));
                        }
                        Some(Known::Answered) => match reply {
                            Some(kept) => prop_assert!(kept.connection == connection && kept.done > kept.since),
                            None => prop_assert_eq!(running, Some(connection)),
                        },
                        Some(Known::Done(again)) => {
                            let kept = reply.expect("it is known");
                            prop_assert!(kept.connection != connection);
                            prop_assert_eq!(&again[..], &kept.reply[..]);
                            kept.connection = connection;
                        }
                        None => prop_assert!(running.is_some_and(|whose| whose != connection)),
                    }
                }
                Step::Finish(which, len) if !under_way.is_empty() => {
                    let (xid, since, connection, request) = under_way.swap_remove(which % under_way.len());
                    let reply = vec![serial as u8; len];
                    request.finish(&reply, at(now));
                    kept.push(Kept { xid, reply, since, done: now, connection, is_superseded: false });
                    let charge = |kept: &[Kept]| kept.iter().map(|kept| kept.reply.len() + ENTRY_BYTES).sum::<usize>();
                    while charge(&kept) > LIMITS.bytes {
                        kept.remove(0);
                    }
                }
                Step::BreakOff(which) if !under_way.is_empty() => {
                    drop(under_way.swap_remove(which % under_way.len()));
                }
                Step::Pass(seconds) => now += seconds,
                Step::Finish(..) | Step::BreakOff(_) => {}
            }
            let state = replay.state.lock();
            prop_assert!(state.bytes <= LIMITS.bytes);
            let shares = state.clients.values();
            let (bytes, requests) = shares.map(|share| (share.bytes, share.requests.len())).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            prop_assert_eq!(bytes, state.bytes);
            prop_assert!(requests <= state.clients.values().map(|share| share.done.len()).sum::<usize>() + under_way.len());
        }
    }
}
