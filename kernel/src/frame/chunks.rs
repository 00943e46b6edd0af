//! The chunks of a pool: which are held, and which are being returned to the host.
//!
//! A chunk whose frames are held for long, by a client that is idle, cannot be returned for as long. It is taken back when the
//! pool may grow again, with the frames of it that are free.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use machine::RegionId;
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    /// The host is providing its memory.
    Growing,
    Active,
    /// Its frames are being freed, none is handed out; `free` counts the free ones.
    Retiring {
        free: u32,
    },
    /// All its frames are free; the processors are withdrawing their registration.
    Withdrawing,
}

/// The table of chunks. Its lock comes before those of the free lists and of the regions.
#[derive(Default)]
pub(super) struct Chunks {
    states: Mutex<Vec<State>>,
    /// Is it retiring? Readable without the lock.
    retiring_now: Box<[AtomicBool]>,
    frames_a_chunk: u32,
    active: AtomicU32,
    /// Retiring and withdrawing ones.
    retiring: AtomicU32,
    /// Free frames of those.
    frames_retired: AtomicU32,
}

impl Chunks {
    pub(super) fn new(count: usize, frames_a_chunk: u32) -> Self {
        let retiring_now = (0..count).map(|_| AtomicBool::new(false)).collect();
        Chunks { states: Mutex::new(vec![State::Empty; count]), retiring_now, frames_a_chunk, ..Chunks::default() }
    }

    pub(super) fn active(&self) -> u32 {
        self.active.load(Ordering::Acquire)
    }

    pub(super) fn retiring(&self) -> u32 {
        self.retiring.load(Ordering::Acquire)
    }

    pub(super) fn frames_retired(&self) -> u32 {
        self.frames_retired.load(Ordering::Acquire)
    }

    /// Whether frames of this chunk are to be counted, not listed as free. Takes no lock.
    pub(super) fn is_retiring(&self, chunk: RegionId) -> bool {
        self.retiring.load(Ordering::SeqCst) > 0 && self.retiring_now[usize::from(chunk.0)].load(Ordering::SeqCst)
    }

    /// Whether processors have yet to withdraw a chunk.
    pub(super) fn is_any_withdrawing(&self) -> bool {
        self.retiring() > 0 && self.states.lock().contains(&State::Withdrawing)
    }

    /// An empty chunk, whose memory the host is to provide, unless `most` are active.
    pub(super) fn begin_grow(&self, most: u32) -> Option<RegionId> {
        let mut states = self.states.lock();
        if self.active() >= most {
            return None;
        }
        let chunk = states.iter().position(|state| *state == State::Empty)?;
        states[chunk] = State::Growing;
        self.active.fetch_add(1, Ordering::SeqCst);
        Some(RegionId(chunk as u16))
    }

    /// `list` lists its frames as free, before anybody can retire it.
    pub(super) fn end_grow(&self, chunk: RegionId, list: impl FnOnce()) {
        let mut states = self.states.lock();
        states[usize::from(chunk.0)] = State::Active;
        list();
    }

    pub(super) fn abandon_grow(&self, chunk: RegionId) {
        self.states.lock()[usize::from(chunk.0)] = State::Empty;
        self.active.fetch_sub(1, Ordering::SeqCst);
    }

    /// From now on the frames of the chunk furthest from the start are counted. The caller must [`sweep`](Self::sweep) then.
    pub(super) fn retire(&self) -> Option<RegionId> {
        let mut states = self.states.lock();
        let chunk = states.iter().rposition(|state| *state == State::Active)?;
        states[chunk] = State::Retiring { free: 0 };
        self.retiring_now[chunk].store(true, Ordering::SeqCst);
        self.active.fetch_sub(1, Ordering::SeqCst);
        self.retiring.fetch_add(1, Ordering::SeqCst);
        Some(RegionId(chunk as u16))
    }

    /// A retiring chunk that has free frames is active again, unless `most` are; `list` lists its counted frames as free.
    /// Returns whether there was one.
    pub(super) fn take_back(&self, most: u32, list: impl FnOnce(RegionId)) -> bool {
        if self.retiring() == 0 || self.active() >= most {
            return false;
        }
        let mut states = self.states.lock();
        let retiring = states.iter().enumerate().filter_map(|(chunk, state)| match state {
            State::Retiring { free } if *free > 0 => Some((*free, chunk)),
            _ => None,
        });
        let Some((free, chunk)) = retiring.max().filter(|_| self.active() < most) else { return false };
        states[chunk] = State::Active;
        self.retiring_now[chunk].store(false, Ordering::SeqCst);
        self.active.fetch_add(1, Ordering::SeqCst);
        self.retiring.fetch_sub(1, Ordering::SeqCst);
        self.frames_retired.fetch_sub(free, Ordering::Relaxed);
        list(RegionId(chunk as u16));
        true
    }

    /// Counts a free frame of `chunk`; `mark` notes that it is. `None` if that is not retiring, otherwise whether it was the last
    /// one: then the chunk is to be withdrawn.
    pub(super) fn count(&self, chunk: RegionId, mark: impl FnOnce()) -> Option<bool> {
        let mut states = self.states.lock();
        self.count_in(&mut states, chunk).then(|| {
            mark();
            self.begin_withdrawing(&mut states, chunk)
        })
    }

    /// Counts free frames that are listed. `look_through` passes the chunk of each to its argument, which returns whether the
    /// frame is counted, and so to be listed no more. Returns the chunks that are to be withdrawn.
    pub(super) fn sweep(&self, look_through: impl FnOnce(&mut dyn FnMut(RegionId) -> bool)) -> Vec<RegionId> {
        let mut states = self.states.lock();
        look_through(&mut |chunk| self.count_in(&mut states, chunk));
        let chunks = (0..states.len()).map(|chunk| RegionId(chunk as u16));
        chunks.filter(|chunk| self.begin_withdrawing(&mut states, *chunk)).collect()
    }

    fn count_in(&self, states: &mut [State], chunk: RegionId) -> bool {
        let State::Retiring { free } = &mut states[usize::from(chunk.0)] else { return false };
        *free += 1;
        self.frames_retired.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn begin_withdrawing(&self, states: &mut [State], chunk: RegionId) -> bool {
        let state = &mut states[usize::from(chunk.0)];
        let is_free = *state == (State::Retiring { free: self.frames_a_chunk });
        if is_free {
            *state = State::Withdrawing;
        }
        is_free
    }

    /// All processors have withdrawn it. `return_memory` gives it to the host.
    pub(super) fn give_back(&self, chunk: RegionId, return_memory: impl FnOnce()) {
        let mut states = self.states.lock();
        debug_assert_eq!(states[usize::from(chunk.0)], State::Withdrawing);
        return_memory();
        states[usize::from(chunk.0)] = State::Empty;
        self.retiring_now[usize::from(chunk.0)].store(false, Ordering::SeqCst);
        self.retiring.fetch_sub(1, Ordering::SeqCst);
        self.frames_retired.fetch_sub(self.frames_a_chunk, Ordering::Relaxed);
    }
}
