//! The cache's size follows the host's memory (WS-2): memory is borrowed, and given back before others suffer.

use std::sync::Arc;
use std::time::Duration;

use policy::sizing::{self, SAMPLE_INTERVAL_IDLE, Sizing};
use policy::unit::Instant;

use crate::counters::Count;
use crate::frame::{FrameNo, Frames};
use crate::kernel::Kernel;
use crate::processor::Processor;
use crate::request::JobId;
use crate::trace::{ClockPair, Event};

/// Between two looks at the host's memory while the cache holds no more than its floor, and nothing can be given back.
const SAMPLE_INTERVAL_SMALL: Duration = Duration::from_millis(50);

/// Between two looks at chunks whose memory is being given back.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Given back between two looks at the host's memory: others may take faster, or less, than it seemed. Bytes.
const SHRINK_AT_ONCE: u64 = 32 << 20;

/// After the host took some time to provide memory, none is taken for so many times as long, unless somebody reads what
/// is not cached: what is only written, as a copy, is seldom wanted again.
const PAUSE_FACTOR: u32 = 3;

/// Blocks vacated between two looks at the other tasks.
const VACATE_AT_ONCE: usize = 512;

/// Between two notes of how stamps and time go together.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Tells whoever reads the trace how its stamps and time go together.
pub(crate) async fn note_clock(cpu: Processor) {
    let kernel = Arc::clone(cpu.kernel());
    while kernel.tracer().has_memory() {
        kernel.tracer().note_clock(ClockPair { ticks: cpu.ticks(), now: cpu.now() });
        sleep_to_multiple(&cpu, CLOCK_INTERVAL).await;
    }
}

/// Sleeps until the time is a multiple of `interval`: whoever does the same for a multiple of it is woken with it.
async fn sleep_to_multiple(cpu: &Processor, interval: Duration) {
    let interval = interval.as_nanos() as u64;
    cpu.sleep_until(Instant::from_ns((cpu.now().ns() / interval + 1) * interval)).await;
}

/// Follows the host's memory for as long as the processor runs.
pub(crate) async fn follow_memory(cpu: Processor) {
    let kernel = Arc::clone(cpu.kernel());
    let Some(config) = kernel.config().sizing.clone() else { return };
    let floor = config.floor_bytes;
    let mut sizing = Sizing::new(config);
    let mut dynamic = kernel.grows_gently();
    let mut leaving = Vec::new();
    let mut sized = 0;
    let mut completions = 0;
    loop {
        if kernel.grows_gently() != dynamic {
            dynamic = !dynamic;
            sizing.set_config(in_mode(sizing.config(), dynamic));
        }
        let facts = cpu.machine(|machine| machine.memory());
        let held = kernel.frames().bytes_held();
        let target = sizing.on_sample(cpu.now(), facts, held);
        kernel.set_chunks_target(u32::try_from(target / kernel.frames().chunk_bytes()).unwrap_or(u32::MAX));
        if kernel.chunks_target() != sized {
            sized = kernel.chunks_target();
            cpu.trace(Event::CacheSized, JobId::default(), u64::from(sized) * kernel.frames().chunk_bytes(), 0);
        }
        shrink(&cpu, &kernel, &mut leaving).await;
        if kernel.frames().chunks_active() <= kernel.chunks_target() {
            let before = std::mem::replace(&mut completions, kernel.counters().total(Count::Completions));
            let is_idle = completions == before;
            let next = match is_idle {
                // Nothing can be given back.
                true if held <= floor => SAMPLE_INTERVAL_IDLE,
                true => sizing.next_idle_sample(facts),
                false if held <= floor => SAMPLE_INTERVAL_SMALL,
                false => sizing.next_sample(facts),
            };
            if next == SAMPLE_INTERVAL_IDLE {
                sleep_to_multiple(&cpu, next).await;
            } else {
                cpu.sleep(next).await;
            }
        }
    }
}

