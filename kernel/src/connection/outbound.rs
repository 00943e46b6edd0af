//! Replies: one queue and one sender task for each connection. Everything queued when the sender runs leaves in one
//! send, headers and frames as one vector.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use machine::{Connection, SEGMENTS_MAX, Segment, Segments};
use smallvec::SmallVec;

use super::watchdog::{Holds, Watchdog};
use super::{Sessions, Tally, segment};
use crate::counters::Count;
use crate::frame::append_segments;
use crate::job::JobId;
use crate::trace::Event;
use crate::{FRAME_BYTES, Frames, Hold, Processor};

/// Payload of one send, at most: a larger one only delays its first reply. Bytes.
const SEND_BYTES_MAX: usize = 1 << 20;

/// Header memory retained for the next send, at most: that of a batch of ordinary replies.
const BATCH_BYTES_REUSED: usize = 16 << 10;

/// Header bytes of a reply. The most frequent ones need no allocation.
pub type Header = SmallVec<[u8; HEADER_BYTES_INLINE]>;

/// The longest of these is NFS WRITE's reply: record mark 4, RPC 24, `WRITE3res` 112.
const HEADER_BYTES_INLINE: usize = 144;

/// A reply, or a part of one.
#[derive(Debug, Default)]
pub struct Reply {
    pub header: Header,
    pub frames: Frames,
    /// Offset of the payload in the first frame.
    pub offset: usize,
    /// Bytes of payload.
    pub len: usize,
    /// Bytes of zeroes after it.
    pub padding: usize,
    /// What to release when this has been sent.
    pub release: Release,
}

/// A part of what a connection has in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Release {
    pub requests: usize,
    /// Bytes of payload.
    pub bytes: u64,
}

/// A connection's replies and requests in flight.
pub struct Outbound {
    cpu: Processor,
    sessions: Arc<Sessions>,
    queue: RefCell<VecDeque<Reply>>,
    /// Replies without frames, held back while an exclusive reply is sent in parts: the reader of its next part may
    /// need the frames that others would hold.
    held_back: RefCell<VecDeque<Reply>>,
    exclusive: Cell<bool>,
    /// Replies with frames in preparation; none starts during an exclusive reply.
    with_frames: Cell<usize>,
    requests: Cell<usize>,
    bytes: Cell<u64>,
    /// The part of `bytes` that is accounted for in the sum of all connections: 0 while a single request without frames
    /// is in flight. Such a request is always admitted; if it counted, many stuck ones would starve the others.
    shared: Cell<u64>,
    /// Has any request held frames since the connection was last idle?
    holds_frames: Cell<bool>,
    broken: Cell<bool>,
    ended: Cell<bool>,
    /// Charged for sending.
    job: Cell<JobId>,
    sender: RefCell<Option<Waker>>,
    waiters: RefCell<Vec<Waker>>,
    tally: Arc<Tally>,
}

impl Outbound {
    /// Starts the sender.
    pub fn start(cpu: &Processor, connection: Connection, sessions: &Arc<Sessions>) -> Rc<Outbound> {
        let outbound = Rc::new(Outbound {
            cpu: cpu.clone(),
            sessions: Arc::clone(sessions),
            queue: RefCell::default(),
            held_back: RefCell::default(),
            exclusive: Cell::new(false),
            with_frames: Cell::new(0),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            shared: Cell::new(0),
            holds_frames: Cell::new(false),
            broken: Cell::new(false),
            ended: Cell::new(false),
            job: Cell::new(cpu.job()),
            sender: RefCell::default(),
            waiters: RefCell::default(),
            tally: cpu.kernel().connections().tally(connection),
        });
        cpu.spawn(run(connection, Rc::clone(&outbound)));
        outbound
    }

    /// The connection's counters.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Charges sending to another job from now on.
    pub fn set_job(&self, job: JobId) {
        self.job.set(job);
    }

    pub fn push(&self, reply: Reply) {
        if self.exclusive.get() {
            self.held_back.borrow_mut().push_back(reply);
        } else {
            self.push_first(reply);
        }
    }

