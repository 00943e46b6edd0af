//! The duplicate-request cache: a retransmitted request is answered again, not executed again.
//!
//! After losing a connection, a client retransmits unanswered requests on the next one. A repeated REMOVE would return
//! `NFS3ERR_NOENT` for a file that was just removed; a repeated RENAME may destroy a newer file. So replies of
//! non-idempotent requests are retained for a while. (C. Juszczak, "Improving the performance and correctness of an NFS
//! server", USENIX Winter 1989.)
//!
//! Transaction ids are not sufficient: clients restart, share an address, or use one number for all calls. A call is a
//! retransmission only if all of it is equal, including the data of a WRITE, and if it arrives on another connection or
//! while the first is in progress: on the connection that took the reply, the same id is a new call. (Linux does
//! retransmit NFSv3 calls on a live connection after its timer of 60 s. Such a call finds the first in progress, or
//! crossed a late reply: [`Done::may_cross`].)

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap, RandomState};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::LazyLock;
use std::time::Duration;

use kernel::connection::ConnectionNo;
use kernel::wait::WaitList;
use parking_lot::Mutex;
use policy::unit::Instant;
use slab::Slab;
use smallvec::SmallVec;

use crate::client::{ClientHost, Credentials};
use crate::shape::Payload;

/// Bytes of the arguments in the checksum. They include handle and name of most procedures.
const CHECKSUM_BYTES: usize = 512;

/// Memory of an entry besides its reply, with spare capacity. Bytes.
const ENTRY_BYTES: usize = 256;

/// The longest reply that needs no memory of its own: a WRITE's. Bytes.
const REPLY_BYTES_INLINE: usize = 112;

/// Lower bound of clients' retransmission timers. (Linux and libnfs: 60 s over TCP; `timeo` can shorten it.)
const RETRANSMISSION_TIMER_MIN: Duration = Duration::from_secs(1);

/// Sweeps of all clients' old replies per `age`.
const SWEEPS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayLimits {
    /// Bytes of all replies with their entries. Each client has an equal share, and what others do not use.
    pub bytes: usize,
    /// Older replies are dropped: by then the client has timed out, or reuses its ids.
    pub age: Duration,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        ReplayLimits { bytes: 8 << 20, age: Duration::from_secs(120) }
    }
}

/// Identifies a request. Without connection and port, which change when a client reconnects; with the user, since
/// client programs choose their ids independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    client: ClientHost,
    xid: u32,
    procedure: u32,
    /// Of all but the client: credentials and arguments, and the other fields.
    checksum: u64,
    /// Length and checksum of all data of a WRITE: pages of a database may differ in a few bytes anywhere.
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
        let mut hasher = CHECKSUMS.build_hasher();
        credentials.hash(&mut hasher);
        arguments.len().hash(&mut hasher);
        arguments[..arguments.len().min(CHECKSUM_BYTES)].hash(&mut hasher);
        let data = payload.map(|payload| (payload.write.data_len, payload.checksum()));
        (xid, procedure, data).hash(&mut hasher);
        RequestKey { client, xid, procedure, checksum: hasher.finish(), data }
    }
}

/// With a secret of this process: no client chooses its checksums.
static CHECKSUMS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Hashes a checksum, which is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The state of a request.
pub(crate) enum Known<'a> {
    /// Unknown: the caller must execute it and finish this with the reply.
    New(InProgress<'a>),
    /// In progress or done, with the reply going to this connection.
    Answered,
    /// Done; its reply.
    Done(Vec<u8>),
}

pub(crate) struct Replay {
    limits: ReplayLimits,
    state: Mutex<State>,
    /// Woken when an awaited request ends.
    ended: WaitList,
}

#[derive(Default)]
struct State {
    clients: HashMap<ClientHost, Share>,
    bytes: usize,
    swept: Option<Instant>,
}

/// In one piece of memory each, which are used one after the other: thousands of them do not fit into a processor's
/// cache.
#[derive(Default)]
struct Share {
    requests: Slab<(RequestKey, Request)>,
    /// Their places, by checksum. Should two have the same, the older one is not found any more, and no one is answered for
    /// the other.
    places: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
    /// Finished requests, oldest first. Some may be in progress again, or have a newer entry.
    done: VecDeque<Finished>,
    bytes: usize,
    /// The number of the newest entry.
    last: u64,
}

/// A finished request.
struct Finished {
    place: usize,
    /// Given once only: the place may be another request's by now.
    number: u64,
    at: Instant,
}

enum Request {
    /// Bounded by the connections' limits of requests in flight.
    InProgress {
        connection: ConnectionNo,
        since: Instant,
        is_awaited: bool,
    },
    Done(Done),
}

struct Done {
    reply: SmallVec<[u8; REPLY_BYTES_INLINE]>,
    number: u64,
    /// The connection that took the reply last.
    connection: ConnectionNo,
    at: Instant,
    took: Duration,
}

impl Done {
    /// May the client have sent this copy before it had the reply? Then its timer had expired, and the copy was in the
    /// socket no longer than the first one was in progress.
    fn may_cross(&self, now: Instant) -> bool {
        self.took >= RETRANSMISSION_TIMER_MIN && now.since(self.at) <= self.took
    }
}

