//! The duplicate request cache: a request that a client sends again is answered again, not done again.
//!
//! A client that lost its connection repeats on the next one what was not answered. REMOVE done twice would say
//! `NFS3ERR_NOENT` about a file that was just removed; RENAME done twice may destroy what came after it. So the reply of
//! everything that must not be done twice is kept for a while. (C. Juszczak, "Improving the performance and correctness
//! of an NFS server", USENIX Winter 1989.)

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::wait::WaitList;
use policy::unit::Instant;

use crate::call::Credentials;

/// So many bytes of the arguments count in their checksum. Beside the transaction id it tells apart what a client that
/// was restarted asks under a number that it used before. Handle and name of most procedures lie in them.
const CHECKSUM_BYTES: usize = 512;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Replies.
    pub entries: usize,
    /// Bytes in them.
    pub bytes: usize,
    /// Older ones count no more: by then the client has given up, or uses its numbers again.
    pub age: Duration,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        ReplayLimits { entries: 16384, bytes: 8 << 20, age: Duration::from_secs(120) }
    }
}

/// Names a request. Not the connection: a client repeats it on another one. Nor the port, which few clients keep. But the
/// user: programs that are clients themselves choose their numbers without knowing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestKey {
    client: Option<IpAddr>,
    xid: u32,
    procedure: u32,
    checksum: u64,
}

impl RequestKey {
    /// `client`: `None` for those of a Unix socket.
    pub(crate) fn new(
        client: Option<IpAddr>,
        credentials: &Credentials,
        xid: u32,
        procedure: u32,
        arguments: &[u8],
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        credentials.hash(&mut hasher);
        arguments.len().hash(&mut hasher);
        arguments[..arguments.len().min(CHECKSUM_BYTES)].hash(&mut hasher);
        RequestKey { client, xid, procedure, checksum: hasher.finish() }
    }
}

/// What is known of a request.
pub(crate) enum Known<'a> {
    /// Nothing: it is to be done, and its reply put into this.
    New(InProgress<'a>),
    /// It is being done, and whoever does it will answer.
    InProgress,
    /// It was done; its reply.
    Done(Arc<[u8]>),
}

/// Requests that are being done, and replies of those that are.
pub(crate) struct Replay {
    limits: ReplayLimits,
    state: Mutex<State>,
    /// Requests whose copies wait for each other.
    alone: Mutex<HashSet<RequestKey>>,
    ended: WaitList,
}

#[derive(Default)]
struct State {
    requests: HashMap<RequestKey, Request>,
    /// Those that are done, oldest first.
    done: VecDeque<(RequestKey, Instant)>,
    /// In all replies.
    bytes: usize,
}

enum Request {
    /// As many as there are requests under way: connections bound them.
    InProgress,
    Done(Arc<[u8]>),
}

impl Replay {
    pub(crate) fn new(limits: ReplayLimits) -> Self {
        Replay { limits, state: Mutex::default(), alone: Mutex::default(), ended: WaitList::default() }
    }

    /// A request came in.
    pub(crate) fn begin(&self, key: RequestKey, now: Instant) -> Known<'_> {
        let mut state = self.state();
        state.forget_older_than(self.limits.age, now);
        match state.requests.get(&key) {
            Some(Request::InProgress) => Known::InProgress,
            Some(Request::Done(reply)) => Known::Done(Arc::clone(reply)),
            None => {
                state.requests.insert(key, Request::InProgress);
                Known::New(InProgress { replay: self, key, finished: false })
            }
        }
    }

    /// Waits until no copy of a request is under way that came before it: then [`begin`](Self::begin) finds none in
    /// progress, and the client gets its answer on whatever connection it asked last.
    pub(crate) async fn alone(&self, key: RequestKey) -> Alone<'_> {
        self.ended.until(|| self.under_way().insert(key).then_some(())).await;
        Alone { replay: self, key }
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<RequestKey>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, key: RequestKey, reply: &[u8], now: Instant) {
        let mut state = self.state();
        state.bytes += reply.len();
        state.requests.insert(key, Request::Done(reply.into()));
        state.done.push_back((key, now));
        while state.done.len() > self.limits.entries || state.bytes > self.limits.bytes {
            if !state.forget_oldest() {
                break;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget_older_than(&mut self, age: Duration, now: Instant) {
        while self.done.front().is_some_and(|(_, at)| now.since(*at) > age) {
            self.forget_oldest();
        }
    }

    /// False when there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some((key, _)) = self.done.pop_front() else { return false };
        if let Some(Request::Done(reply)) = self.requests.remove(&key) {
            self.bytes -= reply.len();
        }
        true
    }
}

/// A request under way no copy of which is, while this lasts.
pub(crate) struct Alone<'a> {
    replay: &'a Replay,
    key: RequestKey,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.replay.under_way().remove(&self.key);
        self.replay.ended.wake_all();
    }
}

/// A request that is being done. Dropped without a reply, it counts as never seen.
pub(crate) struct InProgress<'a> {
    replay: &'a Replay,
    key: RequestKey,
    finished: bool,
}

