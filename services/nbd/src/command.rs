//! The transmission phase: executing requests.
//!
//! Zeroes of holes are sent as data, as by nbdkit, not as `NBD_REPLY_TYPE_OFFSET_HOLE`, as by qemu-nbd: finding a hole
//! takes a call to the host for each uncached read, and clients that copy ask for block status and skip holes.

mod flush;

use std::cell::RefCell;
use std::rc::Rc;

use kernel::connection::{EdgePermit, FastPath, Header, Holds, Outbound, Release, Reply, Session};
use kernel::processor::Timed;
use kernel::request::{Context, JobId};
use kernel::trace::{Event, Whose};
use kernel::volume::{Lookup, Reading};
use kernel::{FRAME_BYTES, Frames, Processor, Volume};
use machine::Errno;
use policy::unit::{BlockNo, ByteOffset, ByteRange, Stability};

use crate::export::REQUEST_BYTES_MAX;
use crate::negotiate::{BASE_ALLOCATION_ID, Negotiated};
use crate::proto::{Request, chunk, cmd, simple_reply, state, structured_chunk};
use crate::refusal::Refusal;
use flush::{Flush, Flushes};

/// Extents in one reply, at most.
const EXTENTS_MAX: usize = 1024;

/// Frames of one piece of a request, at most: 1 MiB. Longer requests are split.
const PIECE_FRAMES_MAX: u64 = 256;

/// And at least, even with a small cache: 128 KiB. A request that must not be split (`NBD_CMD_FLAG_DF`) may be 64 KiB.
const PIECE_FRAMES_MIN: u64 = 32;

/// The piece is the cache's size divided by this, within these bounds, so that many pieces fit.
const PIECE_SHARE: u64 = 64;

/// The result of checking a request.
pub(crate) enum Verdict {
    Do,
    Refuse(Refusal),
    /// Its payload is too long to be skipped.
    Disconnect,
}

/// Executes the requests of one connection.
pub(crate) struct Commands {
    cpu: Processor,
    agreed: Negotiated,
    outbound: Rc<Outbound>,
    piece_frames: u64,
    job: JobId,
    /// Flushes that were received together, of which none has begun.
    flushes: RefCell<Flushes>,
}

impl Commands {
    pub(crate) fn new(session: &Session, agreed: Negotiated) -> Self {
        let (cpu, outbound) = (session.cpu().clone(), Rc::clone(session.outbound()));
        let piece_frames = (cpu.kernel().cache_blocks() / PIECE_SHARE).clamp(PIECE_FRAMES_MIN, PIECE_FRAMES_MAX);
        let (job, export) = (cpu.job(), agreed.export.volume.export());
        outbound.tally().use_export(export);
        cpu.trace(Event::ConnectionNegotiated, (job, export), agreed.export.volume.size(), outbound.tally().number().0);
        Commands { cpu, agreed, outbound, piece_frames, job, flushes: RefCell::default() }
    }

    fn volume(&self) -> &Volume {
        &self.agreed.export.volume
    }

    /// Bytes of payload that a request has in flight at a time.
    pub(crate) fn payload_under_way(&self, request: &Request) -> u64 {
        let has_payload = matches!(request.kind, cmd::READ | cmd::WRITE);
        if has_payload { u64::from(request.len).min(self.piece_frames * FRAME_BYTES as u64) } else { 0 }
    }

    /// Does a range consist of whole blocks, up to the export's end?
    pub(crate) fn is_whole_blocks(&self, range: ByteRange) -> bool {
        let is_edge = |at: ByteOffset| at.in_block() == 0 || at.0 == self.volume().size();
        is_edge(range.at) && is_edge(range.end())
    }

