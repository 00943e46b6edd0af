//! Background tasks: the cache's size follows the host's memory (WS-2), the reserve of free frames is refilled, and the
//! trace's clock is recorded.

use std::sync::Arc;
use std::time::Duration;

use policy::sizing::{self, SAMPLE_INTERVAL_IDLE, Sizing};
use policy::unit::Instant;

use crate::counters::Count;
use crate::frame::{FrameNo, Frames};
use crate::memory::Memory;
use crate::processor::Processor;
use crate::request::JobId;
use crate::trace::{ClockPair, Event};

/// Sampling interval of the host's memory while the cache is no larger than its floor and cannot shrink.
const SAMPLE_INTERVAL_SMALL: Duration = Duration::from_millis(50);

/// Retry interval while the memory of chunks is being returned.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Returned between two samples of the host's memory, since other processes' demand may change meanwhile. Bytes.
const SHRINK_AT_ONCE: u64 = 32 << 20;

/// A retired chunk that is in use for longer than transfers last, mostly, will not be returned soon.
const TRANSFER_MAX: Duration = Duration::from_millis(200);

/// After the host took some time to provide memory, the pool pauses for this many times as long, unless there are read
/// misses: what is only written, such as a copy, is seldom read again.
const PAUSE_FACTOR: u32 = 3;

/// Blocks vacated between two yields.
const VACATE_AT_ONCE: usize = 512;

/// Interval of clock records for the trace.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the background tasks on this processor.
pub(crate) fn start(cpu: &Processor) {
    cpu.spawn_path(follow_memory(cpu.clone()));
    cpu.spawn_path(keep_stock(cpu.clone()));
    cpu.spawn_path(note_clock(cpu.clone()));
}

/// Records for readers of the trace how stamps correspond to time.
async fn note_clock(cpu: Processor) {
    let tracer = Arc::clone(cpu.kernel().tracer());
    while tracer.has_memory() {
        tracer.note_clock(ClockPair { ticks: cpu.ticks(), now: cpu.now() });
        sleep_to_multiple(&cpu, CLOCK_INTERVAL).await;
    }
}

/// Sleeps until the time is a multiple of `interval`, so that tasks with related intervals wake together.
async fn sleep_to_multiple(cpu: &Processor, interval: Duration) {
    let interval = interval.as_nanos() as u64;
    cpu.sleep_until(Instant::from_ns((cpu.now().ns() / interval + 1) * interval)).await;
}

