//! The cost of recording an event (OLTP-2): one thread records in a loop and does nothing else.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use kernel::request::JobId;
use kernel::trace::{Event, Mode, Recorder, Tracer, private_memory};
use machine::counter;
use policy::unit::ProcessorId;

use crate::bench::lab::processor_time;
use crate::measure::spread::Spread;

/// A server's size: records leave the nearest caches before they are overwritten.
const WORDS: usize = 1 << 20;

/// Records of one repetition.
const RECORDS: u32 = 1 << 20;

/// Measure what it costs to record an event.
#[derive(Debug, Args)]
pub struct Command {
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
}

impl Command {
    /// # Errors
    /// When the host does not report this thread's CPU time.
    pub fn run(&self) -> Result<()> {
        let costs = Costs::measure(self.reps)?;
        let show = |what, ns: f64| println!("{what:44} {ns:6.2} ns");
        show("read the time stamp counter", costs.counter_ns);
        show("a moment, off", costs.off_ns);
        show("a moment in place, stamp of its batch", costs.shared_stamp_ns);
        show("a moment in place, stamp of its own", costs.own_stamp_ns);
        show("a span in place: two stamps, one record", costs.span_ns);
        show("a moment, central", costs.central_ns);
        show("a span, unthinned: two records, central", costs.unthinned_span_ns);
        Ok(())
    }
}

/// Cost of one record, the median of the repetitions.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Reading the time stamp counter; nothing is recorded.
    pub counter_ns: f64,
    /// An instant event while tracing is off.
    pub off_ns: f64,
    /// An instant event, recorded in place with the stamp of its batch.
    pub shared_stamp_ns: f64,
    /// An instant event, recorded in place with a stamp of its own.
    pub own_stamp_ns: f64,
    /// A span's begin and end, recorded in place: two stamps, one record.
    pub span_ns: f64,
    /// An instant event, recorded centrally without contention.
    pub central_ns: f64,
    /// A span's begin and end, recorded centrally as two records.
    pub unthinned_span_ns: f64,
}

impl Costs {
    /// Measures each `repetitions` times, interleaved.
    ///
    /// # Errors
    /// When the host does not report this thread's CPU time.
    pub fn measure(repetitions: u32) -> Result<Costs> {
        let recorder = |mode| {
            let tracer = Tracer::new(mode, 2, private_memory(WORDS), 0);
            Recorder::new(&Arc::new(tracer), ProcessorId(0))
        };
        let [off, direct, central, unthinned] = Mode::ALL.map(recorder);
        let mut rounds: [Vec<f64>; 7] = Default::default();
        for _ in 0..repetitions {
            let round = [
                nanoseconds(|_| _ = black_box(counter()))?,
                nanoseconds(|number| moment(&off, number))?,
                nanoseconds(|number| moment(&direct, number))?,
                nanoseconds(|number| {
                    direct.set_stamp(counter());
                    moment(&direct, number);
                })?,
                nanoseconds(|number| span(&direct, number))?,
                nanoseconds(|number| moment(&central, number))?,
                nanoseconds(|number| span(&unthinned, number))?,
            ];
            rounds.iter_mut().zip(round).for_each(|(all, one)| all.push(one));
        }
        let [counter_ns, off_ns, shared_stamp_ns, own_stamp_ns, span_ns, central_ns, unthinned_span_ns] =
            rounds.map(|values| Spread::of(values).median);
        Ok(Costs { counter_ns, off_ns, shared_stamp_ns, own_stamp_ns, span_ns, central_ns, unthinned_span_ns })
    }
}

fn moment(recorder: &Recorder, number: u32) {
    recorder.moment(Event::CacheHit, JobId(7), u64::from(number), 1);
}

fn span(recorder: &Recorder, number: u32) {
    let began = recorder.begin(Event::NbdRead, JobId(7), counter);
    recorder.end(began, Event::NbdRead, JobId(7), u64::from(number), 4096, counter);
}

/// CPU time of one call of `record`: other load on the host does not count.
fn nanoseconds(record: impl Fn(u32)) -> Result<f64> {
    let start = processor_time()?;
    for number in 0..RECORDS {
        record(black_box(number));
    }
    Ok((processor_time()? - start).as_nanos() as f64 / f64::from(RECORDS))
}
