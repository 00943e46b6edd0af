//! A RAM disk.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange};

use super::{Device, DeviceFacts, SeekTarget, Work, contains};
use crate::frame::{FRAME_BYTES, FrameRef};
use crate::processor::Processor;
use crate::request::{Action, Request};

/// Blocks in the unit in which memory is taken: 64 KiB.
const PIECE_BLOCKS: u64 = 16;
const PIECE_BYTES: usize = PIECE_BLOCKS as usize * FRAME_BYTES;

/// A disk in memory, which takes memory only for what was written. Lost at the end of the process: its flush means
/// nothing.
pub struct RamDisk {
    size: u64,
    disk: u64,
    /// Processors that read do so side by side.
    pieces: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl RamDisk {
    /// An empty disk of `size` bytes, with the queue of `disk`.
    pub fn new(size: u64, disk: u64) -> Self {
        RamDisk { size, disk, pieces: RwLock::default() }
    }

    fn read(&self, range: ByteRange, frames: &mut [FrameRef]) {
        let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
        for (frame, at) in frames.iter().zip(range.blocks()) {
            let piece = pieces.get(&(at / PIECE_BLOCKS));
            let bytes = piece.map(|piece| &piece[(at % PIECE_BLOCKS) as usize * FRAME_BYTES..][..FRAME_BYTES]);
            // SAFETY: the caller gave the frame to be filled by this transfer; nobody else touches it meanwhile.
            unsafe {
                match bytes {
                    Some(bytes) => frame.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), FRAME_BYTES),
                    None => frame.as_ptr().write_bytes(0, FRAME_BYTES),
                }
            }
        }
    }

    fn write(&self, range: ByteRange, frames: &[FrameRef]) {
        let mut pieces = self.lock();
        for (frame, at) in frames.iter().zip(range.blocks()) {
            let piece = pieces.entry(at / PIECE_BLOCKS).or_insert_with(|| vec![0; PIECE_BYTES].into());
            let len = FRAME_BYTES.min((self.size - at * BLOCK_BYTES) as usize);
            piece[(at % PIECE_BLOCKS) as usize * FRAME_BYTES..][..len].copy_from_slice(&frame.bytes()[..len]);
        }
    }

    fn zero(&self, range: ByteRange) {
        let mut pieces = self.lock();
        let piece_bytes = PIECE_BYTES as u64;
        let whole = range.at.0.div_ceil(piece_bytes)..range.end().0 / piece_bytes;
        if whole.start < whole.end {
            let mut after = pieces.split_off(&whole.start);
            pieces.append(&mut after.split_off(&whole.end));
        }
        let edges = [range.at.0 / piece_bytes, range.end().0 / piece_bytes];
        for piece_no in edges {
            let Some(piece) = pieces.get_mut(&piece_no) else { continue };
            let start = range.at.0.max(piece_no * piece_bytes) - piece_no * piece_bytes;
            let end = range.end().0.min((piece_no + 1) * piece_bytes) - piece_no * piece_bytes;
            if start < end {
                piece[start as usize..end as usize].fill(0);
            }
        }
    }

    fn find(&self, at: ByteOffset, target: SeekTarget) -> Option<ByteOffset> {
        if at.0 >= self.size {
            return None;
        }
        let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
        let piece_bytes = PIECE_BYTES as u64;
        let first = at.0 / piece_bytes;
        match target {
            SeekTarget::Data => {
                let (piece, _) = pieces.range(first..).next()?;
                Some(ByteOffset(at.0.max(piece * piece_bytes)))
            }
            SeekTarget::Hole => {
                let run = pieces.range(first..).zip(first..).take_while(|((piece, _), expected)| **piece == *expected);
                let end = (first + run.count() as u64) * piece_bytes;
                Some(ByteOffset(at.0.max(end).min(self.size)))
            }
        }
    }

    fn lock(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        self.pieces.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for RamDisk {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            size: self.size,
            writable: true,
            rotational: false,
            transfer_bytes_max: 512 << 10,
            fast_zero: true,
            disk: self.disk,
        }
    }

    fn perform<'a>(&'a self, _cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        Box::pin(async move {
            if request.action.range().is_some_and(|range| !contains(self.size, range)) {
                return Err(Errno::INVALID);
            }
            match request.action {
                Action::Read(range, mut frames) => self.read(range, &mut frames),
                Action::Write(range, frames) => self.write(range, &frames),
                Action::Zero { range, .. } | Action::Discard(range) => self.zero(range),
                Action::Flush => {}
            }
            Ok(())
        })
    }

    fn seek<'a>(&'a self, _cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        Box::pin(async move { Ok(self.find(at, target)) })
    }
}
