//! Storage in files: each request is one request to a file, past the host's cache.
//!
//! Writes that need not be stable are answered when they have come: they are on their way to the file then, and a flush
//! waits for them. Flushes and stable writes wait until as many are there as were said to be in flight; then one flush is for all of them.
//! A stable write goes to the file when it comes, unless it makes the file longer: such writes are put together, since a
//! file grows by one write after the other.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use slab::Slab;

use super::arena::{Arena, Chunk};
use super::call::{Call, Files, Protocol, Stability, What};
use super::disk::{Disk, Opened, Place};
use super::replies::{Replies, Storage};

/// Bytes of writes that were answered before they ended: a quarter of the arena, which also has what is arriving.
const UNSTABLE_BYTES_MAX: u64 = 64 << 20;

/// Key of what was put together.
const TOGETHER: u64 = u64::MAX;

/// Key of flushes.
const FLUSH: u64 = u64::MAX - 1;

/// What a request does when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its call is answered.
    Answer,
    /// Its call was answered.
    Answered,
    /// Its call waits for the flush.
    Waits,
}

struct Request {
    from: usize,
    call: Call,
    chunk: Chunk,
    end: End,
}

/// Calls that one flush is for.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Stable writes or flushes that clients have in flight.
    pub in_flight: usize,
    /// The flush is for one of so many parts of them.
    pub part: usize,
}

impl Group {
    fn size(self) -> usize {
        (self.in_flight / self.part).max(1)
    }

    fn is_whole(self) -> bool {
        self.part == 1
    }
}

fn answered_bytes(request: &Request) -> u64 {
    if request.end == End::Answered { u64::from(request.call.bytes) } else { 0 }
}

pub struct Pass {
    disk: Disk,
    /// Where files are looked for, and the names of those that are open.
    directory: Option<PathBuf>,
    names: Vec<Vec<u8>>,
    requests: Slab<Request>,
    ended: Vec<(u64, io::Result<u32>)>,
    group: Group,
    /// Those that wait for a flush.
    waiting: Vec<(usize, Call)>,
    /// Those whom the flush is for that is under way, and the number of files that are still to be flushed.
    flushing: (Vec<(usize, Call)>, usize),
    /// Those that wait and make a file longer and are not yet written.
    growing: Vec<(Call, Chunk)>,
    /// Chunks of those that are being written together, and how many requests that takes.
    together: (Vec<Chunk>, usize),
    /// Reads of what is being written, and was answered.
    delayed: Vec<(usize, Call)>,
    /// Requests in flight that the next flush covers.
    unsettled: usize,
    /// Bytes of those of them that were answered.
    unstable_bytes: u64,
    /// The group is as large as it will be.
    is_released: bool,
}

impl Pass {
    fn new(group: Group, directory: Option<PathBuf>, arena: &Arena) -> io::Result<Pass> {
        let disk = Disk::new(arena)?;
        let (names, requests, ended, waiting) = Default::default();
        let (flushing, growing, together) = Default::default();
        let (delayed, unsettled, unstable_bytes, is_released) = Default::default();
        Ok(Pass {
            disk,
            directory,
            names,
            requests,
            ended,
            group,
            waiting,
            flushing,
            growing,
            together,
            delayed,
            unsettled,
            unstable_bytes,
            is_released,
        })
    }

    /// One file.
    pub fn of_file(path: &Path, group: Group, arena: &Arena) -> io::Result<Pass> {
        let mut pass = Pass::new(group, None, arena)?;
        pass.disk.add(Opened::new(path, OpenOptions::new().read(true).write(true))?)?;
        Ok(pass)
    }

    /// The files of a directory, without those below it.
    pub fn of_directory(path: &Path, group: Group, arena: &Arena) -> io::Result<Pass> {
        Pass::new(group, Some(path.to_owned()), arena)
    }

