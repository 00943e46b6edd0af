//! Free frames: one list per processor, to avoid contention.
//!
//! Frames are handed out in address order, so that what is loaded together is contiguous: a vector of 32 segments costs
//! a socket a seventh of its throughput.
//!
//! Where cache colours count (WS-6), a processor's list is one for each colour, and the frame of a block has the colour of
//! the block's number. What belongs to no block yet, as received data, gets one colour after the other (R. Kessler and
//! M. Hill, "Page Placement Algorithms for Large Real-Indexed Caches", 1992: bin hopping).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use policy::color::{color_of, list_for};
use policy::unit::{BlockNo, ProcessorId};

/// The number of a frame in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub u32);

/// Taken at once from another processor's list, if as many remain there: frames whose metadata shares cache lines
/// should belong to one processor.
const STOLEN: usize = 64;

/// Of the frames listed last, those among which adjacent ones are looked for.
const LOOKED_AT: usize = 64;

/// The lists. At most one of their locks is held at a time.
#[derive(Default)]
pub(super) struct FreeLists {
    lists: Box<[FreeList]>,
    /// Colours that are told apart. 0: one.
    colors: AtomicU32,
}

/// On cache lines of its own (two: processors prefetch pairs).
#[derive(Default)]
#[repr(align(128))]
struct FreeList {
    frames: Mutex<ByColor>,
    /// Readable without the lock.
    len: AtomicU32,
}

/// Free frames, those of each colour by themselves; usually all are of one colour.
struct ByColor {
    lists: Vec<Vec<FrameNo>>,
    /// The colour of the next frame that is taken for no block in particular.
    next: usize,
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
        FreeLists { lists: (0..processors.max(1)).map(|_| FreeList::default()).collect(), colors: AtomicU32::new(1) }
    }

    pub(super) fn len(&self) -> u32 {
        self.lists.iter().map(FreeList::len).sum()
    }

    /// Are `count` frames free? Looks at other processors' lists only if the own one has too few.
    pub(super) fn has(&self, count: u64) -> bool {
        let mut left = count;
        self.own_first().any(|list| {
            left = left.saturating_sub(u64::from(list.len()));
            left == 0
        })
    }

    /// Hands out up to `count` frames, for the blocks from `first`, if those are known. Returns more frames taken from
    /// another processor's list, which the caller must [`add`](Self::add).
    pub(super) fn take(
        &self,
        count: usize,
        first: Option<BlockNo>,
        mut hand_out: impl FnMut(&[FrameNo]),
    ) -> Vec<FrameNo> {
        let mut left = count;
        let mut lists = self.own_first();
        if let Some(own) = lists.next() {
            left -= own.with(|frames| frames.take(left, first, &mut hand_out));
        }
        for other in lists {
            if left == 0 {
                break;
            }
            let next = first.map(|block| block + (count - left) as u64);
            let stolen = other.with(|frames| {
                let more = STOLEN.min(frames.len() / 2).saturating_sub(left);
                left -= frames.take(left, next, &mut hand_out);
                frames.give_up(more)
            });
            if !stolen.is_empty() {
                return stolen;
            }
        }
        Vec::new()
    }

    pub(super) fn add(&self, frames: impl IntoIterator<Item = FrameNo>) {
        if let Some(own) = self.own_first().next() {
            own.with(|list| frames.into_iter().for_each(|no| list.add(no)));
        }
    }

    pub(super) fn retain(&self, mut keeps: impl FnMut(FrameNo) -> bool) {
        for list in &self.lists {
            list.with(|frames| frames.lists.iter_mut().for_each(|list| list.retain(|&no| keeps(no))));
        }
    }

    /// Tells `colors` colours of frames apart from now on.
    pub(super) fn set_colors(&self, colors: u32) {
        self.colors.store(colors, Ordering::Relaxed);
        self.lists.iter().for_each(|list| list.with(|frames| frames.set_colors(colors.max(1) as usize)));
    }

    pub(super) fn colors(&self) -> u32 {
        self.colors.load(Ordering::Relaxed).max(1)
    }

    /// All lists, the own processor's first.
    fn own_first(&self) -> impl Iterator<Item = &FreeList> {
        let own = OWN.get() % self.lists.len().max(1);
        self.lists[own..].iter().chain(&self.lists[..own])
    }
}

impl FreeList {
    fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    fn with<R>(&self, work: impl FnOnce(&mut ByColor) -> R) -> R {
        let mut frames = self.frames.lock();
        let result = work(&mut frames);
        self.len.store(frames.len() as u32, Ordering::Release);
        result
    }
}

impl Default for ByColor {
    fn default() -> Self {
        ByColor { lists: vec![Vec::new()], next: 0 }
    }
}

impl ByColor {
    fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    fn add(&mut self, no: FrameNo) {
        let color = color_of(no.0.into(), self.lists.len());
        self.lists[color].push(no);
    }

    /// Hands out up to `count` frames; returns the number.
    fn take(&mut self, count: usize, first: Option<BlockNo>, hand_out: &mut impl FnMut(&[FrameNo])) -> usize {
        if let [only] = self.lists.as_mut_slice() {
            return cut(only, count, hand_out);
        }
        let start = first.map_or(self.next as u64, |block| block.0);
        let taken =
            (start..).take(count).map_while(|number| self.take_one(number)).inspect(|no| hand_out(&[*no])).count();
        if first.is_none() {
            self.next = color_of(start + taken as u64, self.lists.len());
        }
        taken
    }