impl InProgress<'_> {
    /// It is done.
    pub(crate) fn finish(mut self, reply: &[u8], now: Instant) {
        self.finished = true;
        self.replay.finish(self.key, reply, now);
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.replay.state().requests.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: ReplayLimits = ReplayLimits { entries: 8, bytes: 100, age: Duration::from_secs(120) };

    fn key(xid: u32) -> RequestKey {
        RequestKey::new(Some(IpAddr::from([192, 0, 2, 1])), &Credentials::None, xid, 12, b"arguments")
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_ns(seconds * 1_000_000_000)
    }

    fn new<'a>(known: Known<'a>) -> InProgress<'a> {
        match known {
            Known::New(request) => request,
            Known::InProgress => panic!("in progress"),
            Known::Done(_) => panic!("done"),
        }
    }

    #[test]
    fn requests_differ_in_client_user_number_procedure_and_arguments() {
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        let nobody = Credentials::None;
        let user = Credentials::Unix { uid: 1, gid: 1, groups: [].into_iter().collect() };
        let keys = [
            RequestKey::new(client, &nobody, 1, 12, b"a"),
            RequestKey::new(Some(IpAddr::from([192, 0, 2, 2])), &nobody, 1, 12, b"a"),
            RequestKey::new(None, &nobody, 1, 12, b"a"),
            RequestKey::new(client, &nobody, 2, 12, b"a"),
            RequestKey::new(client, &nobody, 1, 13, b"a"),
            RequestKey::new(client, &nobody, 1, 12, b"b"),
            RequestKey::new(client, &nobody, 1, 12, &[0; CHECKSUM_BYTES]),
            RequestKey::new(client, &nobody, 1, 12, &[0; CHECKSUM_BYTES + 1]),
            RequestKey::new(client, &user, 1, 12, b"a"),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
    }

    #[test]
    fn a_request_that_broke_off_is_done_when_it_comes_again() {
        let replay = Replay::new(LIMITS);
        drop(new(replay.begin(key(1), at(0))));
        new(replay.begin(key(1), at(1))).finish(b"reply", at(1));
    }

    #[test]
    fn a_reply_that_is_too_old_is_not_given_again() {
        let replay = Replay::new(LIMITS);
        new(replay.begin(key(1), at(0))).finish(b"reply", at(0));
        assert!(matches!(replay.begin(key(1), at(120)), Known::Done(_)));
        assert!(matches!(replay.begin(key(1), at(121)), Known::New(_)));
    }

    #[test]
    fn a_reply_larger_than_all_that_is_kept_is_forgotten_at_once() {
        let replay = Replay::new(LIMITS);
        new(replay.begin(key(1), at(0))).finish(&[0; 101], at(0));
        assert!(matches!(replay.begin(key(1), at(0)), Known::New(_)));
        assert_eq!(replay.state().bytes, 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(u32),
        Finish(usize, usize),
        BreakOff(usize),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..6_u32).prop_map(Step::Begin),
            3 => (any::<usize>(), 0..40_usize).prop_map(|(which, len)| Step::Finish(which, len)),
            1 => any::<usize>().prop_map(Step::BreakOff),
            1 => (0..100_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// However requests and their repetitions interleave: one at a time does a request, and whoever comes later gets
        /// its reply for as long as it is kept, within the bounds.
        #[test]
        fn a_request_is_done_once_and_answered_alike(steps in prop::collection::vec(step(), 0..200)) {
            let replay = Replay::new(LIMITS);
            let mut now = 0;
            let mut under_way: Vec<(u32, InProgress<'_>)> = Vec::new();
            // What must still be known: number, reply, when; oldest first.
            let mut kept: Vec<(u32, Vec<u8>, u64)> = Vec::new();
            for (serial, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Begin(xid) => {
                        kept.retain(|(_, _, done)| now - done <= 120);
                        let running = under_way.iter().any(|(other, _)| *other == xid);
                        let reply = kept.iter().find(|(other, _, _)| *other == xid).map(|(_, reply, _)| reply);
                        match replay.begin(key(xid), at(now)) {
                            Known::New(request) => {
                                prop_assert!(!running && reply.is_none());
                                under_way.push((xid, request));
                            }
                            Known::InProgress => prop_assert!(running),
                            Known::Done(again) => prop_assert_eq!(Some(&again.to_vec()), reply),
                        }
                    }
                    Step::Finish(which, len) if !under_way.is_empty() => {
                        let (xid, request) = under_way.swap_remove(which % under_way.len());
                        let reply = vec![serial as u8; len];
                        request.finish(&reply, at(now));
                        kept.push((xid, reply, now));
                        while kept.len() > 8 || kept.iter().map(|(_, reply, _)| reply.len()).sum::<usize>() > 100 {
                            kept.remove(0);
                        }
                    }
                    Step::BreakOff(which) if !under_way.is_empty() => {
                        drop(under_way.swap_remove(which % under_way.len()));
                    }
                    Step::Pass(seconds) => now += seconds,
                    Step::Finish(..) | Step::BreakOff(_) => {}
                }
                let state = replay.state();
                prop_assert!(state.done.len() <= 8 && state.bytes <= 100);
                prop_assert_eq!(state.requests.len(), state.done.len() + under_way.len());
            }
        }
    }
}
