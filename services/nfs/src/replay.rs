//! The duplicate request cache: a request that a client sends again is answered again, not done again.
//!
//! A client that lost its connection repeats on the next one what was not answered. REMOVE done twice would say
//! `NFS3ERR_NOENT` about a file that was just removed; RENAME done twice may destroy what came after it. So the reply of
//! everything that must not be done twice is kept for a while. (C. Juszczak, "Improving the performance and correctness
//! of an NFS server", USENIX Winter 1989.)
//!
//! Transaction ids alone say little: clients restart, share an address, or number all their calls alike. So a call is a
//! repetition only if all of it is the same, the data of a WRITE included, and if it comes on another connection or while
//! the first is under way: on the connection that took the reply, the same number is a new call. (Linux does repeat
//! calls of NFSv3 on a connection that lives, when its timer of 60 s has run out. Such a call finds the first under way, or
//! it crossed a reply that took long: [`Done::may_cross`].)

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::wait::WaitList;
use policy::unit::Instant;

use crate::call::{ClientHost, Credentials, Payload};

/// So many bytes of the arguments count in their checksum. Handle and name of most procedures lie in them.
const CHECKSUM_BYTES: usize = 512;

/// What an entry of the line occupies beside its reply: its key there and in the map, and their spare room. Bytes.
const ENTRY_BYTES: usize = 256;

/// No client's retransmission timer is shorter. (Linux and libnfs: 60 s over TCP; `timeo` can shorten it.)
const RETRANSMISSION_TIMER_MIN: Duration = Duration::from_secs(1);

/// Old replies of all clients are looked for so many times in the age that they may reach.
const SWEEPS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Bytes of all replies and what belongs to them. Each client has an equal share, and what others leave of theirs.
    pub bytes: usize,
    /// Older ones count no more: by then the client has given up, or uses its numbers again.
    pub age: Duration,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        ReplayLimits { bytes: 8 << 20, age: Duration::from_secs(120) }
    }
}

/// Names a request. Not the connection: a client repeats it on another one. Nor the port, which few clients keep. But the
/// user: programs that are clients themselves choose their numbers without knowing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    client: ClientHost,
    xid: u32,
    procedure: u32,
    checksum: u64,
    /// Length and checksum of a WRITE's data, all of it: pages of a database differ in a few bytes anywhere.
    data: Option<(u32, u32)>,
}

impl RequestKey {
    pub(crate) fn new(
        client: ClientHost,
        credentials: &Credentials,
        (xid, procedure): (u32, u32),
        arguments: &[u8],
        payload: Option<&Payload>,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        credentials.hash(&mut hasher);
        arguments.len().hash(&mut hasher);
        arguments[..arguments.len().min(CHECKSUM_BYTES)].hash(&mut hasher);
        let data = payload.map(|payload| (payload.len, payload.checksum()));
        RequestKey { client, xid, procedure, checksum: hasher.finish(), data }
    }
}

impl Hash for RequestKey {
    /// The rest hardly ever differs alone.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.xid, self.checksum).hash(hasher);
    }
}

/// Tells connections apart; never given twice.
pub(crate) type ConnectionNumber = u64;

/// What is known of a request.
pub(crate) enum Known<'a> {
    /// Nothing: it is to be done, and its reply put into this.
    New(InProgress<'a>),
    /// It is being done, or was, and its client gets the reply on this connection.
    Answered,
    /// It was done; its reply.
    Done(Arc<[u8]>),
}

/// Requests that are being done, and replies of those that are.
pub(crate) struct Replay {
    limits: ReplayLimits,
    state: Mutex<State>,
    /// Woken when a request ends that others wait for.
    ended: WaitList,
}

#[derive(Default)]
struct State {
    clients: HashMap<ClientHost, Share>,
    bytes: usize,
    swept: Option<Instant>,
}

#[derive(Default)]
struct Share {
    requests: HashMap<RequestKey, Request>,
    /// Those that are done, oldest first. Some may be under way again, or done again and further behind.
    done: VecDeque<Finished>,
    bytes: usize,
    /// Of the request that was finished last.
    last: u64,
}

/// That a request was done.
struct Finished {
    key: RequestKey,
    number: u64,
    at: Instant,
}

enum Request {
    /// As many as there are requests under way: connections bound them.
    InProgress {
        connection: ConnectionNumber,
        since: Instant,
        is_awaited: bool,
    },
    Done(Done),
}

struct Done {
    reply: Arc<[u8]>,
    number: u64,
    /// That took the reply last.
    connection: ConnectionNumber,
    at: Instant,
    took: Duration,
}

impl Done {
    /// May the client have sent it again before it had the reply, though it comes only now? A timer had run out, and the
    /// copy lay in the socket no longer than what was done first took.
    fn may_cross(&self, now: Instant) -> bool {
        self.took >= RETRANSMISSION_TIMER_MIN && now.since(self.at) <= self.took
    }
}

enum Look<'a> {
    Known(Known<'a>),
    /// It is being done for another connection.
    Elsewhere,
}

impl Replay {
    pub(crate) fn new(limits: ReplayLimits) -> Self {
        Replay { limits, state: Mutex::default(), ended: WaitList::default() }
    }

