//! The connection to a peer: one for each volume, made by the node with the lower number, made again whenever it ends.
//!
//! Words for a peer are queued by any processor; all that is queued when the link's task runs leaves in one send, and more
//! when that has left. Without a connection they are dropped: the policy repeats what matters.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, select};
use kernel::connection::{
    End, FixedHeader, Handler, Headerwise, Holds, Inbound, Limits, Outbound, Peer, Protocol, Release, Reply, Session,
    Sessions, Step,
};
use kernel::wait::WaitList;
use kernel::{FrameRef, Frames, Processor};
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::coherence::{Address, Incarnation, NodeId};
use policy::unit::Instant;

use crate::Shared;
use crate::admission::{hello, is_member, refusal};
use crate::arrived::{Arrived, Payload};
use crate::hello::{First, Hello};
use crate::run::Run;
use crate::waiting::RETRANSMIT_AFTER;
use crate::wire::{HEADER_BYTES, Header, PAGE_BYTES, Word};

/// Of the first message on a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages taken in together, about: others wait for the state meanwhile.
const TAKEN_IN_MAX: usize = 64;

/// For the last words to leave the host.
const LEAVE: Duration = Duration::from_millis(50);

/// What is queued for one peer.
#[derive(Default)]
pub(crate) struct Link {
    queue: Mutex<Queue>,
    filled: WaitList,
    /// Woken when a connection ends.
    ended: WaitList,
    /// When something was heard of the peer last. Nanoseconds.
    heard: AtomicU64,
    /// The last line that was reported.
    reported: Mutex<String>,
    /// The incarnation of the peer to which this node connects; 0 where members are not known. One task does that for each:
    /// two would end each other's connections for ever.
    dialled: Mutex<Option<Incarnation>>,
}

#[derive(Default)]
struct Queue {
    /// Numbers connections; a later one ends the one before.
    generation: u64,
    is_up: bool,
    /// The peer ends, and has not stored all yet.
    is_ending: bool,
    /// With their pages.
    words: Vec<(Run, Frames)>,
    /// Since when earlier words have been leaving.
    leaving: Option<Instant>,
}

impl Link {
    pub(crate) fn push(&self, from: Incarnation, to: Incarnation, word: Word, frame: Option<FrameRef>) {
        self.push_all((from, to), std::iter::once((word, frame)));
    }

    pub(crate) fn push_all(
        &self,
        (from, to): (Incarnation, Incarnation),
        words: impl Iterator<Item = (Word, Option<FrameRef>)>,
    ) {
        let mut queue = self.queue.lock();
        if queue.is_up {
            let was_empty = queue.words.is_empty();
            words.for_each(|(word, frame)| queue.push(Header { from, to, word }, frame));
            drop(queue);
            if was_empty {
                self.filled.wake_all();
            }
        }
    }

    /// Is the line another one than was reported last?
    pub(crate) fn is_news(&self, line: &str) -> bool {
        let mut reported = self.reported.lock();
        let is_news = *reported != line;
        line.clone_into(&mut reported);
        is_news
    }

    /// Whether nobody connects to the peer in this incarnation yet. From now on the caller does.
    pub(crate) fn claim(&self, incarnation: Incarnation) -> bool {
        self.dialled.lock().replace(incarnation) != Some(incarnation)
    }

    /// Begins a connection, on which `first` leaves before anything else. Returns its number.
    pub(crate) fn begin(&self, cpu: &Processor, first: impl Iterator<Item = Header>) -> u64 {
        let mut queue = self.queue.lock();
        queue.generation += 1;
        (queue.is_up, queue.is_ending) = (true, false);
        queue.words.clear();
        first.for_each(|header| queue.push(header, None));
        queue.leaving = None;
        self.heard.store(cpu.now().ns(), Ordering::Relaxed);
        let generation = queue.generation;
        drop(queue);
        self.filled.wake_all();
        self.ended.wake_all();
        generation
    }

    /// Ends a connection, unless a later one has begun. False: it has.
    fn end(&self, generation: u64) -> bool {
        let mut queue = self.queue.lock();
        let is_last = queue.generation == generation;
        if is_last && queue.is_up {
            queue.is_up = false;
            queue.words.clear();
            queue.leaving = None;
        }
        drop(queue);
        self.filled.wake_all();
        self.ended.wake_all();
        is_last
    }

