//! The log: groups of transactions, each written and made durable at once, in a circle.
//!
//! A group is a header and the changes of its transactions in the order of their commits, as the rows that they leave
//! behind: to replay a group twice does no harm. One of commits that the tree has already is not replayed: it would take
//! back those of later ones, which the tree may have although the log does not. A header has the group's number, so the log
//! ends where the next number is not found, and the start of the database after which it was written, so that none
//! that was left behind the end by one start follows those that were written since ([`Start`]).
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | CRC-32 of all that follows |
//! | 4..8 | bytes after the header |
//! | 8..16 | the database's identity, plus the number of the start |
//! | 16..24 | number of the group |
//! | 24..32 | the last commit in it |
//! | then | for each change: length of the key (2), of the row (2; 2¹⁶ - 1: deleted), key, row |
//!
//! One group at a time is written (`write_log`), and is durable before the next: so nothing follows one that a crash has torn, or
//! a failed write, which is tried again at the same place. One that another follows, or that the last start has found, is
//! damaged if it is not there: that is an error. Only what reaches the end of the log may be damaged without a
//! word: it may have been torn.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::counters::Count;
use kernel::request::JobId;
use kernel::trace::Event;
use machine::Errno;
use policy::unit::Stability;

use super::bytes::{put, u16_at, u32_at, u64_at};
use super::layout::{LOG_PAGES_MIN, LogPlace, PAGE_BYTES, PageNo, Start, Superblock};
use super::pages::RUN_PAGES_MAX;
use super::{Database, FullKey, Row, Sequence, StoreError};

const HEADER_BYTES: usize = 32;
const DELETED: u16 = u16::MAX;

/// Bytes of one group, at most (but for the transaction that reaches it).
const GROUP_BYTES_MAX: usize = 256 << 10;

/// Behind the end of the log, a group is looked for in so many pages: as many as four of the longest have, which fit into the
/// smallest log. All of it would be up to 128 MiB more to read at each start.
const PAGES_LOOKED_AT: u64 = 4 * LOG_PAGES_MIN;

/// A group that could not be written is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// What committed transactions want written.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// Where each transaction's changes end, and its number.
    ends: VecDeque<(usize, Sequence)>,
}

impl Records {
    pub(super) fn push<'a>(&mut self, at: Sequence, changes: impl Iterator<Item = (&'a FullKey, Option<&'a Row>)>) {
        for (key, row) in changes {
            let row_len = row.map_or(DELETED, |row| row.len() as u16);
            self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(&row_len.to_le_bytes());
            self.bytes.extend_from_slice(key);
            row.into_iter().for_each(|row| self.bytes.extend_from_slice(row));
        }
        self.ends.push_back((self.bytes.len(), at));
    }

    /// The length of the next group, and the last commit in it.
    fn next(&self, from: usize) -> Option<(usize, Sequence)> {
        let fits = self.ends.iter().take_while(|(end, _)| end - from <= GROUP_BYTES_MAX).last();
        fits.or(self.ends.front()).map(|(end, last)| (end - from, *last))
    }
}

/// The circle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circle {
    /// Where the next group comes.
    pub place: LogPlace,
    /// Pages ever used, and those of them that a checkpoint has made free again.
    pub used: u64,
    pub freed: u64,
    pub start: Start,
}

impl Circle {
    /// Pages that hold what no checkpoint has yet.
    pub(super) fn held(&self) -> u64 {
        self.used - self.freed
    }

    /// Where a group of `pages` begins, and the pages left unused before it.
    fn fit(&self, pages: u64, of: u64) -> (u64, u64) {
        if self.place.page + pages <= of { (self.place.page, 0) } else { (0, of - self.place.page) }
    }
}

fn encode(stamp: u64, number: u64, last: Sequence, changes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    put(&mut bytes, 4, &(changes.len() as u32).to_le_bytes());
    put(&mut bytes, 8, &stamp.to_le_bytes());
    put(&mut bytes, 16, &number.to_le_bytes());
    put(&mut bytes, 24, &last.0.to_le_bytes());
    bytes.extend_from_slice(changes);
    let checksum = crc32fast::hash(&bytes[4..]);
    put(&mut bytes, 0, &checksum.to_le_bytes());
    bytes
}

impl Database {
    /// Writes a group of transactions. Those of it that fail stay to be written: whether they are durable is not known.
    pub(super) async fn write_log(self: &Arc<Self>, cpu: &Processor, mut records: Records) -> Result<(), Errno> {
        {
            let mut state = self.state.write();
            if let Some(errno) = state.failure {
                state.unwritten.push_back(records);
                return Err(errno);
            }
        }
        let written = self.write_groups(cpu, &mut records).await;
        if let Err(errno) = written {
            {
                let mut state = self.state.write();
                state.failure = Some(errno);
                state.unwritten.push_back(records);
            }
            self.changed.wake_all();
            let (database, here) = (Arc::clone(self), cpu.clone());
            cpu.spawn(async move { database.write_unwritten(&here).await });
        }
        written
    }