    /// Answers the most frequent request, a plain read, at once if it is cached (OLTP-4). Other requests, and those to
    /// be refused, are missed.
    pub(crate) async fn answer_fast(self: &Rc<Self>, request: &Request, session: &Session) -> FastPath {
        let len = u64::from(request.len);
        if !self.cpu.switches().hottest_first || request.kind != cmd::READ || request.flags != 0 || len == 0 {
            return FastPath::Missed(None);
        }
        let unit = u64::from(self.agreed.export.block_size);
        // Block sizes are powers of two.
        let is_aligned = (request.offset | len) & (unit - 1) == 0;
        let is_piece = request.range().at.in_block() as u64 + len <= self.piece_frames * FRAME_BYTES as u64;
        let may_pass = || self.outbound.admits_at_once(len, self.cpu.kernel().cache_blocks());
        let is_free = || !self.outbound.is_exclusive() && !self.outbound.is_broken();
        if !is_aligned || !is_piece || !is_free() || !may_pass() {
            return FastPath::Missed(None);
        }
        let began = self.cpu.begin_next(Event::NbdRead, self.job);
        let Ok(found) = self.look_up(request) else { return FastPath::Missed(Some(began)) };
        self.cpu.count_request();
        self.outbound.begin(len, Holds::Frames);
        let release = Release { requests: 1, bytes: len };
        match found {
            Lookup::Cached(frames) => {
                self.outbound.push(self.data(request, request.range(), frames, true, release));
                self.cpu.end_with(session.batch(), began, Event::NbdRead, self.job, request.offset, len);
            }
            Lookup::Missing(reading) => {
                session.end_batch();
                self.await_reading(*request, reading, release, began).await;
            }
        }
        FastPath::Answered
    }

    fn look_up(&self, request: &Request) -> Result<Lookup, Errno> {
        self.if_may_answer(self.volume().begin_read(&self.cpu, request.range(), self.context(request)))
    }

    /// Answers a read of one piece when it is loaded. Does not wait itself, unless an exclusive reply is being sent.
    async fn await_reading(self: &Rc<Self>, request: Request, reading: Reading, release: Release, began: Timed) {
        self.outbound.begin_with_frames().await;
        let commands = Rc::clone(self);
        self.cpu.spawn(async move {
            let reply = match commands.if_may_answer(reading.finish(&commands.cpu).await) {
                Ok(frames) => commands.data(&request, request.range(), frames, true, release),
                Err(error) => commands.error(&request, Refusal::Host(error), release),
            };
            commands.outbound.push_with_frames(reply);
            commands.end(began, &request);
        });
    }

