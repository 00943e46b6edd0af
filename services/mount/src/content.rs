//! The content of a file that is in use: a volume over the file on the server.

use std::sync::Arc;

use kernel::device::DeviceRef;
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Context, Request};
use kernel::volume::{Attempt, VolumeConfig};
use kernel::{FRAME_BYTES, ForcedUnitAccess, Frames, Kernel, Processor, Volume};
use machine::Errno;
use policy::unit::{ByteOffset, ByteRange, Stability};

use crate::device::RemoteFile;

/// Reads during which the file's size changes, in a row.
const ATTEMPTS_MAX: u32 = 16;

/// Shortest read of a host that reads ahead. It begins with shorter ones, and those at random stay so. Bytes.
const PAST_BYTES_MIN: u64 = 64 << 10;

/// Flushes in a row for which the server has restarted meanwhile.
const RESTARTS_MAX: u32 = 64;

/// Bytes to be written: in frames, as they are cached, if there were some without waiting.
pub enum Data {
    /// The first byte lies at its place in the first frame's block. How many bytes.
    Frames(Frames, usize),
    Bytes(Vec<u8>),
}

impl Data {
    /// Copies what is to be written at `at`, on any thread.
    pub fn new(kernel: &Kernel, at: ByteOffset, bytes: &[u8]) -> Data {
        let (mut frames, blocks) = (Frames::new(), ByteRange { at, len: bytes.len() as u64 }.blocks());
        if !kernel.try_allocate(blocks.len() as usize, &mut frames) {
            return Data::from(bytes);
        }
        copy_in(&mut frames, at.in_block(), bytes);
        Data::Frames(frames, bytes.len())
    }

