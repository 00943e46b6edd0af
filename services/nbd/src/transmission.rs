//! The transmission phase: requests in.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{ArrivalPermit, EdgePermit, Gone, Headers, Inbound, Keeps, Outbound, Release, Served, Wait};
use kernel::{FRAME_BYTES, Frames, Processor};
use machine::Connection;
use policy::unit::ByteRange;

use crate::command::{Commands, Verdict};
use crate::export::Server;
use crate::negotiate::negotiate;
use crate::proto::{REQUEST_BYTES, Request, cmd};
use crate::refusal::Refusal;

/// Of a payload that is read over, so much has a time of its own, as a piece of one that is written. Bytes.
const SKIPPED_BYTES_A_PIECE: usize = 1 << 20;

/// Serves one client on this processor until it goes or the server ends, then closes the connection. What is done is
/// charged to the job of the task ([`Processor::spawn_for`]).
pub async fn serve(cpu: &Processor, connection: Connection, server: &Arc<Server>) {
    let served = Served::begin(cpu, connection, server.service());
    served.set_quiet(true);
    let session = negotiate(cpu, connection, server, &served).await;
    served.set_quiet(false);
    if let Some(session) = session {
        let outbound = Outbound::start(cpu, connection, server.service());
        let commands = Rc::new(Commands::new(cpu.clone(), session, Rc::clone(&outbound)));
        let inbound = Inbound::new(&served, outbound);
        let (header, patience) = ([0; REQUEST_BYTES], server.limits().stall_timeout);
        let transmission = Transmission { cpu, server, inbound, header, begun: 0, patience, in_one_go: 0 };
        transmission.run(&commands).await;
    }
    served.end();
}

/// The receiving side of a connection.
struct Transmission<'a> {
    cpu: &'a Processor,
    server: &'a Arc<Server>,
    inbound: Inbound<'a>,
    /// The header that comes next, and how many bytes of it are there.
    header: [u8; REQUEST_BYTES],
    begun: usize,
    /// How long what has begun, a header or a piece of a payload, may still take.
    patience: Duration,
    /// Requests served since this task waited for something to come.
    in_one_go: u32,
}