    fn path(&self, name: &[u8]) -> io::Result<PathBuf> {
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        let directory = self.directory.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        if name.components().count() != 1 || name.file_name() != Some(name.as_os_str()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(directory.join(name))
    }

    fn open(&mut self, name: &[u8], options: &OpenOptions) -> io::Result<u32> {
        let file = self.disk.add(Opened::new(&self.path(name)?, options)?)?;
        self.names.push(name.to_vec());
        Ok(file)
    }

    fn begin(&mut self, request: Request, arena: &Arena) -> io::Result<()> {
        let Call { file, offset, bytes, what, .. } = request.call;
        if request.end != End::Answer {
            self.unsettled += 1;
            self.unstable_bytes += answered_bytes(&request);
        }
        let (at, chunk) = (Place { file, offset, bytes }, request.chunk);
        let key = self.requests.insert(request) as u64;
        match what {
            What::Read => self.disk.read(key, at, chunk, arena),
            _ => self.disk.write(key, at, chunk, arena),
        }
    }

    /// Is something being written that a read would miss?
    fn is_overtaking(&self, read: &Call) -> bool {
        let ends = |call: &Call| call.offset + u64::from(call.bytes);
        let meets = |call: &Call| call.file == read.file && call.offset < ends(read) && read.offset < ends(call);
        self.unstable_bytes > 0
            && self.requests.iter().any(|(_, request)| request.end == End::Answered && meets(&request.call))
    }

    fn read(&mut self, from: usize, call: Call, arena: &mut Arena) -> io::Result<()> {
        if self.is_overtaking(&call) {
            self.delayed.push((from, call));
            return Ok(());
        }
        let chunk = arena.take(call.bytes as usize)?;
        self.begin(Request { from, call, chunk, end: End::Answer }, arena)
    }

    fn write(
        &mut self,
        from: usize,
        call: Call,
        stability: Stability,
        chunk: Chunk,
        replies: &mut Replies<'_, impl Protocol>,
    ) -> io::Result<()> {
        let file = &mut self.disk.files[call.file as usize];
        let grows = call.offset + u64::from(call.bytes) > file.bytes;
        file.bytes = file.bytes.max(call.offset + u64::from(call.bytes));
        let mut end = End::Answer;
        if stability == Stability::Unstable && self.unstable_bytes < UNSTABLE_BYTES_MAX {
            replies.answer(from, &call, Ok(call.bytes), file.bytes, None);
            end = End::Answered;
        }
        if stability == Stability::Durable {
            self.waiting.push((from, call));
            if grows && self.group.size() > 1 {
                self.growing.push((call, chunk));
                return Ok(());
            }
            end = End::Waits;
        }
        self.begin(Request { from, call, chunk, end }, replies.arena)
    }

    /// Answers what has ended.
    fn end(&mut self, key: u64, done: io::Result<u32>, replies: &mut Replies<'_, impl Protocol>) -> io::Result<()> {
        if key == TOGETHER {
            done?;
            self.unsettled -= 1;
            self.together.1 -= 1;
            if self.together.1 == 0 {
                self.together.0.drain(..).for_each(|chunk| replies.arena.give_back(chunk));
            }
            return Ok(());
        }
        if key == FLUSH {
            done?;
            self.flushing.1 -= 1;
            if self.flushing.1 == 0 {
                let flushed = std::mem::take(&mut self.flushing.0);
                self.answer_flushed(flushed, replies);
            }
            return Ok(());
        }
        let request = self.requests.remove(key as usize);
        let answered = answered_bytes(&request);
        let Request { from, call, chunk, end } = request;
        let file_bytes = self.disk.files[call.file as usize].bytes;
        if call.what == What::Read {
            // The request may have been rounded up to whole blocks.
            let done = done.map(|bytes| bytes.min(call.bytes));
            replies.answer(from, &call, done, file_bytes, Some((chunk, true)));
            return Ok(());
        }
        replies.arena.give_back(chunk);
        if end == End::Answer {
            replies.answer(from, &call, done, file_bytes, None);
            return Ok(());
        }
        self.unsettled -= 1;
        self.unstable_bytes -= answered;
        // Whom it was promised to cannot be told otherwise: it is no server for data that is of worth.
        match done {
            Ok(bytes) if bytes == call.bytes => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error),
        }
    }

    /// Writes what makes files longer, in pieces as long as there are.
    fn grow(&mut self, arena: &Arena) -> io::Result<()> {
        let mut growing = std::mem::take(&mut self.growing);
        growing.sort_unstable_by_key(|(call, _)| (call.file, call.offset));
        let follows = |(before, _): &(Call, Chunk), (call, _): &(Call, Chunk)| {
            before.file == call.file && before.offset + u64::from(before.bytes) == call.offset
        };
        for run in growing.chunk_by(follows) {
            let (file, offset) = (run[0].0.file, run[0].0.offset);
            let pieces: Vec<(Chunk, u32)> = run.iter().map(|(call, chunk)| (*chunk, call.bytes)).collect();
            let at = Place { file, offset, bytes: pieces.iter().map(|(_, bytes)| bytes).sum() };
            self.disk.write_pieces(TOGETHER, at, &pieces, arena)?;
            self.unsettled += 1;
            self.together.0.extend(run.iter().map(|(_, chunk)| *chunk));
            self.together.1 += 1;
        }
        Ok(())
    }

