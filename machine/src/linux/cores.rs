//! Which cores this process may use, and pinning threads to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use policy::unit::ProcessorId;

use super::syscall;
use crate::Errno;

/// The calling thread, for sched_setaffinity(2) and sched_getaffinity(2).
pub(super) const CALLER: libc::pid_t = 0;

/// The core of each processor, which may change.
#[derive(Clone, Debug)]
pub struct ProcessorCores(Arc<[AtomicUsize]>);

impl ProcessorCores {
    pub(super) fn new(cores: impl IntoIterator<Item = usize>) -> Self {
        ProcessorCores(cores.into_iter().map(AtomicUsize::new).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The cores, by number of the processor.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|core| core.load(Ordering::Relaxed))
    }

    pub fn of(&self, processor: ProcessorId) -> Option<usize> {
        self.0.get(usize::from(processor.0)).map(|core| core.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, processor: usize, core: usize) {
        self.0[processor].store(core, Ordering::Relaxed);
    }
}

/// The cores that this process may use (its affinity at start), by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The cores that the calling thread may use: to be called before any thread is pinned.
    pub fn allowed() -> Self {
        Cores::of(CALLER)
    }

    pub(super) fn of(thread: libc::pid_t) -> Self {
        let mut set = empty_set();
        // SAFETY: the kernel writes at most the size given into `set`.
        let got = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) };
        let mut cores: Vec<usize> = Vec::new();
        if got == 0 {
            let all = 0..8 * size_of_val(&set);
            // SAFETY: every number is below the number of bits in the set.
            cores.extend(all.filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }));
        }
        if cores.is_empty() {
            // More than 1024 cores, or no such call: use at least their number.
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            cores.extend(0..count);
        }
        Cores(cores)
    }

    /// At least 1.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of the `k`th core, modulo their number.
    pub fn number(&self, k: usize) -> usize {
        self.0[k % self.0.len()]
    }

    /// Pins the calling thread to the `k`th core. Returns the core's number.
    pub fn pin(&self, k: usize) -> Result<usize, Errno> {
        let core = self.number(k);
        pin_thread(CALLER, core)?;
        Ok(core)
    }

    /// Lets the calling thread run on all of them again, as a hint.
    pub(super) fn use_all(&self) {
        // Fails only when the cores were taken away meanwhile; then the kernel has chosen others already.
        let _ = set_affinity(CALLER, &self.0);
    }

    pub(super) fn set(&self) -> libc::cpu_set_t {
        set_of(&self.0)
    }
}

/// The number of the core on which the calling thread is.
pub(super) fn current() -> usize {
    // SAFETY: no pointer is passed.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: a set of cores is an array of integers, for which all zeroes is valid.
    unsafe { std::mem::zeroed() }
}

fn set_of(cores: &[usize]) -> libc::cpu_set_t {
    let mut set = empty_set();
    let bits = 8 * size_of_val(&set);
    for &core in cores.iter().filter(|&&core| core < bits) {
        // SAFETY: the number is below the number of bits in the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    set
}

/// Pins a thread of this process to a core.
pub(super) fn pin_thread(thread: libc::pid_t, core: usize) -> Result<(), Errno> {
    set_affinity(thread, &[core])
}

fn set_affinity(thread: libc::pid_t, cores: &[usize]) -> Result<(), Errno> {
    let set = set_of(cores);
    // SAFETY: the kernel reads the size given from `set`.
    syscall::check(unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) })?;
    Ok(())
}