    /// Tries again until all is written, or the volume has ended. No transaction commits meanwhile.
    async fn write_unwritten(self: &Arc<Self>, cpu: &Processor) {
        loop {
            cpu.sleep(RETRY).await;
            let next = {
                let mut state = self.state.write();
                let next = state.unwritten.pop_front();
                if next.is_none() {
                    state.failure = None;
                }
                next
            };
            let Some(mut records) = next else {
                self.changed.wake_all();
                return;
            };
            while let Err(errno) = self.write_groups(cpu, &mut records).await {
                self.state.write().failure = Some(errno);
                if errno == Errno::SHUT_DOWN {
                    return;
                }
                cpu.sleep(RETRY).await;
            }
        }
    }

    async fn write_groups(self: &Arc<Self>, cpu: &Processor, records: &mut Records) -> Result<(), Errno> {
        let mut from = 0;
        let mut result = Ok(());
        while let Some((len, last)) = records.next(from) {
            result = self.write_group(cpu, last, &records.bytes[from..from + len]).await;
            if result.is_err() {
                break;
            }
            from += len;
            records.ends.retain(|(end, _)| *end > from);
        }
        records.bytes.drain(..from);
        records.ends.iter_mut().for_each(|(end, _)| *end -= from);
        result
    }

    async fn write_group(self: &Arc<Self>, cpu: &Processor, last: Sequence, changes: &[u8]) -> Result<(), Errno> {
        let (log, of) = (self.layout.log(), self.layout.log_pages);
        let pages = (HEADER_BYTES + changes.len()).div_ceil(PAGE_BYTES) as u64;
        let (page, unused) = self.room_in_log(cpu, pages).await?;
        let Circle { place: LogPlace { group: number, .. }, start, .. } = self.state.read().circle;
        let group = encode(self.pages.identity.wrapping_add(start.number), number, last, changes);
        let began = cpu.begin(Event::LogWritten, JobId::default());
        let written = self.pages.write_run(cpu, PageNo(log.0 + page), &group, Stability::Stable).await;
        cpu.end(began, Event::LogWritten, JobId::default(), log.0 + page, group.len() as u64);
        written.map_err(StoreError::errno)?;
        cpu.count(Count::LogGroups, 1);
        let is_half_full = {
            let mut state = self.state.write();
            let circle = &mut state.circle;
            circle.place = LogPlace { page: page + pages, group: number + 1 };
            circle.used += unused + pages;
            state.durable = last;
            state.circle.held() > of / 2
        };
        self.changed.wake_all();
        if is_half_full {
            self.request_checkpoint(cpu, false);
        }
        Ok(())
    }

    /// Waits until the log has room. Returns where the group begins, and the pages left unused before it.
    async fn room_in_log(self: &Arc<Self>, cpu: &Processor, pages: u64) -> Result<(u64, u64), Errno> {
        let of = self.layout.log_pages;
        let fits = || {
            let state = self.state.read();
            let (page, unused) = state.circle.fit(pages, of);
            // Where nothing is held, a group may cover its own place up to which the log is over.
            let held = state.circle.held();
            let does = held + unused + pages <= of || held == 0 && pages <= of;
            does.then_some(Ok((page, unused))).or(state.checkpoint_failure.clone().map(|error| Err(error.errno())))
        };
        loop {
            if let Some(room) = fits() {
                return room;
            }
            self.state.write().is_log_full = true;
            // One that had begun before may end without making room enough.
            let generation = self.await_checkpoint(cpu);
            self.changed.wake_all();
            let is_over = || fits().is_some() || self.state.read().is_over(generation);
            self.changed.until(|| is_over().then_some(())).await;
            self.state.write().is_log_full = false;
        }
    }