async fn follow_memory(cpu: Processor) {
    let memory = Arc::clone(cpu.kernel().memory());
    let Some(config) = memory.sizing().cloned() else { return };
    let floor = config.floor_bytes;
    let mut sizing = Sizing::new(config);
    let mut dynamic = memory.grows_gently();
    let mut leaving = Leaving::default();
    let mut sized = 0;
    let mut completions = 0;
    loop {
        if memory.grows_gently() != dynamic {
            dynamic = !dynamic;
            sizing.set_config(in_mode(sizing.config(), dynamic));
        }
        let facts = cpu.machine(|machine| machine.memory());
        leaving.vacate(&cpu, &memory).await;
        let held = memory.frames().bytes_held().saturating_sub(leaving.stuck_bytes(&cpu, &memory));
        let target = sizing.on_sample(cpu.now(), facts, held);
        memory.set_chunks_target(memory.chunks_of(target));
        if memory.chunks_target() != sized {
            sized = memory.chunks_target();
            cpu.trace(Event::CacheSized, JobId::default(), u64::from(sized) * memory.frames().chunk_bytes(), 0);
        }
        shrink(&cpu, &memory, &mut leaving).await;
        if memory.frames().chunks_active() <= memory.chunks_target() {
            let before = std::mem::replace(&mut completions, cpu.kernel().counters().total(Count::Completions));
            let is_idle = completions == before;
            let next = match is_idle {
                // Nothing can be returned.
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

/// The same configuration, with a dynamic or a fixed size.
fn in_mode(config: &sizing::Config, dynamic: bool) -> sizing::Config {
    let (mode, fixed_bytes) = match (dynamic, config.mode) {
        (true, sizing::Mode::Fixed { bytes }) => (sizing::Mode::Dynamic, bytes),
        (true, sizing::Mode::Dynamic) => (sizing::Mode::Dynamic, config.fixed_bytes),
        (false, _) => (sizing::Mode::Fixed { bytes: config.fixed_bytes }, config.fixed_bytes),
    };
    sizing::Config { mode, fixed_bytes, ..config.clone() }
}

/// Refills the reserve of free frames, so that allocations do not wait for the host to provide memory (zeroed, and on a
/// virtual machine perhaps taken from another one first: microseconds per page).
async fn keep_stock(cpu: Processor) {
    let memory = Arc::clone(cpu.kernel().memory());
    loop {
        memory.until_stock_low().await;
        if !may_grow(&cpu, &memory) {
            cpu.sleep(RETRY_INTERVAL).await;
            continue;
        }
        if memory.frames().take_back(memory.chunks_target()) {
            memory.fit_cache();
            continue;
        }
        let pages = memory.page_choice().next();
        let Some(growing) = memory.frames().begin_grow(memory.chunks_target(), pages) else {
            // Memory of retiring chunks is still being returned.
            cpu.sleep(RETRY_INTERVAL).await;
            continue;
        };
        let start = cpu.now();
        cpu.populate(growing.region()).await;
        growing.finish();
        memory.fit_cache();
        let took = cpu.now().since(start);
        cpu.trace(Event::MemoryTaken, JobId::default(), memory.frames().chunk_bytes(), 0);
        memory.page_choice().on_taken(pages, took);
        if memory.grows_gently() && !memory.take_read_misses() {
            cpu.sleep(took * PAUSE_FACTOR).await;
        }
    }
}

/// Does the host have memory for another chunk now? The last sample may be old while idle.
fn may_grow(cpu: &Processor, memory: &Memory) -> bool {
    let Some(sizing) = memory.sizing().filter(|_| memory.grows_gently()) else { return true };
    let (facts, frames) = (cpu.machine(|machine| machine.memory()), memory.frames());
    sizing.may_take(facts, frames.bytes_held(), frames.chunk_bytes())
}

/// Retires chunks until the pool meets its target, or up to [`SHRINK_AT_ONCE`].
async fn shrink(cpu: &Processor, memory: &Memory, leaving: &mut Leaving) {
    let mut left = (SHRINK_AT_ONCE / memory.frames().chunk_bytes()).max(1);
    while left > 0 && memory.frames().chunks_active() > memory.chunks_target() {
        let Some(mut in_use) = memory.frames().retire() else { break };
        cpu.trace(Event::MemoryReturned, JobId::default(), memory.frames().chunk_bytes(), 0);
        vacate(cpu, memory, &mut in_use).await;
        leaving.0.push((cpu.now(), in_use));
        // At once: a chunk is returned after all processors have withdrawn it, and a parked one does not check.
        cpu.kernel().wake_processors();
        left -= 1;
    }
    if memory.frames().is_any_withdrawing() {
        cpu.kernel().wake_processors();
    }
}

/// Retired chunks: since when, and their frames that could not be freed yet because of transfers.
#[derive(Default)]
struct Leaving(Vec<(Instant, Vec<FrameNo>)>);

impl Leaving {
    async fn vacate(&mut self, cpu: &Processor, memory: &Memory) {
        for (_, frames) in &mut self.0 {
            if frames.first().is_some_and(|no| memory.frames().is_retiring(*no)) {
                vacate(cpu, memory, frames).await;
            }
        }
        // What has been taken back does not leave.
        self.0.retain(|(_, frames)| frames.first().is_some_and(|no| memory.frames().is_retiring(*no)));
    }

    /// What is not about to be returned: a client that is idle keeps the frames that it receives into. For the sizing this is
    /// memory that others have, or the cache would shrink no further.
    fn stuck_bytes(&self, cpu: &Processor, memory: &Memory) -> u64 {
        let is_stuck = |since: &Instant| cpu.now().since(*since) > TRANSFER_MAX;
        self.0.iter().filter(|(since, _)| is_stuck(since)).count() as u64 * memory.frames().chunk_bytes()
    }
}

/// Frees `frames`, which lie in retiring chunks, as far as possible; retains the others in `frames`.
async fn vacate(cpu: &Processor, memory: &Memory, frames: &mut Vec<FrameNo>) {
    let pool = memory.frames();
    let mut stuck = Vec::new();
    let mut spare = Frames::new();
    for some in frames.chunks(VACATE_AT_ONCE) {
        for &frame in some {
            let vacated = match pool.owner(frame) {
                Some(owner) => {
                    // Before the shard is locked: allocating may evict from any shard.
                    memory.try_allocate(1, &mut spare);
                    let mut one = spare.pop();
                    let vacated = memory.cache().vacate(owner, frame, pool, &mut one);
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
