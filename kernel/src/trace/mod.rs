//! The trace: records of events, cheap enough to be always on (OLTP-2).
//!
//! Frequent events are recorded in place, by their processor, into a ring of its own; rare ones by a central recorder
//! under a lock. A span is one record, written at its end. For comparison there are two other modes: everything
//! centrally, and everything centrally with separate records of starts and ends, as in the paper's earlier system.
//!
//! The rings lie in memory that the program provides, such as a mapped file: they can be read after a crash
//! ([`Trace::read`]), and during operation by another program.
//!
//! A record has a long and a short argument, a job, an export, and a stamp in ticks of the processor's counter. Where
//! durations matter the stamp is exact, otherwise it is the last one read on this processor. A central recorder knows
//! no batches: it stamps each record.

mod event;
mod layout;
mod names;
mod read;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use policy::unit::{Instant, ProcessorId};

use crate::export::ExportNo;
use crate::request::{Context, JobId};
use layout::{HEAD_WORDS, Layout, MAGIC, RingWords, head};

pub use event::{Event, EventType, Frequency, Shape};
pub use layout::{DURATION_MAX, PROCESSOR_MAX, Part, Record, SHORT_MAX};
pub use names::{Name, Named};
pub use read::{Moment, ReadError, Trace};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    Off,
    /// Frequent events in place, rare ones centrally.
    #[default]
    Direct,
    Central,
    /// Everything centrally, with separate starts and ends, and implied events.
    Unthinned,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Off, Mode::Direct, Mode::Central, Mode::Unthinned];

    fn from_number(number: u8) -> Mode {
        Mode::ALL.get(usize::from(number)).copied().unwrap_or(Mode::Off)
    }
}

/// Memory of a trace, for the life of the program.
pub type TraceMemory = &'static [AtomicU64];

/// The part of the trace that all processors share.
pub struct Tracer {
    mode: AtomicU8,
    area: Option<Area>,
    central: Mutex<u64>,
}

#[derive(Clone, Copy)]
struct Area {
    words: TraceMemory,
    layout: Layout,
}

/// One moment by the counter and by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    pub ticks: u64,
    pub now: Instant,
}

impl Tracer {
    /// A tracer that never records.
    pub fn none() -> Self {
        Tracer { mode: AtomicU8::new(Mode::Off as u8), area: None, central: Mutex::new(0) }
    }

    /// Records into `words`, which must be zero; nothing if they are too few for the processors. `time_of_day_ns`:
    /// since 1970.
    pub fn new(mode: Mode, processors: u16, words: TraceMemory, time_of_day_ns: u64) -> Self {
        let Some(layout) = Layout::fitting(usize::from(processors), words.len()) else {
            return Tracer::none();
        };
        let put = |place: usize, value: u64| words[place].store(value, Ordering::Relaxed);
        put(head::TYPES, Event::COUNT as u64);
        put(head::PROCESSORS, layout.processors as u64);
        put(head::RECORDS, layout.records as u64);
        put(head::NAMES, layout.names as u64);
        put(head::MODE, mode as u64);
        put(head::PROCESS, u64::from(std::process::id()));
        put(head::TIME_OF_DAY, time_of_day_ns);
        words[head::MAGIC].store(MAGIC, Ordering::Release);
        Tracer { mode: AtomicU8::new(mode as u8), area: Some(Area { words, layout }), central: Mutex::new(0) }
    }

    #[inline]
    pub fn mode(&self) -> Mode {
        Mode::from_number(self.mode.load(Ordering::Relaxed))
    }

    pub fn has_memory(&self) -> bool {
        self.area.is_some()
    }

    /// Without memory, the mode stays off.
    pub fn set_mode(&self, mode: Mode) {
        let Some(area) = &self.area else { return };
        area.words[head::MODE].store(mode as u64, Ordering::Relaxed);
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Records how counter and clock correspond; to be called periodically by one thread.
    pub fn note_clock(&self, pair: ClockPair) {
        let Some(area) = &self.area else { return };
        let words = area.words;
        if words[head::PAIR_VERSION].fetch_add(1, Ordering::Relaxed) == 0 {
            words[head::FIRST_PAIR].store(pair.ticks, Ordering::Relaxed);
            words[head::FIRST_PAIR + 1].store(pair.now.ns(), Ordering::Relaxed);
        }
        fence(Ordering::Release);
        words[head::LAST_PAIR].store(pair.ticks, Ordering::Relaxed);
        words[head::LAST_PAIR + 1].store(pair.now.ns(), Ordering::Relaxed);
        words[head::PAIR_VERSION].fetch_add(1, Ordering::Release);
    }

    /// Adds a name for readers of the trace.
    pub fn name(&self, named: Named, number: u32, name: &str) {
        let Some(area) = &self.area else { return };
        // One writer at a time; rare.
        let _central = self.central.lock();
        area.layout.names(area.words, named).put(number, name);
    }

    /// Records written since the start: of each processor, then of the central ring.
    pub fn records(&self) -> Vec<u64> {
        let Some(Area { words, layout }) = &self.area else { return Vec::new() };
        (0..=layout.processors).map(|ring| layout.ring(words, ring).counter().load(Ordering::Relaxed)).collect()
    }

    /// Records under the lock of the central ring; also for threads that are not processors.
    #[cold]
    pub fn record_centrally(&self, record: Record) {
        let Some(area) = &self.area else { return };
        let mut count = self.central.lock();
        put(area.layout.ring(area.words, area.layout.processors), &mut count, record);
    }
}

/// Writes a record to a ring of which the caller is the only writer.
#[inline]
fn put(ring: RingWords<'_>, count: &mut u64, record: Record) {
    // A reader that sees a word of this record also sees the count of those before, and skips it.
    fence(Ordering::Release);
    let records = ring.records();
    if let Some(place) = records.get(*count as usize & (records.len() - 1)) {
        for (word, value) in place.iter().zip(record.encode()) {
            word.store(value, Ordering::Relaxed);
        }
    }
    *count += 1;
    ring.counter().store(*count, Ordering::Release);
}

/// One processor's recorder. It belongs to its thread.
pub struct Recorder {
    tracer: Arc<Tracer>,
    processor: u16,
    ring: Option<RingWords<'static>>,
    count: Cell<u64>,
    stamp: Cell<u64>,
}

/// The job and the export of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    pub job: JobId,
    pub export: ExportNo,
}

