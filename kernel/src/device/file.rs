//! A device on a file or block device of the host. Transfers are 256 KiB if the disk reports no preferred size, else up
//! to 512 KiB: larger ones are split or slower on some disks.

use machine::{Errno, FoundRuns, Op, OpenFile};
use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange, Stability};

use super::{Device, DeviceFacts, FoundData, Work, contains, transfer, write_all, zero_part};
use crate::frame::{Frames, segments};
use crate::operation::Hold;
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};

/// Reads and writes go through the machine. A last block that direct I/O cannot write goes through the host's page
/// cache ([`OpenFile::tail`]); the host keeps both views coherent.
pub struct FileDevice {
    open: OpenFile,
}

impl FileDevice {
    /// Without the switch `unmapped_io`, each transfer goes through a buffer mapped for it (UIO).
    pub fn new(open: OpenFile) -> Self {
        FileDevice { open }
    }

    pub fn file(&self) -> &OpenFile {
        &self.open
    }

    /// The transfer length for `len` bytes: with direct I/O, a multiple of the alignment.
    fn aligned(&self, len: u64) -> u64 {
        if self.open.facts.direct { len.next_multiple_of(u64::from(self.open.facts.align)) } else { len }
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames) -> Result<(), Errno> {
        let into = segments(&frames, 0, self.aligned(range.len) as usize);
        let op = |into| Op::Read { file: self.open.file, at: range.at, into };
        let (result, frames) = transfer(cpu, frames, into, op).await;
        let read = result?.min(range.len);
        // The file was truncated by others: its missing part reads as zeroes, like a hole.
        zero_part(&frames, read as usize, (range.len - read) as usize);
        Ok(())
    }

    async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        stability: Stability,
    ) -> Result<(), Errno> {
        let OpenFile { file, tail, .. } = self.open;
        let direct = match tail {
            Some(_) => range.at + range.len / BLOCK_BYTES * BLOCK_BYTES,
            None => range.end(),
        };
        let frames = write_all(cpu, file, range.at, frames, range.at.to(direct), stability).await?;
        if let Some(tail) = tail {
            write_all(cpu, tail, range.at, frames, direct.to(range.end()), stability).await?;
        }
        Ok(())
    }

    async fn command(&self, cpu: &Processor, op: Op) -> Result<(), Errno> {
        // SAFETY: the operation has no segments.
        unsafe { cpu.perform(Hold::default(), op) }.await.0.map(drop)
    }

    /// For operations that not every file system and disk supports.
    async fn command_if_supported(&self, cpu: &Processor, op: Op) -> Result<Outcome, Errno> {
        match self.command(cpu, op).await {
            Err(Errno::NOT_SUPPORTED) => Ok(Outcome::Unsupported),
            result => result.map(|()| Outcome::Done),
        }
    }
}

impl Device for FileDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts::of(&self.open.facts, true)
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            if request.action.range().is_some_and(|range| !contains(self.open.facts.size, range)) {
                return Err(Errno::INVALID);
            }
            let file = self.open.file;
            match request.action {
                Action::Read(range, frames) => self.read(cpu, range, frames).await?,
                Action::Write(range, frames) => self.write(cpu, range, frames, request.context.stability).await?,
                Action::Flush => self.command(cpu, Op::Flush { file }).await?,
                Action::Zero { range, may_release } => {
                    let op = Op::Zero { file, at: range.at, len: range.len, may_release };
                    return self.command_if_supported(cpu, op).await;
                }
                Action::Discard(range) => {
                    let op = Op::Discard { file, at: range.at, len: range.len };
                    return self.command_if_supported(cpu, op).await;
                }
            }
            Ok(Outcome::Done)
        })
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        Box::pin(async move {
            let found = FoundRuns::default();
            let op = Op::FindData { file: self.open.file, within, runs_max, runs: found.clone() };
            // SAFETY: the operation has no segments.
            let end = ByteOffset(unsafe { cpu.perform(Hold::default(), op) }.await.0?);
            let runs = std::mem::take(&mut *found.lock());
            Ok(FoundData { runs, end })
        })
    }
}