impl Transmission<'_> {
    async fn run(mut self, commands: &Rc<Commands>) {
        // However it ends: what is under way is finished first.
        let _ = self.requests(commands).await;
        commands.end_hot();
        let outbound = Rc::clone(self.inbound.outbound());
        outbound.until_idle().await;
        outbound.end();
    }

    async fn requests(&mut self, commands: &Rc<Commands>) -> Result<(), Gone> {
        let piece_bytes = (commands.piece_frames() * FRAME_BYTES) as u64;
        while let Some(request) = self.next_request(commands).await? {
            self.take_turns(commands).await;
            let began = match commands.answer_hot(&request) {
                Ok(()) => continue,
                Err(began) => began,
            };
            commands.end_hot();
            if request.kind == cmd::DISC {
                return Ok(());
            }
            self.cpu.count_request();
            let verdict = commands.check(&request);
            let payload =
                u64::from(if request.kind == cmd::READ || request.kind == cmd::WRITE { request.len } else { 0 });
            let payload = payload.min(piece_bytes);
            let keeps = if request.kind == cmd::READ { Keeps::Frames } else { Keeps::Nothing };
            self.inbound.outbound().admit(payload, keeps, self.cpu.kernel().cache_blocks()).await;
            match verdict {
                Verdict::Refuse(refusal) if request.kind == cmd::WRITE => {
                    let skipped = self.skip(request.len as usize).await;
                    commands.refuse(&request, refusal, payload);
                    skipped?;
                }
                Verdict::Refuse(refusal) => commands.refuse(&request, refusal, payload),
                Verdict::Disconnect => {
                    self.inbound.served().note_malformed();
                    commands.refuse(&request, Refusal::PayloadTooLong, payload);
                    return Ok(());
                }
                Verdict::Do if request.kind == cmd::WRITE && request.len > 0 => {
                    self.write(commands, &request, payload).await?
                }
                Verdict::Do => commands.start(&request, payload, began),
            }
            if self.inbound.outbound().is_broken() {
                return Err(Gone);
            }
        }
        Ok(())
    }

    /// Without `look_ahead` the dispatcher has its turn before every request, else before one now and then (OLTP-6).
    async fn take_turns(&mut self, commands: &Commands) {
        self.in_one_go += 1;
        if !self.cpu.switches().look_ahead || self.in_one_go > self.cpu.look_ahead_max() {
            self.in_one_go = 1;
            commands.end_hot();
            self.cpu.yield_now().await;
        }
    }

    /// The next request; `None` at the end of the stream, for a wrong magic, and when the server ends.
    async fn next_request(&mut self, commands: &Commands) -> Result<Option<Request>, Gone> {
        self.be_patient();
        loop {
            if self.server.service().is_stopping() {
                return Ok(None);
            }
            self.begun += self.inbound.scatter.take(&mut self.header[self.begun..]);
            if self.begun == REQUEST_BYTES {
                self.begun = 0;
                let request = Request::decode(&self.header);
                match &request {
                    Some(request) if request.kind == cmd::WRITE => {}
                    Some(_) => self.inbound.scatter.on_other(),
                    None => self.inbound.served().note_malformed(),
                }
                return Ok(request);
            }
            commands.end_hot();
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
                self.inbound.outbound().release(Release { requests: 1, bytes: payload });
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
        Some(EdgePermit::take(self.server.service(), frames, self.cpu.kernel().cache_blocks()).await)
    }

    async fn payload(&mut self, offset: usize, len: usize) -> Result<Frames, Gone> {
        let mut fresh = Frames::new();
        // Until all of it is there.
        let mut _arrival = None;
        if !self.inbound.scatter.is_predicted(offset, len) {
            let (kernel, count) = (self.cpu.kernel(), (offset + len).div_ceil(FRAME_BYTES));
            if !self.inbound.scatter.has(len) {
                _arrival = Some(ArrivalPermit::take(self.server.service(), count, kernel.cache_blocks()).await);
            }
            fresh = kernel.allocate(self.cpu, count).await;
        }
        self.inbound.scatter.begin_payload(offset, len, fresh);
        self.be_patient();
        loop {
            if let Some(frames) = self.inbound.scatter.payload() {
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
        self.inbound.scatter.on_other();
        self.be_patient();
        loop {
            // In pieces, as if it were written.
            let before = left.div_ceil(SKIPPED_BYTES_A_PIECE);
            left -= self.inbound.scatter.skip(left);
            if left == 0 {
                return Ok(());
            }
            if left.div_ceil(SKIPPED_BYTES_A_PIECE) < before {
                self.be_patient();
            }
            if !self.receive(Keeps::Nothing).await? {
                return Err(Gone);
            }
        }
    }

    /// A header or a piece of a payload begins.
    fn be_patient(&mut self) {
        self.patience = self.server.limits().stall_timeout;
    }

    /// Receives what has arrived; false at the end of the stream, and when the server ends between two messages.
    /// `keeps`: what the message that has begun keeps from others; nothing if it is only read over.
    async fn receive(&mut self, keeps: Keeps) -> Result<bool, Gone> {
        self.in_one_go = 0;
        let within = keeps == Keeps::Nothing || self.begun > 0 || self.inbound.scatter.is_within_payload();
        // It has its time as a whole, or a byte now and then would keep it for ever.
        let wait = if within { Wait::Rest(self.patience, keeps) } else { Wait::Next(None) };
        let headers = Headers { first: REQUEST_BYTES - self.begun, each: REQUEST_BYTES };
        let since = self.cpu.now();
        let more = self.inbound.receive(wait, headers).await?;
        if within {
            self.patience = self.patience.saturating_sub(self.cpu.now().since(since));
        }
        Ok(more)
    }
}
