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
use crate::negotiate::negotiate;
use crate::outbound::{Outbound, Release};
use crate::proto::{Request, cmd};
use crate::scatter::Scatter;
use crate::wire::{Gone, Watchdog};

/// Frames that a write takes in at once; a larger one passes in pieces of so many. 1 MiB.
pub(crate) const PIECE_FRAMES: usize = 256;

/// Serves one client on this processor until it goes or the server ends, then closes the connection.
pub async fn serve(cpu: &Processor, connection: Connection, server: &Arc<Server>) {
    let watchdog = Watchdog::watch(cpu, connection, server.limits().stall_timeout);
    let stop = Rc::new(Stop::default());
    follow_end(cpu, connection, server, &watchdog, &stop);
    if let Some(session) = negotiate(cpu, connection, server, &watchdog).await {
        let outbound = Outbound::start(cpu, connection, server.limits().stall_timeout);
        let commands = Rc::new(Commands::new(cpu.clone(), session, Rc::clone(&outbound)));
        let inbound =
            Inbound { cpu, connection, server, watchdog: &watchdog, stop: &stop, scatter: Scatter::new(), outbound };
        inbound.run(&commands).await;
    }
    watchdog.end();
    cpu.close(connection);
}

/// Tells a connection that waits for a request that none will be taken any more.
#[derive(Default)]
struct Stop {
    stopped: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Follows the server's end for as long as the connection lasts.
fn follow_end(cpu: &Processor, connection: Connection, server: &Arc<Server>, watchdog: &Rc<Watchdog>, stop: &Rc<Stop>) {
    let (here, server, watchdog, stop) = (cpu.clone(), Arc::clone(server), Rc::clone(watchdog), Rc::clone(stop));
    cpu.spawn(async move {
        server.changed().until(|| (server.is_stopping() || watchdog.is_over()).then_some(())).await;
        stop.stopped.set(true);
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
    server: &'a Server,
    watchdog: &'a Watchdog,
    stop: &'a Stop,
    scatter: Scatter,
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
        let limits = self.server.limits();
        while let Some(request) = self.next_request().await? {
            if request.kind == cmd::DISC {
                return Ok(());
            }
            let verdict = commands.check(&request);
            let payload =
                u64::from(if request.kind == cmd::READ || request.kind == cmd::WRITE { request.len } else { 0 });
            let payload = payload.min((PIECE_FRAMES * FRAME_BYTES) as u64);
            self.outbound.admit(payload, limits.requests_a_connection, limits.bytes_a_connection).await;
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
            if !self.receive().await? {
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
            let len = (end - at).min((PIECE_FRAMES * FRAME_BYTES - offset) as u64) as usize;
            let Ok(frames) = self.payload(offset, len).await else {
                // The client went in the middle of it: nobody waits for a reply.
                self.outbound.release(Release { requests: 1, bytes: payload });
                return Err(Gone);
            };
            let range = ByteRange::new(at, len as u64);
            at += len as u64;
            write = write.piece(range, frames, at == end).await;
        }
        Ok(())
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
            if !self.receive().await? {
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
            if !self.receive().await? {
                return Err(Gone);
            }
        }
    }

    /// Receives what has arrived; false at the end of the stream, and when the server ends between two messages.
    async fn receive(&mut self) -> Result<bool, Gone> {
        let within = self.scatter.is_within_message();
        if within {
            self.watchdog.arm(self.cpu, self.server.limits().stall_timeout);
        }
        let kernel = self.cpu.kernel();
        let (hold, segments) = self.scatter.plan(|missing, into| {
            kernel.try_allocate(into.len() + missing, into);
        });
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
