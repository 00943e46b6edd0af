//! A ledger of every sector: what was sent, what was acknowledged, what was made durable. What a server returns after a
//! crash is compared with it.
//!
//! The sectors of a ledger belong to one client, which has at most one change of a sector in flight, so the changes of a
//! sector are ordered. After a crash a sector may hold the result of its last durable change or of any change sent after
//! it; while the server runs, the result of its last acknowledged change.

use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::random::Random;

/// Bytes.
pub const SECTOR: usize = 512;

/// Most sectors of a request.
const LEN_MAX: u64 = 64;

/// Sectors of a page of the host and of a block of the server.
const PAGE: u64 = 8;

/// Most changes and flushes shown of a wrong sector.
const SHOWN_MAX: usize = 40;

/// Number of the next write.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// An event's position in the total order, and its time.
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
    /// The verifier or the error.
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

    /// Records an answered flush: its verifier (0 where the protocol has none) or error.
    pub fn note_flush(&self, client: usize, sent: Stamp, outcome: Result<u64, u32>) {
        let answered = self.stamp();
        self.flushes.lock().push(Flush { client, sent, answered, outcome });
    }

    /// Records that the server has ended in order: all that was acknowledged so far is durable.
    pub fn note_orderly_end(&self) {
        let mut flushes = self.flushes.lock();
        let now = self.stamp();
        let mut verifiers: Vec<u64> = flushes.iter().filter_map(|flush| flush.outcome.ok()).collect();
        verifiers.push(0);
        verifiers.sort_unstable();
        verifiers.dedup();
        for verifier in verifiers {
            flushes.push(Flush { client: usize::MAX, sent: now, answered: now, outcome: Ok(verifier) });
        }
    }

    /// Discards all flushes, once the ledgers were verified.
    pub fn clear(&self) {
        self.flushes.lock().clear();
    }

    fn covers(&self, acknowledged: Stamp, verifier: u64) -> bool {
        let flushes = self.flushes.lock();
        flushes.iter().any(|flush| flush.outcome == Ok(verifier) && flush.sent > acknowledged)
    }
}

/// The result of a change in its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The number of the write, repeated.
    Number(u64),
    Zero,
    /// Zeroes, or the content before.
    Trimmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stable,
    /// Acknowledged under this verifier (0 where the protocol has none).
    Unstable(u64),
    /// Failed: it may have taken effect or not.
    Failed(u32),
}

struct Change {
    content: Content,
    sent: Stamp,
    answered: Option<(Stamp, Outcome)>,
}

/// Index of a change in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeId(usize);

struct Sector {
    /// Number found by the last verification.
    base: u64,
    changes: Vec<usize>,
}

/// The sectors of one client.
pub struct Ledger {
    client: usize,
    /// Index of the first one in the volume.
    first: usize,
    sectors: Vec<Sector>,
    changes: Vec<Change>,
    pub failures: u64,
}

impl Ledger {
    /// A ledger of `count` sectors from `first`, which hold zeroes.
    pub fn new(client: usize, first: usize, count: usize) -> Ledger {
        let sectors = (0..count).map(|_| Sector { base: 0, changes: Vec::new() }).collect();
        Ledger { client, first, sectors, changes: Vec::new(), failures: 0 }
    }

    pub fn client(&self) -> usize {
        self.client
    }

    pub fn count(&self) -> usize {
        self.sectors.len()
    }

    /// Offset of a sector in the volume.
    pub fn offset(&self, sector: usize) -> u64 {
        ((self.first + sector) * SECTOR) as u64
    }

    /// Random sectors: half of the time whole pages.
    pub fn choose(&self, random: &mut Random) -> Range<usize> {
        let (len, unit) = if random.chance(500) { (LEN_MAX / PAGE, PAGE) } else { (LEN_MAX, 1) };
        let len = (1 + random.below(len)) * unit;
        let first = random.below((self.count() as u64 - len) / unit + 1) * unit;
        first as usize..(first + len) as usize
    }

    /// The number of a new write, unique in this process.
    pub fn number(&self) -> u64 {
        NUMBERS.fetch_add(1, Ordering::Relaxed)
    }

    /// Content of write `number`: the write's and the sector's numbers, repeated, so that torn and misplaced sectors show.
    pub fn bytes(&self, sectors: Range<usize>, number: u64) -> Vec<u8> {
        sectors.flat_map(|sector| self.word(sector, number).to_le_bytes().repeat(SECTOR / 8)).collect()
    }

    /// The content of a recorded change.
    pub fn bytes_of(&self, change: ChangeId, sectors: Range<usize>) -> Vec<u8> {
        match self.changes[change.0].content {
            Content::Number(number) => self.bytes(sectors, number),
            Content::Zero | Content::Trimmed => Vec::new(),
        }
    }

