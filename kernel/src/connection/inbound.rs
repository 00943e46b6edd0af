//! The receiving side of a session: bytes for the decoder, payloads into frames.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::reservation::{ArrivalPermit, EdgePermit, Predicted};
use super::{Decoder, End, Holds, Next, Release, Scatter, Session, Step};
use crate::counters::Count;
use crate::trace::Event;
use crate::{FRAME_BYTES, Frames};

/// A skipped payload has the timeout for each piece of this size, as a written one. Bytes.
const SKIPPED_BYTES_A_PIECE: usize = 1 << 20;

pub struct Inbound<'a, D> {
    pub decoder: D,
    session: &'a Session,
    scatter: Scatter,
    predicted: Predicted,
    /// Time left for the message that has begun, as a whole: otherwise a byte now and then would prolong it for ever.
    time_left: Duration,
    /// Calls begun since this task last waited to receive.
    calls_in_a_row: u32,
    acknowledges: bool,
}

impl<'a, D: Decoder> Inbound<'a, D> {
    pub(super) fn new(session: &'a Session, decoder: D) -> Self {
        let predicted = Predicted::new(&session.sessions);
        let time_left = session.sessions.limits().stall_timeout;
        Inbound {
            decoder,
            session,
            scatter: Scatter::new(),
            predicted,
            time_left,
            calls_in_a_row: 0,
            acknowledges: false,
        }
    }

