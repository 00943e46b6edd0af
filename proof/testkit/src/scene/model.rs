//! The content that a disk may have after a crash, sector by sector.

use std::cell::RefCell;

/// The unit that a disk writes atomically. Bytes.
pub const SECTOR: u64 = 512;

/// Sectors read at a time to verify them.
const VERIFY_BATCH: u64 = 256;

/// Identifies the write that filled a sector; 0 is a sector of zeroes.
pub type Stamp = u64;

/// One client's part of a disk: it alone writes to it, one operation after another.
pub struct Model {
    /// First sector.
    start: u64,
    sectors: Vec<Sector>,
}

#[derive(Clone, Default)]
struct Sector {
    /// Known to be durable.
    durable: Stamp,
    /// Written since, oldest first; a read must return the last one.
    since: Vec<Stamp>,
    /// The last write failed or was not answered: a read may return any of these stamps.
    doubtful: bool,
}

impl Sector {
    fn current(&self) -> Stamp {
        self.since.last().copied().unwrap_or(self.durable)
    }
}

impl Model {
    /// `sectors` sectors from `start`, all durable zeroes.
    pub fn new(start: u64, sectors: u64) -> Self {
        Model { start, sectors: vec![Sector::default(); sectors as usize] }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    fn at(&mut self, sector: u64, count: u64) -> impl Iterator<Item = &mut Sector> {
        let from = (sector - self.start) as usize;
        self.sectors[from..from + count as usize].iter_mut()
    }

    /// A write begins: from now on its content may be read.
    pub fn begin(&mut self, sector: u64, count: u64, stamp: Stamp) {
        for sector in self.at(sector, count) {
            sector.since.push(stamp);
            sector.doubtful = true;
        }
    }

    pub fn acknowledge(&mut self, sector: u64, count: u64) {
        for sector in self.at(sector, count) {
            sector.doubtful = false;
        }
    }

    /// The write was acknowledged as durable.
    pub fn acknowledge_durable(&mut self, sector: u64, count: u64) {
        for sector in self.at(sector, count) {
            sector.make_durable();
        }
    }

    /// A flush that began after all acknowledged writes has succeeded.
    pub fn flushed(&mut self) {
        self.sectors.iter_mut().filter(|sector| !sector.doubtful).for_each(Sector::make_durable);
    }

    /// What a read must return, or `None` where a failed write makes several contents possible.
    pub fn expected(&self, sector: u64) -> Option<Stamp> {
        let sector = &self.sectors[(sector - self.start) as usize];
        (!sector.doubtful).then(|| sector.current())
    }

    /// Asserts that a read of these bytes, from `sector` on, returns what it must.
    pub fn assert_read(&self, sector: u64, bytes: &[u8]) {
        for (at, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR as usize)) {
            if let Some(expected) = self.expected(at) {
                assert_eq!(stamp_of(bytes), Ok(expected), "read of sector {at}");
            }
        }
    }

    /// Asserts that a disk has what it may have after a crash, and takes note of it. `read` returns the bytes of these
    /// sectors, or an error now and then.
    pub async fn verify<E>(model: &RefCell<Model>, read: impl AsyncFn(u64, u64) -> Result<Vec<u8>, E>) {
        let (start, sectors) = (model.borrow().start(), model.borrow().sectors());
        let end = start + sectors;
        for sector in (start..end).step_by(VERIFY_BATCH as usize) {
            let bytes = loop {
                // Reads may fail at random; the next one may not.
                if let Ok(bytes) = read(sector, VERIFY_BATCH.min(end - sector)).await {
                    break bytes;
                }
            };
            for (at, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR as usize)) {
                let checked = stamp_of(bytes).and_then(|found| model.borrow_mut().check_after_crash(at, found));
                assert_eq!(checked, Ok(()));
            }
        }
    }

    /// Checks what was read after a crash.
    pub fn check_after_crash(&mut self, sector: u64, found: Stamp) -> Result<(), String> {
        let start = self.start;
        let state = &mut self.sectors[(sector - start) as usize];
        if found != state.durable && !state.since.contains(&found) {
            return Err(format!(
                "sector {sector} holds {found:#x}; durable was {:#x}, written since {:x?}",
                state.durable, state.since
            ));
        }
        *state = Sector { durable: state.durable, since: state.since.clone(), doubtful: true };
        Ok(())
    }
}

impl Sector {
    fn make_durable(&mut self) {
        self.durable = self.current();
        self.since.clear();
        self.doubtful = false;
    }
}

/// So many sectors with the stamp.
pub fn stamped(sectors: u64, stamp: Stamp) -> Vec<u8> {
    stamp.to_le_bytes().repeat((sectors * SECTOR / 8) as usize)
}

/// Fills a sector with the stamp, repeated, so that a torn sector shows.
pub fn fill(bytes: &mut [u8], stamp: Stamp) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
}

/// The stamp of a sector, or an error if it is torn.
pub fn stamp_of(bytes: &[u8]) -> Result<Stamp, String> {
    let mut words = bytes.chunks_exact(8).map(|word| Stamp::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.next().unwrap_or(0);
    match words.find(|&word| word != first) {
        None => Ok(first),
        Some(other) => Err(format!("a sector is torn: {first:#x} and {other:#x}")),
    }
}
