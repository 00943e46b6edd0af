//! A ledger of every sector: what was sent, what was acknowledged, what was made durable. What a server leaves behind is
//! held against it.
//!
//! The sectors of a ledger belong to one client, which has no two changes of a sector under way at a time: so the changes
//! of a sector have an order. A sector may hold after a crash what its last durable change left, or anything that was
//! sent after it; while a server lives, what its last acknowledged change left.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::random::Random;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Sectors of a request, at most.
const LEN_MAX: u64 = 64;

/// Sectors of a page of the host and of a block of the server.
const PAGE: u64 = 8;

/// Changes and flushes that are shown of a sector that was lost.
const SHOWN_MAX: usize = 40;

/// The number of the next write.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// When something happened: its place in the order of all, and the time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    order: u64,
    at: Duration,
}

/// A flush, or a COMMIT: it covers what was acknowledged before it was sent, under the same verifier.
struct Flush {
    client: usize,
    sent: Stamp,
    answered: Stamp,
    /// The verifier, or the error.
    outcome: Result<u64, u32>,
}

/// The flushes of one volume or file.
pub struct Journal {
    start: Instant,
    order: AtomicU64,
    flushes: Mutex<Vec<Flush>>,
}

impl Default for Journal {
    fn default() -> Self {
        Journal { start: Instant::now(), order: AtomicU64::new(1), flushes: Mutex::new(Vec::new()) }
    }
}

impl Journal {
    pub fn stamp(&self) -> Stamp {
        Stamp { order: self.order.fetch_add(1, Ordering::SeqCst), at: self.start.elapsed() }
    }

    /// Notes a flush that was answered: with a verifier (0 where there is none) or an error.
    pub fn note_flush(&self, client: usize, sent: Stamp, outcome: Result<u64, u32>) {
        let answered = self.stamp();
        self.flushes.lock().expect("no panic").push(Flush { client, sent, answered, outcome });
    }

    /// All that was acknowledged so far is durable: the server has ended in order.
    pub fn note_orderly_end(&self) {
        let mut flushes = self.flushes.lock().expect("no panic");
        let now = self.stamp();
        let mut verifiers: Vec<u64> = flushes.iter().filter_map(|flush| flush.outcome.ok()).collect();
        verifiers.push(0);
        verifiers.sort_unstable();
        verifiers.dedup();
        for verifier in verifiers {
            flushes.push(Flush { client: usize::MAX, sent: now, answered: now, outcome: Ok(verifier) });
        }
    }

    /// Forgets all flushes: what they covered is in the ledgers.
    pub fn clear(&self) {
        self.flushes.lock().expect("no panic").clear();
    }

    fn covers(&self, acknowledged: Stamp, verifier: u64) -> bool {
        let flushes = self.flushes.lock().expect("no panic");
        flushes.iter().any(|flush| flush.outcome == Ok(verifier) && flush.sent > acknowledged)
    }
}

/// What a change leaves in its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The number of the write, all over.
    Number(u64),
    Zero,
    /// Zeroes, or what was there before.
    Trimmed,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stable,
    /// It is acknowledged, under this verifier (0 where there is none).
    Unstable(u64),
    /// It failed: it may have been done or not.
    Failed(u32),
}

struct Change {
    content: Content,
    sent: Stamp,
    answered: Option<(Stamp, Outcome)>,
}

/// A change that was sent, by its place in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeId(usize);

struct Sector {
    /// What was found at the last look.
    base: u64,
    changes: Vec<usize>,
}

/// The sectors of one client.
pub struct Ledger {
    client: usize,
    /// The first one's place in the volume.
    first: usize,
    sectors: Vec<Sector>,
    changes: Vec<Change>,
    pub failures: u64,
}

impl Ledger {
    /// Of `count` sectors from `first`, which hold zeroes.
    pub fn new(client: usize, first: usize, count: usize) -> Ledger {
        let sectors = (0..count).map(|_| Sector { base: 0, changes: Vec::new() }).collect();
        Ledger { client, first, sectors, changes: Vec::new(), failures: 0 }
    }

    pub fn client(&self) -> usize {
        self.client
    }

    /// How many sectors it has.
    pub fn count(&self) -> usize {
        self.sectors.len()
    }

    /// The first byte of a sector, counted from the beginning of the volume.
    pub fn offset(&self, sector: usize) -> u64 {
        ((self.first + sector) * SECTOR) as u64
    }

