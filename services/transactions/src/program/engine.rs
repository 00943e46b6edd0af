//! The runtime of all programs of this process: what they may use, and the places where they execute.
//!
//! Programs are compiled when they are loaded, and the result stays in memory. An artefact beside the program would save
//! some milliseconds at the start, and whoever can write there could have any machine code executed.
//!
//! The bound on time is fuel, about one unit an instruction, and not the clock: whether a call is ended depends on what
//! it does, and not on what else the machine has to do. Considered: epochs, which cost less in loops, and are a clock: a
//! thread of its own would advance them, and the same call would end at another place each time. Traps are found by instructions that the compiler adds, not by
//! signals: the process's handlers of SIGSEGV, SIGBUS, SIGFPE and SIGILL stay as they are.

use std::future::poll_fn;
use std::sync::LazyLock;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

/// Memory of one call, at most. Bytes.
pub const MEMORY_BYTES_MAX: usize = 16 << 20;

/// Entries of a module's tables (of functions, called through pointers), at most.
const TABLE_ENTRIES_MAX: usize = 20_000;

/// A call's stack in WebAssembly. Bytes. What it calls of ours has as much again.
const STACK_BYTES_MAX: usize = 256 << 10;

/// Calls that execute at the same time in all databases, at most; others wait. They need address space, 17 GiB for all,
/// and memory only as far as they use it.
pub(super) const CALLS_MAX: u32 = 1000;

/// Of a call's memory that was written, this much is cleared for the next call rather than returned to the host, which
/// takes a system call and page faults. Bytes.
pub(super) const MEMORY_KEPT: usize = 64 << 10;

static RUNTIME: LazyLock<Result<Runtime, String>> =
    LazyLock::new(|| Runtime::new().map_err(|error| format!("{error:#}")));

pub(super) struct Runtime {
    pub engine: Engine,
    pub places: Places,
}

impl Runtime {
    fn new() -> wasmtime::Result<Runtime> {
        Ok(Runtime { engine: Engine::new(&config())?, places: Places::new(CALLS_MAX) })
    }

    /// That of this process.
    ///
    /// # Errors
    /// If the host does not have it, as a rule the address space.
    pub fn get() -> Result<&'static Runtime, &'static str> {
        RUNTIME.as_ref().map_err(String::as_str)
    }
}

fn config() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(CALLS_MAX)
        .total_memories(CALLS_MAX)
        .total_tables(CALLS_MAX)
        .total_stacks(CALLS_MAX)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ENTRIES_MAX)
        .linear_memory_keep_resident(MEMORY_KEPT)
        .table_keep_resident(MEMORY_KEPT);
    let mut config = Config::new();
    // Without `pagemap_scan`: in wasmtime 48 it leaves pages alone that are swapped, and the next call would read them.
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .signals_based_traps(false)
        .memory_reservation(MEMORY_BYTES_MAX as u64)
        .memory_guard_size(0)
        .consume_fuel(true)
        .max_wasm_stack(STACK_BYTES_MAX)
        .async_stack_size(2 * STACK_BYTES_MAX)
        .cranelift_opt_level(OptLevel::Speed)
        // The same result everywhere, whatever a processor makes of NaN.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false);
    config
}

/// The places where calls execute.
pub(super) struct Places(Mutex<Free>);

struct Free {
    count: u32,
    waiters: Vec<Waker>,
}

/// A call's place; free again when this is dropped.
pub(super) struct Place<'a>(&'a Places);

impl Places {
    const fn new(count: u32) -> Self {
        Places(Mutex::new(Free { count, waiters: Vec::new() }))
    }

    /// Waits for a place.
    pub async fn take(&self) -> Place<'_> {
        poll_fn(|cx| {
            let mut free = self.0.lock();
            if free.count == 0 {
                if !free.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                    free.waiters.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            free.count -= 1;
            Poll::Ready(())
        })
        .await;
        Place(self)
    }

    /// `None`: all are taken.
    pub fn try_take(&self) -> Option<Place<'_>> {
        let mut free = self.0.lock();
        free.count = free.count.checked_sub(1)?;
        Some(Place(self))
    }
}

impl Place<'_> {
    /// Three of four are free.
    pub fn is_spare(&self) -> bool {
        self.0.0.lock().count > CALLS_MAX / 4 * 3
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waiters = {
            let mut free = self.0.0.lock();
            free.count += 1;
            // All: the first may have been dropped meanwhile.
            std::mem::take(&mut free.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn a_call_without_a_place_waits_until_one_is_free() {
        let places = Places::new(1);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(place) = pin!(places.take()).poll(&mut cx) else { panic!("the first place is free") };
        let mut second = pin!(places.take());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(place);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }
}
