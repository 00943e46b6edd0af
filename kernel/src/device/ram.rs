//! A RAM disk.

use std::collections::BTreeMap;

use machine::Errno;
use parking_lot::RwLock;
use policy::unit::{BlockNo, BlockRange, ByteOffset, ByteRange, DiskNo};

use super::{Device, DeviceFacts, FoundData, Work, contains};
use crate::frame::{FRAME_BYTES, FrameRef};
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};

/// Blocks in the unit of allocation: 64 KiB.
const PIECE_BLOCKS: u64 = 16;
const PIECE_BYTES: usize = PIECE_BLOCKS as usize * FRAME_BYTES;

/// Pieces looked at between two yields.
const PIECES_AT_ONCE: u64 = 1024;

/// Adjacent pieces are in different parts, each with a lock, to avoid contention.
const PARTS: u64 = 32;

/// A disk in memory that allocates only what was written. Its content ends with the process, so a flush does nothing.
pub struct RamDisk {
    size: u64,
    disk: DiskNo,
    parts: [Part; PARTS as usize],
}

/// A subset of the pieces, by number. On cache lines of its own (two: processors prefetch pairs).
#[derive(Default)]
#[repr(align(128))]
struct Part(RwLock<BTreeMap<u64, Box<[u8]>>>);

impl Part {}

/// Splits blocks at the ends of pieces, each part with the number of its piece.
fn cut(blocks: BlockRange) -> impl Iterator<Item = (u64, BlockRange)> {
    blocks.cut_at_multiples(PIECE_BLOCKS).map(|part| (part.start.0 / PIECE_BLOCKS, part))
}

/// Offset of a block in its piece. Bytes.
fn place(block: BlockNo) -> usize {
    (block.0 % PIECE_BLOCKS) as usize * FRAME_BYTES
}

impl RamDisk {
    /// An empty disk of `size` bytes, with the queue of `disk`.
    pub fn new(size: u64, disk: DiskNo) -> Self {
        RamDisk { size, disk, parts: Default::default() }
    }

    fn part(&self, piece: u64) -> &Part {
        &self.parts[(piece % PARTS) as usize]
    }

    fn read(&self, range: ByteRange, frames: &mut [FrameRef]) {
        let mut frames = frames.iter();
        for (number, blocks) in cut(range.blocks()) {
            let pieces = self.part(number).0.read();
            let piece = pieces.get(&number);
            for (block, frame) in blocks.iter().zip(frames.by_ref()) {
                // SAFETY: the caller gave the frame to be filled by this transfer; there is no other access to it. The
                // piece has at least a frame's bytes from the block's offset on.
                unsafe {
                    match piece.map(|piece| &piece[place(block)..][..FRAME_BYTES]) {
                        Some(bytes) => frame.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), FRAME_BYTES),
                        None => frame.as_ptr().write_bytes(0, FRAME_BYTES),
                    }
                }
            }
        }
    }

    fn write(&self, range: ByteRange, frames: &[FrameRef]) {
        let mut frames = frames.iter();
        for (number, blocks) in cut(range.blocks()) {
            let mut pieces = self.part(number).0.write();
            let piece = pieces.entry(number).or_insert_with(|| vec![0; PIECE_BYTES].into());
            for (block, frame) in blocks.iter().zip(frames.by_ref()) {
                let len = FRAME_BYTES.min((self.size - block.start().0) as usize);
                piece[place(block)..][..len].copy_from_slice(&frame.bytes()[..len]);
            }
        }
    }

    fn zero(&self, range: ByteRange) {
        let piece_bytes = PIECE_BYTES as u64;
        let whole = range.at.0.div_ceil(piece_bytes)..range.end().0 / piece_bytes;
        if whole.start < whole.end {
            for part in &self.parts {
                let mut pieces = part.0.write();
                let mut after = pieces.split_off(&whole.start);
                pieces.append(&mut after.split_off(&whole.end));
            }
        }
        let edges = [range.at.0 / piece_bytes, range.end().0 / piece_bytes];
        for number in edges {
            let mut pieces = self.part(number).0.write();
            let Some(piece) = pieces.get_mut(&number) else { continue };
            let start = range.at.0.max(number * piece_bytes) - number * piece_bytes;
            let end = range.end().0.min((number + 1) * piece_bytes) - number * piece_bytes;
            if start < end {
                piece[start as usize..end as usize].fill(0);
            }
        }
    }

    async fn find(&self, cpu: &Processor, within: ByteRange, runs_max: usize) -> FoundData {
        let piece_bytes = PIECE_BYTES as u64;
        let last = within.end().0.div_ceil(piece_bytes);
        let (mut runs, mut end, mut looks) = (Vec::new(), within.at, 0);
        while end < within.end() && runs.len() < runs_max {
            let first = end.0 / piece_bytes;
            let next = |part: &Part| part.0.read().range(first..last).next().map(|(number, _)| *number);
            let Some(first) = self.parts.iter().filter_map(next).min() else {
                end = within.end();
                break;
            };
            looks += PARTS;
            let mut after = first + 1;
            loop {
                if looks >= PIECES_AT_ONCE {
                    looks = 0;
                    cpu.yield_now().await;
                }
                if after == last || !self.part(after).0.read().contains_key(&after) {
                    break;
                }
                after += 1;
                looks += 1;
            }
            let start = end.max(ByteOffset(first * piece_bytes));
            end = within.end().min(ByteOffset(after * piece_bytes));
            runs.push(start.to(end));
        }
        FoundData { runs, end }
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
            may_be_sparse: false,
            disk: self.disk,
        }
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn perform<'a>(&'a self, _cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
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
            Ok(Outcome::Done)
        })
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        Box::pin(async move { Ok(self.find(cpu, within, runs_max).await) })
    }
}
