//! Wakes a parked processor, by an eventfd that is written only when the processor sleeps.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::syscall;
use crate::{Doorbell, Errno};

/// The bell was rung: `enter` must return.
const RUNG: u32 = 1;
/// There is something to collect: `enter` must look, and may sleep again when it finds nothing.
const WOKEN: u32 = 2;
/// The processor sleeps, or is about to: only in this state waking it needs a system call.
const PARKED: u32 = 4;

/// A doorbell. All its transitions are sequentially consistent read-modify-write operations on one word, so that
/// whatever was stored before a ring is seen by the processor that takes it.
pub(super) struct Bell {
    state: AtomicU32,
    writes: AtomicU64,
    /// In blocking mode, since io_uring does not wait for files in non-blocking mode on all kernels. No reader ever
    /// blocks: only its processor reads, after it became readable or within the ring.
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: no pointer is passed.
        let fd = syscall::check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        Ok(Bell {
            state: AtomicU32::new(0),
            writes: AtomicU64::new(0),
            // SAFETY: the descriptor was just created and has no other owner.
            event: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// Becomes readable when a parked processor is to wake.
    pub(super) fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Ends a park and takes pending rings. Returns whether it was rung.
    pub(super) fn take(&self) -> bool {
        self.state.load(Ordering::SeqCst) != 0 && self.state.swap(0, Ordering::SeqCst) & RUNG != 0
    }

    /// Whether it was rung or woken since [`take`](Self::take).
    pub(super) fn is_raised(&self) -> bool {
        self.state.load(Ordering::SeqCst) != 0
    }

    /// Whether the processor may sleep: nothing happened since [`take`](Self::take).
    pub(super) fn park(&self) -> bool {
        self.state.compare_exchange(0, PARKED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the processor sleeps, or is about to.
    pub(super) fn is_parked(&self) -> bool {
        self.state.load(Ordering::SeqCst) == PARKED
    }

    /// Makes the processor collect, without making `enter` return for it.
    pub(super) fn wake(&self) {
        self.raise(WOKEN);
    }

    /// Wake-ups that took a system call, since the last call.
    pub(super) fn take_writes(&self) -> u64 {
        // Usually zero, and a plain load leaves the cache line with the ringing processors.
        if self.writes.load(Ordering::Relaxed) == 0 { 0 } else { self.writes.swap(0, Ordering::Relaxed) }
    }

    /// Empties the eventfd once it is readable.
    pub(super) fn drain(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes are read into a variable of eight bytes.
        unsafe { libc::read(self.event(), (&raw mut count).cast(), 8) };
    }

    fn raise(&self, what: u32) {
        if self.state.fetch_or(what, Ordering::SeqCst) == PARKED {
            self.writes.fetch_add(1, Ordering::Relaxed);
            let one = 1u64;
            // SAFETY: eight bytes are written from a variable of eight bytes. It fails only at 2^64 - 1 unread rings.
            unsafe { libc::write(self.event(), (&raw const one).cast(), 8) };
        }
    }
}

impl Doorbell for Bell {
    fn ring(&self) {
        self.raise(RUNG);
    }
}
