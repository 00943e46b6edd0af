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
        for (what, ns) in measure(self.reps)? {
            println!("{what:44} {ns:6.2} ns");
        }
        Ok(())
    }
}

/// Nanoseconds of one record of each kind, the medians of the repetitions, which are interleaved.
fn measure(repetitions: u32) -> Result<[(&'static str, f64); 7]> {
    let recorder = |mode| {
        let tracer = Tracer::new(mode, 2, private_memory(WORDS), 0);
        Recorder::new(&Arc::new(tracer), ProcessorId(0))
    };
    let [off, direct, central, unthinned] = Mode::ALL.map(recorder);
    let own_stamp = |number| {
        direct.set_stamp(counter());
        moment(&direct, number);
    };
    let kinds: [(&'static str, &dyn Fn(u32)); 7] = [
        ("read the time stamp counter", &|_| _ = black_box(counter())),
        ("a moment, off", &|number| moment(&off, number)),
        ("a moment in place, stamp of its batch", &|number| moment(&direct, number)),
        ("a moment in place, stamp of its own", &own_stamp),
        ("a span in place: two stamps, one record", &|number| span(&direct, number)),
        ("a moment, central", &|number| moment(&central, number)),
        ("a span, unthinned: two records, central", &|number| span(&unthinned, number)),
    ];
    let mut costs: [Vec<f64>; 7] = Default::default();
    for _ in 0..repetitions {
        for (costs, (_, record)) in costs.iter_mut().zip(kinds) {
            costs.push(nanoseconds(record)?);
        }
    }
    let mut medians = costs.into_iter().map(|costs| Spread::of(costs).median);
    Ok(kinds.map(|(what, _)| (what, medians.next().unwrap_or_default())))
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
