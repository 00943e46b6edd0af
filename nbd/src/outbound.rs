//! Replies on their way out: one queue and one sender for each connection. What is queued when the sender turns to it
//! leaves in one send, headers and frames as one vector.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use kernel::frame::append_segments;
use kernel::{FRAME_BYTES, Frames, Hold, Processor};
use machine::{Connection, SEGMENTS_MAX, Segment, Segments};

use crate::export::Server;
use crate::wire::{Keeps, Watchdog, segment};

/// Payload of one send, at most: more only makes the first reply wait for the last. Bytes.
const SEND_BYTES_MAX: usize = 1 << 20;

/// A reply, or a part of one.
pub(crate) struct Reply {
    /// Header bytes.
    pub(crate) header: Vec<u8>,
    /// Payload, if any.
    pub(crate) frames: Frames,
    /// Where the payload begins in the first frame.
    pub(crate) offset: usize,
    /// Bytes of payload.
    pub(crate) len: usize,
    /// What the connection may take in again when this has left.
    pub(crate) release: Release,
}

/// A part of what one connection may have under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Release {
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

/// What a connection has under way, and what it has to say.
pub(crate) struct Outbound {
    server: Arc<Server>,
    queue: RefCell<VecDeque<Reply>>,
    /// Replies of others, while one reply that may not be interrupted goes out in parts. They have no frames: whoever
    /// reads the next part may wait for just those.
    held_back: RefCell<VecDeque<Reply>>,
    exclusive: Cell<bool>,
    /// Replies with frames that are being made; none is begun during an exclusive one.
    with_frames: Cell<usize>,
    requests: Cell<usize>,
    bytes: Cell<u64>,
    broken: Cell<bool>,
    ended: Cell<bool>,
    sender: RefCell<Option<Waker>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Outbound {
    /// Nothing under way; starts the sender.
    pub(crate) fn start(cpu: &Processor, connection: Connection, server: &Arc<Server>) -> Rc<Outbound> {
        let outbound = Rc::new(Outbound {
            server: Arc::clone(server),
            queue: RefCell::default(),
            held_back: RefCell::default(),
            exclusive: Cell::new(false),
            with_frames: Cell::new(0),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            broken: Cell::new(false),
            ended: Cell::new(false),
            sender: RefCell::default(),
            waiters: RefCell::default(),
        });
        cpu.spawn(run(cpu.clone(), connection, Rc::clone(&outbound)));
        outbound
    }

    /// Queues a reply.
    pub(crate) fn push(&self, reply: Reply) {
        if self.exclusive.get() {
            self.held_back.borrow_mut().push_back(reply);
        } else {
            self.push_first(reply);
        }
    }

    /// Queues a part of the reply for which [`Outbound::begin_exclusive`] was awaited.
    pub(crate) fn push_first(&self, reply: Reply) {
        self.queue.borrow_mut().push_back(reply);
        self.wake_sender();
    }

    /// From now on, only one reply goes out.
    pub(crate) async fn begin_exclusive(&self) {
        self.until(|| !self.exclusive.replace(true)).await;
        self.until(|| self.with_frames.get() == 0).await;
    }

    /// Does a reply go out that may not be interrupted?
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive.get()
    }

    /// A reply with frames is going to be made; [`Outbound::push_with_frames`] must follow.
    pub(crate) async fn begin_with_frames(&self) {
        self.until(|| !self.exclusive.get()).await;
        self.with_frames.set(self.with_frames.get() + 1);
    }

    /// Queues the reply for which [`Outbound::begin_with_frames`] was awaited.
    pub(crate) fn push_with_frames(&self, reply: Reply) {
        self.with_frames.set(self.with_frames.get() - 1);
        self.push_first(reply);
        self.wake_waiters();
    }

    /// The others may go on.
    pub(crate) fn end_exclusive(&self) {
        self.exclusive.set(false);
        self.queue.borrow_mut().append(&mut self.held_back.borrow_mut());
        self.wake_sender();
        self.wake_waiters();
    }

    /// Waits until one more request with so much payload may be under way.
    pub(crate) async fn admit(&self, bytes: u64, cache_blocks: u64) {
        let (limits, kept) = (self.server.limits(), self.server.kept());
        let fits = || {
            self.requests.get() == 0
                || (self.requests.get() < limits.requests_a_connection
                    && self.bytes.get() + bytes <= limits.bytes_a_connection
                    && kept.has_room(bytes, cache_blocks))
        };
        self.until(|| fits() || self.broken.get()).await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        kept.add_in_flight(bytes);
    }

    /// Waits until nothing is under way and everything is sent.
    pub(crate) async fn until_idle(&self) {
        self.until(|| self.requests.get() == 0).await;
    }