    fn word(&self, sector: usize, number: u64) -> u64 {
        if number == 0 { 0 } else { number << 24 | (self.first + sector) as u64 }
    }

    /// Records a change before it is sent: it may take effect even if the answer is never received.
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

    /// Checks what a running server returns of sectors without changes in flight.
    pub fn check_live(&self, first: usize, bytes: &[u8], journal: &Journal) -> Result<(), String> {
        for (sector, bytes) in (first..).zip(bytes.chunks(SECTOR)) {
            let acknowledged = |change: &Change| {
                matches!(change.answered, Some((_, Outcome::Stable | Outcome::Unstable(_)))).then_some(())
            };
            self.check(sector, bytes, &acknowledged).map_err(|what| self.history(sector, &what, journal))?;
        }
        Ok(())
    }

    /// Checks what was found in a sector after a crash, which becomes its new base.
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

    /// Discards the changes, once all sectors were verified.
    pub fn clear(&mut self) {
        assert!(self.sectors.iter().all(|sector| sector.changes.is_empty()), "not all was verified");
        self.changes.clear();
    }

    /// The number in a sector, which must be possible if all changes that `holds` have taken effect.
    fn check(&self, sector: usize, bytes: &[u8], holds: &dyn Fn(&Change) -> Option<()>) -> Result<u64, String> {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let number = word >> 24;
        if bytes.chunks(8).any(|other| other != word.to_le_bytes()) {
            return Err("it is torn".into());
        }
        if word != self.word(sector, number) {
            return Err(format!("it holds content of sector {} (write {number})", word & 0xff_ffff));
        }
        let changes = &self.sectors[sector].changes;
        let last = changes.iter().rposition(|&change| holds(&self.changes[change]).is_some());
        // A trim may leave any content before it.
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

    /// The history of a sector with wrong content.
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
        for flush in journal.flushes.lock().iter().filter(|flush| Some(flush.answered) > begin) {
            let sent = flush.sent.at;
            let text = match flush.client {
                usize::MAX => "the server ended in order".into(),
                client => format!("flush of client {client} sent at {sent:.6?}: {:?}", flush.outcome),
            };
            lines.push((flush.answered, text));
        }
        lines.sort_by_key(|line| line.0);
        let (client, place) = (self.client, self.first + sector);
        let mut text = format!("sector {place} of client {client}: {what}; when last verified it held {}", known.base);
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
    fn a_durable_write_must_survive_and_another_may_be_lost() {
        for (outcome, flush, may_be_lost) in [
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
            assert_eq!(ledger.verify(0, &old, &journal).is_ok(), may_be_lost, "{outcome:?} {flush:?}");
            let new = ledger.bytes(1..2, 2);
            assert_eq!(ledger.verify(1, &new, &journal), Ok(()), "{outcome:?} {flush:?}");
        }
    }

    #[test]
    fn a_flush_covers_only_writes_acknowledged_before_it_was_sent() {
        let journal = Journal::default();
        let sent = journal.stamp();
        let (mut ledger, _) = (Ledger::new(0, 0, 1), ());
        let change = ledger.send(0..1, Content::Number(1), &journal);
        ledger.answer(change, Outcome::Unstable(0), &journal);
        journal.note_flush(0, sent, Ok(0));
        assert_eq!(ledger.verify(0, &[0; SECTOR], &journal), Ok(()));
    }

    #[test]
    fn torn_and_misplaced_sectors_are_found() {
        let (ledger, journal) = acknowledged(Outcome::Stable);
        let mut torn = ledger.bytes(0..1, 2);
        assert_eq!(ledger.check_live(0, &torn, &journal), Ok(()));
        torn[511] ^= 1;
        assert!(ledger.check_live(0, &torn, &journal).is_err_and(|what| what.contains("torn")));
        let misplaced = ledger.bytes(1..2, 2);
        assert!(ledger.check_live(0, &misplaced, &journal).is_err_and(|what| what.contains("content of sector")));
    }

    #[test]
    fn a_trim_may_leave_zeroes_or_any_content_before() {
        for (number, fits) in [(0, true), (1, true), (2, true), (3, false)] {
            let (mut ledger, journal) = acknowledged(Outcome::Stable);
            let change = ledger.send(0..1, Content::Trimmed, &journal);
            ledger.answer(change, Outcome::Stable, &journal);
            let bytes = ledger.bytes(0..1, number);
            assert_eq!(ledger.verify(0, &bytes, &journal).is_ok(), fits, "{number}");
        }
    }
}