    /// Flushes for all that wait, when they are as many as there will be. True if it did.
    fn flush(&mut self, replies: &mut Replies<'_, impl Protocol>) -> io::Result<bool> {
        if self.waiting.is_empty() || self.waiting.len() < self.group.size() && !self.is_released {
            return Ok(false);
        }
        if !self.growing.is_empty() {
            self.grow(replies.arena)?;
            return Ok(true);
        }
        if self.flushing.1 > 0 {
            return Ok(false);
        }
        if self.unsettled > 0 {
            // If all that is in flight waits, nothing can come: sleeping in the ring is the shortest way.
            let is_all = self.group.is_whole() && self.requests.len() + self.together.1 == self.unsettled;
            return if is_all { self.disk.wait(self.unsettled).map(|()| true) } else { Ok(false) };
        }
        self.is_released = false;
        let waiting = std::mem::take(&mut self.waiting);
        let mut files: Vec<u32> = waiting.iter().map(|(_, call)| call.file).collect();
        files.sort_unstable();
        files.dedup();
        if let ([file], true) = (&files[..], self.requests.is_empty()) {
            // With nothing else to do, waiting in the call is the shortest way.
            self.disk.files[*file as usize].flush()?;
            self.answer_flushed(waiting, replies);
            return Ok(true);
        }
        for file in &files {
            self.disk.flush(FLUSH, *file)?;
        }
        self.flushing = (waiting, files.len());
        Ok(true)
    }

    fn answer_flushed(&self, flushed: Vec<(usize, Call)>, replies: &mut Replies<'_, impl Protocol>) {
        for (from, call) in flushed {
            replies.answer(from, &call, Ok(call.bytes), self.disk.files[call.file as usize].bytes, None);
        }
    }
}

impl Files for Pass {
    fn lookup(&mut self, name: &[u8]) -> Option<u32> {
        match self.names.iter().rposition(|known| known == name) {
            Some(file) => Some(file as u32),
            None => self.open(name, OpenOptions::new().read(true).write(true)).ok(),
        }
    }

    fn create(&mut self, name: &[u8]) -> io::Result<u32> {
        if let Some(file) = self.lookup(name) {
            return Ok(file);
        }
        let file = self.open(name, OpenOptions::new().read(true).write(true).create(true).truncate(false))?;
        self.disk.files[file as usize].flush()?;
        Ok(file)
    }

    fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        fs::remove_file(self.path(name)?)?;
        self.names.iter_mut().filter(|known| *known == name).for_each(Vec::clear);
        Ok(())
    }

    fn truncate(&mut self, file: u32, bytes: u64) -> io::Result<()> {
        self.disk.files[file as usize].truncate(bytes)
    }

    fn bytes(&self, file: u32) -> u64 {
        self.disk.files.get(file as usize).map_or(0, |file| file.bytes)
    }
}

impl Storage for Pass {
    const TAKES_DATA: bool = true;

    fn take(&mut self, from: usize, call: Call, chunk: Option<Chunk>, replies: &mut Replies<'_, impl Protocol>) {
        let begun = match (call.what, chunk) {
            _ if call.file as usize >= self.disk.files.len() => Err(io::ErrorKind::NotFound.into()),
            (What::Write(stability), Some(chunk)) => self.write(from, call, stability, chunk, replies),
            (What::Read, _) => self.read(from, call, replies.arena),
            _ => {
                self.waiting.push((from, call));
                Ok(())
            }
        };
        if let Err(error) = begun {
            replies.answer(from, &call, Err(error), 0, None);
        }
    }

    fn advance(&mut self, replies: &mut Replies<'_, impl Protocol>) -> io::Result<bool> {
        let mut ended = std::mem::take(&mut self.ended);
        self.disk.advance(&mut ended)?;
        let has_worked = !ended.is_empty();
        for (key, done) in ended.drain(..) {
            self.end(key, done, replies)?;
        }
        self.ended = ended;
        if has_worked {
            for (from, call) in std::mem::take(&mut self.delayed) {
                self.read(from, call, replies.arena)?;
            }
        }
        Ok(self.flush(replies)? || has_worked)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.disk.as_raw_fd())
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.unsettled == 0 && self.flushing.1 == 0
    }

    fn release(&mut self) {
        self.is_released = true;
    }
}
