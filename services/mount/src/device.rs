//! A file on a server, as a device: its blocks are read and written by calls, several at a time.
//!
//! What was written UNSTABLE is durable when a COMMIT returns the verifier that the writes returned. Another one means
//! that the server has restarted and may have lost any of them: then the flush fails, for which the volume has all that
//! it covered written again. That is no error ([`RemoteFile::errors`] does not count it): the flush is repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use kernel::device::{Device, DeviceFacts, Work};
use kernel::frame::segments;
use kernel::request::{Action, Outcome, Request};
use kernel::wait::TaskMutex;
use kernel::{FRAME_BYTES, Frames, Processor};
use machine::Errno;
use parking_lot::Mutex;
use policy::unit::{BLOCK_BYTES, ByteRange, DiskNo, Stability};

use crate::client::{Server, Written};
use crate::errors::Errors;
use crate::handle::Handle;
use crate::known::Known;
use crate::rpc::Payload;

/// Before a READ is repeated that brought nothing and was not at the end of the file, as of a server that is short of something
/// (RFC 1813, section 3.3.6): what is there must not be taken for zeroes. The next pause is twice as long; after the last the
/// READ fails.
const EMPTY_READ_PAUSE_MIN: Duration = Duration::from_millis(100);
const EMPTY_READ_PAUSE_MAX: Duration = Duration::from_millis(800);

/// Longest transfers, in bytes: a multiple of the block, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfers {
    pub read_max: u32,
    pub write_max: u32,
}

pub struct RemoteFile {
    server: Arc<Server>,
    handle: Handle,
    disk: DiskNo,
    transfers: Transfers,
    is_writable: bool,
    /// The size when it was opened.
    size: u64,
    known: Arc<Known>,
    /// What openings are told.
    failed: Arc<Errors>,
    unstable: Mutex<Unstable>,
    /// Dirty blocks, if all of them are being flushed.
    flushing: AtomicU64,
    /// One look before several writes.
    looking: TaskMutex,
    errors: AtomicU64,
    last_error: Mutex<Option<Errno>>,
}

/// What was written and not committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unstable {
    /// Of the writes since the last commit; `None`: there are none.
    verifier: Option<[u8; 8]>,
    /// They have had different ones.
    is_mixed: bool,
    /// Counts writes.
    writes: u64,
}

/// What a commit means for what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Durable,
    Restarted,
}

impl Unstable {
    fn on_written(&mut self, verifier: [u8; 8]) {
        self.is_mixed |= self.verifier.is_some_and(|earlier| earlier != verifier);
        self.verifier = Some(verifier);
        self.writes += 1;
    }

    /// A commit that began when the state was `before` has returned `verifier`.
    fn on_committed(&mut self, before: Unstable, verifier: [u8; 8]) -> Verdict {
        if self.is_mixed || self.verifier.is_some_and(|of_writes| of_writes != verifier) {
            self.on_restart();
            return Verdict::Restarted;
        }
        if self.writes == before.writes {
            self.verifier = None;
        }
        Verdict::Durable
    }

    /// All of it will be written again.
    fn on_restart(&mut self) {
        *self = Unstable { writes: self.writes, ..Unstable::default() };
    }
}

impl RemoteFile {
    pub(crate) fn new(
        server: &Arc<Server>,
        handle: Handle,
        (disk, transfers): (DiskNo, Transfers),
        is_writable: bool,
        size: u64,
        (known, failed): (Arc<Known>, Arc<Errors>),
    ) -> Self {
        RemoteFile {
            server: Arc::clone(server),
            handle,
            disk,
            transfers,
            is_writable,
            size,
            known,
            failed,
            unstable: Mutex::default(),
            flushing: AtomicU64::new(0),
            looking: TaskMutex::default(),
            errors: AtomicU64::new(0),
            last_error: Mutex::default(),
        }
    }

    /// Counts what the server refused. A restart is not counted.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// A flush of `dirty` blocks begins: if they are one WRITE, it is durable with it.
    pub(crate) fn begin_flush(&self, dirty: u64) {
        let dirty = if self.unstable.lock().verifier.is_none() { dirty } else { 0 };
        self.flushing.store(dirty, Ordering::Relaxed);
    }

    pub(crate) fn end_flush(&self) {
        self.flushing.store(0, Ordering::Relaxed);
    }

