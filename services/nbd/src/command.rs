//! The transmission phase: what each request does, and its reply.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use kernel::connection::{EdgePermit, Header, Keeps, Outbound, Release, Reply};
use kernel::processor::{Timed, Together};
use kernel::request::{Context, JobId};
use kernel::trace::{Event, Whose};
use kernel::{FRAME_BYTES, Frames, Processor};
use machine::Errno;
use policy::unit::{ByteRange, Stability};

use crate::export::REQUEST_BYTES_MAX;
use crate::negotiate::{BASE_ALLOCATION_ID, Session};
use crate::proto::{Request, chunk, cmd, simple_reply, state, structured_chunk};
use crate::refusal::Refusal;

/// Extents in one reply, at most.
const EXTENTS_MAX: usize = 1024;

/// Frames of one piece of a request, at most: 1 MiB. A longer one passes in pieces.
const PIECE_FRAMES_MAX: u64 = 256;

/// And at least, however small the cache: 128 KiB. What must not be cut (`NBD_CMD_FLAG_DF`) may be 64 KiB long.
const PIECE_FRAMES_MIN: u64 = 32;

/// A piece is the cache's size divided by this, within these bounds: many must fit in.
const PIECE_SHARE: u64 = 64;

/// What is to become of a request.
pub(crate) enum Verdict {
    Do,
    Refuse(Refusal),
    /// Its payload is too long to be read over.
    Disconnect,
}

/// The commands of one connection.
pub(crate) struct Commands {
    cpu: Processor,
    session: Session,
    outbound: Rc<Outbound>,
    piece_frames: u64,
    job: JobId,
    /// Answered at once and not counted yet.
    together: Together,
}

impl Commands {
    pub(crate) fn new(cpu: Processor, session: Session, outbound: Rc<Outbound>) -> Self {
        let piece_frames = (cpu.kernel().cache_blocks() / PIECE_SHARE).clamp(PIECE_FRAMES_MIN, PIECE_FRAMES_MAX);
        let (job, export) = (cpu.job(), session.export.volume.export());
        outbound.tally().use_export(export);
        cpu.trace(Event::ConnectionNegotiated, (job, export), session.export.volume.size(), outbound.tally().number());
        Commands { cpu, session, outbound, piece_frames, job, together: Together::default() }
    }

    /// Frames of one piece of a request: a longer one passes in pieces.
    pub(crate) fn piece_frames(&self) -> usize {
        self.piece_frames as usize
    }