    /// Any sectors: whole pages of the host and anything else take turns.
    pub fn choose(&self, random: &mut Random) -> Range<usize> {
        let (len, unit) = if random.chance(500) { (LEN_MAX / PAGE, PAGE) } else { (LEN_MAX, 1) };
        let len = (1 + random.below(len)) * unit;
        let first = random.below((self.count() as u64 - len) / unit + 1) * unit;
        first as usize..(first + len) as usize
    }

    /// The number of a new write: no other of this process has it, whosever it is.
    pub fn number(&self) -> u64 {
        NUMBERS.fetch_add(1, Ordering::Relaxed)
    }

    /// What write `number` puts into sectors: the number and the sector's all over, so that torn and foreign ones show.
    pub fn bytes(&self, sectors: Range<usize>, number: u64) -> Vec<u8> {
        sectors.flat_map(|sector| self.word(sector, number).to_le_bytes().repeat(SECTOR / 8)).collect()
    }

    /// The same of a write that was noted.
    pub fn bytes_of(&self, change: ChangeId, sectors: Range<usize>) -> Vec<u8> {
        match self.changes[change.0].content {
            Content::Number(number) => self.bytes(sectors, number),
            Content::Zero | Content::Trimmed => Vec::new(),
        }
    }

    fn word(&self, sector: usize, number: u64) -> u64 {
        if number == 0 { 0 } else { number << 24 | (self.first + sector) as u64 }
    }

    /// Notes a change before it is sent: it may be there even when the answer never comes.
    pub fn send(&mut self, sectors: Range<usize>, content: Content, journal: &Journal) -> ChangeId {
        let id = self.changes.len();
        self.changes.push(Change { content, sent: journal.stamp(), answered: None });
        self.sectors[sectors].iter_mut().for_each(|sector| sector.changes.push(id));
        ChangeId(id)
    }

    pub fn answer(&mut self, change: ChangeId, outcome: Outcome, journal: &Journal) {
        self.changes[change.0].answered = Some((journal.stamp(), outcome));
        self.failures += u64::from(matches!(outcome, Outcome::Failed(_)));
    }

    /// Is what a live server reads from a sector of which no change is under way what it must be?
    pub fn check_live(&self, first: usize, bytes: &[u8], journal: &Journal) -> Result<(), String> {
        for (sector, bytes) in (first..).zip(bytes.chunks(SECTOR)) {
            let acknowledged = |change: &Change| {
                matches!(change.answered, Some((_, Outcome::Stable | Outcome::Unstable(_)))).then_some(())
            };
            self.check(sector, bytes, &acknowledged).map_err(|what| self.history(sector, &what, journal))?;
        }
        Ok(())
    }

    /// Is what was found in a sector after a crash what may be there? Later looks start from it.
    pub fn verify(&mut self, sector: usize, bytes: &[u8], journal: &Journal) -> Result<(), String> {
        let durable = |change: &Change| match change.answered? {
            (_, Outcome::Stable) => Some(()),
            (at, Outcome::Unstable(verifier)) => journal.covers(at, verifier).then_some(()),
            (_, Outcome::Failed(_)) => None,
        };
        let found = self.check(sector, bytes, &durable).map_err(|what| self.history(sector, &what, journal))?;
        let known = &mut self.sectors[sector];
        (known.base, known.changes) = (found, Vec::new());
        Ok(())
    }

    /// Everything was verified: what was noted of changes is not needed any more.
    pub fn clear(&mut self) {
        assert!(self.sectors.iter().all(|sector| sector.changes.is_empty()), "not all was verified");
        self.changes.clear();
    }

    /// The number in a sector, which must be one that can be there if changes that `holds` must have been done.
    fn check(&self, sector: usize, bytes: &[u8], holds: &dyn Fn(&Change) -> Option<()>) -> Result<u64, String> {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let number = word >> 24;
        if bytes.chunks(8).any(|other| other != word.to_le_bytes()) {
            return Err("it is torn".into());
        }
        if word != self.word(sector, number) {
            return Err(format!("it holds what belongs into sector {} (write {number})", word & 0xff_ffff));
        }
        let changes = &self.sectors[sector].changes;
        let last = changes.iter().rposition(|&change| holds(&self.changes[change]).is_some());
        // What a trim leaves may be anything that was there before.
        let contents = |from: usize| changes[from..].iter().map(|&change| self.changes[change].content);
        let (from, with_base) = match last {
            Some(last) if self.changes[changes[last]].content == Content::Trimmed => (0, true),
            Some(last) => (last, false),
            None => (0, true),
        };
        let fits = |content: Content| match content {
            Content::Number(written) => written == number,
            Content::Zero | Content::Trimmed => number == 0,
        };
        if (with_base && number == self.sectors[sector].base) || contents(from).any(fits) {
            return Ok(number);
        }
        Err(format!("it holds write {number}"))
    }

