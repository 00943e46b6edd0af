//! Reading a trace, during or after the server's life.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use policy::unit::Instant;
use thiserror::Error;

use super::layout::{HEAD_WORDS, Layout, MAGIC, RECORD_WORDS, Record, RingWords, head};
use super::{Event, Mode, Name, Named};

/// Why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// It does not begin as a trace.
    #[error("this is no trace of Awase")]
    NoTrace,
    /// Of another version, with another layout of records.
    #[error("the trace was recorded by another version of Awase, and this one does not know its layout")]
    OtherLayout,
    #[error("the trace was recorded by another version of Awase ({found} types of events, this one knows {known})")]
    OtherVersion {
        /// Event types that the writer had.
        found: u64,
        known: u64,
    },
    /// Shorter than stated in its head.
    #[error("the trace is damaged: {0}")]
    Damaged(&'static str),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The mode of recording.
    pub mode: Mode,
    pub process: u32,
    /// Nanoseconds since 1970 when recording began.
    pub began_ns: u64,
    /// By time; of a span, of its end.
    pub moments: Vec<Moment>,
    /// Records that were overwritten by later ones.
    pub overwritten: u64,
    /// By export number.
    pub exports: BTreeMap<u32, Name>,
    /// By job.
    pub clients: BTreeMap<u32, Name>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Since the start of the server's machine; of a span, its end.
    pub at: Instant,
    pub took: Duration,
    pub record: Record,
}

impl Trace {
    /// Reads all records. A server may be recording concurrently.
    ///
    /// # Errors
    /// If it is not a trace, or not one that this version can read.
    pub fn read(words: &[AtomicU64]) -> Result<Trace, ReadError> {
        let head = words.get(..HEAD_WORDS).ok_or(ReadError::NoTrace)?;
        let get = |place: usize| head[place].load(Ordering::Relaxed);
        let magic = head[head::MAGIC].load(Ordering::Acquire);
        if magic != MAGIC {
            // The last byte is the layout's version.
            let is_trace = magic << 8 == MAGIC << 8;
            return Err(if is_trace { ReadError::OtherLayout } else { ReadError::NoTrace });
        }
        let (found, known) = (get(head::TYPES), Event::COUNT as u64);
        if found != known {
            return Err(ReadError::OtherVersion { found, known });
        }
        let layout = layout(words, get(head::PROCESSORS), get(head::RECORDS), get(head::NAMES))?;
        let clock = Clock::of(head);
        let mut trace = Trace {
            mode: Mode::from_number(get(head::MODE) as u8),
            process: get(head::PROCESS) as u32,
            began_ns: get(head::TIME_OF_DAY),
            moments: Vec::new(),
            overwritten: 0,
            exports: layout.names(words, Named::Export).read(),
            clients: layout.names(words, Named::Client).read(),
        };
        for ring in 0..=layout.processors {
            let (records, overwritten) = records(layout.ring(words, ring));
            trace.overwritten += overwritten;
            trace.moments.extend(records.into_iter().map(|record| clock.moment(record)));
        }
        trace.moments.sort_by_key(|moment| moment.at);
        Ok(trace)
    }
}

fn layout(words: &[AtomicU64], processors: u64, records: u64, names: u64) -> Result<Layout, ReadError> {
    let damaged = ReadError::Damaged("its head has impossible numbers");
    let processors = usize::try_from(processors).ok().filter(|n| *n <= 1 << 16).ok_or(damaged.clone())?;
    let records =
        usize::try_from(records).ok().filter(|n| n.is_power_of_two() && *n <= 1 << 30).ok_or(damaged.clone())?;
    let names = usize::try_from(names).ok().filter(|n| *n <= 1 << 20).ok_or(damaged)?;
    let layout = Layout { processors, records, names };
    if layout.words() > words.len() {
        return Err(ReadError::Damaged("it is shorter than its head says"));
    }
    Ok(layout)
}

/// The records of a ring, in order, and the number that were overwritten.
fn records(ring: RingWords<'_>) -> (Vec<Record>, u64) {
    let places = ring.records().len() as u64;
    let before = ring.counter().load(Ordering::Acquire);
    let load = |place: &[AtomicU64; RECORD_WORDS]| [0, 1, 2, 3].map(|word: usize| place[word].load(Ordering::Relaxed));
    let copy: Vec<[u64; RECORD_WORDS]> = ring.records().iter().map(load).collect();
    fence(Ordering::Acquire);
    let after = ring.counter().load(Ordering::Relaxed).max(before);
    // The record after the last may be half written, over the oldest one; so may later ones if the counter has
    // advanced.
    let oldest = if after >= places { after + 1 - places } else { 0 }.min(before);
    let decode = |number: u64| Record::decode(*copy.get((number % places) as usize)?);
    ((oldest..before).filter_map(decode).collect(), oldest)
}

struct Clock {
    first: (u64, u64),
    ns_a_tick: f64,
}

impl Clock {
    fn of(head: &[AtomicU64]) -> Self {
        let pair = |first: usize| (head[first].load(Ordering::Relaxed), head[first + 1].load(Ordering::Relaxed));
        let first = pair(head::FIRST_PAIR);
        let last = loop {
            let version = head[head::PAIR_VERSION].load(Ordering::Acquire);
            let last = pair(head::LAST_PAIR);
            fence(Ordering::Acquire);
            // Odd for ever if the server ended during the update. The words are good enough then.
            if version % 2 == 1 || version == head[head::PAIR_VERSION].load(Ordering::Relaxed) {
                break last;
            }
        };
        let ticks = last.0.wrapping_sub(first.0) as i64;
        let ns = last.1.wrapping_sub(first.1) as i64;
        // Not recorded yet, or invalid: a common processor's counter.
        let ns_a_tick = if ticks > 0 && ns > 0 { ns as f64 / ticks as f64 } else { 1.0 };
        Clock { first, ns_a_tick }
    }

    fn moment(&self, record: Record) -> Moment {
        let since = record.stamp.wrapping_sub(self.first.0) as i64 as f64 * self.ns_a_tick;
        let at_ns = (self.first.1 as f64 + since).max(0.0);
        Moment {
            at: Instant::from_ns(at_ns as u64),
            took: Duration::from_nanos((record.duration as f64 * self.ns_a_tick) as u64),
            record,
        }
    }
}
