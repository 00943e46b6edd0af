//! One connection to the server, made again whenever it ends, and the calls that are in flight on it.
//!
//! A call stays with its channel until it is answered: on a new connection it is sent again with the same number, so
//! that a server which has executed it already answers from its memory. On one connection nothing is sent twice: TCP
//! loses nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::connection::{Handler, Header, Holds, Inbound, Outbound, Peer, Protocol, Release, Session, Sessions, Step};
use kernel::wait::WaitList;
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::unit::Instant;

use super::message::Payload;
use super::record::{Arrived, Records};
use super::{Connector, Failure, Port, Timeouts};
use crate::results::Results;

/// Before the first new attempt to connect, and before any.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// A call, as it is sent.
pub(super) struct Call {
    pub header: Header,
    pub payload: Payload,
    /// Where its reply's data goes.
    pub place: Option<Payload>,
}

/// A reply that was accepted.
pub(crate) struct Reply {
    bytes: Vec<u8>,
    at: usize,
    /// Bytes of data that went to the call's place.
    pub data: usize,
    /// Was the call sent more than once? Then an earlier execution may be what a refusal is about.
    pub was_repeated: bool,
}

impl Reply {
    pub fn results(&self) -> Results<'_> {
        Results::new(&self.bytes[self.at..])
    }
}

pub(super) type Answer = Result<Reply, Failure>;

/// Where the caller waits.
#[derive(Default)]
pub(super) struct Waiter {
    answer: Mutex<Option<Answer>>,
    answered: WaitList,
}

/// A call that is not answered for so many times the timeout is late, whatever else is answered.
const LATE_TIMES_MAX: u32 = 8;

impl Waiter {
    pub async fn answer(&self) -> Answer {
        self.answered.until(|| self.answer.lock().take()).await
    }

    fn give(&self, answer: Answer) {
        *self.answer.lock() = Some(answer);
        self.answered.wake_all();
    }
}

struct Pending {
    call: Arc<Call>,
    waiter: Arc<Waiter>,
    begun: Instant,
    /// On the present connection, or not at all.
    sent: Option<Instant>,
    times_sent: u32,
    /// Its reply's data is being received into its place, which is the caller's again only when that has ended.
    is_arriving: bool,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<u32, Pending>,
    unsent: VecDeque<u32>,
    /// The present connection; numbered, so that none is mistaken for an earlier one.
    connection: Option<(u64, Connection)>,
    generation: u64,
    /// The server's last sign of life on it.
    heard: Instant,
    is_closed: bool,
    is_reported: bool,
}

pub(crate) struct Channel {
    port: Port,
    timeouts: Timeouts,
    sessions: Arc<Sessions>,
    connector: Arc<dyn Connector>,
    state: Mutex<State>,
    changed: WaitList,
}

impl Channel {
    pub(super) fn new(
        port: Port,
        timeouts: Timeouts,
        sessions: Arc<Sessions>,
        connector: Arc<dyn Connector>,
    ) -> Arc<Channel> {
        let (state, changed) = (Mutex::default(), WaitList::default());
        Arc::new(Channel { port, timeouts, sessions, connector, state, changed })
    }

    /// Starts the tasks that keep it connected. On the processor on which all its calls are made.
    pub(super) fn start(self: &Arc<Self>, cpu: &Processor) {
        cpu.spawn(Arc::clone(self).keep_connected(cpu.clone()));
        cpu.spawn(Arc::clone(self).watch(cpu.clone()));
    }

