//! Writes that are answered before the cache has them: who writes in order has the next ready while this one is copied,
//! queued and sent.
//!
//! They reach the cache in the order in which they came, adjacent ones as one, and whatever else is asked about the file's
//! content waits for those before it. So nobody can tell, unless something fails: that is told at the next fsync or close,
//! as an error of write-back is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel::wait::WaitList;
use kernel::{FRAME_BYTES, Frames};
use parking_lot::Mutex;
use policy::unit::{ByteOffset, ByteRange};

/// Bytes of frames of a file that are answered and not in the cache, at most. The next write is answered when there is room again.
const BYTES_MAX: u64 = 1 << 20;

/// Longest write to the cache. Bytes.
const JOINED_BYTES_MAX: usize = 1 << 20;

/// The same of all files: these frames cannot be taken from them.
const ALL_BYTES_MAX: usize = 4 << 20;

/// The room that the writes of all files have.
#[derive(Default)]
pub(crate) struct Room(AtomicUsize);

impl Room {
    /// False: there is not so much.
    pub fn reserve(&self, bytes: usize) -> bool {
        let reserve = |reserved| Some(reserved + bytes).filter(|reserved| *reserved <= ALL_BYTES_MAX);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok()
    }

    pub fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A write that waits. The first byte lies at its place in the first frame's block.
pub(crate) struct Write {
    pub at: ByteOffset,
    pub len: usize,
    pub frames: Frames,
}

impl Write {
    fn end(&self) -> u64 {
        self.at.0 + self.len as u64
    }

    /// Bytes of its frames.
    pub fn held(&self) -> usize {
        held(self.at, self.len)
    }

    /// Takes the following bytes of the file, if they are these.
    fn join(&mut self, next: &mut Write) -> bool {
        let is_next = self.end() == next.at.0 && self.end().is_multiple_of(FRAME_BYTES as u64);
        if !is_next || self.len + next.len > JOINED_BYTES_MAX {
            return false;
        }
        self.frames.append(&mut next.frames);
        self.len += next.len;
        true
    }
}

/// Bytes of the frames of so many bytes at `at`.
pub(crate) fn held(at: ByteOffset, len: usize) -> usize {
    ByteRange { at, len: len as u64 }.blocks().len() as usize * FRAME_BYTES
}

/// Those of one file.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    progress: WaitList,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Write>,
    /// Somebody writes them.
    is_running: bool,
    /// Bytes of frames that came, that were taken to be written, and that are in the cache or have failed.
    come: u64,
    taken: u64,
    done: u64,
    /// The last byte that came since the file was idle.
    end: u64,
}

/// How much had come when a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Ahead {
    /// Adds a write. Returns its place and whether the caller is to start who writes it.
    pub fn push(&self, write: Write) -> (Place, bool) {
        let mut state = self.state.lock();
        state.come += write.held() as u64;
        state.end = state.end.max(write.end());
        state.waiting.push_back(write);
        (Place(state.come), !std::mem::replace(&mut state.is_running, true))
    }

    /// The next to be written; `None`: there is none, and the next that comes is to be started.
    pub fn take(&self) -> Option<Write> {
        let mut state = self.state.lock();
        let Some(mut write) = state.waiting.pop_front() else {
            (state.is_running, state.end) = (false, 0);
            return None;
        };
        while state.waiting.front_mut().is_some_and(|next| write.join(next)) {
            state.waiting.pop_front();
        }
        state.taken += write.held() as u64;
        drop(state);
        self.progress.wake_all();
        Some(write)
    }

    /// What was taken is in the cache, or has failed.
    pub fn on_done(&self, bytes: usize) {
        self.state.lock().done += bytes as u64;
        self.progress.wake_all();
    }

    /// May the write at this place be answered now?
    pub fn has_room(&self, Place(place): Place) -> bool {
        place <= self.state.lock().taken + BYTES_MAX
    }

    pub async fn until_room(&self, place: Place) {
        self.progress.until(|| self.has_room(place).then_some(())).await;
    }

    /// Until all that has come so far is in the cache, or has failed.
    pub async fn until_done(&self) {
        let come = {
            let state = self.state.lock();
            if state.done == state.come {
                return;
            }
            state.come
        };
        self.progress.until(|| (self.state.lock().done >= come).then_some(())).await;
    }

    /// Bytes of frames that are not in the cache, and where the file ends with them.
    pub fn left(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.come - state.done, state.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, len: usize) -> Write {
        Write { at: ByteOffset(at), len, frames: Frames::new() }
    }

    fn taken(ahead: &Ahead) -> Option<(u64, usize)> {
        ahead.take().map(|write| (write.at.0, write.len))
    }

    #[test]
    fn they_are_written_in_order_and_adjacent_ones_as_one() {
        let ahead = Ahead::default();
        let begins: Vec<bool> =
            [(0, 8192), (8192, 100), (8292, 4096), (0, 4096)].map(|(at, len)| ahead.push(write(at, len)).1).into();
        assert_eq!(begins, [true, false, false, false], "one who writes them is enough");
        assert_eq!(taken(&ahead), Some((0, 8292)));
        assert_eq!(taken(&ahead), Some((8292, 4096)), "it begins in a block that is there already");
        assert_eq!(taken(&ahead), Some((0, 4096)));
        assert_eq!(taken(&ahead), None);
        assert!(ahead.push(write(0, 1)).1);
    }

    #[test]
    fn all_files_together_have_bounded_room() {
        let (room, quarter) = (Room::default(), ALL_BYTES_MAX / 4);
        let reserved = [(); 5].map(|()| room.reserve(quarter));
        assert_eq!(reserved, [true, true, true, true, false]);
        room.release(quarter);
        assert!(!room.reserve(quarter + 1) && room.reserve(quarter));
    }

    #[test]
    fn small_writes_count_with_their_frames() {
        let ahead = Ahead::default();
        let frames = BYTES_MAX / FRAME_BYTES as u64;
        let places: Vec<Place> = (0..=frames).map(|number| ahead.push(write(number * 10, 10)).0).collect();
        assert!(ahead.has_room(places[frames as usize - 1]));
        assert!(!ahead.has_room(places[frames as usize]));
        assert_eq!(held(ByteOffset(4090), 10), 2 * FRAME_BYTES);
    }

    #[test]
    fn what_is_joined_is_bounded() {
        let ahead = Ahead::default();
        for number in 0..5 {
            ahead.push(write(number << 18, 1 << 18));
        }
        assert_eq!(taken(&ahead), Some((0, 1 << 20)));
        assert_eq!(taken(&ahead), Some((1 << 20, 1 << 18)));
    }

    #[test]
    fn a_write_is_answered_when_there_is_room() {
        let ahead = Ahead::default();
        let half = BYTES_MAX as usize / 2;
        let [first, second, third] = [0, 1 << 30, 2 << 30].map(|at| ahead.push(write(at, half)).0);
        assert!(ahead.has_room(first) && ahead.has_room(second) && !ahead.has_room(third));
        assert_eq!(ahead.left(), (3 * half as u64, (2 << 30) + half as u64));
        ahead.take();
        assert!(ahead.has_room(third));
        ahead.on_done(half);
        assert_eq!(ahead.left().0, 2 * half as u64);
    }
}