    fn note_write_error(&self, errno: Errno) -> Errno {
        self.failed.note(errno);
        self.note_error(errno)
    }

    fn note_error(&self, errno: Errno) -> Errno {
        *self.last_error.lock() = Some(errno);
        self.errors.fetch_add(1, Ordering::Relaxed);
        errno
    }

    /// What it refused last.
    pub(crate) fn last_error(&self) -> Option<Errno> {
        *self.last_error.lock()
    }

    pub(crate) fn known_size(&self) -> u64 {
        self.known.attributes().size
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: &Frames) -> Result<(), Errno> {
        let pieces = pieces(range, self.transfers.read_max);
        let reads = pieces.map(|piece| self.read_piece(cpu, piece, (piece.at - range.at) as usize, frames));
        let result: Result<(), Errno> = join_all(reads).await.into_iter().collect();
        result.map_err(|errno| self.note_error(errno))
    }

    /// Reads `range` to the `offset`-th byte of `frames`.
    async fn read_piece(&self, cpu: &Processor, range: ByteRange, offset: usize, frames: &Frames) -> Result<(), Errno> {
        let (mut done, mut pause) = (0, EMPTY_READ_PAUSE_MIN);
        while done < range.len {
            let rest = ByteRange { at: range.at + done, len: range.len - done };
            let place = payload(frames, offset + done as usize, rest.len as usize);
            let read = self.server.read(cpu, &self.handle, rest, place).await?;
            done += read.count as u64;
            if read.is_end {
                break;
            }
            if read.count > 0 {
                pause = EMPTY_READ_PAUSE_MIN;
            } else {
                if pause > EMPTY_READ_PAUSE_MAX {
                    return Err(Errno::IO);
                }
                cpu.sleep(pause).await;
                pause *= 2;
            }
        }
        // What is beyond the server's end of the file is ours and not written yet, or was cut off by others.
        for segment in segments(frames, offset + done as usize, (range.len - done) as usize) {
            // SAFETY: the frames are being filled by this transfer; there is no other access to them.
            unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
        }
        Ok(())
    }

    async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: &Frames,
        stability: Stability,
    ) -> Result<(), Errno> {
        let start = range.at.in_block();
        let is_all = range.len <= self.transfers.write_max.into()
            && range.blocks().len() == self.flushing.load(Ordering::Relaxed);
        let stability = if is_all { Stability::Stable } else { stability };
        self.look(cpu).await;
        let pieces = pieces(range, self.transfers.write_max);
        let writes = pieces.map(|piece| {
            let offset = start + (piece.at - range.at) as usize;
            self.write_piece(cpu, piece, offset, frames, stability)
        });
        let result: Result<(), Errno> = join_all(writes).await.into_iter().collect();
        result.map_err(|errno| self.note_write_error(errno))
    }

    /// Looks for changes by others before the first of our writes. What fails here fails the write, too.
    async fn look(&self, cpu: &Processor) {
        if !self.known.is_to_be_asked(cpu.now()) {
            return;
        }
        let _one_at_a_time = self.looking.lock().await;
        let asked = cpu.now();
        if self.known.is_to_be_asked(asked)
            && let Ok(attributes) = self.server.attributes(cpu, &self.handle).await
        {
            self.known.note(asked, attributes);
        }
    }

    /// Writes `range` from the `offset`-th byte of `frames`.
    async fn write_piece(
        &self,
        cpu: &Processor,
        range: ByteRange,
        offset: usize,
        frames: &Frames,
        stability: Stability,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < range.len {
            let rest = ByteRange { at: range.at + done, len: range.len - done };
            let data = payload(frames, offset + done as usize, rest.len as usize);
            let writing = self.known.begin_write(cpu.now());
            let written = self.server.write(cpu, &self.handle, rest, data, stability).await;
            let Written { change, count, is_stable, verifier } = written?;
            writing.end(cpu.now(), change);
            if is_stable {
                self.failed.on_stored();
            } else {
                self.unstable.lock().on_written(verifier);
            }
            if count == 0 {
                return Err(Errno::IO);
            }
            done += u64::from(count);
        }
        Ok(())
    }

    async fn commit(&self, cpu: &Processor) -> Result<(), Errno> {
        let before = *self.unstable.lock();
        if before.verifier.is_none() {
            return Ok(());
        }
        let asked = cpu.now();
        let result = if before.is_mixed {
            Ok(None)
        } else {
            self.server.commit(cpu, &self.handle).await.map(|(change, verifier)| {
                // It changes nothing: what is new now is somebody else's.
                if let Some(attributes) = change.after {
                    self.known.note(asked, attributes);
                }
                Some(verifier)
            })
        };
        let verdict = match result {
            Ok(Some(verifier)) => self.unstable.lock().on_committed(before, verifier),
            Ok(None) => {
                self.unstable.lock().on_restart();
                Verdict::Restarted
            }
            Err(errno) => return Err(self.note_write_error(errno)),
        };
        if verdict == Verdict::Restarted {
            return Err(Errno::IO);
        }
        self.failed.on_stored();
        Ok(())
    }
}

