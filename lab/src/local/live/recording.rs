//! The cost of observation: a trace event, and the counters of a request. Nanoseconds, on an idle processor.

use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kernel::Processor;
use kernel::counters::Count;
use kernel::processor::Together;
use kernel::request::JobId;
use kernel::trace::{Event, Mode, Recorder, TraceMemory, Tracer, private_memory};
use policy::unit::ProcessorId;

use super::super::repetitions::{Repetitions, Spread, interleaved};
use super::super::{LocalError, LocalRun, Setup, task};

pub(super) const WHAT: [&str; 4] = [
    "direct event with a time stamp of its own",
    "direct event with the time stamp of its batch",
    "central event with a time stamp of its own",
    "counters of one request",
];

const EVENTS: u64 = 1_000_000;
const EVENTS_TINY: u64 = 1000;

/// Requests in a batch: few for a client with 32 in flight.
const BATCH: u64 = 8;

/// A server's size.
pub(super) const TRACE_WORDS: usize = (8 << 20) / 8;

const ROUNDS: Repetitions = Repetitions { most: 9, time_max: Duration::from_secs(3) };

pub(super) const STEPS: u64 = 1;

const JOB: JobId = JobId(1);

/// Nanoseconds of each of [`WHAT`].
pub(super) fn measure(run: &LocalRun<'_>) -> Result<Vec<Spread>, LocalError> {
    let stage = run.host.start(&Setup { processors_max: 1, ..Setup::with_memory(16 << 20) })?;
    let events = run.pick(EVENTS, EVENTS_TINY);
    // Its steps are those of one cell.
    let quiet = LocalRun { done: &std::sync::atomic::AtomicU64::new(0), ..*run };
    let spreads = interleaved(&quiet, ROUNDS, WHAT.len(), |arm| {
        let took = task::run(stage.kernel(), move |cpu| async move { once(&cpu, arm, events) })?;
        Ok([took.as_nanos() as f64 / events as f64])
    })?;
    run.step(STEPS);
    Ok(spreads.into_iter().map(|[spread]| spread).collect())
}

fn once(cpu: &Processor, what: usize, events: u64) -> Duration {
    let mode = if what == 2 { Mode::Central } else { Mode::Direct };
    let recorder = recorder(mode);
    let batch = Together::default();
    let start = Instant::now();
    for number in 0..events {
        let number = black_box(number);
        match what {
            0 | 2 => {
                recorder.set_stamp(machine::counter());
                recorder.moment(Event::CacheHit, JOB, number, 1);
            }
            1 => recorder.moment(Event::CacheHit, JOB, number, 1),
            _ => count_request(cpu, &batch, number),
        }
    }
    start.elapsed()
}

/// Counts a read that the cache answers, one of a batch of [`BATCH`].
fn count_request(cpu: &Processor, batch: &Together, number: u64) {
    let timed = cpu.begin_next(Event::NbdRead, JOB);
    cpu.count(Count::BytesReceived, 28);
    cpu.count(Count::CacheReads, 1);
    cpu.count(Count::CacheHits, 1);
    cpu.count(Count::BytesSent, 4112);
    cpu.end_with(batch, timed, Event::NbdRead, JOB, number, 4096);
    if number % BATCH == BATCH - 1 {
        cpu.end_together(batch);
    }
}

fn recorder(mode: Mode) -> Recorder {
    static MEMORY: OnceLock<TraceMemory> = OnceLock::new();
    let words = *MEMORY.get_or_init(|| private_memory(TRACE_WORDS));
    Recorder::new(&Arc::new(Tracer::new(mode, 1, words, 0)), ProcessorId(0))
}