impl From<JobId> for Whose {
    #[inline]
    fn from(job: JobId) -> Self {
        Whose { job, export: ExportNo::NONE }
    }
}

impl From<(JobId, ExportNo)> for Whose {
    #[inline]
    fn from((job, export): (JobId, ExportNo)) -> Self {
        Whose { job, export }
    }
}

impl From<Context> for Whose {
    #[inline]
    fn from(context: Context) -> Self {
        Whose { job: context.job, export: context.export }
    }
}

/// The start of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a span that is begun is recorded at its end"]
pub struct Began {
    /// `None` while recording is off.
    stamp: Option<u64>,
}

impl Recorder {
    pub fn new(tracer: &Arc<Tracer>, processor: ProcessorId) -> Self {
        let ring = tracer.area.map(|area| area.layout.ring(area.words, usize::from(processor.0)));
        Recorder { tracer: Arc::clone(tracer), processor: processor.0, ring, count: Cell::new(0), stamp: Cell::new(0) }
    }

    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.tracer.mode() != Mode::Off
    }

    /// Sets the stamp of the next record.
    #[inline]
    pub fn set_stamp(&self, ticks: u64) {
        self.stamp.set(ticks);
    }

    /// The stamp of the last or next record.
    #[inline]
    pub fn stamp(&self) -> u64 {
        self.stamp.get()
    }

    /// Records a moment, with the stamp of its batch.
    #[inline]
    pub fn moment(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u32) {
        self.moment_by(event, whose, a, b, || self.stamp.get());
    }

    /// Records a moment: in place with the stamp of its batch, centrally with an exact one, read by `ticks`.
    #[inline]
    pub fn moment_by(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u32, ticks: impl FnOnce() -> u64) {
        let mode = self.tracer.mode();
        if mode != Mode::Off {
            let stamp = if mode == Mode::Direct { self.stamp.get() } else { ticks() };
            self.record(mode, event, Part::Whole, stamp, whose.into(), a, b, 0);
        }
    }

    /// Records a moment that other records imply, only in the mode [`Mode::Unthinned`].
    #[inline]
    pub fn implied_by(&self, event: Event, whose: impl Into<Whose>, a: u64, b: u32, ticks: impl FnOnce() -> u64) {
        if self.tracer.mode() == Mode::Unthinned {
            self.moment_by(event, whose, a, b, ticks);
        }
    }

    /// Starts a span. `ticks` is called while recording is on.
    #[inline]
    pub fn begin(&self, event: Event, whose: impl Into<Whose>, ticks: impl FnOnce() -> u64) -> Began {
        let mode = self.tracer.mode();
        if mode == Mode::Off {
            return Began { stamp: None };
        }
        let stamp = ticks();
        self.stamp.set(stamp);
        if mode == Mode::Unthinned {
            self.record(mode, event, Part::Begin, stamp, whose.into(), 0, 0, 0);
        }
        Began { stamp: Some(stamp) }
    }

    /// Starts a span that other records imply, only in the mode [`Mode::Unthinned`].
    #[inline]
    pub fn begin_implied(&self, event: Event, whose: impl Into<Whose>, ticks: impl FnOnce() -> u64) -> Began {
        if self.tracer.mode() == Mode::Unthinned { self.begin(event, whose, ticks) } else { Began { stamp: None } }
    }

    #[inline]
    pub fn end(
        &self,
        began: Began,
        event: Event,
        whose: impl Into<Whose>,
        a: u64,
        b: u32,
        ticks: impl FnOnce() -> u64,
    ) {
        let Some(begun) = began.stamp else { return };
        let mode = self.tracer.mode();
        if mode == Mode::Off {
            return;
        }
        let stamp = ticks();
        self.stamp.set(stamp);
        let (part, duration) = match mode {
            Mode::Unthinned => (Part::End, 0),
            _ => (Part::Whole, stamp.saturating_sub(begun)),
        };
        self.record(mode, event, part, stamp, whose.into(), a, b, duration);
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of a record, which is made where it is stored")]
    fn record(&self, mode: Mode, event: Event, part: Part, stamp: u64, whose: Whose, a: u64, b: u32, duration: u64) {
        let Whose { job, export } = whose;
        let record = Record { stamp, event, part, processor: self.processor, job: job.0, export, a, b, duration };
        if mode != Mode::Direct || event.facts().frequency == Frequency::Rare {
            return self.tracer.record_centrally(record);
        }
        if let Some(ring) = self.ring {
            let mut count = self.count.get();
            put(ring, &mut count, record);
            self.count.set(count);
        }
    }
}

/// Memory within the program, for readers in the same program. It is never freed.
pub fn private_memory(words: usize) -> TraceMemory {
    let words: Box<[AtomicU64]> = (0..words.max(HEAD_WORDS)).map(|_| AtomicU64::new(0)).collect();
    Box::leak(words)
}