/// `range` in pieces of at most `most` bytes.
fn pieces(range: ByteRange, most: u32) -> impl Iterator<Item = ByteRange> {
    let most = u64::from(most);
    (0..range.len.div_ceil(most)).map(move |number| {
        let done = number * most;
        ByteRange { at: range.at + done, len: most.min(range.len - done) }
    })
}

/// The part of `frames` of `len` bytes from the `offset`-th on.
fn payload(frames: &Frames, offset: usize, len: usize) -> Payload {
    let (first, end) = (offset / FRAME_BYTES, (offset + len).div_ceil(FRAME_BYTES));
    Payload { frames: frames[first..end].iter().cloned().collect(), offset: offset % FRAME_BYTES, len }
}

impl Device for RemoteFile {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            size: self.size,
            writable: self.is_writable,
            rotational: false,
            transfer_bytes_max: self.transfers.read_max.max(self.transfers.write_max),
            fast_zero: false,
            may_be_sparse: false,
            disk: self.disk,
        }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            let stability = request.context.stability;
            match request.action {
                Action::Read(range, frames) => self.read(cpu, range, &frames).await?,
                Action::Write(range, frames) => self.write(cpu, range, &frames, stability).await?,
                Action::Flush => self.commit(cpu).await?,
                Action::Zero { .. } | Action::Discard(_) => return Ok(Outcome::Unsupported),
            }
            Ok(Outcome::Done)
        })
    }
}

/// The transfers of a mount: as the server can, and no longer than asked for. In whole blocks.
pub(crate) fn transfers(server: &Server, read_wanted: u32, write_wanted: u32) -> Transfers {
    let limits = server.limits();
    let whole = |most: u32, wanted: u32| {
        let block = BLOCK_BYTES as u32;
        // A server that says nothing of its limits takes what every server takes.
        let most = if most == 0 { 2 * block } else { most };
        (most.min(wanted) / block * block).max(block)
    };
    Transfers { read_max: whole(limits.read_max, read_wanted), write_max: whole(limits.write_max, write_wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_with_the_writes_verifier_makes_them_durable() {
        let mut unstable = Unstable::default();
        unstable.on_written([1; 8]);
        let before = unstable;
        assert_eq!(unstable.on_committed(before, [1; 8]), Verdict::Durable);
        assert_eq!(unstable.verifier, None);
    }

    #[test]
    fn a_write_during_a_commit_stays_to_be_committed() {
        let mut unstable = Unstable::default();
        unstable.on_written([1; 8]);
        let before = unstable;
        unstable.on_written([1; 8]);
        assert_eq!(unstable.on_committed(before, [1; 8]), Verdict::Durable);
        assert_eq!(unstable.verifier, Some([1; 8]));
    }

    #[test]
    fn a_server_that_has_restarted_is_noticed_whenever_it_did() {
        // Between the writes and the commit, between two writes, and during the commit.
        let mut unstable = Unstable::default();
        unstable.on_written([1; 8]);
        let before = unstable;
        assert_eq!(unstable.on_committed(before, [2; 8]), Verdict::Restarted);
        assert_eq!(unstable.verifier, None, "all is written again");
        unstable.on_written([1; 8]);
        unstable.on_written([2; 8]);
        let before = unstable;
        assert_eq!(unstable.on_committed(before, [2; 8]), Verdict::Restarted);
        unstable.on_written([2; 8]);
        let before = unstable;
        unstable.on_written([3; 8]);
        assert_eq!(unstable.on_committed(before, [2; 8]), Verdict::Restarted);
    }
}