    /// Ends the connection that there is.
    pub(crate) fn end_any(&self) {
        self.end(self.generation());
    }

    fn is(&self, generation: u64) -> bool {
        let queue = self.queue.lock();
        queue.is_up && queue.generation == generation
    }

    async fn until_ended(&self, generation: u64) {
        self.ended.until(|| (!self.is(generation)).then_some(())).await;
    }

    /// The number of the last connection.
    pub(crate) fn generation(&self) -> u64 {
        self.queue.lock().generation
    }

    pub(crate) fn is_up(&self) -> bool {
        self.queue.lock().is_up
    }

    pub(crate) fn set_ending(&self, is_ending: bool) {
        self.queue.lock().is_ending = is_ending;
    }

    /// Does the peer on this connection end, and has not stored all yet?
    pub(crate) fn is_ending(&self) -> bool {
        let queue = self.queue.lock();
        queue.is_up && queue.is_ending
    }

    /// Do words wait for earlier ones to leave, or have they been leaving since before they would be repeated? Then nothing
    /// has been ignored, and to repeat it would only make it later.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        let queue = self.queue.lock();
        !queue.words.is_empty() || queue.leaving.is_some_and(|since| now.since(since) >= RETRANSMIT_AFTER)
    }

    /// What `next` returned has left, or the connection has ended.
    fn have_left(&self, generation: u64) {
        let mut queue = self.queue.lock();
        queue.leaving = queue.leaving.filter(|_| queue.generation != generation);
    }

    /// Waits until what was queued is on its way, or the connection has ended.
    async fn until_sent(&self) {
        let is_sent = || {
            let queue = self.queue.lock();
            !queue.is_up || queue.words.is_empty()
        };
        self.filled.until(|| is_sent().then_some(())).await;
    }

    /// Ends the connection of a peer of which nothing was heard for `silence`.
    pub(crate) fn end_if_silent(&self, cpu: &Processor, silence: Duration) {
        let generation = self.generation();
        let heard = Instant::from_ns(self.heard.load(Ordering::Relaxed));
        if self.is(generation) && cpu.now().since(heard) >= silence {
            self.end(generation);
        }
    }

    /// Waits for words to send; `None`: the connection has ended.
    async fn next(&self, now: impl Fn() -> Instant, generation: u64) -> Option<Vec<(Run, Frames)>> {
        let take = || {
            let mut queue = self.queue.lock();
            if !queue.is_up || queue.generation != generation {
                return Some(None);
            }
            (!queue.words.is_empty()).then(|| {
                queue.leaving = Some(now());
                Some(std::mem::take(&mut queue.words))
            })
        };
        let words = self.filled.until(take).await;
        self.filled.wake_all();
        words
    }
}

impl Queue {
    /// Words about adjacent pages leave together.
    fn push(&mut self, header: Header, frame: Option<FrameRef>) {
        if let Some((run, frames)) = self.words.last_mut()
            && run.extend(&header)
        {
            return frames.extend(frame);
        }
        self.words.push((Run::of(header), Frames::from_iter(frame)));
    }
}

/// Words in their order, with the pages that follow them: those about adjacent pages `together`, or each by itself.
fn runs(words: Vec<(Run, Frames)>, together: bool) -> impl Iterator<Item = (Run, Frames)> {
    words.into_iter().flat_map(move |(run, frames)| {
        let mut frames = frames.into_iter();
        let whole = together.then(|| (run, frames.by_ref().collect()));
        let singles = if together { None } else { Some(run.headers()) };
        let singles = singles.into_iter().flatten();
        whole.into_iter().chain(singles.map(move |header| (Run::of(header), frames.next().into_iter().collect())))
    })
}