    /// What is known of a sector that does not hold what it must.
    fn history(&self, sector: usize, what: &str, journal: &Journal) -> String {
        let known = &self.sectors[sector];
        let mut lines: Vec<(Stamp, String)> = Vec::new();
        for &change in &known.changes {
            let change = &self.changes[change];
            lines.push((change.sent, format!("{:?} sent", change.content)));
            if let Some((at, outcome)) = change.answered {
                lines.push((at, format!("{:?} answered: {outcome:?}", change.content)));
            }
        }
        let begin = lines.first().map(|line| line.0);
        for flush in journal.flushes.lock().expect("no panic").iter().filter(|flush| Some(flush.answered) > begin) {
            let sent = flush.sent.at;
            let text = match flush.client {
                usize::MAX => "the server ended in order".into(),
                client => format!("flush of client {client} sent at {sent:.6?}: {:?}", flush.outcome),
            };
            lines.push((flush.answered, text));
        }
        lines.sort_by_key(|line| line.0);
        let (client, place) = (self.client, self.first + sector);
        let mut text = format!("sector {place} of client {client}: {what}; at the last look it held {}", known.base);
        let left_out = lines.len().saturating_sub(SHOWN_MAX);
        for (at, line) in &lines[left_out..] {
            let _ = write!(text, "\n  {:.6?} {line}", at.at);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(outcome: Outcome) -> (Ledger, Journal) {
        let (mut ledger, journal) = (Ledger::new(0, 8, 4), Journal::default());
        for (number, outcome) in [(1, Outcome::Stable), (2, outcome)] {
            let change = ledger.send(0..2, Content::Number(number), &journal);
            ledger.answer(change, outcome, &journal);
        }
        (ledger, journal)
    }

    #[test]
    fn what_is_durable_may_not_be_gone_and_what_is_not_may() {
        for (outcome, flush, may_be_gone) in [
            (Outcome::Stable, None, false),
            (Outcome::Unstable(7), None, true),
            (Outcome::Unstable(7), Some(Ok(7)), false),
            (Outcome::Unstable(7), Some(Ok(8)), true),
            (Outcome::Unstable(7), Some(Err(5)), true),
            (Outcome::Failed(5), Some(Ok(7)), true),
        ] {
            let (mut ledger, journal) = acknowledged(outcome);
            if let Some(flush) = flush {
                journal.note_flush(0, journal.stamp(), flush);
            }
            let old = ledger.bytes(0..1, 1);
            assert_eq!(ledger.verify(0, &old, &journal).is_ok(), may_be_gone, "{outcome:?} {flush:?}");
            let new = ledger.bytes(1..2, 2);
            assert_eq!(ledger.verify(1, &new, &journal), Ok(()), "{outcome:?} {flush:?}");
        }
    }

    #[test]
    fn a_flush_covers_only_what_was_acknowledged_before_it_was_sent() {
        let journal = Journal::default();
        let sent = journal.stamp();
        let (mut ledger, _) = (Ledger::new(0, 0, 1), ());
        let change = ledger.send(0..1, Content::Number(1), &journal);
        ledger.answer(change, Outcome::Unstable(0), &journal);
        journal.note_flush(0, sent, Ok(0));
        assert_eq!(ledger.verify(0, &[0; SECTOR], &journal), Ok(()));
    }

    #[test]
    fn torn_and_foreign_sectors_are_found() {
        let (ledger, journal) = acknowledged(Outcome::Stable);
        let mut torn = ledger.bytes(0..1, 2);
        assert_eq!(ledger.check_live(0, &torn, &journal), Ok(()));
        torn[511] ^= 1;
        assert!(ledger.check_live(0, &torn, &journal).is_err_and(|what| what.contains("torn")));
        let foreign = ledger.bytes(1..2, 2);
        assert!(ledger.check_live(0, &foreign, &journal).is_err_and(|what| what.contains("belongs")));
    }

    #[test]
    fn what_a_trim_leaves_may_be_zero_or_what_was_there() {
        for (number, fits) in [(0, true), (1, true), (2, true), (3, false)] {
            let (mut ledger, journal) = acknowledged(Outcome::Stable);
            let change = ledger.send(0..1, Content::Trimmed, &journal);
            ledger.answer(change, Outcome::Stable, &journal);
            let bytes = ledger.bytes(0..1, number);
            assert_eq!(ledger.verify(0, &bytes, &journal).is_ok(), fits, "{number}");
        }
    }
}
