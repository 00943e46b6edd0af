//! The size up to which a file of the host survives a power cut.
//!
//! A forced write makes what it writes durable, but no size that others have given the file before (M3). ext4 writes a
//! size to the disk when it allocates what lies behind the old end: a forced write through the page cache into a block that
//! is allocated already would be cut off at the size that the disk has.

use parking_lot::Mutex;

pub(super) struct DurableSize(Mutex<State>);

struct State {
    /// `None`: nothing is certain.
    bytes: Option<u64>,
    doubts: Doubts,
}

/// Counts changes of the size other than by writes: what began before says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Doubts(u64);

impl DurableSize {
    /// Of a file that was opened with `size` bytes: others may have made it longer just before, as may a server that was
    /// killed.
    pub(super) fn new(size: u64) -> Self {
        DurableSize(Mutex::new(State { bytes: (size == 0).then_some(0), doubts: Doubts(0) }))
    }

    pub(super) fn doubts(&self) -> Doubts {
        self.0.lock().doubts
    }

    /// Will a forced write up to `end` be durable, of a file that has `size` bytes on the host, as far as is known? Where it
    /// extends the file, nothing else of ours may change the size meanwhile; and its end must be written directly
    /// (`ends_direct`), since somebody else may have made the file longer without our knowledge, and what goes through the page
    /// cache would then not extend it on the disk.
    pub(super) fn covers(&self, end: u64, size: u64, ends_direct: bool) -> Option<Doubts> {
        let state = self.0.lock();
        let is_covered = |bytes| end <= bytes || end > size && bytes == size && ends_direct;
        state.bytes.is_some_and(is_covered).then_some(state.doubts)
    }

    /// So many bytes are durable, unless there has been a doubt since; returns whether they are.
    pub(super) fn raise(&self, bytes: u64, since: Doubts) -> bool {
        let mut state = self.0.lock();
        let is_certain = state.doubts == since;
        if is_certain {
            state.bytes = state.bytes.max(Some(bytes));
        }
        is_certain
    }

    /// We have given the file this size, which need not be durable yet.
    pub(super) fn on_resized(&self, size: u64) {
        let mut state = self.0.lock();
        state.bytes = state.bytes.map(|bytes| bytes.min(size));
        state.doubts.0 += 1;
    }

    /// The file may have got any size.
    pub(super) fn doubt(&self) {
        let mut state = self.0.lock();
        state.bytes = None;
        state.doubts.0 += 1;
    }
}
