//! The layout of a trace in memory: a head, a ring of records for each processor, and a central ring.

use std::sync::atomic::AtomicU64;

use super::event::Event;
use super::names::{NAME_WORDS, NameSlots, Named};
use crate::export::ExportNo;

/// Identifies a trace, and its layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"AWASETR2");

pub(super) const HEAD_WORDS: usize = 64;
/// Words before the records of a ring; the first one counts all records ever written.
const RING_HEAD_WORDS: usize = 8;
/// Words of a record: stamp, type, long argument, short argument with duration.
pub(super) const RECORD_WORDS: usize = 4;

/// Indexes of words in the head.
pub(super) mod head {
    pub const MAGIC: usize = 0;
    /// Event types that the writer had.
    pub const TYPES: usize = 1;
    pub const PROCESSORS: usize = 2;
    pub const RECORDS: usize = 3;
    pub const MODE: usize = 4;
    pub const PROCESS: usize = 5;
    /// Nanoseconds since 1970 at the first pair.
    pub const TIME_OF_DAY: usize = 6;
    /// Ticks and nanoseconds at one moment, at the start...
    pub const FIRST_PAIR: usize = 8;
    /// ...and at the last update.
    pub const LAST_PAIR: usize = 10;
    /// Odd during an update of the last pair.
    pub const PAIR_VERSION: usize = 12;
    /// Slots for names of exports, and as many for clients.
    pub const NAMES: usize = 13;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub processors: usize,
    /// In each ring. A power of two.
    pub records: usize,
    /// Slots for names of each kind. A power of two.
    pub names: usize,
}

/// One word in this many is for names, at most...
const NAMES_SHARE: usize = 8;
/// ...and this many names of each kind.
const NAMES_MAX: usize = ExportNo::MAX.0 as usize + 1;

impl Layout {
    /// The largest layout that fits into `words`; `None` if not even a few records fit.
    pub(super) fn fitting(processors: usize, words: usize) -> Option<Self> {
        let rings = processors.checked_add(1)?;
        let names = power_of_two_below(words / NAMES_SHARE / 2 / NAME_WORDS).min(NAMES_MAX);
        let each = words.checked_sub(HEAD_WORDS + 2 * names * NAME_WORDS)? / rings;
        let records = each.checked_sub(RING_HEAD_WORDS)? / RECORD_WORDS;
        let records = power_of_two_below(records);
        (records >= 16).then_some(Layout { processors, records, names })
    }

    pub(super) fn words(&self) -> usize {
        self.first_ring() + (self.processors + 1) * self.ring_words()
    }

    fn first_ring(&self) -> usize {
        HEAD_WORDS + 2 * self.names * NAME_WORDS
    }

    fn ring_words(&self) -> usize {
        RING_HEAD_WORDS + self.records * RECORD_WORDS
    }

    /// The slots for names of a kind.
    pub(super) fn names<'a>(&self, words: &'a [AtomicU64], named: Named) -> NameSlots<'a> {
        let len = self.names * NAME_WORDS;
        let first = HEAD_WORDS + if named == Named::Client { len } else { 0 };
        NameSlots(words[first..first + len].as_chunks().0)
    }

    /// The words of a ring; the central one follows those of the processors.
    pub(super) fn ring<'a>(&self, words: &'a [AtomicU64], ring: usize) -> RingWords<'a> {
        let first = self.first_ring() + ring * self.ring_words();
        let (records, _) = words[first + RING_HEAD_WORDS..first + self.ring_words()].as_chunks();
        RingWords { counter: &words[first], records }
    }
}

/// 0 for 0.
fn power_of_two_below(number: usize) -> usize {
    (number + 1).next_power_of_two() / 2
}

#[derive(Clone, Copy)]
pub(super) struct RingWords<'a> {
    counter: &'a AtomicU64,
    records: &'a [[AtomicU64; RECORD_WORDS]],
}

impl<'a> RingWords<'a> {
    /// Counts all records ever written.
    pub(super) fn counter(&self) -> &'a AtomicU64 {
        self.counter
    }

    /// The slots for records; a power of two.
    pub(super) fn records(&self) -> &'a [[AtomicU64; RECORD_WORDS]] {
        self.records
    }
}