/// The same rules, with the size that memory allows or a fixed one.
fn in_mode(config: &sizing::Config, dynamic: bool) -> sizing::Config {
    let (mode, fixed_bytes) = match (dynamic, config.mode) {
        (true, sizing::Mode::Fixed { bytes }) => (sizing::Mode::Dynamic, bytes),
        (true, sizing::Mode::Dynamic) => (sizing::Mode::Dynamic, config.fixed_bytes),
        (false, _) => (sizing::Mode::Fixed { bytes: config.fixed_bytes }, config.fixed_bytes),
    };
    sizing::Config { mode, fixed_bytes, ..config.clone() }
}

/// Keeps some free frames in stock, so that nobody waits for the host to provide memory (zeroed, and on a virtual machine
/// perhaps taken from another one first: that takes microseconds a page).
pub(crate) async fn keep_stock(cpu: Processor) {
    let kernel = Arc::clone(cpu.kernel());
    loop {
        kernel.until_stock_low().await;
        if !may_grow(&cpu, &kernel) {
            cpu.sleep(RETRY_INTERVAL).await;
            continue;
        }
        let pages = kernel.page_choice().next();
        let Some(growing) = kernel.frames().begin_grow(kernel.chunks_target(), pages) else {
            // Its memory is still being given back.
            cpu.sleep(RETRY_INTERVAL).await;
            continue;
        };
        let start = cpu.now();
        cpu.populate(growing.region()).await;
        growing.finish();
        kernel.fit_cache();
        let took = cpu.now().since(start);
        cpu.trace(Event::MemoryTaken, JobId::default(), kernel.frames().chunk_bytes(), 0);
        kernel.page_choice().on_taken(pages, took);
        if kernel.grows_gently() && !kernel.take_read_misses() {
            cpu.sleep(took * PAUSE_FACTOR).await;
        }
    }
}

/// Is there memory for another chunk, by what the host says now? The last sample may be old where we seldom run.
fn may_grow(cpu: &Processor, kernel: &Kernel) -> bool {
    let Some(sizing) = kernel.config().sizing.as_ref().filter(|_| kernel.grows_gently()) else { return true };
    let (facts, frames) = (cpu.machine(|machine| machine.memory()), kernel.frames());
    sizing.may_take(facts, frames.bytes_held(), frames.chunk_bytes())
}

/// Retires chunks until the pool will hold no more than its target, or as many as are given back at once. `leaving` are
/// the frames of retired chunks that could not be freed yet: somebody was transferring from or into them.
async fn shrink(cpu: &Processor, kernel: &Kernel, leaving: &mut Vec<FrameNo>) {
    vacate(cpu, kernel, leaving).await;
    let mut left = (SHRINK_AT_ONCE / kernel.frames().chunk_bytes()).max(1);
    while left > 0 && kernel.frames().chunks_active() > kernel.chunks_target() {
        let Some(mut in_use) = kernel.frames().retire() else { break };
        cpu.trace(Event::MemoryReturned, JobId::default(), kernel.frames().chunk_bytes(), 0);
        vacate(cpu, kernel, &mut in_use).await;
        leaving.append(&mut in_use);
        // At once: a chunk goes back to the host when all have withdrawn it, and a parked processor does not look.
        kernel.wake_processors();
        left -= 1;
    }
    if kernel.frames().chunks_retiring() > 0 {
        kernel.wake_processors();
    }
}

/// Frees what can be freed of `frames`, which all lie in retired chunks, and leaves the others in it.
async fn vacate(cpu: &Processor, kernel: &Kernel, frames: &mut Vec<FrameNo>) {
    let pool = kernel.frames();
    let mut stuck = Vec::new();
    let mut spare = Frames::new();
    for some in frames.chunks(VACATE_AT_ONCE) {
        for &frame in some {
            let vacated = match pool.owner(frame) {
                Some(owner) => {
                    // Before the shard is locked: allocating may evict from any shard.
                    kernel.try_allocate(1, &mut spare);
                    let mut one = spare.pop();
                    let vacated = kernel.cache().vacate(owner, frame, pool, &mut one);
                    spare.extend(one);
                    vacated
                }
                None => false,
            };
            if !vacated && pool.references(frame) > 0 {
                stuck.push(frame);
            }
        }
        cpu.yield_now().await;
    }
    *frames = stuck;
}