    /// Replays the log of a superblock; `change` is called with each change, and the last commit of its group. Returns the
    /// circle after it, and the last commit found.
    ///
    /// Every group is written again: one whose flush had failed may be read from a cache of the host or the disk that has
    /// forgotten to write it, and no later flush would.
    ///
    /// # Errors
    /// Also if a group is missing that was durable.
    pub(super) async fn replay(
        &self,
        cpu: &Processor,
        superblock: &Superblock,
        mut change: impl FnMut(Sequence, FullKey, Option<Row>),
    ) -> Result<(Circle, Option<Sequence>), StoreError> {
        let of = self.layout.log_pages;
        let Superblock { log: mut place, start, .. } = *superblock;
        let (mut used, mut last, mut oldest) = (0, None, 0);
        loop {
            let starts = if place.group >= start.group { this(start) } else { oldest..start.number };
            let (begins, group) = match self.read_group(cpu, place, &starts).await? {
                Some(group) => (place.page, group),
                // It did not fit between here and the end.
                None => match self.read_group(cpu, LogPlace { page: 0, ..place }, &starts).await? {
                    Some(group) => (0, group),
                    None => break,
                },
            };
            let log = self.layout.log();
            self.pages.write_run(cpu, PageNo(log.0 + begins), &group, Stability::Unstable).await?;
            let at = Sequence(u64_at(&group, 24));
            let mut bytes = &group[HEADER_BYTES..];
            while bytes.len() >= 4 {
                let (key_len, row_len) = (usize::from(u16_at(bytes, 0)), u16_at(bytes, 2));
                let row_bytes = if row_len == DELETED { 0 } else { usize::from(row_len) };
                let Some(found) = bytes.get(4..4 + key_len + row_bytes) else { break };
                let (key, row) = found.split_at(key_len);
                change(at, FullKey::from(key), (row_len != DELETED).then(|| Row::from(row)));
                bytes = &bytes[4 + found.len()..];
            }
            let pages = group.len().div_ceil(PAGE_BYTES) as u64;
            let unused = if begins < place.page { of - place.page } else { 0 };
            place = LogPlace { page: begins + pages, group: place.group + 1 };
            used += unused + pages;
            last = Some(at);
            oldest = self.name(&group).0;
        }
        if place.group < start.group || self.is_followed(cpu, place, start).await? {
            return Err(StoreError::Damaged(self.layout.log().0 + place.page % of));
        }
        Ok((Circle { place, used, freed: 0, start }, last))
    }

    /// Is there a group of this start behind the end of the log?
    async fn is_followed(&self, cpu: &Processor, end: LogPlace, start: Start) -> Result<bool, StoreError> {
        let (log, of) = (self.layout.log(), self.layout.log_pages);
        let (mut page, mut left) = (end.page % of, of.min(PAGES_LOOKED_AT));
        while left > 0 {
            let count = left.min(of - page).min(RUN_PAGES_MAX as u64);
            let frames = readable(self.pages.read_run(cpu, PageNo(log.0 + page), count).await)?.unwrap_or_default();
            let names = (page..).zip(frames.iter().map(|frame| self.name(frame.bytes())));
            let places = names.filter(|(_, (number, group))| *number == start.number && *group > end.group);
            let places: Vec<_> = places.map(|(page, (_, group))| LogPlace { page, group }).collect();
            drop(frames);
            for place in places {
                if readable(self.read_group(cpu, place, &this(start)).await)?.flatten().is_some() {
                    return Ok(true);
                }
            }
            page = (page + count) % of;
            left -= count;
        }
        Ok(false)
    }

    /// What a group's header says: the number of the start, and its own.
    fn name(&self, header: &[u8]) -> (u64, u64) {
        (u64_at(header, 8).wrapping_sub(self.pages.identity), u64_at(header, 16))
    }

    /// The group that is expected at a place, after one of these starts, if it is there and whole.
    async fn read_group(
        &self,
        cpu: &Processor,
        place: LogPlace,
        starts: &Range<u64>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (log, of) = (self.layout.log(), self.layout.log_pages);
        if place.page >= of {
            return Ok(None);
        }
        let first = self.pages.read(cpu, PageNo(log.0 + place.page)).await?;
        let header = first.bytes();
        let len = HEADER_BYTES + u32_at(header, 4) as usize;
        let pages = len.div_ceil(PAGE_BYTES) as u64;
        let (start, number) = self.name(header);
        if number != place.group || !starts.contains(&start) || place.page + pages > of {
            return Ok(None);
        }
        let mut group = Vec::with_capacity(len);
        let mut page = place.page;
        while group.len() < len {
            let count = (place.page + pages - page).min(RUN_PAGES_MAX as u64);
            let frames = self.pages.read_run(cpu, PageNo(log.0 + page), count).await?;
            frames.iter().for_each(|frame| group.extend_from_slice(frame.bytes()));
            page += count;
        }
        group.truncate(len);
        Ok(Some(group).filter(|group| u32_at(group, 0) == crc32fast::hash(&group[4..])))
    }
}

/// The start alone.
fn this(start: Start) -> Range<u64> {
    start.number..start.number + 1
}

/// `None`: the medium cannot read it. Whether there is a group nobody knows; a start must not fail for what it may not need.
fn readable<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Err(StoreError::Volume(_)) => Ok(None),
        read => read.map(Some),
    }
}
