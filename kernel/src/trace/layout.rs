//! How a trace lies in memory: a head, a ring of records for each processor, and the central one.

use std::sync::atomic::AtomicU64;

use super::event::Event;
use super::names::{NAME_WORDS, NameSlots, Named};
use crate::export::ExportNo;

/// Says that it is a trace, in this layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"AWASETR2");

pub(super) const HEAD_WORDS: usize = 64;
/// Words before the records of a ring; the first one counts the records that were ever put.
const RING_HEAD_WORDS: usize = 8;
/// Words of a record: stamp, what, argument, argument and duration.
pub(super) const RECORD_WORDS: usize = 4;

/// Places of words in the head.
pub(super) mod head {
    pub const MAGIC: usize = 0;
    /// How many types of events the writer knew.
    pub const TYPES: usize = 1;
    pub const PROCESSORS: usize = 2;
    pub const RECORDS: usize = 3;
    pub const MODE: usize = 4;
    pub const PROCESS: usize = 5;
    /// Nanoseconds since 1970 at the first pair.
    pub const TIME_OF_DAY: usize = 6;
    /// Ticks and nanoseconds of one moment, at the start...
    pub const FIRST_PAIR: usize = 8;
    /// ...and the last that was noted.
    pub const LAST_PAIR: usize = 10;
    /// Odd while the last pair is being noted.
    pub const PAIR_VERSION: usize = 12;
    /// Places for names of exports, and as many for those of clients.
    pub const NAMES: usize = 13;
}

/// How large the parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub processors: usize,
    /// In each ring. A power of two.
    pub records: usize,
    /// Places for names of each kind. A power of two.
    pub names: usize,
}

/// One word of so many may be of names...
const NAMES_SHARE: usize = 8;
/// ...up to so many of each kind.
const NAMES_MAX: usize = ExportNo::MAX.0 as usize + 1;

impl Layout {
    /// The largest that fits into so many words; `None` when not even a few records fit.
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

    /// The places for names of a kind.
    pub(super) fn names<'a>(&self, words: &'a [AtomicU64], named: Named) -> NameSlots<'a> {
        let len = self.names * NAME_WORDS;
        let first = HEAD_WORDS + if named == Named::Client { len } else { 0 };
        NameSlots(words[first..first + len].as_chunks().0)
    }

    /// The words of a ring; the central one is behind those of the processors.
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
    /// Counts the records that were ever put.
    pub(super) fn counter(&self) -> &'a AtomicU64 {
        self.counter
    }

    /// Places of records; a power of two.
    pub(super) fn records(&self) -> &'a [[AtomicU64; RECORD_WORDS]] {
        self.records
    }
}

/// A record is of a moment or a whole span, or of one end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A moment or a whole span.
    Whole,
    /// The beginning of a span that was not merged.
    Begin,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, of a span its end. Ticks.
    pub stamp: u64,
    pub event: Event,
    pub part: Part,
    /// On which processor: at most [`PROCESSOR_MAX`].
    pub processor: u16,
    /// On whose behalf: 0 is nobody in particular.
    pub job: u32,
    pub export: ExportNo,
    pub a: u64,
    /// The short argument, at most [`SHORT_MAX`].
    pub b: u32,
    /// Of a whole span, how long. Ticks, at most [`DURATION_MAX`].
    pub duration: u64,
}

const SHORT_BITS: u32 = 28;
/// The short argument is no larger; what is, is recorded as this.
pub const SHORT_MAX: u32 = (1 << SHORT_BITS) - 1;
/// Durations are no longer: at 3 GHz some 20 seconds.
pub const DURATION_MAX: u64 = (1 << (64 - SHORT_BITS)) - 1;
/// The largest number of a processor.
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

    /// `None` for words that no writer of this version put.
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