    /// A request came in. While a copy of it is under way for another connection, waits for its reply: the client gets it
    /// on the connection on which it asked last.
    pub(crate) async fn begin(
        &self,
        key: RequestKey,
        connection: ConnectionNumber,
        now: impl Fn() -> Instant,
    ) -> Known<'_> {
        let mut has_waited = false;
        let known = || match self.look(key, connection, now(), has_waited) {
            Look::Known(known) => Some(known),
            Look::Elsewhere => {
                has_waited = true;
                None
            }
        };
        self.ended.until(known).await
    }

    fn look(&self, key: RequestKey, connection: ConnectionNumber, now: Instant, has_waited: bool) -> Look<'_> {
        let mut state = self.state();
        state.sweep(self.limits.age, now);
        let share = state.clients.entry(key.client).or_default();
        let freed = share.forget_older_than(self.limits.age, now);
        let begun = Request::InProgress { connection, since: now, is_awaited: false };
        let (known, freed) = match share.requests.get_mut(&key) {
            Some(Request::InProgress { connection: first, .. }) if *first == connection => {
                (Some(Known::Answered), freed)
            }
            Some(Request::InProgress { is_awaited, .. }) => {
                *is_awaited = true;
                (None, freed)
            }
            Some(Request::Done(done)) if done.connection != connection => {
                done.connection = connection;
                (Some(Known::Done(Arc::clone(&done.reply))), freed)
            }
            Some(Request::Done(done)) if has_waited || done.may_cross(now) => (Some(Known::Answered), freed),
            _ => {
                let before = share.requests.insert(key, begun);
                let charge = before.map_or(0, |request| request.charge());
                share.bytes -= charge;
                (Some(Known::New(InProgress { replay: self, key, finished: false })), freed + charge)
            }
        };
        state.bytes -= freed;
        known.map_or(Look::Elsewhere, Look::Known)
    }

    fn finish(&self, key: RequestKey, reply: &[u8], now: Instant) {
        let mut state = self.state();
        let share = state.clients.entry(key.client).or_default();
        let Some(request) = share.requests.get_mut(&key) else { return };
        let &mut Request::InProgress { connection, since, is_awaited } = request else { return };
        share.last += 1;
        let (number, took) = (share.last, now.since(since));
        *request = Request::Done(Done { reply: reply.into(), number, connection, at: now, took });
        share.done.push_back(Finished { key, number, at: now });
        let charge = reply.len() + ENTRY_BYTES;
        share.bytes += charge;
        state.bytes += charge;
        state.make_room(self.limits.bytes, key.client);
        drop(state);
        if is_awaited {
            self.ended.wake_all();
        }
    }

    /// It was not done.
    fn break_off(&self, key: RequestKey) {
        let mut state = self.state();
        let Some(share) = state.clients.get_mut(&key.client) else { return };
        let request = share.requests.remove(&key);
        if share.is_empty() {
            state.clients.remove(&key.client);
        }
        drop(state);
        if matches!(request, Some(Request::InProgress { is_awaited: true, .. })) {
            self.ended.wake_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Request {
    fn charge(&self) -> usize {
        match self {
            Request::InProgress { .. } => 0,
            Request::Done(done) => done.reply.len(),
        }
    }
}

impl State {
    /// Of clients that say nothing any more, nothing stays.
    fn sweep(&mut self, age: Duration, now: Instant) {
        if self.swept.is_some_and(|swept| now.since(swept) < age / SWEEPS) {
            return;
        }
        self.swept = Some(now);
        let mut freed = 0;
        self.clients.retain(|_, share| {
            freed += share.forget_older_than(age, now);
            !share.is_empty()
        });
        self.bytes -= freed;
    }

    /// Forgets what is oldest of `client`, which wants more, if it has its share; else of who has most.
    fn make_room(&mut self, limit: usize, client: ClientHost) {
        while self.bytes > limit {
            let share = limit / self.clients.len().max(1);
            let has = self.clients.get(&client).map_or(0, |share| share.bytes);
            let largest = || self.clients.iter().max_by_key(|(_, share)| share.bytes).map(|(client, _)| *client);
            let Some(whose) = (if has > share { Some(client) } else { largest() }) else { return };
            let Some(share) = self.clients.get_mut(&whose) else { return };
            self.bytes -= share.forget_oldest();
            if share.is_empty() {
                self.clients.remove(&whose);
            }
        }
    }
}

impl Share {
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.done.is_empty()
    }

    /// How many bytes that frees.
    fn forget_older_than(&mut self, age: Duration, now: Instant) -> usize {
        let mut freed = 0;
        while self.done.front().is_some_and(|finished| now.since(finished.at) > age) {
            freed += self.forget_oldest();
        }
        freed
    }

    /// How many bytes that frees.
    fn forget_oldest(&mut self) -> usize {
        let Some(Finished { key, number, .. }) = self.done.pop_front() else { return 0 };
        let mut freed = ENTRY_BYTES;
        if matches!(self.requests.get(&key), Some(Request::Done(done)) if done.number == number) {
            freed += self.requests.remove(&key).map_or(0, |request| request.charge());
        }
        self.bytes -= freed;
        freed
    }
}

/// A request that is being done. Dropped without a reply, it counts as never seen.
pub(crate) struct InProgress<'a> {
    replay: &'a Replay,
    key: RequestKey,
    finished: bool,
}

impl InProgress<'_> {
    pub(crate) fn finish(mut self, reply: &[u8], now: Instant) {
        self.finished = true;
        self.replay.finish(self.key, reply, now);
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.replay.break_off(self.key);
        }
    }
}

#[cfg(test)]
mod tests;