    /// Queues a call.
    pub(super) fn begin(&self, cpu: &Processor, xid: u32, call: Call) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::default());
        let pending = Pending {
            call: Arc::new(call),
            waiter: Arc::clone(&waiter),
            begun: cpu.now(),
            sent: None,
            times_sent: 0,
            is_arriving: false,
        };
        let mut state = self.state.lock();
        if state.is_closed {
            waiter.give(Err(Failure::Closed));
            return waiter;
        }
        state.pending.insert(xid, pending);
        state.unsent.push_back(xid);
        drop(state);
        self.changed.wake_all();
        waiter
    }

    /// Calls that are not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().pending.len()
    }

    /// Ends the channel: calls in flight fail.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let pending = std::mem::take(&mut state.pending);
        state.unsent.clear();
        drop(state);
        pending.into_values().for_each(|pending| pending.waiter.give(Err(Failure::Closed)));
        self.changed.wake_all();
    }

    pub(super) fn awaits_data(&self, xid: u32) -> bool {
        self.state.lock().pending.get(&xid).is_some_and(|pending| pending.call.place.is_some())
    }

    /// The rest of the reply to a call is received now.
    fn arriving(&self, xid: u32) -> Option<Arc<Call>> {
        let mut state = self.state.lock();
        let pending = state.pending.get_mut(&xid)?;
        pending.is_arriving = true;
        Some(Arc::clone(&pending.call))
    }

    fn is_over(&self, now: Instant, pending: &Pending) -> bool {
        self.timeouts.fails_after.is_some_and(|most| now.since(pending.begun) >= most)
    }

    /// Takes out the calls that fail now: not the one whose data is arriving.
    fn take_over(&self, now: Instant, state: &mut State) -> Vec<Pending> {
        let fails = |pending: &Pending| !pending.is_arriving && self.is_over(now, pending);
        let over: Vec<u32> = state.pending.iter().filter(|(_, pending)| fails(pending)).map(|(xid, _)| *xid).collect();
        over.iter().filter_map(|xid| state.pending.remove(xid)).collect()
    }

    /// A call was answered. One that is not in flight any more was answered before.
    pub(super) fn answer(&self, now: Instant, xid: u32, answer: Result<(Vec<u8>, usize, usize), Failure>) {
        let mut state = self.state.lock();
        state.heard = now;
        let Some(pending) = state.pending.remove(&xid) else { return };
        if std::mem::take(&mut state.is_reported) {
            self.connector.report("the server answers again");
        }
        drop(state);
        let was_repeated = pending.times_sent > 1;
        pending.waiter.give(answer.map(|(bytes, at, data)| Reply { bytes, at, data, was_repeated }));
    }

    async fn keep_connected(self: Arc<Self>, cpu: Processor) {
        let mut pause = AGAIN_MIN;
        while self.until_needed().await {
            match self.connect().await {
                Ok(connection) => {
                    pause = AGAIN_MIN;
                    let calls = Arc::new(Calls(Arc::clone(&self)));
                    kernel::connection::converse(calls, cpu.clone(), connection, "server".into()).await;
                    self.on_disconnected(cpu.now());
                }
                Err(errno) => {
                    if self.timeouts.fails_unconnected {
                        self.fail_all(&Failure::Unreachable(errno));
                    } else {
                        self.report(&format!("the server cannot be reached: {errno}; it is tried again"));
                    }
                }
            }
            cpu.sleep(pause).await;
            pause = (2 * pause).min(AGAIN_MAX);
        }
    }

    /// Waits for calls; false: the channel is closed.
    async fn until_needed(&self) -> bool {
        let is_needed = || {
            let state = self.state.lock();
            (state.is_closed || !state.pending.is_empty()).then_some(!state.is_closed)
        };
        self.changed.until(is_needed).await
    }

    async fn connect(&self) -> Result<Connection, Errno> {
        let made = Arc::new((Mutex::new(None), WaitList::default()));
        let own = Arc::clone(&made);
        self.connector.connect(
            self.port,
            Box::new(move |result| {
                *own.0.lock() = Some(result);
                own.1.wake_all();
            }),
        );
        made.1.until(|| made.0.lock().take()).await
    }

    fn on_connected(&self, now: Instant, connection: Connection) -> u64 {
        let mut state = self.state.lock();
        state.heard = now;
        state.generation += 1;
        state.connection = Some((state.generation, connection));
        // In the order in which they were made.
        let mut xids: Vec<_> = state.pending.iter().map(|(xid, pending)| (pending.begun, *xid)).collect();
        xids.sort_unstable();
        state.unsent = xids.into_iter().map(|(_, xid)| xid).collect();
        state.generation
    }

    fn on_disconnected(&self, now: Instant) {
        let mut state = self.state.lock();
        state.connection = None;
        state.unsent.clear();
        state.pending.values_mut().for_each(|pending| (pending.sent, pending.is_arriving) = (None, false));
        // Before they are sent again: the server could begin to answer, and stall, each time.
        let failed = self.take_over(now, &mut state);
        drop(state);
        failed.into_iter().for_each(|pending| pending.waiter.give(Err(Failure::TimedOut)));
        self.changed.wake_all();
    }

    /// The calls to be sent now; `None`: this connection has ended.
    async fn next(&self, cpu: &Processor, generation: u64) -> Option<Vec<Arc<Call>>> {
        let take = || {
            let mut state = self.state.lock();
            let state = &mut *state;
            if state.is_closed || state.connection.is_none_or(|(present, _)| present != generation) {
                return Some(None);
            }
            let mut calls = Vec::new();
            for xid in state.unsent.drain(..) {
                if let Some(pending) = state.pending.get_mut(&xid) {
                    pending.sent = Some(cpu.now());
                    pending.times_sent += 1;
                    calls.push(Arc::clone(&pending.call));
                }
            }
            (!calls.is_empty()).then_some(Some(calls))
        };
        self.changed.until(take).await
    }

    fn fail_all(&self, failure: &Failure) {
        let mut state = self.state.lock();
        state.unsent.clear();
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        pending.into_values().for_each(|pending| pending.waiter.give(Err(failure.clone())));
    }

    fn report(&self, line: &str) {
        if !std::mem::replace(&mut self.state.lock().is_reported, true) {
            self.connector.report(line);
        }
    }

    /// Looks for calls that take too long: their connection is made anew, and on soft mounts they fail in the end.
    async fn watch(self: Arc<Self>, cpu: Processor) {
        let reply = self.timeouts.reply;
        let interval = (reply / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        while self.until_needed().await {
            cpu.sleep(interval).await;
            let now = cpu.now();
            let (late, failed) = {
                let mut state = self.state.lock();
                let failed = self.take_over(now, &mut state);
                let heard = state.heard;
                // While a slow server takes what was sent it answers other calls.
                let is_late = |pending: &Pending| {
                    pending.sent.is_some_and(|sent| {
                        now.since(sent.max(heard)) >= reply || now.since(sent) >= reply.saturating_mul(LATE_TIMES_MAX)
                    })
                };
                // One that is over and still pending is arriving, and fails when its connection has ended.
                let is_any_late = state.pending.values().chain(&failed).any(is_late)
                    || state.pending.values().any(|pending| self.is_over(now, pending));
                (state.connection.filter(|_| is_any_late).map(|(_, connection)| connection), failed)
            };
            failed.into_iter().for_each(|pending| pending.waiter.give(Err(Failure::TimedOut)));
            if let Some(connection) = late {
                self.report("the server does not answer; it is tried again");
                cpu.shutdown(connection);
            }
        }
    }
}

