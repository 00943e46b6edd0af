//! The transmission phase: requests in.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use kernel::{FRAME_BYTES, Frames, Processor};
use machine::Connection;
use policy::unit::ByteRange;

use crate::command::{Commands, Verdict};
use crate::export::Server;
use crate::kept::{EdgePermit, Predicted};
use crate::negotiate::negotiate;
use crate::outbound::{Outbound, Release};
use crate::proto::{Request, cmd};
use crate::scatter::Scatter;
use crate::wire::{Gone, Keeps, Watchdog};

/// Serves one client on this processor until it goes or the server ends, then closes the connection.
pub async fn serve(cpu: &Processor, connection: Connection, server: &Arc<Server>) {
    let watchdog = Watchdog::watch(cpu, connection, server);
    let stop = Rc::new(Stop::default());
    follow_end(cpu, connection, server, &watchdog, &stop);
    stop.negotiating.set(true);
    let session = negotiate(cpu, connection, server, &watchdog).await;
    stop.negotiating.set(false);
    if let Some(session) = session {
        let outbound = Outbound::start(cpu, connection, server);
        let commands = Rc::new(Commands::new(cpu.clone(), session, Rc::clone(&outbound)));
        let inbound = Inbound {
            cpu,
            connection,
            server,
            watchdog: &watchdog,
            stop: &stop,
            scatter: Scatter::new(),
            predicted: Predicted::new(server.kept()),
            outbound,
        };
        inbound.run(&commands).await;
    }
    watchdog.end();
    cpu.close(connection);
}

/// Tells a connection that waits for a request that none will be taken any more.
#[derive(Default)]
struct Stop {
    stopped: Cell<bool>,
    /// Nothing can be under way yet.
    negotiating: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Follows the server's end for as long as the connection lasts.
fn follow_end(cpu: &Processor, connection: Connection, server: &Arc<Server>, watchdog: &Rc<Watchdog>, stop: &Rc<Stop>) {
    let (here, server, watchdog, stop) = (cpu.clone(), Arc::clone(server), Rc::clone(watchdog), Rc::clone(stop));
    cpu.spawn(async move {
        server.changed().until(|| (server.is_stopping() || watchdog.is_over()).then_some(())).await;
        stop.stopped.set(true);
        if stop.negotiating.get() && !watchdog.is_over() {
            here.shutdown(connection);
        }
        if let Some(waker) = stop.waker.take() {
            waker.wake();
        }
        server.changed().until(|| (server.is_overdue() || watchdog.is_over()).then_some(())).await;
        if !watchdog.is_over() {
            here.shutdown(connection);
        }
    });
}

/// The receiving side of a connection.
struct Inbound<'a> {
    cpu: &'a Processor,
    connection: Connection,
    server: &'a Arc<Server>,
    watchdog: &'a Watchdog,
    stop: &'a Stop,
    scatter: Scatter,
    predicted: Predicted<'a>,
    outbound: Rc<Outbound>,
}