    /// Queues a part of the exclusive reply.
    pub fn push_first(&self, reply: Reply) {
        self.queue.borrow_mut().push_back(reply);
        self.wake_sender();
    }

    /// Starts an exclusive reply: no other is sent until [`Outbound::end_exclusive`].
    pub async fn begin_exclusive(&self) {
        self.until(|| !self.exclusive.replace(true)).await;
        self.until(|| self.with_frames.get() == 0).await;
    }

    /// Is an exclusive reply being sent?
    pub fn is_exclusive(&self) -> bool {
        self.exclusive.get()
    }

    /// Prepares a reply with frames; [`Outbound::push_with_frames`] must follow.
    pub async fn begin_with_frames(&self) {
        self.until(|| !self.exclusive.get()).await;
        self.with_frames.set(self.with_frames.get() + 1);
    }

    /// Queues a reply that was prepared by [`Outbound::begin_with_frames`].
    pub fn push_with_frames(&self, reply: Reply) {
        self.with_frames.set(self.with_frames.get() - 1);
        self.push_first(reply);
        self.wake_waiters();
    }

    /// Ends the exclusive reply.
    pub fn end_exclusive(&self) {
        self.exclusive.set(false);
        self.queue.borrow_mut().append(&mut self.held_back.borrow_mut());
        self.wake_sender();
        self.wake_waiters();
    }

    /// Waits until one more request with `bytes` of payload is admitted. `holds`: does it need frames from now on until
    /// its reply is sent?
    pub async fn admit(&self, bytes: u64, holds: Holds, cache_blocks: u64) {
        let is_admitted =
            self.fits(bytes, cache_blocks) && (holds == Holds::Nothing || self.has_room(bytes, cache_blocks));
        if !is_admitted {
            self.wait_for_room(bytes, holds, cache_blocks).await;
        }
        self.begin(bytes, holds);
    }

    async fn wait_for_room(&self, bytes: u64, holds: Holds, cache_blocks: u64) {
        let began = self.cpu.begin(Event::AdmissionAwaited, &*self.tally);
        self.until(|| self.fits(bytes, cache_blocks) || self.broken.get()).await;
        if holds == Holds::Frames && self.requests.get() == 0 {
            self.sessions.reservations().until(|| self.has_room(bytes, cache_blocks)).await;
        }
        self.cpu.end(began, Event::AdmissionAwaited, &*self.tally, bytes, self.requests.get() as u64);
    }

    /// Would [`Outbound::admit`] admit a request that holds frames without waiting?
    pub fn admits_at_once(&self, bytes: u64, cache_blocks: u64) -> bool {
        self.fits(bytes, cache_blocks) && self.has_room(bytes, cache_blocks)
    }

    fn fits(&self, bytes: u64, cache_blocks: u64) -> bool {
        let limits = self.sessions.limits();
        self.requests.get() == 0
            || (self.requests.get() < limits.requests
                && self.bytes.get() + bytes <= limits.bytes
                && self.has_room(bytes, cache_blocks))
    }

    fn has_room(&self, bytes: u64, cache_blocks: u64) -> bool {
        self.sessions.reservations().has_room(self.shared.get(), self.bytes.get() + bytes, cache_blocks)
    }

    /// Starts a request that was admitted, or could have been [at once](Self::admits_at_once).
    pub fn begin(&self, bytes: u64, holds: Holds) {
        self.holds_frames.set(self.holds_frames.get() || holds == Holds::Frames);
        self.requests.set(self.requests.get() + 1);
        self.cpu.begin_request();
        self.bytes.set(self.bytes.get() + bytes);
        self.tally.begin_request(self.requests.get());
        self.account();
    }

    /// A request that was begun takes so many bytes more, up to its release.
    pub fn grow(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        self.account();
    }

    /// Updates the sum of all connections; a single request without frames does not count.
    fn account(&self) {
        if self.requests.get() == 0 {
            self.holds_frames.set(false);
        }
        let counts = self.requests.get() > 1 || self.holds_frames.get();
        let shared = if counts { self.bytes.get() } else { 0 };
        self.sessions.reservations().change_in_flight(self.shared.replace(shared), shared);
    }