/// Sends what is queued until the connection ends.
async fn send(shared: Arc<Shared>, cpu: Processor, node: NodeId, generation: u64, out: Out) {
    let Out { connection, outbound, is_closed } = out;
    let link = &shared.links[usize::from(node.0)];
    while let Some(words) = link.next(|| cpu.now(), generation).await {
        shared.counters.batches.add(1);
        for (run, frames) in runs(words, cpu.switches().look_ahead) {
            // Counted as a request in flight until it is sent: the session waits for that before it closes.
            outbound.begin(0, Holds::Nothing);
            let release = Release { requests: 1, bytes: 0 };
            shared.counters.headers.add(1);
            let (header, len) = (run.encode().into_iter().collect(), frames.len() * PAGE_BYTES);
            outbound.push(Reply { header, frames, len, release, ..Reply::default() });
        }
        // A peer that takes nothing must not keep its connection.
        select(pin!(outbound.until_sent()), pin!(link.until_ended(generation))).await;
        link.have_left(generation);
        if outbound.is_broken() {
            break;
        }
    }
    link.end(generation);
    // Its number may be another connection's by now.
    if !is_closed.get() {
        cpu.shutdown(connection);
    }
}

/// The sending side of a connection.
struct Out {
    connection: Connection,
    outbound: Rc<Outbound>,
    /// Has its session ended?
    is_closed: Rc<Cell<bool>>,
}

/// Makes connections to peers.
pub trait Connector: Send + Sync + 'static {
    /// Connects to a node, and calls `made` with the result, from any thread.
    fn connect(&self, node: NodeId, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>);
}

/// The cluster's protocol: shared volumes of one node, for connections of its peers.
pub struct Dsm {
    pub(crate) sessions: Arc<Sessions>,
    volumes: Mutex<Vec<Arc<Shared>>>,
    pub(crate) connector: Box<dyn Connector>,
}

impl Dsm {
    pub fn new(connector: impl Connector) -> Arc<Dsm> {
        let limits = Limits { handshake_timeout: HANDSHAKE_TIMEOUT, ..Limits::default() };
        let sessions = Arc::new(Sessions::new(limits));
        Arc::new(Dsm { sessions, volumes: Mutex::default(), connector: Box::new(connector) })
    }

    pub fn volumes(&self) -> Vec<Arc<Shared>> {
        self.volumes.lock().clone()
    }

    /// Serves a volume from now on, in place of its earlier incarnation: its peers may connect.
    pub fn add(&self, shared: &Arc<Shared>) {
        let mut volumes = self.volumes.lock();
        match volumes.iter_mut().find(|earlier| earlier.config.name == shared.config.name) {
            Some(earlier) => *earlier = Arc::clone(shared),
            None => volumes.push(Arc::clone(shared)),
        }
    }

    /// This node begins to end. Homes that end, too, go on until it has stored what it wrote.
    pub fn begin_to_leave(&self) {
        self.volumes().iter().for_each(|shared| shared.begin_to_leave());
    }

    /// Ends what this node is as a home, and tells the peers that it has stored all that it wrote, if that is so. To be called
    /// after the volumes were closed: others need not wait then for what this node held. Returns the volumes of which not all
    /// that was stored here is durable.
    pub async fn leave(&self, cpu: &Processor) -> Vec<(String, Errno)> {
        let volumes = self.volumes();
        for shared in &volumes {
            shared.give_back_forwarded(cpu).await;
            shared.tell_unstored();
        }
        let mut failed = Vec::new();
        // Shards that are given up nobody serves until this node is gone: they come last.
        for moves in [false, true] {
            let retiring = volumes.iter().filter(|shared| shared.config.shards.is_some() == moves);
            let retired =
                join_all(retiring.map(|shared| async { (shared.name().to_owned(), shared.retire(cpu).await) }));
            failed.extend(retired.await.into_iter().filter_map(|(name, retired)| Some((name, retired.err()?))));
        }
        for shared in volumes.into_iter().filter(|shared| shared.has_stored_all()) {
            for link in shared.links.iter().filter(|link| link.is_up()) {
                link.push(shared.me.incarnation, Incarnation::default(), Word::Bye, None);
                link.until_sent().await;
            }
        }
        // The senders run before this task does again, and again until the connections have taken it.
        cpu.sleep(LEAVE).await;
        self.sessions.stop();
        failed
    }

    fn volume(&self, name: &str) -> Option<Arc<Shared>> {
        self.volumes.lock().iter().find(|shared| shared.config.name == name).cloned()
    }
}