impl Inbound<'_> {
    async fn run(mut self, commands: &Rc<Commands>) {
        // However it ends: what is under way is finished first.
        let _ = self.requests(commands).await;
        self.outbound.until_idle().await;
        self.outbound.end();
    }

    async fn requests(&mut self, commands: &Rc<Commands>) -> Result<(), Gone> {
        let piece_bytes = (commands.piece_frames() * FRAME_BYTES) as u64;
        while let Some(request) = self.next_request().await? {
            if request.kind == cmd::DISC {
                return Ok(());
            }
            self.cpu.count_request();
            let verdict = commands.check(&request);
            let payload =
                u64::from(if request.kind == cmd::READ || request.kind == cmd::WRITE { request.len } else { 0 });
            let payload = payload.min(piece_bytes);
            self.outbound.admit(payload, self.cpu.kernel().cache_blocks()).await;
            match verdict {
                Verdict::Refuse(error) if request.kind == cmd::WRITE => {
                    let skipped = self.skip(request.len as usize).await;
                    commands.refuse(&request, error, payload);
                    skipped?;
                }
                Verdict::Refuse(error) => commands.refuse(&request, error, payload),
                Verdict::Disconnect => {
                    commands.refuse(&request, crate::proto::NbdError::EINVAL, payload);
                    return Ok(());
                }
                Verdict::Do if request.kind == cmd::WRITE && request.len > 0 => {
                    self.write(commands, &request, payload).await?
                }
                Verdict::Do => commands.start(&request, payload),
            }
            if self.outbound.is_broken() {
                return Err(Gone);
            }
        }
        Ok(())
    }

    /// The next request; `None` at the end of the stream, for a wrong magic, and when the server ends.
    async fn next_request(&mut self) -> Result<Option<Request>, Gone> {
        loop {
            if self.server.is_stopping() {
                return Ok(None);
            }
            if let Some(header) = self.scatter.header() {
                let request = Request::decode(&header);
                if request.is_some_and(|request| request.kind != cmd::WRITE) {
                    self.scatter.on_other();
                }
                return Ok(request);
            }
            if !self.receive(Keeps::Frames).await? {
                return Ok(None);
            }
        }
    }

    /// Takes a write's payload in and has it written, piece by piece.
    async fn write(&mut self, commands: &Rc<Commands>, request: &Request, payload: u64) -> Result<(), Gone> {
        let mut at = request.offset;
        let end = request.offset + u64::from(request.len);
        let mut write = commands.begin_write(request, payload);
        while at < end {
            let offset = (at % FRAME_BYTES as u64) as usize;
            let len = (end - at).min((commands.piece_frames() * FRAME_BYTES - offset) as u64) as usize;
            let permit = self.permit(commands, at, len).await;
            let Ok(frames) = self.payload(offset, len).await else {
                // The client went in the middle of it: nobody waits for a reply.
                self.outbound.release(Release { requests: 1, bytes: payload });
                return Err(Gone);
            };
            let range = ByteRange::new(at, len as u64);
            at += len as u64;
            write = write.piece(range, frames, permit, at == end).await;
        }
        Ok(())
    }

    /// What is needed to write a piece that is no whole blocks; its missing parts may have to be read.
    async fn permit(&self, commands: &Commands, at: u64, len: usize) -> Option<EdgePermit> {
        let end = at + len as u64;
        let is_whole = |at: u64| at.is_multiple_of(FRAME_BYTES as u64) || at == commands.size();
        if is_whole(at) && is_whole(end) {
            return None;
        }
        let frames = (end.div_ceil(FRAME_BYTES as u64) - at / FRAME_BYTES as u64) as usize;
        Some(EdgePermit::take(self.server, frames, self.cpu.kernel().cache_blocks()).await)
    }

    async fn payload(&mut self, offset: usize, len: usize) -> Result<Frames, Gone> {
        let mut fresh = Frames::new();
        if !self.scatter.is_predicted(offset, len) {
            fresh = self.cpu.kernel().allocate(self.cpu, (offset + len).div_ceil(FRAME_BYTES)).await;
        }
        self.scatter.begin_payload(offset, len, fresh);
        loop {
            if let Some(frames) = self.scatter.payload() {
                return Ok(frames);
            }
            if !self.receive(Keeps::Frames).await? {
                return Err(Gone);
            }
        }
    }

    /// Reads over the payload of a write that is refused.
    async fn skip(&mut self, len: usize) -> Result<(), Gone> {
        let mut left = len;
        self.scatter.on_other();
        loop {
            left -= self.scatter.skip(left);
            if left == 0 {
                return Ok(());
            }
            if !self.receive(Keeps::Nothing).await? {
                return Err(Gone);
            }
        }
    }

    /// Receives what has arrived; false at the end of the stream, and when the server ends between two messages.
    /// `keeps`: what the message that has begun keeps from others; nothing if it is only read over.
    async fn receive(&mut self, keeps: Keeps) -> Result<bool, Gone> {
        let within = keeps == Keeps::Nothing || self.scatter.is_within_message();
        if within {
            self.watchdog.arm(self.cpu, self.server.limits().stall_timeout, keeps);
        }
        let kernel = self.cpu.kernel();
        let room = self.predicted.room(kernel.cache_blocks());
        let (hold, segments) = self.scatter.plan(room, |missing, into| {
            kernel.try_allocate(into.len() + missing, into);
        });
        self.predicted.set(self.scatter.predicted());
        let mut received = pin!(self.cpu.receive(self.connection, hold, segments));
        let outcome = poll_fn(|cx| match received.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.stop.stopped.get() && !within => Poll::Ready(None),
            Poll::Pending => {
                self.stop.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        self.watchdog.disarm();
        let Some((result, hold)) = outcome else {
            // The receive must end before the connection is closed; the replies leave first.
            self.outbound.until_idle().await;
            self.cpu.shutdown(self.connection);
            let _ = received.await;
            return Err(Gone);
        };
        let count = result.unwrap_or(0) as usize;
        self.scatter.land(hold, count);
        Ok(count > 0)
    }
}