    /// Waits until nothing is in flight and everything is sent.
    pub async fn until_idle(&self) {
        self.until(|| self.requests.get() == 0).await;
    }

    /// Waits until at most one part of a reply is queued.
    pub async fn until_sent(&self) {
        self.until(|| self.queue.borrow().len() <= 1 || self.broken.get()).await;
    }

    /// Has sending failed for good?
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Stops sending; what is queued is dropped.
    pub fn set_broken(&self) {
        self.broken.set(true);
        self.wake_sender();
        self.wake_waiters();
    }

    pub fn end(&self) {
        self.ended.set(true);
        self.wake_sender();
    }

    /// Ends a request, or a part of one.
    pub fn release(&self, release: Release) {
        self.requests.set(self.requests.get() - release.requests);
        self.cpu.end_requests(release.requests);
        self.bytes.set(self.bytes.get() - release.bytes);
        self.tally.set_under_way(self.requests.get());
        self.account();
        // Even if nothing is released: the sender of a long reply waits for each part to leave.
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

    /// Waits for something to send; `None` at the end. With look-ahead (OLTP-6), all queued replies leave in one send.
    async fn next_batch(&self, memory: &mut BatchMemory) -> Option<Batch> {
        std::future::poll_fn(|cx| {
            if !self.queue.borrow().is_empty() {
                let look_ahead = self.cpu.switches().look_ahead;
                let most = if look_ahead { self.cpu.send_bytes_max(SEND_BYTES_MAX) } else { 0 };
                return Poll::Ready(Some(Batch::take(&mut self.queue.borrow_mut(), most, memory)));
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

struct Batch {
    hold: Hold,
    parts: Vec<Part>,
    release: Release,
}

/// Memory reused from the previous batch.
#[derive(Default)]
struct BatchMemory {
    hold: Hold,
    parts: Vec<Part>,
}

/// Bytes of one reply within the batch's memory.
struct Part {
    header: usize,
    frames: usize,
    offset: usize,
    len: usize,
    padding: usize,
}

impl Batch {
    /// Takes the first reply and others of up to `most` bytes of payload in all; with `most` 0, only the first.
    fn take(queue: &mut VecDeque<Reply>, most: usize, memory: &mut BatchMemory) -> Batch {
        let BatchMemory { hold, parts } = std::mem::take(memory);
        let mut batch = Batch { hold, parts, release: Release::default() };
        let (mut segments, mut bytes) = (0, 0);
        while let Some(reply) = queue.front() {
            segments += 1 + reply.frames.len() + reply.padding.min(1);
            bytes += reply.len;
            if !batch.parts.is_empty() && (most == 0 || segments > SEGMENTS_MAX || bytes > most) {
                break;
            }
            let Some(reply) = queue.pop_front() else { break };
            let Reply { header, frames, offset, len, padding, release } = reply;
            batch.parts.push(Part { header: header.len(), frames: frames.len(), offset, len, padding });
            batch.hold.bytes.extend_from_slice(&header);
            batch.hold.bytes.resize(batch.hold.bytes.len() + padding, 0);
            batch.hold.frames.extend(frames);
            batch.release.requests += release.requests;
            batch.release.bytes += release.bytes;
        }
        batch
    }

    /// Bytes.
    fn len(&self) -> usize {
        self.hold.bytes.len() + self.parts.iter().map(|part| part.len).sum::<usize>()
    }

    /// What is left after the first `sent` bytes. Adjacent bytes become one segment.
    fn segments_after(&mut self, sent: usize) -> Segments {
        let mut segments = Segments::with_capacity(self.parts.len() + self.hold.frames.len() + 1);
        let (mut run, mut frame) = (0..0, 0);
        for part in &self.parts {
            run.end += part.header;
            if part.len > 0 {
                let next = run.end;
                if !run.is_empty() {
                    segments.push(segment(&mut self.hold.bytes[std::mem::replace(&mut run, next..next)]));
                }
                let frames = &self.hold.frames[frame..frame + part.frames];
                append_segments(&mut segments, frames, part.offset % FRAME_BYTES, part.len);
            }
            run.end += part.padding;
            frame += part.frames;
        }
        if !run.is_empty() {
            segments.push(segment(&mut self.hold.bytes[run]));
        }
        if sent > 0 {
            advance(&mut segments, sent);
        }
        segments
    }
}

async fn run(connection: Connection, outbound: Rc<Outbound>) {
    let cpu = &outbound.cpu;
    let watchdog = Watchdog::watch(cpu, connection, &outbound.sessions);
    let mut memory = BatchMemory::default();
    while let Some(mut batch) = outbound.next_batch(&mut memory).await {
        cpu.work_for(outbound.job.get());
        if !outbound.is_broken() && !send(cpu, connection, &mut batch, &outbound, &watchdog).await {
            outbound.set_broken();
        }
        let Batch { mut hold, mut parts, release } = batch;
        hold.bytes.clear();
        hold.bytes.shrink_to(BATCH_BYTES_REUSED);
        hold.frames.clear();
        parts.clear();
        memory = BatchMemory { hold, parts };
        if outbound.is_broken() {
            // The receiving side must not wait for a client that will get no answer.
            cpu.shutdown(connection);
        }
        outbound.release(release);
    }
    watchdog.end();
}

/// Returns whether the peer accepted all of it.
async fn send(
    cpu: &Processor,
    connection: Connection,
    batch: &mut Batch,
    outbound: &Outbound,
    watchdog: &Watchdog,
) -> bool {
    let stall = outbound.sessions.limits().stall_timeout;
    let (mut sent, len) = (0, batch.len());
    while sent < len {
        let segments = batch.segments_after(sent);
        watchdog.arm(cpu, stall, Holds::Frames);
        let began = cpu.begin_after(Event::Sent, &*outbound.tally);
        let (result, hold) = cpu.send(connection, std::mem::take(&mut batch.hold), segments).await;
        batch.hold = hold;
        cpu.end(began, Event::Sent, &*outbound.tally, result.unwrap_or(0), batch.release.requests as u64);
        cpu.count(Count::Sends, 1);
        cpu.count(Count::BytesSent, result.unwrap_or(0));
        outbound.tally.send(result.unwrap_or(0));
        watchdog.disarm(cpu);
        match result {
            Ok(more) => sent += more as usize,
            Err(_) => return false,
        }
    }
    true
}

/// Removes `len` bytes from the front.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(count: usize) -> VecDeque<Reply> {
        let reply = |no| Reply { header: Header::from_elem(no as u8, 28), ..Reply::default() };
        (0..count).map(reply).collect()
    }

    #[test]
    fn what_was_sent_in_part_goes_on_where_it_stopped() {
        let mut batch = Batch::take(&mut queued(3), SEND_BYTES_MAX, &mut BatchMemory::default());
        let (first, len) = (batch.hold.bytes.as_ptr(), batch.len());
        assert_eq!(len, 3 * 28);
        for sent in 0..len {
            let segments = batch.segments_after(sent);
            let left = segments.iter().map(|segment| (segment.ptr.cast_const(), segment.len as usize));
            assert_eq!(left.collect::<Vec<_>>(), [(first.wrapping_add(sent), len - sent)]);
        }
    }

    #[test]
    fn what_is_queued_leaves_together_with_look_ahead_and_each_by_itself_without() {
        for (most, sends) in [(SEND_BYTES_MAX, 1), (0, 5)] {
            let (mut queue, mut memory, mut bytes, mut taken) = (queued(5), BatchMemory::default(), Vec::new(), 0);
            while !queue.is_empty() {
                let batch = Batch::take(&mut queue, most, &mut memory);
                bytes.extend_from_slice(&batch.hold.bytes);
                taken += 1;
            }
            assert_eq!(taken, sends);
            assert_eq!(bytes, (0..5).flat_map(|no| [no; 28]).collect::<Vec<u8>>(), "all of them, in their order");
        }
    }
}