    /// The export's size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.session.export.volume.size()
    }

    /// Answers the request that comes most often, a read of what the cache has, at once (OLTP-4).
    ///
    /// # Errors
    /// It is another, or something is to be said against it: nothing has been done but to note when it began, if so. The
    /// general path does the rest.
    pub(crate) fn answer_hot(&self, request: &Request) -> Result<(), Option<Timed>> {
        let len = u64::from(request.len);
        if !self.cpu.switches().hottest_first || request.kind != cmd::READ || request.flags != 0 || len == 0 {
            return Err(None);
        }
        let volume = &self.session.export.volume;
        let unit = u64::from(self.session.export.block_size);
        let is_inside = request.offset.checked_add(len).is_some_and(|end| end <= volume.size());
        // Block sizes are powers of two.
        let is_aligned = (request.offset | len) & (unit - 1) == 0;
        let is_piece = request.offset % FRAME_BYTES as u64 + len <= self.piece_frames * FRAME_BYTES as u64;
        let may_pass = || self.outbound.admits_at_once(len, self.cpu.kernel().cache_blocks());
        let is_free = || !self.outbound.is_exclusive() && !self.outbound.is_broken();
        if !is_inside || !is_aligned || !is_piece || !is_free() || !may_pass() {
            return Err(None);
        }
        let began = self.cpu.begin_next(Event::NbdRead, self.job);
        let range = ByteRange::new(request.offset, len);
        let Some(frames) = volume.try_read(&self.cpu, range) else { return Err(Some(began)) };
        self.cpu.count_request();
        self.outbound.begin(len, Keeps::Frames);
        self.outbound.push(self.data(request, range, frames, true, Release { requests: 1, bytes: len }));
        self.cpu.end_with(&self.together, began, Event::NbdRead, self.job, request.offset, len);
        Ok(())
    }

    /// What was answered at once leaves: something else is done or awaited now.
    pub(crate) fn end_hot(&self) {
        self.cpu.end_together(&self.together);
    }

    /// Looks at a request before anything is done or allocated for it.
    pub(crate) fn check(&self, request: &Request) -> Verdict {
        let volume = &self.session.export.volume;
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
        let unit = u64::from(self.session.export.block_size);
        let to_the_end = end == Some(volume.size());
        let ends_unaligned = !u64::from(request.len).is_multiple_of(unit) && !to_the_end;
        if request.kind == cmd::READ && request.len > REQUEST_BYTES_MAX {
            return Verdict::Refuse(Refusal::TooLong);
        }
        if ends_unaligned || !request.offset.is_multiple_of(unit) {
            return Verdict::Refuse(Refusal::Unaligned);
        }
        // "Don't fragment" holds for what fits into one piece; a server may limit it (`NBD_CMD_FLAG_DF`).
        if request.flags & cmd::FLAG_DF != 0 && self.pieces(request).nth(1).is_some() {
            return Verdict::Refuse(Refusal::Fragments);
        }
        if request.kind == cmd::BLOCK_STATUS && request.len == 0 {
            return Verdict::Refuse(Refusal::StatusOfNothing);
        }
        if request.kind == cmd::BLOCK_STATUS && !self.session.allocation {
            return Verdict::Refuse(Refusal::NoContext);
        }
        Verdict::Do
    }

    fn flags_allowed(&self, kind: u16) -> Option<u16> {
        match kind {
            cmd::READ if self.session.structured => Some(cmd::FLAG_DF),
            cmd::READ | cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => Some(0),
            cmd::WRITE_ZEROES => Some(cmd::FLAG_NO_HOLE | cmd::FLAG_FAST_ZERO),
            cmd::BLOCK_STATUS => Some(cmd::FLAG_REQ_ONE),
            _ => None,
        }
    }

    /// Answers a request that is not done.
    pub(crate) fn refuse(&self, request: &Request, refusal: Refusal, payload: u64) {
        self.cpu.trace(Event::NbdRefused, self.whose(), u64::from(refusal.error().0), 0);
        self.outbound.push(self.error(request, refusal, Release { requests: 1, bytes: payload }));
    }

    /// Does a request that has no payload. `payload`: bytes to be released with the reply; `began`: when it did, if that
    /// was noted.
    pub(crate) fn start(self: &Rc<Self>, request: &Request, payload: u64, began: Option<Timed>) {
        let release = Release { requests: 1, bytes: payload };
        let began = began.unwrap_or_else(|| self.begin(request));
        if self.cpu.switches().hottest_first && request.kind == cmd::READ && self.read_cached(request, release) {
            self.end(began, request);
            return;
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

    fn begin(&self, request: &Request) -> Timed {
        self.cpu.begin_timed(event(request.kind), self.whose())
    }

    fn end(&self, began: Timed, request: &Request) {
        self.cpu.end_request(began, event(request.kind), self.whose(), request.offset, u64::from(request.len));
    }

    async fn perform(&self, request: &Request) -> Result<(), Errno> {
        let (cpu, volume) = (&self.cpu, &self.session.export.volume);
        let range = ByteRange::new(request.offset, u64::from(request.len));
        let context = self.context(request);
        match request.kind {
            cmd::FLUSH => volume.flush(cpu, context).await,
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
        (self.job, self.session.export.volume.export()).into()
    }

    fn context(&self, request: &Request) -> Context {
        let stable = request.flags & cmd::FLAG_FUA != 0;
        let stability = if stable { Stability::Stable } else { Stability::Unstable };
        Context::synchronous(self.job).with_stability(stability).of_export(self.session.export.volume.export())
    }

    /// A write whose payload is about to be received.
    pub(crate) fn begin_write(self: &Rc<Self>, request: &Request, payload: u64) -> Write {
        let release = Release { requests: 1, bytes: payload };
        Write { commands: Rc::clone(self), request: *request, release, began: self.begin(request), result: Ok(()) }
    }

    /// Answers a read at once if the cache has it.
    fn read_cached(&self, request: &Request, release: Release) -> bool {
        let range = ByteRange::new(request.offset, u64::from(request.len));
        if range.len == 0 || self.pieces(request).nth(1).is_some() || self.outbound.is_exclusive() {
            return false;
        }
        let Some(frames) = self.session.export.volume.try_read(&self.cpu, range) else { return false };
        self.outbound.push(self.data(request, range, frames, true, release));
        true
    }

    async fn read(&self, request: &Request, release: Release) {
        if request.len == 0 {
            return self.reply_nothing(request, release);
        }
        if self.session.structured {
            self.read_structured(request, release).await;
        } else {
            self.read_simple(request, release).await;
        }
    }

    async fn read_structured(&self, request: &Request, release: Release) {
        let end = request.offset + u64::from(request.len);
        for piece in self.pieces(request) {
            self.outbound.until_sent().await;
            let read = self.session.export.volume.read(&self.cpu, piece, self.context(request)).await;
            let last = piece.end().0 == end;
            match read {
                Ok(frames) => {
                    let release = if last { release } else { Release::default() };
                    self.outbound.push(self.data(request, piece, frames, last, release));
                }
                Err(error) => return self.reply_error(request, error, release),
            }
        }
    }

    /// A simple reply has its header first and then all its data, with nothing else between.
    async fn read_simple(&self, request: &Request, release: Release) {
        let end = request.offset + u64::from(request.len);
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
            let (first, last) = (piece.at.0 == request.offset, piece.end().0 == end);
            let part = match self.session.export.volume.read(&self.cpu, piece, self.context(request)).await {
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
        let range = ByteRange::new(request.offset, u64::from(request.len));
        let max = if request.flags & cmd::FLAG_REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
        let extents = match self.session.export.volume.extents(&self.cpu, range, max).await {
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

    /// Cuts a request into pieces of at most [`Commands::piece_frames`] blocks.
    fn pieces(&self, request: &Request) -> impl Iterator<Item = ByteRange> + use<> {
        let piece_bytes = self.piece_frames * FRAME_BYTES as u64;
        let mut at = request.offset;
        let end = request.offset + u64::from(request.len);
        std::iter::from_fn(move || {
            let start = at;
            at = end.min(start - start % FRAME_BYTES as u64 + piece_bytes);
            (start < end).then(|| ByteRange::new(start, at - start))
        })
    }

    /// Data of a read, with its header.
    fn data(&self, request: &Request, piece: ByteRange, frames: Frames, done: bool, release: Release) -> Reply {
        let mut header = Header::new();
        if self.session.structured {
            let len = piece.len as u32 + 8;
            header.extend_from_slice(&structured_chunk(done, chunk::OFFSET_DATA, request.cookie, len));
            header.extend_from_slice(&piece.at.0.to_be_bytes());
        } else {
            header.extend_from_slice(&simple_reply(0, request.cookie));
        }
        let offset = (piece.at.0 % FRAME_BYTES as u64) as usize;
        Reply { header, frames, offset, len: piece.len as usize, padding: 0, release }
    }

    fn reply(&self, request: &Request, result: Result<(), Errno>, release: Release) {
        match result {
            Ok(()) => self.reply_nothing(request, release),
            Err(error) => self.reply_error(request, error, release),
        }
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

    /// An error, with its text where the client agreed on replies that have room for it: then to every command.
    fn error(&self, request: &Request, refusal: Refusal, release: Release) -> Reply {
        let header = if self.session.structured {
            refusal.chunk(request.cookie)
        } else {
            Header::from_slice(&simple_reply(refusal.error().0, request.cookie))
        };
        Reply { header, release, ..Reply::default() }
    }

    /// Reads and block status must be answered with structured replies once those were agreed on; the others may have
    /// the shorter simple ones.
    fn needs_structure(&self, request: &Request) -> bool {
        self.session.structured && matches!(request.kind, cmd::READ | cmd::BLOCK_STATUS)
    }
}

/// What a request is recorded as.
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

/// A write whose payload comes in, piece by piece.
pub(crate) struct Write {
    commands: Rc<Commands>,
    request: Request,
    release: Release,
    began: Timed,
    result: Result<(), Errno>,
}

impl Write {
    /// Writes a piece. After the last one the reply is on its way, or a task that will send it.
    pub(crate) async fn piece(
        mut self,
        range: ByteRange,
        frames: Frames,
        permit: Option<EdgePermit>,
        last: bool,
    ) -> Write {
        if self.result.is_err() {
            return self.end_if(last);
        }
        let mut context = self.commands.context(&self.request);
        if !last {
            // What must be durable is made so with the last piece.
            context = context.with_stability(Stability::Unstable);
            self.result = self.commands.session.export.volume.write(&self.commands.cpu, range, frames, context).await;
            return self;
        }
        let (commands, request, release, began) = (Rc::clone(&self.commands), self.request, self.release, self.began);
        let whole = range.len == u64::from(request.len);
        let mut work = Box::pin(async move {
            let (cpu, volume) = (&commands.cpu, &commands.session.export.volume);
            let mut result = volume.write(cpu, range, frames, context).await;
            drop(permit);
            if result.is_ok() && !whole && context.stability == Stability::Stable {
                result = volume.flush(cpu, context).await;
            }
            commands.reply(&request, result, release);
            commands.end(began, &request);
        });
        // Usually the cache takes it at once: a task is made only when it does not.
        let done = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await;
        if !done {
            self.commands.cpu.spawn(work);
        }
        self
    }

    fn end_if(self, last: bool) -> Write {
        if last {
            self.commands.reply(&self.request, self.result, self.release);
            self.commands.end(self.began, &self.request);
        }
        self
    }
}
