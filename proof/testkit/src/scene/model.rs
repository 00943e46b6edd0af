//! What a disk may hold after a crash, sector by sector.

/// Bytes in the unit of the model: what a disk writes whole.
pub const SECTOR: u64 = 512;

/// Content of one sector: who wrote it. 0 is a sector of zeroes.
pub type Stamp = u64;

/// One client's part of a disk: it alone writes there, one operation after another.
pub struct Model {
    /// First sector.
    start: u64,
    sectors: Vec<Sector>,
}

#[derive(Clone, Default)]
struct Sector {
    /// What is known to be durable.
    durable: Stamp,
    /// What was written since, oldest first; the last one is what a read must give.
    since: Vec<Stamp>,
    /// A write whose end is not known: any of these stamps may show up.
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

    /// A write begins: from now on its content may show up.
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

    /// What a read must give, or `None` where a failed write makes several contents possible.
    pub fn expected(&self, sector: u64) -> Option<Stamp> {
        let sector = &self.sectors[(sector - self.start) as usize];
        (!sector.doubtful).then(|| sector.current())
    }

    /// What came back after a crash becomes the state from which the client goes on; says what was wrong with it.
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

/// The content of a sector with that stamp: the stamp, over and over, so that a torn sector shows.
pub fn fill(bytes: &mut [u8], stamp: Stamp) {
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
}

/// The stamp of a sector, or what is wrong with its content.
pub fn stamp_of(bytes: &[u8]) -> Result<Stamp, String> {
    let mut words = bytes.chunks_exact(8).map(|word| Stamp::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.next().unwrap_or(0);
    match words.find(|&word| word != first) {
        None => Ok(first),
        Some(other) => Err(format!("a sector is torn: {first:#x} and {other:#x}")),
    }
}