/// What a record covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A moment or a whole span.
    Whole,
    /// The start of a span, in the mode without merging.
    Begin,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Ticks; of a span, its end.
    pub stamp: u64,
    pub event: Event,
    pub part: Part,
    /// At most [`PROCESSOR_MAX`].
    pub processor: u16,
    /// 0: no job in particular.
    pub job: u32,
    pub export: ExportNo,
    pub a: u64,
    /// At most [`SHORT_MAX`].
    pub b: u32,
    /// Of a whole span. Ticks, at most [`DURATION_MAX`].
    pub duration: u64,
}

const SHORT_BITS: u32 = 28;
/// Limit of the short argument; larger values are recorded as this.
pub const SHORT_MAX: u32 = (1 << SHORT_BITS) - 1;
/// Limit of durations: some 20 seconds at 3 GHz.
pub const DURATION_MAX: u64 = (1 << (64 - SHORT_BITS)) - 1;
pub const PROCESSOR_MAX: u16 = 1023;

// The second word: event, part, processor, export, job.
const EVENT_BITS: u32 = 9;
const PART_SHIFT: u32 = EVENT_BITS;
const PROCESSOR_SHIFT: u32 = PART_SHIFT + 2;
const EXPORT_SHIFT: u32 = PROCESSOR_SHIFT + 10;
const JOB_SHIFT: u32 = 32;
const _: () = assert!(Event::COUNT <= 1 << EVENT_BITS && EXPORT_SHIFT + 11 == JOB_SHIFT && ExportNo::MAX.0 < 1 << 11);

impl Record {
    #[inline]
    pub(super) fn encode(&self) -> [u64; RECORD_WORDS] {
        let part = match self.part {
            Part::Whole => 0,
            Part::Begin => 1,
            Part::End => 2,
        };
        let kind = u64::from(self.event as u16) | part << PART_SHIFT;
        let place = u64::from(self.processor & PROCESSOR_MAX) << PROCESSOR_SHIFT;
        let whose = u64::from(self.export.0 & ExportNo::MAX.0) << EXPORT_SHIFT | u64::from(self.job) << JOB_SHIFT;
        let what = kind | place | whose;
        let last = u64::from(self.b.min(SHORT_MAX)) | self.duration.min(DURATION_MAX) << SHORT_BITS;
        [self.stamp, what, self.a, last]
    }

    /// `None` for words that no writer of this version wrote.
    pub(super) fn decode(words: [u64; RECORD_WORDS]) -> Option<Self> {
        let [stamp, what, a, last] = words;
        let part = match what >> PART_SHIFT & 3 {
            0 => Part::Whole,
            1 => Part::Begin,
            2 => Part::End,
            _ => return None,
        };
        Some(Record {
            stamp,
            event: Event::from_number(what as u16 & ((1 << EVENT_BITS) - 1))?,
            part,
            processor: (what >> PROCESSOR_SHIFT) as u16 & PROCESSOR_MAX,
            job: (what >> JOB_SHIFT) as u32,
            export: ExportNo((what >> EXPORT_SHIFT) as u16 & ExportNo::MAX.0),
            a,
            b: last as u32 & SHORT_MAX,
            duration: last >> SHORT_BITS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_put_and_what_is_too_large_as_the_most() {
        let record = Record {
            stamp: u64::MAX,
            event: Event::NfsCommit,
            part: Part::End,
            processor: PROCESSOR_MAX,
            job: u32::MAX,
            export: ExportNo::MAX,
            a: u64::MAX,
            b: SHORT_MAX,
            duration: DURATION_MAX,
        };
        assert_eq!(Record::decode(record.encode()), Some(record));
        let large = Record { b: u32::MAX, duration: u64::MAX, ..record };
        assert_eq!(Record::decode(large.encode()), Some(record));
        assert_eq!(Record::decode([0, (1 << EVENT_BITS) - 1, 0, 0]), None);
        let least = Record { processor: 0, job: 0, export: ExportNo::NONE, ..record };
        assert_eq!(Record::decode(least.encode()), Some(least));
    }

    #[test]
    fn the_layout_fits_into_what_is_there() {
        for words in [0, 100, 1000, 65_536, 1 << 20] {
            let Some(layout) = Layout::fitting(3, words) else {
                assert!(words < 600, "{words}");
                continue;
            };
            assert!(layout.words() <= words && layout.records.is_power_of_two());
            assert!(layout.names <= NAMES_MAX && 2 * layout.names * NAME_WORDS <= words / NAMES_SHARE);
            assert!(layout.words() * 2 + 500 + words / NAMES_SHARE > words - HEAD_WORDS, "half of it is used at least");
        }
        assert_eq!(Layout::fitting(usize::MAX, 1000), None);
    }
}