    /// Checks a request before anything is done or allocated for it.
    pub(crate) fn check(&self, request: &Request) -> Verdict {
        let volume = self.volume();
        let is_write = request.kind == cmd::WRITE;
        if is_write && request.len > REQUEST_BYTES_MAX {
            return Verdict::Disconnect;
        }
        let Some(flags) = self.flags_allowed(request.kind) else {
            return Verdict::Refuse(Refusal::UnknownCommand);
        };
        if request.flags & !(flags | cmd::FLAG_FUA) != 0 {
            return Verdict::Refuse(Refusal::Flags);
        }
        let changes = matches!(request.kind, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
        if changes && volume.read_only() {
            return Verdict::Refuse(Refusal::ReadOnly);
        }
        if request.kind == cmd::FLUSH {
            return Verdict::Do;
        }
        let end = request.offset.checked_add(u64::from(request.len));
        if end.is_none_or(|end| end > volume.size()) {
            let grows = matches!(request.kind, cmd::WRITE | cmd::WRITE_ZEROES);
            return Verdict::Refuse(if grows { Refusal::NoSpace } else { Refusal::BeyondEnd });
        }
        let unit = u64::from(self.agreed.export.block_size);
        let to_the_end = end == Some(volume.size());
        let ends_unaligned = !u64::from(request.len).is_multiple_of(unit) && !to_the_end;
        if request.kind == cmd::READ && request.len > REQUEST_BYTES_MAX {
            return Verdict::Refuse(Refusal::TooLong);
        }
        if ends_unaligned || !request.offset.is_multiple_of(unit) {
            return Verdict::Refuse(Refusal::Unaligned);
        }
        // "Don't fragment" is limited to what fits into one piece, as the server may (`NBD_CMD_FLAG_DF`).
        if request.flags & cmd::FLAG_DF != 0 && self.pieces(request).nth(1).is_some() {
            return Verdict::Refuse(Refusal::Fragments);
        }
        if request.kind == cmd::BLOCK_STATUS && request.len == 0 {
            return Verdict::Refuse(Refusal::StatusOfNothing);
        }
        if request.kind == cmd::BLOCK_STATUS && !self.agreed.allocation {
            return Verdict::Refuse(Refusal::NoContext);
        }
        Verdict::Do
    }

    fn flags_allowed(&self, kind: u16) -> Option<u16> {
        match kind {
            cmd::READ if self.agreed.structured => Some(cmd::FLAG_DF),
            cmd::READ | cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => Some(0),
            cmd::WRITE_ZEROES => Some(cmd::FLAG_NO_HOLE | cmd::FLAG_FAST_ZERO),
            cmd::BLOCK_STATUS => Some(cmd::FLAG_REQ_ONE),
            _ => None,
        }
    }

    /// Answers a refused request, which is counted if it is a command at all.
    pub(crate) fn refuse(&self, request: &Request, refusal: Refusal, release: Release, began: Timed) {
        self.cpu.trace(Event::NbdRefused, self.whose(), u64::from(refusal.error().0), 0);
        self.outbound.push(self.error(request, refusal, release));
        if self.flags_allowed(request.kind).is_some() {
            self.end(began, request);
        }
    }

    /// Starts a request without payload. `began`: its start, if already recorded.
    pub(crate) async fn start(self: &Rc<Self>, request: &Request, release: Release, began: Option<Timed>) {
        let began = began.unwrap_or_else(|| self.begin(request));
        // The range of a flush means nothing, and may have no end.
        let is_read = request.kind == cmd::READ && request.len > 0;
        let is_single = || self.pieces(request).nth(1).is_none() && !self.outbound.is_exclusive();
        if self.cpu.switches().hottest_first && is_read && is_single() {
            return self.read_single(request, release, began).await;
        }
        if request.kind == cmd::FLUSH {
            return self.start_flush(Flush { request: *request, release, began });
        }
        let (commands, request) = (Rc::clone(self), *request);
        self.cpu.spawn(async move {
            match request.kind {
                cmd::READ => commands.read(&request, release).await,
                cmd::BLOCK_STATUS => commands.block_status(&request, release).await,
                _ => {
                    let result = commands.perform(&request).await;
                    commands.reply(&request, result, release);
                }
            }
            commands.end(began, &request);
        });
    }

    pub(crate) fn begin(&self, request: &Request) -> Timed {
        self.cpu.begin_timed(event(request.kind), self.whose())
    }

    fn end(&self, began: Timed, request: &Request) {
        self.cpu.end_request(began, event(request.kind), self.whose(), request.offset, u64::from(request.len));
    }

    async fn perform(&self, request: &Request) -> Result<(), Errno> {
        let (cpu, volume) = (&self.cpu, self.volume());
        let range = request.range();
        let context = self.context(request);
        match request.kind {
            // Begins together with others (`start_flush`).
            cmd::FLUSH => Err(Errno::INVALID),
            _ if request.len == 0 => Ok(()),
            cmd::TRIM => volume.discard(cpu, range, context).await,
            cmd::CACHE => volume.prefetch(cpu, range, context).await,
            cmd::WRITE_ZEROES => {
                let may_release = request.flags & cmd::FLAG_NO_HOLE == 0;
                let fast_only = request.flags & cmd::FLAG_FAST_ZERO != 0;
                volume.zero(cpu, range, may_release, fast_only, context).await
            }
            _ => Ok(()),
        }
    }

    fn whose(&self) -> Whose {
        (self.job, self.volume().export()).into()
    }

    fn context(&self, request: &Request) -> Context {
        let stable = request.flags & cmd::FLAG_FUA != 0;
        let stability = if stable { Stability::Stable } else { Stability::Unstable };
        Context::synchronous(self.job).with_stability(stability).of_export(self.volume().export())
    }

    /// A write whose payload is about to be received.
    pub(crate) fn begin_write(self: &Rc<Self>, request: &Request, release: Release) -> Write {
        Write { commands: Rc::clone(self), request: *request, release, began: self.begin(request), result: Ok(()) }
    }

    /// Reads a single piece, without a task if it is cached.
    async fn read_single(self: &Rc<Self>, request: &Request, release: Release, began: Timed) {
        match self.look_up(request) {
            Ok(Lookup::Missing(reading)) => return self.await_reading(*request, reading, release, began).await,
            Ok(Lookup::Cached(frames)) => {
                self.outbound.push(self.data(request, request.range(), frames, true, release));
            }
            Err(error) => self.reply_error(request, error, release),
        }
        self.end(began, request);
    }

    async fn read(&self, request: &Request, release: Release) {
        if request.len == 0 {
            return self.reply_nothing(request, release);
        }
        if self.agreed.structured {
            self.read_structured(request, release).await;
        } else {
            self.read_simple(request, release).await;
        }
    }

    async fn read_structured(&self, request: &Request, release: Release) {
        for piece in self.pieces(request) {
            self.outbound.until_sent().await;
            let read = self.volume().read(&self.cpu, piece, self.context(request)).await;
            let last = piece.end() == request.range().end();
            match self.if_may_answer(read) {
                Ok(frames) => {
                    let release = if last { release } else { Release::default() };
                    self.outbound.push(self.data(request, piece, frames, last, release));
                }
                Err(error) => return self.reply_error(request, error, release),
            }
        }
    }

    /// A simple reply is a header and all data, which must be contiguous.
    async fn read_simple(&self, request: &Request, release: Release) {
        let whole = request.range();
        let single = self.pieces(request).nth(1).is_none();
        if single {
            self.outbound.begin_with_frames().await;
        } else {
            self.outbound.begin_exclusive().await;
        }
        for piece in self.pieces(request) {
            if !single {
                self.outbound.until_sent().await;
            }
            let (first, last) = (piece.at == whole.at, piece.end() == whole.end());
            let read = self.volume().read(&self.cpu, piece, self.context(request)).await;
            let part = match self.if_may_answer(read) {
                Ok(frames) => {
                    let release = if last { release } else { Release::default() };
                    let mut part = self.data(request, piece, frames, last, release);
                    if !first {
                        part.header.clear();
                    }
                    part
                }
                Err(error) if first => self.error(request, Refusal::Host(error), release),
                // The header has promised data: "the server MUST disconnect" ("Simple reply message").
                Err(_) => {
                    self.outbound.set_broken();
                    Reply { release, ..Reply::default() }
                }
            };
            let ends = part.release.requests > 0;
            if single {
                self.outbound.push_with_frames(part)
            } else {
                self.outbound.push_first(part)
            }
            if ends {
                break;
            }
        }
        if !single {
            self.outbound.end_exclusive();
        }
    }

    async fn block_status(&self, request: &Request, release: Release) {
        let range = request.range();
        let max = if request.flags & cmd::FLAG_REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
        let extents = match self.if_may_answer(self.volume().extents(&self.cpu, range, max).await) {
            Ok(extents) => extents,
            Err(error) => return self.reply_error(request, error, release),
        };
        let mut header = Header::with_capacity(24 + extents.len() * 8);
        let len = 4 + extents.len() as u32 * 8;
        header.extend_from_slice(&structured_chunk(true, chunk::BLOCK_STATUS, request.cookie, len));
        header.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        for extent in extents {
            let hole = if extent.allocated { 0 } else { state::HOLE };
            let zero = if extent.zero { state::ZERO } else { 0 };
            header.extend_from_slice(&(extent.range.len as u32).to_be_bytes());
            header.extend_from_slice(&(hole | zero).to_be_bytes());
        }
        self.outbound.push(Reply { header, release, ..Reply::default() });
    }

    /// Splits a request into pieces of at most `piece_frames` blocks.
    pub(crate) fn pieces(&self, request: &Request) -> impl Iterator<Item = ByteRange> + use<> {
        let piece_bytes = self.piece_frames * FRAME_BYTES as u64;
        let (mut at, end) = (request.range().at, request.range().end());
        std::iter::from_fn(move || {
            let start = at;
            at = end.min(BlockNo::holding(start).start() + piece_bytes);
            (start < end).then(|| start.to(at))
        })
    }

    /// Data of a read, with its header.
    fn data(&self, request: &Request, piece: ByteRange, frames: Frames, done: bool, release: Release) -> Reply {
        let mut header = Header::new();
        if self.agreed.structured {
            let len = piece.len as u32 + 8;
            header.extend_from_slice(&structured_chunk(done, chunk::OFFSET_DATA, request.cookie, len));
            header.extend_from_slice(&piece.at.0.to_be_bytes());
        } else {
            header.extend_from_slice(&simple_reply(0, request.cookie));
        }
        Reply { header, frames, offset: piece.at.in_block(), len: piece.len as usize, padding: 0, release }
    }

    fn reply(&self, request: &Request, result: Result<(), Errno>, release: Release) {
        match self.if_may_answer(result) {
            Ok(()) => self.reply_nothing(request, release),
            Err(error) => self.reply_error(request, error, release),
        }
    }

    /// What an answer says must have been true while this server might answer, so it is looked at when that is known.
    fn if_may_answer<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if result.is_ok() && !self.volume().may_answer() { Err(Errno::SHUT_DOWN) } else { result }
    }