enum Look<'a> {
    Known(Known<'a>),
    /// In progress for another connection.
    Elsewhere,
}

impl Replay {
    pub(crate) fn new(limits: ReplayLimits) -> Self {
        Replay { limits, state: Mutex::default(), ended: WaitList::default() }
    }

    /// To be called for each request. While a copy is in progress for another connection, waits for its reply, which
    /// then goes to this connection, the client's latest.
    pub(crate) async fn begin(
        &self,
        key: RequestKey,
        connection: ConnectionNo,
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

    fn look(&self, key: RequestKey, connection: ConnectionNo, now: Instant, has_waited: bool) -> Look<'_> {
        let mut state = self.state.lock();
        state.sweep(self.limits.age, now);
        let share = state.clients.entry(key.client).or_default();
        let freed = share.forget_older_than(self.limits.age, now);
        let begun = Request::InProgress { connection, since: now, is_awaited: false };
        let new = |place| Some(Known::New(InProgress { replay: self, client: key.client, place, finished: false }));
        let (known, freed) = match share.find(&key) {
            Some((place, request)) => match request {
                Request::InProgress { connection: first, .. } if *first == connection => (Some(Known::Answered), freed),
                Request::InProgress { is_awaited, .. } => {
                    *is_awaited = true;
                    (None, freed)
                }
                Request::Done(done) if done.connection != connection => {
                    done.connection = connection;
                    (Some(Known::Done(done.reply.to_vec())), freed)
                }
                Request::Done(done) if has_waited || done.may_cross(now) => (Some(Known::Answered), freed),
                Request::Done(_) => {
                    let charge = std::mem::replace(request, begun).charge();
                    share.bytes -= charge;
                    (new(place), freed + charge)
                }
            },
            None => (new(share.insert(key, begun)), freed),
        };
        state.bytes -= freed;
        known.map_or(Look::Elsewhere, Look::Known)
    }

    fn finish(&self, client: ClientHost, place: usize, reply: &[u8], now: Instant) {
        let mut state = self.state.lock();
        let Some(share) = state.clients.get_mut(&client) else { return };
        let Some((_, request)) = share.requests.get_mut(place) else { return };
        let &mut Request::InProgress { connection, since, is_awaited } = request else { return };
        share.last += 1;
        let (number, took) = (share.last, now.since(since));
        let charge = reply.len() + ENTRY_BYTES;
        *request = Request::Done(Done { reply: SmallVec::from_slice(reply), number, connection, at: now, took });
        share.done.push_back(Finished { place, number, at: now });
        share.bytes += charge;
        state.bytes += charge;
        state.make_room(self.limits.bytes, client);
        drop(state);
        if is_awaited {
            self.ended.wake_all();
        }
    }

    /// The request was not executed.
    fn break_off(&self, client: ClientHost, place: usize) {
        let mut state = self.state.lock();
        let Some(share) = state.clients.get_mut(&client) else { return };
        let request = share.remove(place);
        if share.is_empty() {
            state.clients.remove(&client);
        }
        drop(state);
        if matches!(request, Request::InProgress { is_awaited: true, .. }) {
            self.ended.wake_all();
        }
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
    /// Drops old replies of all clients, also silent ones.
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

    /// Drops the oldest replies of `client` if it exceeds its share, otherwise of the client with most.
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
    fn find(&mut self, key: &RequestKey) -> Option<(usize, &mut Request)> {
        let place = *self.places.get(&key.checksum)?;
        let (found, request) = self.requests.get_mut(place)?;
        (found == key).then_some((place, request))
    }

    /// Returns its place.
    fn insert(&mut self, key: RequestKey, request: Request) -> usize {
        let place = self.requests.insert((key, request));
        self.places.insert(key.checksum, place);
        place
    }

    fn remove(&mut self, place: usize) -> Request {
        let (key, request) = self.requests.remove(place);
        if let Entry::Occupied(found) = self.places.entry(key.checksum)
            && *found.get() == place
        {
            found.remove();
        }
        request
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.done.is_empty()
    }

    /// Returns the bytes freed.
    fn forget_older_than(&mut self, age: Duration, now: Instant) -> usize {
        let mut freed = 0;
        while self.done.front().is_some_and(|finished| now.since(finished.at) > age) {
            freed += self.forget_oldest();
        }
        freed
    }

    /// Returns the bytes freed.
    fn forget_oldest(&mut self) -> usize {
        let Some(Finished { place, number, .. }) = self.done.pop_front() else { return 0 };
        let mut freed = ENTRY_BYTES;
        if matches!(self.requests.get(place), Some((_, Request::Done(done))) if done.number == number) {
            freed += self.remove(place).charge();
        }
        self.bytes -= freed;
        freed
    }
}

/// A request in progress. If dropped without a reply, it counts as never received.
pub(crate) struct InProgress<'a> {
    replay: &'a Replay,
    client: ClientHost,
    place: usize,
    finished: bool,
}

impl InProgress<'_> {
    pub(crate) fn finish(mut self, reply: &[u8], now: Instant) {
        self.finished = true;
        self.replay.finish(self.client, self.place, reply, now);
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.replay.break_off(self.client, self.place);
        }
    }
}

#[cfg(test)]
mod tests;