    pub fn len(&self) -> usize {
        match self {
            Data::Frames(_, len) => *len,
            Data::Bytes(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Data {
        Data::Bytes(bytes.to_vec())
    }
}

pub(crate) struct Content {
    pub volume: Arc<Volume>,
    pub device: Arc<RemoteFile>,
}

impl Content {
    /// # Errors
    /// When too many files are in use.
    pub fn open(
        cpu: &Processor,
        device: RemoteFile,
        queue: &Arc<DiskQueue>,
        read_only: bool,
    ) -> Result<Arc<Content>, Errno> {
        let device = Arc::new(device);
        let queued: DeviceRef = Arc::new(Queued::new(Arc::clone(queue), Arc::clone(&device) as DeviceRef));
        let config = VolumeConfig {
            name: String::new(),
            read_only,
            // FILE_SYNC: one call instead of two.
            forced_unit_access: ForcedUnitAccess::Alone,
            grows: true,
        };
        let volume = Volume::open(cpu.kernel(), queued, config, cpu.id()).map_err(|_| Errno(libc::ENFILE))?;
        volume.await_first_flush();
        Ok(Arc::new(Content { volume, device }))
    }

    /// Reads `range`, cut at the end of the file. The first byte lies `range.at % 4096` bytes into the first frame.
    pub async fn read(&self, cpu: &Processor, range: ByteRange) -> Result<(ByteRange, Frames), Errno> {
        for _ in 0..ATTEMPTS_MAX {
            let range = self.volume.clip(range);
            if range.len == 0 {
                return Ok((range, Frames::new()));
            }
            let context = Context::synchronous(cpu.job());
            if let Attempt::Done(frames) = self.volume.attempt_read(cpu, range, context).await? {
                return Ok((range, frames));
            }
        }
        Err(Errno(libc::EAGAIN))
    }

    /// As [`Content::read`] for a host that reads ahead and caches what comes: unless all of it is cached here, nothing is.
    pub async fn read_past(&self, cpu: &Processor, range: ByteRange) -> Result<(ByteRange, Frames), Errno> {
        let (clipped, mut frames) = (self.volume.clip(range), Frames::new());
        let is_ours = !self.volume.is_clean() || self.volume.loss().is_some();
        if is_ours || clipped.len < PAST_BYTES_MIN || clipped.at.in_block() != 0 {
            return self.read(cpu, range).await;
        }
        if let Some(frames) = self.volume.try_read(cpu, clipped) {
            return Ok((clipped, frames));
        }
        if !cpu.kernel().try_allocate(clipped.blocks().len() as usize, &mut frames) {
            return self.read(cpu, range).await;
        }
        let action = Action::Read(clipped, frames.clone());
        let request = Request { action, context: Context::synchronous(cpu.job()) };
        self.volume.device().perform(cpu, request).await?.required()?;
        Ok((clipped, frames))
    }

    /// Writes `data` at `at`.
    pub async fn write(&self, cpu: &Processor, at: ByteOffset, data: Data, stability: Stability) -> Result<(), Errno> {
        let range = ByteRange { at, len: data.len() as u64 };
        let frames = match data {
            Data::Frames(frames, _) => frames,
            Data::Bytes(bytes) => {
                let mut frames = cpu.kernel().allocate(cpu, range.blocks().len() as usize).await;
                copy_in(&mut frames, at.in_block(), &bytes);
                frames
            }
        };
        let context = Context::synchronous(cpu.job()).with_stability(stability);
        self.write_frames(cpu, range, frames, context).await
    }

    async fn write_frames(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        for _ in 0..RESTARTS_MAX {
            let errors = self.device.errors();
            match self.volume.write(cpu, range, frames.clone(), context).await {
                // The server has restarted: with much to write again, the volume takes no more until that is done.
                Err(Errno::IO) if self.device.errors() == errors => self.flush(cpu).await?,
                // To be cached, a block that is written in part is read: a user need not have the right to.
                Err(Errno(libc::EACCES | libc::EPERM)) if range.whole_blocks() != range.blocks() => {
                    // Boxed: rare, and a circle.
                    return Box::pin(self.write_unread(cpu, range, &frames, context)).await;
                }
                result => return result,
            }
        }
        Err(Errno::IO)
    }

    /// Writes what the volume was refused to read: whole blocks to the cache, parts of others to the server.
    async fn write_unread(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: &Frames,
        context: Context,
    ) -> Result<(), Errno> {
        let blocks = range.blocks();
        if blocks.len() == 1 {
            return self.write_past(cpu, range, frames.clone()).await;
        }
        let cuts = [range.at, (blocks.start + 1).start(), (blocks.end - 1).start(), range.end()];
        for (at, end) in cuts.into_iter().zip(cuts.into_iter().skip(1)).filter(|(at, end)| at < end) {
            let part = ByteRange { at, len: end - at };
            let first = (part.blocks().start - blocks.start) as usize;
            let frames = frames[first..][..part.blocks().len() as usize].iter().cloned().collect();
            self.write_frames(cpu, part, frames, context).await?;
        }
        Ok(())
    }

    /// Writes to the server at once, past the cache, which forgets what it has of the file.
    async fn write_past(&self, cpu: &Processor, range: ByteRange, frames: Frames) -> Result<(), Errno> {
        let context = Context::synchronous(cpu.job()).with_stability(Stability::Stable);
        let write = async {
            let request = Request { action: Action::Write(range, frames), context };
            self.volume.device().perform(cpu, request).await?.required()?;
            Ok(self.device.known_size().max(range.end().0))
        };
        self.volume.follow_host(cpu, write).await.map(|_| ())
    }

    /// Has the server all that was written, be it durable or not?
    pub fn is_written(&self) -> bool {
        self.volume.dirty_blocks() == 0
    }

    /// Sends all that was written to the server, without making it durable.
    ///
    /// # Errors
    /// The server's: what failed stays to be written.
    pub async fn write_out(&self, cpu: &Processor) -> Result<(), Errno> {
        for _ in 0..RESTARTS_MAX {
            if self.is_written() {
                return Ok(());
            }
            let errors = self.device.errors();
            self.volume.write_out_unflushed(cpu, Context::synchronous(cpu.job())).await;
            if self.device.errors() != errors && !self.is_written() {
                return Err(self.device.last_error().unwrap_or(Errno::IO));
            }
        }
        // Others write faster than it is sent.
        Ok(())
    }

    /// Makes all that was written durable, also if the server restarts meanwhile.
    ///
    /// # Errors
    /// The server's: some of it may not be durable, and stays to be written.
    pub async fn flush(&self, cpu: &Processor) -> Result<(), Errno> {
        if self.volume.is_clean() && self.volume.loss().is_none() {
            return Ok(());
        }
        for _ in 0..RESTARTS_MAX {
            let errors = self.device.errors();
            self.device.begin_flush(self.volume.dirty_blocks());
            let result = self.volume.flush(cpu, Context::synchronous(cpu.job())).await;
            self.device.end_flush();
            if result.is_ok() || self.device.errors() != errors {
                return result;
            }
        }
        Err(Errno::IO)
    }
}

/// Copies `data` to the `offset`-th byte of frames that nobody shares.
fn copy_in(frames: &mut Frames, offset: usize, data: &[u8]) {
    let (mut at, mut left) = (offset, data);
    for frame in frames {
        let (here, rest) = left.split_at(left.len().min(FRAME_BYTES - at));
        if let Some(bytes) = frame.bytes_mut() {
            bytes[at..at + here.len()].copy_from_slice(here);
        }
        (at, left) = (0, rest);
    }
}
