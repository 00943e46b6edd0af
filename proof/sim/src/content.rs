//! The content of a simulated disk: what reads return, and what of that would survive a power cut.
//!
//! Pages of 4 KiB that were never written do not exist (holes). A page with changes that are not durable also has an
//! entry in `cached`: its durable image and the changes since, oldest first.

mod cut;

use std::collections::BTreeMap;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::change::{Change, PAGE_BYTES, Page, Payload, Version, fill, put, tear_sector, whole_page};
use crate::faults::DiskFaults;
use crate::random::{Random, scatter};
use policy::unit::{ByteOffset, ByteRange};

/// Changes of one page that are tracked separately. Beyond, the oldest is considered written to the medium.
const VERSIONS_MAX: usize = 32;

#[derive(Debug, Default)]
struct Cached {
    durable: Option<Box<Page>>,
    /// Sectors dropped by a failed flush: what reads return will not survive, even if flushed later.
    dropped: u8,
    versions: SmallVec<[Version; 2]>,
}

#[derive(Debug)]
pub(crate) struct Content {
    sector_bytes: u64,
    live: BTreeMap<u64, Box<Page>>,
    cached: BTreeMap<u64, Cached>,
    changes: u64,
    /// The latest change considered written to the medium because there were too many after it.
    spilled: u64,
}

impl Content {
    pub(crate) fn new(sector_bytes: u32) -> Self {
        let sector_bytes = u64::from(sector_bytes);
        Content { sector_bytes, live: BTreeMap::new(), cached: BTreeMap::new(), changes: 0, spilled: 0 }
    }

    /// Number of the latest change: a flush that starts now covers all up to it.
    pub(crate) fn latest_change(&self) -> u64 {
        self.changes
    }