    fn reply_nothing(&self, request: &Request, release: Release) {
        let header = if self.needs_structure(request) {
            Header::from_slice(&structured_chunk(true, chunk::NONE, request.cookie, 0))
        } else {
            Header::from_slice(&simple_reply(0, request.cookie))
        };
        self.outbound.push(Reply { header, release, ..Reply::default() });
    }

    fn reply_error(&self, request: &Request, error: Errno, release: Release) {
        self.outbound.push(self.error(request, Refusal::Host(error), release));
    }

    /// An error reply, with a text if structured replies were negotiated, then for every command.
    fn error(&self, request: &Request, refusal: Refusal, release: Release) -> Reply {
        let header = if self.agreed.structured {
            refusal.chunk(request.cookie)
        } else {
            Header::from_slice(&simple_reply(refusal.error().0, request.cookie))
        };
        Reply { header, release, ..Reply::default() }
    }

    /// With structured replies negotiated, reads and block status must be answered by them; others may have simple
    /// ones, which are shorter.
    fn needs_structure(&self, request: &Request) -> bool {
        self.agreed.structured && matches!(request.kind, cmd::READ | cmd::BLOCK_STATUS)
    }
}

fn event(kind: u16) -> Event {
    match kind {
        cmd::WRITE => Event::NbdWrite,
        cmd::FLUSH => Event::NbdFlush,
        cmd::TRIM => Event::NbdTrim,
        cmd::CACHE => Event::NbdCache,
        cmd::WRITE_ZEROES => Event::NbdWriteZeroes,
        cmd::BLOCK_STATUS => Event::NbdBlockStatus,
        _ => Event::NbdRead,
    }
}

