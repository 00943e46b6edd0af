//! Free frames: one list per processor, to avoid contention.
//!
//! Frames are handed out in address order, so that what is loaded together is contiguous: a vector of 32 segments costs
//! a socket a seventh of its throughput.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use policy::unit::ProcessorId;

/// The number of a frame in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub u32);

/// Taken at once from another processor's list, if as many remain there: frames whose metadata shares cache lines
/// should belong to one processor.
const STOLEN: usize = 64;

/// The lists. At most one of their locks is held at a time.
#[derive(Default)]
pub(super) struct FreeLists(Box<[FreeList]>);

/// On cache lines of its own (two: processors prefetch pairs).
#[derive(Default)]
#[repr(align(128))]
struct FreeList {
    frames: Mutex<Vec<FrameNo>>,
    /// Readable without the lock.
    len: AtomicU32,
}

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Sets the processor of this thread.
pub(crate) fn set_thread_processor(id: ProcessorId) {
    OWN.set(usize::from(id.0));
}

impl FreeLists {
    pub(super) fn new(processors: u16) -> Self {
        FreeLists((0..processors.max(1)).map(|_| FreeList::default()).collect())
    }

    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(FreeList::len).sum()
    }

    /// Are `count` frames free? Looks at other processors' lists only if the own one has too few.
    pub(super) fn has(&self, count: u64) -> bool {
        let mut left = count;
        self.own_first().any(|list| {
            left = left.saturating_sub(u64::from(list.len()));
            left == 0
        })
    }

    /// Hands out up to `count` frames. Returns more frames taken from another processor's list, which the caller must
    /// [`add`](Self::add).
    pub(super) fn take(&self, count: usize, mut hand_out: impl FnMut(&mut [FrameNo])) -> Vec<FrameNo> {
        let mut left = count;
        let mut lists = self.own_first();
        if let Some(own) = lists.next() {
            left -= own.with(|frames| cut(frames, left, &mut hand_out));
        }
        for other in lists {
            if left == 0 {
                break;
            }
            let mut stolen = other.with(|frames| {
                let count = left.max(STOLEN.min(frames.len() / 2)).min(frames.len());
                frames.split_off(frames.len() - count)
            });
            left -= cut(&mut stolen, left, &mut hand_out);
            if !stolen.is_empty() {
                return stolen;
            }
        }
        Vec::new()
    }

    pub(super) fn add(&self, frames: impl IntoIterator<Item = FrameNo>) {
        if let Some(own) = self.own_first().next() {
            own.with(|list| list.extend(frames));
        }
    }

    pub(super) fn retain(&self, mut keeps: impl FnMut(FrameNo) -> bool) {
        for list in &self.0 {
            list.with(|frames| frames.retain(|&no| keeps(no)));
        }
    }

    /// All lists, the own processor's first.
    fn own_first(&self) -> impl Iterator<Item = &FreeList> {
        let own = OWN.get() % self.0.len().max(1);
        self.0[own..].iter().chain(&self.0[..own])
    }
}

impl FreeList {
    fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<FrameNo>) -> R) -> R {
        let mut frames = self.frames.lock();
        let result = work(&mut frames);
        self.len.store(frames.len() as u32, Ordering::Release);
        result
    }
}

/// Hands out up to `count` of the last frames; returns the number.
fn cut(frames: &mut Vec<FrameNo>, count: usize, hand_out: &mut impl FnMut(&mut [FrameNo])) -> usize {
    let taken = count.min(frames.len());
    let from = frames.len() - taken;
    hand_out(&mut frames[from..]);
    frames.truncate(from);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(lists: &FreeLists, count: usize) -> (usize, Vec<FrameNo>) {
        let mut handed_out = 0;
        let more = lists.take(count, |frames| handed_out += frames.len());
        (handed_out, more)
    }

    #[test]
    fn who_has_none_takes_several_but_leaves_as_many() {
        let lists = FreeLists::new(2);
        set_thread_processor(ProcessorId(1));
        lists.add((0..1000).map(FrameNo));
        set_thread_processor(ProcessorId(0));
        let (handed_out, more) = take(&lists, 1);
        assert_eq!((handed_out, more.len(), lists.len()), (1, STOLEN - 1, 1000 - STOLEN as u32));
        lists.add(more);
        assert_eq!(take(&lists, STOLEN - 1), (STOLEN - 1, Vec::new()));
        assert_eq!(take(&lists, 2000).0, 1000 - STOLEN);
        assert_eq!((lists.len(), lists.has(1), lists.has(0)), (0, false, true));
        lists.add([FrameNo(7)]);
        set_thread_processor(ProcessorId(1));
        assert!(lists.has(1));
        assert_eq!(take(&lists, 1), (1, Vec::new()));
        set_thread_processor(ProcessorId(0));
    }
}