impl Protocol for Dsm {
    type Handler = Conversation;

    const NAME: &'static str = "dsm";

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Conversation> {
        let First::Hello(theirs) = First::receive(session).await? else { return None };
        let Some(shared) = self.volume(&theirs.terms.volume) else {
            let why = format!("volume {:?} is not served here", theirs.terms.volume);
            First::Refused(why).send(session).await;
            return None;
        };
        if let Some(why) = refusal(&shared, &theirs) {
            let of = Some(theirs.from).filter(|node| usize::from(node.0) < shared.config.nodes.len());
            shared.report(of, format!("is refused: {why}"));
            First::Refused(why).send(session).await;
            return None;
        }
        if !is_member(&shared, &theirs) {
            return None;
        }
        hello(&shared, theirs.from).send(session).await.then(|| Conversation::begin(session, shared, &theirs))
    }
}

/// What a peer sends on one connection.
pub struct Conversation {
    shared: Arc<Shared>,
    peer: Address,
    generation: u64,
    is_closed: Rc<Cell<bool>>,
    /// Messages about pages that have arrived together, to be taken in together, and their number.
    arrived: Vec<Arrived>,
    messages: usize,
}

impl Conversation {
    pub(crate) fn begin(session: &Session, shared: Arc<Shared>, theirs: &Hello) -> Conversation {
        let (cpu, peer) = (session.cpu(), Address { node: theirs.from, incarnation: theirs.process.incarnation });
        let generation = shared.on_connected(cpu, peer, theirs);
        let is_closed = Rc::new(Cell::new(false));
        let out = Out {
            connection: session.connection(),
            outbound: Rc::clone(session.outbound()),
            is_closed: Rc::clone(&is_closed),
        };
        cpu.spawn(send(Arc::clone(&shared), cpu.clone(), peer.node, generation, out));
        Conversation { shared, peer, generation, is_closed, arrived: Vec::new(), messages: 0 }
    }

    fn link(&self) -> &Link {
        &self.shared.links[usize::from(self.peer.node.0)]
    }

    fn take_in(&mut self, cpu: &Processor) {
        if !self.arrived.is_empty() {
            self.messages = 0;
            self.shared.on_messages(cpu, self.arrived.drain(..));
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.is_closed.set(true);
        if self.link().end(self.generation) {
            self.shared.report(Some(self.peer.node), "is not connected any more".into());
        }
    }
}

impl Handler for Conversation {
    type Decoder = Headers;

    fn decoder(&self) -> Headers {
        Headers::default()
    }

    async fn call(&mut self, run: Run, inbound: &mut Inbound<'_, Headers>) -> Step {
        let cpu = inbound.session().cpu().clone();
        self.link().heard.store(cpu.now().ns(), Ordering::Relaxed);
        let mut pages = Payload::None;
        if run.page_bytes() > 0 {
            if !inbound.has_received(run.page_bytes()) {
                self.take_in(&cpu);
            }
            pages = inbound.payload_anyway(run.page_bytes()).await?.map_or_else(Payload::Bytes, Payload::Frames);
        }
        if run.from != self.peer.incarnation || !self.link().is(self.generation) {
            return Step::Break(End::Closed);
        }
        if !matches!(run.word(), Word::Page { .. }) {
            self.take_in(&cpu);
            self.shared.on_word(&cpu, (self.peer, run.to), run.word());
            return Step::Continue(());
        }
        let to = Address { node: self.shared.me.node, incarnation: run.to };
        self.messages += run.len();
        self.arrived.push(Arrived { from: self.peer, to, run, pages });
        if self.messages >= TAKEN_IN_MAX {
            self.take_in(&cpu);
        }
        Step::Continue(())
    }

    fn end_batch(&mut self, session: &Session) {
        self.take_in(session.cpu());
    }
}

/// Pages are left to the handler.
type Headers = Headerwise<Run, HEADER_BYTES>;

impl FixedHeader<HEADER_BYTES> for Run {
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        Run::decode(bytes)
    }

    fn has_payload(&self) -> bool {
        self.page_bytes() > 0
    }
}