/// A write whose payload arrives in pieces.
pub(crate) struct Write {
    commands: Rc<Commands>,
    request: Request,
    release: Release,
    began: Timed,
    result: Result<(), Errno>,
}

impl Write {
    /// Writes a piece. After the last one the reply is queued, or a task will queue it.
    pub(crate) async fn piece(&mut self, range: ByteRange, frames: Frames, permit: Option<EdgePermit>) {
        if range.end() == self.request.range().end() {
            return self.last_piece(range, frames, permit);
        }
        if self.result.is_ok() {
            // The last piece makes all of them durable.
            let context = self.commands.context(&self.request).with_stability(Stability::Unstable);
            self.result = self.commands.volume().write(&self.commands.cpu, range, frames, context).await;
        }
    }

    fn last_piece(&self, range: ByteRange, frames: Frames, permit: Option<EdgePermit>) {
        let commands = Rc::clone(&self.commands);
        let Write { request, release, began, mut result, .. } = *self;
        let last = Box::pin(async move {
            let (cpu, volume, context) = (&commands.cpu, commands.volume(), commands.context(&request));
            if result.is_ok() {
                result = volume.write(cpu, range, frames, context).await;
            }
            drop(permit);
            let is_whole = range.len == u64::from(request.len);
            if result.is_ok() && !is_whole && context.stability == Stability::Stable {
                result = volume.flush(cpu, context).await;
            }
            commands.reply(&request, result, release);
            commands.end(began, &request);
        });
        // Usually the write completes at once.
        self.commands.cpu.spawn_running(last);
    }
}