    /// Fills `out` with the content from `at` on.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        let mut at = at;
        let mut rest = out;
        while !rest.is_empty() {
            let in_page = (at % PAGE_BYTES) as usize;
            let n = rest.len().min(PAGE_BYTES as usize - in_page);
            let (now, later) = rest.split_at_mut(n);
            match self.live.get(&(at / PAGE_BYTES)) {
                Some(page) => now.copy_from_slice(&page[in_page..in_page + n]),
                None => now.fill(0),
            }
            at += n as u64;
            rest = later;
        }
    }

    /// As [`read`](Self::read), but only what is durable.
    pub(crate) fn read_durable(&self, at: u64, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            let at = at + i as u64;
            let page = at / PAGE_BYTES;
            let image = match self.cached.get(&page) {
                Some(cached) => cached.durable.as_ref(),
                None => self.live.get(&page),
            };
            *byte = image.map_or(0, |image| image[(at % PAGE_BYTES) as usize]);
        }
    }

    /// Makes `change` visible to reads, and durable if `stable`.
    pub(crate) fn apply(&mut self, change: &Change, stable: bool) {
        self.apply_sectors(change, stable, |_| u8::MAX);
    }

    /// As [`apply`](Self::apply), but only for sectors chosen by `salt`: a torn write. Not durable.
    pub(crate) fn apply_torn(&mut self, change: &Change, salt: u64) {
        self.apply_sectors(change, false, |page| scatter(salt ^ page) as u8);
    }

    fn apply_sectors(&mut self, change: &Change, stable: bool, chosen: impl Fn(u64) -> u8) {
        let widened;
        let change = match self.widen(change) {
            Some(wider) => {
                widened = wider;
                &widened
            }
            None => change,
        };
        self.changes += 1;
        for page in change.at / PAGE_BYTES..(change.at + change.len).div_ceil(PAGE_BYTES) {
            let sectors = self.sectors_of(page, change) & chosen(page);
            if sectors == 0 {
                continue;
            }
            let version = Version { change: self.changes, sectors, at: change.at, payload: change.payload.clone() };
            if stable {
                self.note_stable(page, &version);
            } else {
                self.note_unstable(page, &version);
            }
            self.put_live(page, &version);
        }
    }

    /// A change whose ends lie within sectors rewrites these completely: `None` when they do not.
    fn widen(&self, change: &Change) -> Option<Change> {
        let from = change.at - change.at % self.sector_bytes;
        let to = (change.at + change.len).next_multiple_of(self.sector_bytes);
        if (from, to) == (change.at, change.at + change.len) {
            return None;
        }
        let mut bytes = vec![0; (to - from) as usize];
        self.read(from, &mut bytes);
        let inner = &mut bytes[(change.at - from) as usize..][..change.len as usize];
        match &change.payload {
            Payload::Bytes(data) => inner.copy_from_slice(&data[..change.len as usize]),
            Payload::Zeroes | Payload::Hole => inner.fill(0),
        }
        Some(Change { at: from, len: to - from, payload: Payload::Bytes(Rc::new(bytes)) })
    }

    fn sectors_of(&self, page: u64, change: &Change) -> u8 {
        let start = page * PAGE_BYTES;
        let from = change.at.max(start) - start;
        let to = (change.at + change.len).min(start + PAGE_BYTES) - start;
        let count = (to - from) / self.sector_bytes;
        let bits = if count >= 8 { u8::MAX } else { (1 << count) - 1 };
        bits << (from / self.sector_bytes)
    }

    fn note_stable(&mut self, page: u64, version: &Version) {
        let Some(cached) = self.cached.get_mut(&page) else {
            return;
        };
        put(&mut cached.durable, page, version, version.sectors, self.sector_bytes);
        cached.dropped &= !version.sectors;
        // Older versions of these sectors cannot return: the drive preserves the order within a sector.
        cached.versions.retain(|older| {
            older.sectors &= !version.sectors;
            older.sectors != 0
        });
        if cached.versions.is_empty() && cached.dropped == 0 {
            self.cached.remove(&page);
        }
    }

    fn note_unstable(&mut self, page: u64, version: &Version) {
        let live = &self.live;
        let cached = self
            .cached
            .entry(page)
            .or_insert_with(|| Cached { durable: live.get(&page).cloned(), ..Cached::default() });
        cached.dropped &= !version.sectors;
        if cached.versions.len() == VERSIONS_MAX {
            let oldest = cached.versions.remove(0);
            self.spilled = self.spilled.max(oldest.change);
            put(&mut cached.durable, page, &oldest, oldest.sectors, self.sector_bytes);
        }
        cached.versions.push(Version { payload: version.payload.clone(), ..*version });
    }

    fn put_live(&mut self, page: u64, version: &Version) {
        if let Payload::Hole = version.payload {
            if version.sectors == self.whole_page() {
                self.live.remove(&page);
            } else if let Some(image) = self.live.get_mut(&page) {
                fill(image, page, version, version.sectors, self.sector_bytes);
            }
            return;
        }
        let image = self.live.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
        fill(image, page, version, version.sectors, self.sector_bytes);
    }

    fn whole_page(&self) -> u8 {
        whole_page(self.sector_bytes)
    }

    /// A flush that covers everything up to change number `covers` succeeded.
    pub(crate) fn flush(&mut self, covers: u64) {
        let sector_bytes = self.sector_bytes;
        self.cached.retain(|&page, cached| {
            let count = cached.versions.partition_point(|version| version.change <= covers);
            for version in cached.versions.drain(..count) {
                put(&mut cached.durable, page, &version, version.sectors, sector_bytes);
            }
            !cached.versions.is_empty() || cached.dropped != 0
        });
    }

    /// A flush that covers everything up to change number `covers` failed, and each change that it covered may be lost,
    /// with an even chance. Some pages show it at once, others still read as if it had succeeded. Returns whether any is.
    pub(crate) fn drop_covered(&mut self, covers: u64, random: &mut Random) -> bool {
        let salt = random.next();
        self.drop_changes(salt, |change| change <= covers && scatter(salt ^ scatter(change)) & 1 == 0)
    }

    /// This change was not written back and is lost. Some pages show it at once.
    pub(crate) fn drop_change(&mut self, lost: u64, random: &mut Random) {
        self.drop_changes(random.next(), |change| change == lost);
    }

    fn drop_changes(&mut self, salt: u64, is_lost: impl Fn(u64) -> bool) -> bool {
        let sector_bytes = self.sector_bytes;
        let mut any = false;
        let mut shown = Vec::new();
        self.cached.retain(|&page, cached| {
            let mut retained_later = 0;
            let mut dropped = 0;
            for version in cached.versions.iter_mut().rev() {
                if is_lost(version.change) {
                    dropped |= version.sectors & !retained_later;
                    version.sectors = 0;
                } else {
                    retained_later |= version.sectors;
                }
            }
            cached.versions.retain(|version| version.sectors != 0);
            any |= dropped != 0;
            cached.dropped |= dropped;
            if dropped != 0 && scatter(salt ^ page) & 2 == 0 {
                cached.dropped = 0;
                let mut image = cached.durable.clone();
                for version in &cached.versions {
                    put(&mut image, page, version, version.sectors, sector_bytes);
                }
                shown.push((page, image));
            }
            !cached.versions.is_empty() || cached.dropped != 0
        });
        for (page, image) in shown {
            self.set_live(page, image);
        }
        any
    }

    /// The process that issued `in_flight` died: each change landed, did not land, or was torn.
    pub(crate) fn abandon(&mut self, in_flight: &[Change], random: &mut Random) {
        for change in in_flight {
            match random.below(3) {
                0 => {}
                1 => self.apply(change, false),
                _ => self.apply_torn(change, random.next()),
            }
        }
    }

    /// The power failed during `in_flight`: decides what is on the medium afterwards.
    pub(crate) fn power_cut(&mut self, mut in_flight: Vec<Change>, faults: &DiskFaults, random: &mut Random) {
        // They may have landed in any order.
        for i in (1..in_flight.len()).rev() {
            in_flight.swap(i, random.below(i as u64 + 1) as usize);
        }
        for change in &in_flight {
            self.apply(change, false);
        }
        // With even chances for each write, losing or retaining them all would hardly ever happen.
        let (keep, tear) = match random.below(6) {
            0 => (0, 0),
            1 => (1000, 0),
            2 => (random.below(1001), 1000),
            3 => (random.below(1001), 0),
            _ => (random.below(1001), 250),
        };
        let salt = random.next();
        for (page, cached) in std::mem::take(&mut self.cached) {
            let mut image = cached.durable;
            for version in &cached.versions {
                let fate = scatter(salt ^ scatter(version.change));
                let torn = fate % 1000 < tear;
                let retained = match (torn, (fate >> 32) % 1000 < keep) {
                    (true, _) => version.sectors & scatter(fate ^ page) as u8,
                    (false, true) => version.sectors,
                    (false, false) => 0,
                };
                put(&mut image, page, version, retained, self.sector_bytes);
                let missed = version.sectors & !retained;
                if torn && missed != 0 && random.permille(faults.sector_tear_permille) {
                    tear_sector(&mut image, page, version, missed, self.sector_bytes, random);
                }
            }
            self.set_live(page, image);
        }
    }

    fn set_live(&mut self, page: u64, image: Option<Box<Page>>) {
        match image {
            Some(image) => self.live.insert(page, image),
            None => self.live.remove(&page),
        };
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.live.len() as u64 * PAGE_BYTES
    }

    /// The number of bytes from `at` on, at most `len`, that can be written when `room` bytes may be allocated.
    pub(crate) fn fitting(&self, at: u64, len: u64, room: u64) -> u64 {
        let mut room = room / PAGE_BYTES;
        for page in at / PAGE_BYTES..(at + len).div_ceil(PAGE_BYTES) {
            if !self.live.contains_key(&page) {
                if room == 0 {
                    return (page * PAGE_BYTES).saturating_sub(at);
                }
                room -= 1;
            }
        }
        len
    }

    /// The runs of data in `within` below `size`, and how far they were looked for; see [`machine::Op::FindData`].
    pub(crate) fn find_data(
        &self,
        within: ByteRange,
        runs_max: usize,
        size: ByteOffset,
    ) -> (Vec<ByteRange>, ByteOffset) {
        let mut runs: Vec<ByteRange> = Vec::new();
        let (first, end) = (within.at.0 / PAGE_BYTES, within.end().min(size));
        for (page, _) in self.live.range(first..end.0.div_ceil(PAGE_BYTES).max(first)) {
            let start = ByteOffset(page * PAGE_BYTES);
            let bytes = start.max(within.at).to(end.min(start + PAGE_BYTES));
            let is_full = runs.len() == runs_max;
            match runs.last_mut() {
                Some(last) if last.end() == bytes.at => last.len += bytes.len,
                Some(last) if is_full => {
                    let end = last.end();
                    return (runs, end);
                }
                _ => runs.push(bytes),
            }
        }
        (runs, within.end())
    }
}