    /// A frame of the colour of a block with this number, if there is one.
    fn take_one(&mut self, number: u64) -> Option<FrameNo> {
        let own = color_of(number, self.lists.len());
        let list = list_for(own, self.lists.iter().map(Vec::len))?;
        self.lists[list].pop()
    }

    /// Up to `count` frames, of all colours alike.
    fn give_up(&mut self, count: usize) -> Vec<FrameNo> {
        if let [only] = self.lists.as_mut_slice() {
            return only.split_off(only.len().saturating_sub(count));
        }
        (0..count as u64).map_while(|number| self.take_one(number)).collect()
    }

    fn set_colors(&mut self, colors: usize) {
        if colors == self.lists.len() {
            return;
        }
        let mut all: Vec<FrameNo> = self.lists.drain(..).flatten().collect();
        // Frames are taken from the end: the first ones first.
        all.sort_unstable_by_key(|no| std::cmp::Reverse(*no));
        (self.lists, self.next) = (vec![Vec::new(); colors], 0);
        all.into_iter().for_each(|no| self.add(no));
    }
}

/// Hands out up to `count` of the last frames, in the order of their addresses; returns the number. Adjacent ones if there
/// are any: a vector of one segment is the cheapest, and lies in one registered region mostly.
fn cut(frames: &mut Vec<FrameNo>, count: usize, hand_out: &mut impl FnMut(&[FrameNo])) -> usize {
    let taken = count.min(frames.len());
    let last = frames.len() - taken;
    let from = if (2..=LOOKED_AT).contains(&taken) { adjacent(frames, taken).unwrap_or(last) } else { last };
    let run = &mut frames[from..from + taken];
    run.sort_unstable();
    hand_out(run);
    frames.drain(from..from + taken);
    taken
}

/// The last place where `count` frames are listed that follow each other, downwards, as evicted ones, or upwards.
fn adjacent(frames: &[FrameNo], count: usize) -> Option<usize> {
    let from = frames.len().saturating_sub(LOOKED_AT);
    let (mut down, mut up) = (1, 1);
    for (at, pair) in frames[from..].windows(2).enumerate().rev() {
        down = if pair[0].0 == pair[1].0 + 1 { down + 1 } else { 1 };
        up = if pair[0].0 + 1 == pair[1].0 { up + 1 } else { 1 };
        if down == count || up == count {
            return Some(from + at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(lists: &FreeLists, count: usize) -> (usize, Vec<FrameNo>) {
        let mut handed_out = 0;
        let more = lists.take(count, None, |frames| handed_out += frames.len());
        (handed_out, more)
    }

    /// Numbers of the frames that `count` blocks from `first` get.
    fn taken(lists: &FreeLists, count: usize, first: Option<u64>) -> Vec<u32> {
        let mut taken = Vec::new();
        lists.add(lists.take(count, first.map(BlockNo), |frames| taken.extend(frames.iter().map(|no| no.0))));
        taken
    }

    #[test]
    fn a_block_gets_a_frame_of_its_colour_as_long_as_there_is_one() {
        let lists = FreeLists::new(1);
        lists.add((0..16).rev().map(FrameNo));
        assert_eq!(taken(&lists, 2, Some(3)), [0, 1]);
        lists.set_colors(4);
        assert_eq!((lists.colors(), lists.len()), (4, 14));
        assert_eq!(taken(&lists, 3, Some(7)), [3, 4, 5]);
        assert_eq!(taken(&lists, 3, Some(1)), [9, 2, 7]);
        // Those for no block in particular follow each other, whatever blocks had in between.
        assert_eq!(
            [taken(&lists, 1, None), taken(&lists, 1, Some(2)), taken(&lists, 2, None)],
            [vec![8], vec![6], vec![13, 10]]
        );
        // Colour 1 has no frame left: the colour with most has to give one.
        assert_eq!(taken(&lists, 2, Some(1)), [11, 14]);
        assert_eq!((taken(&lists, 9, None), lists.len()), (vec![15, 12], 0));
        lists.add([FrameNo(5), FrameNo(6)]);
        lists.set_colors(1);
        assert_eq!((taken(&lists, 9, Some(0)), lists.colors()), (vec![5, 6], 1));
    }

    #[test]
    fn adjacent_frames_stay_together_also_when_others_are_freed_between_them() {
        let lists = FreeLists::new(1);
        lists.add((0..8).rev().map(FrameNo));
        assert_eq!([taken(&lists, 2, None), taken(&lists, 2, None)], [[0, 1], [2, 3]]);
        lists.add([19, 3, 2, 17, 1, 0, 15].map(FrameNo));
        assert_eq!([taken(&lists, 2, None), taken(&lists, 2, None)], [[0, 1], [2, 3]]);
        assert_eq!([taken(&lists, 1, None), taken(&lists, 3, None)], [vec![15], vec![4, 5, 6]]);
        assert_eq!([taken(&lists, 3, None), taken(&lists, 3, None)], [vec![7, 17, 19], vec![]]);
        lists.add([31, 32, 33, 40].map(FrameNo));
        assert_eq!([taken(&lists, 2, None), taken(&lists, 2, None)], [[32, 33], [31, 40]]);
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