    /// Waits until a reply's parts that are queued are few.
    pub(crate) async fn until_sent(&self) {
        self.until(|| self.queue.borrow().len() <= 1 || self.broken.get()).await;
    }

    /// Is there no use in sending any more?
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sends nothing any more; what is queued is dropped.
    pub(crate) fn set_broken(&self) {
        self.broken.set(true);
        self.wake_sender();
        self.wake_waiters();
    }

    /// Ends the sender.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.wake_sender();
    }

    /// Counts a request, or a part of one, as no longer under way.
    pub(crate) fn release(&self, release: Release) {
        self.requests.set(self.requests.get() - release.requests);
        self.bytes.set(self.bytes.get() - release.bytes);
        self.server.kept().subtract_in_flight(release.bytes);
        // Even if nothing is released: whoever sends a long reply in parts waits for each part to leave.
        self.wake_waiters();
    }

    async fn until(&self, mut ready: impl FnMut() -> bool) {
        std::future::poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn wake_waiters(&self) {
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    fn wake_sender(&self) {
        if let Some(waker) = self.sender.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for something to send; `None` at the end.
    async fn next_batch(&self) -> Option<Batch> {
        std::future::poll_fn(|cx| {
            if !self.queue.borrow().is_empty() {
                return Poll::Ready(Some(Batch::take(&mut self.queue.borrow_mut())));
            }
            if self.ended.get() {
                return Poll::Ready(None);
            }
            self.sender.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// Replies that leave together.
struct Batch {
    hold: Hold,
    /// For each reply: header bytes, frames, payload offset, payload length.
    parts: Vec<(usize, usize, usize, usize)>,
    release: Release,
}

impl Batch {
    fn take(queue: &mut VecDeque<Reply>) -> Batch {
        let mut batch = Batch { hold: Hold::default(), parts: Vec::new(), release: Release::default() };
        let (mut segments, mut bytes) = (0, 0);
        while let Some(reply) = queue.front() {
            segments += 1 + reply.frames.len();
            bytes += reply.len;
            if !batch.parts.is_empty() && (segments > SEGMENTS_MAX || bytes > SEND_BYTES_MAX) {
                break;
            }
            let Some(reply) = queue.pop_front() else { break };
            batch.parts.push((reply.header.len(), reply.frames.len(), reply.offset, reply.len));
            batch.hold.bytes.extend_from_slice(&reply.header);
            batch.hold.frames.extend(reply.frames);
            batch.release.requests += reply.release.requests;
            batch.release.bytes += reply.release.bytes;
        }
        batch
    }

    fn segments(&mut self) -> Segments {
        let mut segments = Segments::new();
        let (mut byte, mut frame) = (0, 0);
        for &(header, frames, offset, len) in &self.parts {
            if header > 0 {
                segments.push(segment(&mut self.hold.bytes[byte..byte + header]));
            }
            if len > 0 {
                append_segments(&mut segments, &self.hold.frames[frame..frame + frames], offset % FRAME_BYTES, len);
            }
            byte += header;
            frame += frames;
        }
        segments
    }
}

async fn run(cpu: Processor, connection: Connection, outbound: Rc<Outbound>) {
    let watchdog = Watchdog::watch(&cpu, connection, &outbound.server);
    let stall = outbound.server.limits().stall_timeout;
    while let Some(mut batch) = outbound.next_batch().await {
        let segments = batch.segments();
        let release = batch.release;
        if !outbound.is_broken() && !send(&cpu, connection, batch.hold, segments, &watchdog, stall).await {
            outbound.set_broken();
        }
        if outbound.is_broken() {
            // The side that receives must not wait for a client that will get no answer.
            cpu.shutdown(connection);
        }
        outbound.release(release);
    }
    watchdog.end();
}

/// Sends all; tells whether the peer took it.
async fn send(
    cpu: &Processor,
    connection: Connection,
    mut hold: Hold,
    mut segments: Segments,
    watchdog: &Watchdog,
    stall: Duration,
) -> bool {
    while !segments.is_empty() {
        watchdog.arm(cpu, stall, Keeps::Frames);
        let (result, back) = cpu.send(connection, hold, segments.clone()).await;
        watchdog.disarm();
        hold = back;
        match result {
            Ok(sent) => advance(&mut segments, sent as usize),
            Err(_) => return false,
        }
    }
    true
}

/// Takes `len` bytes off the front.
fn advance(segments: &mut Segments, len: usize) {
    let mut left = len;
    let mut whole = 0;
    for Segment { ptr, len, .. } in segments.iter_mut() {
        if left < *len as usize {
            *ptr = ptr.wrapping_add(left);
            *len -= left as u32;
            break;
        }
        left -= *len as usize;
        whole += 1;
    }
    segments.drain(..whole);
}