/// The protocol on a connection that was made.
struct Calls(Arc<Channel>);

impl Protocol for Calls {
    type Handler = Replies;

    const NAME: &'static str = "mount";

    fn sessions(&self) -> &Arc<Sessions> {
        &self.0.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Replies> {
        let channel = Arc::clone(&self.0);
        let generation = channel.on_connected(session.cpu().now(), session.connection());
        let (cpu, outbound) = (session.cpu().clone(), std::rc::Rc::clone(session.outbound()));
        session.cpu().spawn(send(Arc::clone(&channel), cpu, generation, outbound));
        Some(Replies { channel, generation })
    }
}

/// Sends what is queued until the connection ends.
async fn send(channel: Arc<Channel>, cpu: Processor, generation: u64, outbound: std::rc::Rc<Outbound>) {
    while let Some(calls) = channel.next(&cpu, generation).await {
        for call in calls {
            // Counted as in flight until it is sent: the session waits for that before it closes.
            outbound.begin(0, Holds::Nothing);
            let Payload { frames, offset, len } = call.payload.clone();
            let release = Release { requests: 1, bytes: 0 };
            let padding = call.payload.padding();
            outbound.push(kernel::connection::Reply {
                header: call.header.clone(),
                frames,
                offset,
                len,
                padding,
                release,
            });
        }
        if outbound.is_broken() {
            return;
        }
    }
}

/// What the server sends on one connection.
struct Replies {
    channel: Arc<Channel>,
    generation: u64,
}

impl Drop for Replies {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.connection.take_if(|(present, _)| *present == self.generation);
        drop(state);
        self.channel.changed.wake_all();
    }
}

impl Handler for Replies {
    type Decoder = Records;

    fn decoder(&self) -> Records {
        let channel = Arc::clone(&self.channel);
        Records::new(move |xid| channel.awaits_data(xid))
    }

    async fn call(&mut self, arrived: Arrived, inbound: &mut Inbound<'_, Records>) -> Step {
        let Arrived { xid, bytes, rest } = arrived;
        super::receive(&self.channel, xid, bytes, rest, self.channel.arriving(xid), inbound).await
    }
}
