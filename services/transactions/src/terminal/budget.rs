//! What sessions hold in memory from one message to the next, all of them together. Each has bounds of its own, but there may
//! be thousands of sessions.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::Processor;
use policy::unit::BLOCK_BYTES;

use super::refusal::{Refusal, SqlState};

/// Each share has this, whatever others hold. Bytes.
const GRANTED_BYTES: usize = 128 << 10;
/// Of one kind, all may hold beyond that as much as one part of the cache in this many ...
const CACHE_SHARE: u64 = 48;
/// ... or this, so that one session alone gets what its own bounds allow. Bytes.
const SUM_BYTES_MIN: u64 = 32 << 20;

/// Of all shares, beyond what each is granted. Bytes.
#[derive(Default)]
pub struct Budget(AtomicU64);

/// One for each kind: statements last as long as their sessions, and would keep others from calls for so long.
#[derive(Default)]
pub struct Budgets {
    pub statements: Arc<Budget>,
    pub portals: Arc<Budget>,
    /// For messages and results.
    pub cycles: Arc<Budget>,
}

/// What a session holds of one kind.
pub struct Share {
    budget: Arc<Budget>,
    taken: Cell<u64>,
}

impl Share {
    pub fn new(budget: &Arc<Budget>) -> Share {
        Share { budget: Arc::clone(budget), taken: Cell::new(0) }
    }

    /// `bytes` are held from now on. There may be more than before if as much again stays free: who holds little gets what it
    /// asks for (as in `kernel/src/connection/reservation.rs`).
    ///
    /// # Errors
    /// If others hold too much for that. Nothing has changed then.
    pub fn hold(&self, bytes: usize, cpu: &Processor) -> Result<(), Refusal> {
        let sum_max = || (cpu.kernel().cache_blocks() * BLOCK_BYTES / CACHE_SHARE).max(SUM_BYTES_MIN);
        if self.take(bytes, sum_max) {
            return Ok(());
        }
        let message = "out of memory: sessions hold too much of statements, of portals, or of arguments and results";
        Err(Refusal::new(SqlState::OUT_OF_MEMORY, message))
    }

    /// `bytes` are held from now on, which is no more than before.
    pub fn release(&self, bytes: usize) {
        let (before, now) = (self.taken.get(), beyond_granted(bytes));
        if now < before {
            self.budget.0.fetch_sub(before - now, Ordering::Relaxed);
            self.taken.set(now);
        }
    }

    fn take(&self, bytes: usize, sum_max: impl Fn() -> u64) -> bool {
        let (before, now) = (self.taken.get(), beyond_granted(bytes));
        if now <= before {
            self.release(bytes);
            return true;
        }
        let most = sum_max();
        let grow = |sum: u64| {
            let others = sum - before;
            (others + 2 * now <= most).then_some(others + now)
        };
        let is_granted = self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok();
        if is_granted {
            self.taken.set(now);
        }
        is_granted
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release(0);
    }
}

fn beyond_granted(bytes: usize) -> u64 {
    bytes.saturating_sub(GRANTED_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_have_a_bound_each_has_what_is_granted_and_what_is_given_back_is_for_others() {
        const MIB: usize = 1 << 20;
        let budget = Arc::new(Budget::default());
        let shares: Vec<Share> = (0..1000).map(|_| Share::new(&budget)).collect();
        let sum_max = || SUM_BYTES_MIN;
        let granted = || shares.iter().filter(|share| share.take(GRANTED_BYTES + 4 * MIB, sum_max)).count();
        assert_eq!(granted(), 7);
        let held = || budget.0.load(Ordering::Relaxed);
        assert_eq!(held(), 28 << 20);
        assert!(shares.iter().skip(7).all(|share| share.take(GRANTED_BYTES, sum_max)));
        // Who holds much may keep it, and hold less.
        assert!(shares[0].take(GRANTED_BYTES + 4 * MIB, sum_max) && !shares[0].take(GRANTED_BYTES + 9 * MIB, sum_max));
        assert!(shares[0].take(GRANTED_BYTES + MIB, sum_max));
        shares[1].release(0);
        assert_eq!(held(), 21 << 20);
        assert!(shares[8].take(GRANTED_BYTES + 4 * MIB, sum_max));
        drop(shares);
        assert_eq!(held(), 0);
        let alone = Share::new(&budget);
        assert!(alone.take(16 * MIB, sum_max) && !alone.take(17 * MIB, sum_max));
    }
}