    pub fn session(&self) -> &'a Session {
        self.session
    }

    /// The next call.
    pub async fn next(&mut self) -> Step<D::Call> {
        match self.next_received() {
            Ok(next) => next,
            Err(holds) => self.next_after(holds).await,
        }
    }

    /// As [`Inbound::next`], after [`next_received`](Self::next_received) had none.
    pub(super) async fn next_after(&mut self, mut holds: Holds) -> Step<D::Call> {
        loop {
            self.receive(holds).await?;
            match self.next_received() {
                Ok(next) => return next,
                Err(more) => holds = more,
            }
        }
    }

    /// The next call, if it was received already. Otherwise more must be received; what the incomplete message holds.
    pub(super) fn next_received(&mut self) -> Result<Step<D::Call>, Holds> {
        loop {
            if !self.decoder.is_within_message() {
                self.restart_timeout();
                if self.session.sessions.is_stopping() {
                    return Ok(Step::Break(End::Closed));
                }
            }
            match self.decoder.next() {
                Next::Bytes(most) => {
                    if self.decoder.give(most, |to| self.scatter.take(to)) == 0 {
                        return Err(Holds::Frames);
                    }
                }
                Next::Skip(len) => match self.scatter.skip(len) {
                    0 => return Err(Holds::Nothing),
                    skipped => self.decoder.pass(skipped),
                },
                Next::Call(call) => {
                    if !self.decoder.has_payload(&call) {
                        self.scatter.on_other();
                    }
                    return Ok(Step::Continue(call));
                }
                Next::Malformed => return Ok(Step::Break(End::Malformed)),
            }
        }
    }

    /// Have `len` bytes more been received already?
    pub fn has_received(&self, len: usize) -> bool {
        self.scatter.has(len)
    }

    /// Does the dispatcher run before the next call? Without `look_ahead` before every call, otherwise after a number of
    /// calls (OLTP-6).
    pub(super) fn is_yield_due(&mut self) -> bool {
        let cpu = &self.session.cpu;
        self.calls_in_a_row += 1;
        !cpu.switches().look_ahead || self.calls_in_a_row > cpu.look_ahead_max()
    }

    pub(super) async fn yield_now(&mut self) {
        self.calls_in_a_row = 1;
        self.session.end_batch();
        self.session.cpu.yield_now().await;
    }

    /// The reply to this call takes a flush: what has arrived is acknowledged before. A client that has not turned off Nagle's
    /// algorithm (RFC 896; libnfs has not) sends no further small request until then, and TCP delays the acknowledgement to
    /// send it with the reply: of four writes in flight, each flush would cover two.
    pub fn acknowledge(&mut self) {
        self.acknowledges = true;
    }

    /// Starts the timeout of a message, or of a piece of a payload that has its own.
    pub fn restart_timeout(&mut self) {
        self.time_left = self.session.sessions.limits().stall_timeout;
    }

    /// Waits until one more request with this payload is admitted. `holds`: what it needs from now on until its reply
    /// is sent.
    pub async fn admit(&self, bytes: u64, holds: Holds) -> Release {
        let cpu = &self.session.cpu;
        cpu.count_request();
        self.session.outbound().admit(bytes, holds, cpu.kernel().cache_blocks()).await;
        Release { requests: 1, bytes }
    }

    /// Reserves frames to write a range that is not whole blocks: the rest of its first and last block may have to be
    /// read. The range begins `offset` bytes into a block. The caller must hold no frames.
    pub async fn edge_permit(&self, offset: usize, len: usize) -> EdgePermit {
        let frames = (offset + len).div_ceil(FRAME_BYTES);
        EdgePermit::take(&self.session.sessions, frames, self.session.cpu.kernel().cache_blocks()).await
    }

    /// Receives the next payload in one piece: `len` bytes, the first of which goes `offset` bytes into the first
    /// frame. The caller must hold no frames.
    pub async fn payload(&mut self, offset: usize, len: usize) -> Step<Frames> {
        let (mut fresh, mut _arrival) = (Frames::new(), None);
        if !self.scatter.is_predicted(offset, len) {
            // The permit lasts until all of it has arrived.
            (fresh, _arrival) = self.frames_for(offset, len, self.scatter.has(len)).await;
        }
        self.scatter.begin_payload(offset, len, fresh);
        self.complete(len).await
    }

    /// As [`Inbound::payload`] of whole frames, without waiting for memory: where no frames are free, the payload
    /// arrives as bytes. For peers that wait for what is behind it, as nodes do.
    pub async fn payload_anyway(&mut self, len: usize) -> Step<Result<Frames, Vec<u8>>> {
        let mut fresh = Frames::new();
        let is_predicted = self.scatter.is_predicted(0, len);
        if is_predicted || self.session.cpu.kernel().try_allocate(len.div_ceil(FRAME_BYTES), &mut fresh) {
            self.scatter.begin_payload(0, len, fresh);
            return Step::Continue(Ok(self.complete(len).await?));
        }
        let (mut bytes, mut at) = (vec![0; len], 0);
        self.scatter.on_other();
        loop {
            at += self.scatter.take(&mut bytes[at..]);
            if at == len {
                self.decoder.pass(len);
                return Step::Continue(Err(bytes));
            }
            self.receive(Holds::Nothing).await?;
        }
    }

    /// Frames for a payload in several pieces, and the permit for them until all of it [has arrived](Self::fill).
    pub async fn frames(&self, offset: usize, len: usize) -> (Frames, Option<ArrivalPermit>) {
        self.frames_for(offset, len, len == 0).await
    }

    async fn frames_for(&self, offset: usize, len: usize, has_arrived: bool) -> (Frames, Option<ArrivalPermit>) {
        let (cpu, sessions) = (&self.session.cpu, &self.session.sessions);
        let count = if len > 0 { (offset + len).div_ceil(FRAME_BYTES) } else { 0 };
        let mut arrival = None;
        if !has_arrived {
            arrival = Some(ArrivalPermit::take(sessions, count, cpu.kernel().cache_blocks()).await);
        }
        (cpu.kernel().allocate(cpu, count).await, arrival)
    }

    /// Receives a piece of a payload: `len` bytes, placed `offset` bytes into `frames`.
    pub async fn fill(&mut self, offset: usize, len: usize, frames: Frames) -> Step<Frames> {
        self.scatter.fill(offset, len, frames);
        self.complete(len).await
    }

    async fn complete(&mut self, len: usize) -> Step<Frames> {
        loop {
            if let Some(frames) = self.scatter.payload() {
                self.decoder.pass(len);
                return Step::Continue(frames);
            }
            self.receive(Holds::Frames).await?;
        }
    }

    /// Discards a payload.
    pub async fn skip(&mut self, len: usize) -> Step {
        let mut left = len;
        self.scatter.on_other();
        self.restart_timeout();
        loop {
            // In pieces, as if it were written.
            let before = left.div_ceil(SKIPPED_BYTES_A_PIECE);
            left -= self.scatter.skip(left);
            if left == 0 {
                return Step::Continue(());
            }
            if left.div_ceil(SKIPPED_BYTES_A_PIECE) < before {
                self.restart_timeout();
            }
            self.receive(Holds::Nothing).await?;
        }
    }

    /// Receives what has arrived. Ends with the stream and, between messages, when the sessions stop. `holds`: what the
    /// incomplete message holds; nothing if it is skipped.
    async fn receive(&mut self, holds: Holds) -> Step {
        self.calls_in_a_row = 0;
        self.session.end_batch();
        let is_within = holds == Holds::Nothing || self.decoder.is_within_message() || self.scatter.is_within_payload();
        let (cpu, watchdog) = (&self.session.cpu, &self.session.watchdog);
        if is_within {
            watchdog.arm(cpu, self.time_left, holds);
        } else if let Some(timeout) = self.session.sessions.limits().idle_timeout {
            watchdog.arm(cpu, timeout, Holds::Nothing);
        }
        let (waited, received) = self.receive_until_stop(!is_within).await;
        if is_within {
            self.time_left = self.time_left.saturating_sub(waited);
        }
        received
    }

    /// Also returns for how long the peer was waited for.
    async fn receive_until_stop(&mut self, ends_with_sessions: bool) -> (Duration, Step) {
        let Session { cpu, connection, watchdog, stop, .. } = self.session;
        if std::mem::take(&mut self.acknowledges) {
            cpu.acknowledge(*connection);
        }
        let kernel = cpu.kernel();
        let budget = self.predicted.budget(kernel.cache_blocks());
        let (hold, segments) = self.scatter.plan(self.decoder.headers(), budget, |missing, into| {
            kernel.try_allocate(into.len() + missing, into);
        });
        self.predicted.set(self.scatter.predicted());
        let mut received = pin!(cpu.receive(*connection, hold, segments));
        let outcome = poll_fn(|cx| match received.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if stop.stopped.get() && ends_with_sessions => Poll::Ready(None),
            Poll::Pending => {
                stop.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        let waited = watchdog.disarm(cpu);
        let Some((result, hold)) = outcome else {
            // The receive must end before the connection is closed; pending replies are sent first.
            self.session.outbound().until_idle().await;
            cpu.shutdown(*connection);
            let _ = received.await;
            return (waited, Step::Break(End::Closed));
        };
        let count = result.unwrap_or(0) as usize;
        cpu.count(Count::BytesReceived, count as u64);
        self.session.tally().receive(count as u64);
        cpu.trace(Event::Received, &**self.session.tally(), count as u64, 0);
        self.scatter.land(hold, count);
        (waited, if count > 0 { Step::Continue(()) } else { Step::Break(End::Closed) })
    }
}
