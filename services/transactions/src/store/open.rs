//! Opening a database: a new one is formatted, an existing one is recovered.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock, Weak};

use kernel::rendezvous::Rendezvous;
use kernel::wait::WaitList;
use kernel::{Processor, Volume};
use machine::Errno;
use parking_lot::{Mutex, RwLock};
use policy::unit::{BLOCK_BYTES, Stability};
use thiserror::Error;

use super::checkpoint::Tree;
use super::delta::{Delta, Entry};
use super::last_written::LastWritten;
use super::layout::{
    DATABASE_BYTES_MAX, DATABASE_BYTES_MIN, Layout, LogPlace, NoSuperblock, PAGE_BYTES, PageNo, Start, Superblock,
};
use super::log::Circle;
use super::pages::{Pages, RUN_PAGES_MAX};
use super::retired::Retired;
use super::space::Space;
use super::tables::Tables;
use super::{CATALOG, Database, Sequence, State, StoreError, TableNo};

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    #[error("it has {0} bytes; a database needs at least {DATABASE_BYTES_MIN}")]
    TooSmall(u64),
    #[error("it has {0} bytes; a new database has at most {DATABASE_BYTES_MAX}")]
    TooLarge(u64),
    #[error("it holds something else: a new database is made only where the first 8 KiB are zero")]
    NotADatabase,
    #[error("it holds a database of format {0}, which this version does not know: a later one has made or opened it")]
    Version(u32),
    #[error("it has {has} bytes, and had {needs} when the database was made")]
    Shrunk { has: u64, needs: u64 },
    #[error("the database is damaged: {0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        StoreError::from(errno).into()
    }
}

impl Database {
    /// Opens the database on a volume, or makes one if the volume's first pages are zero. Returns when all that was
    /// committed before is there, and durable.
    ///
    /// # Errors
    /// If the volume holds something else, is too small, or too large for a new one, damaged, or cannot be read.
    pub async fn open(cpu: &Processor, volume: Arc<Volume>) -> Result<Arc<Database>, OpenError> {
        if volume.size() < DATABASE_BYTES_MIN {
            return Err(OpenError::TooSmall(volume.size()));
        }
        let pages = Pages { volume, identity: 0 };
        match newest(cpu, &pages).await? {
            Some(superblock) => recover(cpu, pages, superblock).await,
            None if pages.volume.size() > DATABASE_BYTES_MAX => Err(OpenError::TooLarge(pages.volume.size())),
            None => {
                let layout = Layout::new(pages.volume.size() / BLOCK_BYTES);
                format(cpu, pages, layout).await
            }
        }
    }
}

/// The superblock that counts; `None`: there is no database yet.
async fn newest(cpu: &Processor, pages: &Pages) -> Result<Option<Superblock>, OpenError> {
    let mut found = Vec::new();
    for page in 0..2 {
        found.push(Superblock::decode(pages.read(cpu, PageNo(page)).await?.bytes()));
    }
    let Some(newest) = choose(&found)? else { return Ok(None) };
    let (has, needs) = (pages.volume.size(), newest.layout.pages * BLOCK_BYTES);
    if has < needs {
        return Err(OpenError::Shrunk { has, needs });
    }
    let is_missing = match &found[Layout::superblock(newest.generation + 1).0 as usize] {
        Err(NoSuperblock::Blank) => newest.generation > 1,
        other => other.is_err(),
    };
    if is_missing && may_be_replaced(cpu, pages, &newest).await? {
        return Err(OpenError::Damaged("one of its superblocks, which may be the newer one"));
    }
    Ok(Some(newest))
}

/// The newest of the two that were found.
fn choose(found: &[Result<Superblock, NoSuperblock>]) -> Result<Option<Superblock>, OpenError> {
    let version = found.iter().find_map(|found| match found {
        Err(NoSuperblock::Version(version)) => Some(*version),
        _ => None,
    });
    if let Some(version) = version {
        return Err(OpenError::Version(version));
    }
    // A superblock lies within one sector, which is written whole or not: a crash leaves none that is damaged.
    let is = |what: NoSuperblock| found.contains(&Err(what));
    let newest = found.iter().flatten().max_by_key(|superblock| (superblock.start.number, superblock.generation));
    match newest {
        Some(newest) => Ok(Some(*newest)),
        None if is(NoSuperblock::Damaged) => Err(OpenError::Damaged("no superblock is as it was written")),
        None if is(NoSuperblock::Foreign) => Err(OpenError::NotADatabase),
        None => Ok(None),
    }
}

/// The bytes at the beginning of a volume that say whether it has a database.
pub const BEGINNING_BYTES: usize = 2 * PAGE_BYTES;

/// Whether a volume of `size` bytes that begins with these may be opened, as far as they say.
///
/// # Errors
/// As those of [`Database::open`].
pub fn inspect(size: u64, beginning: &[u8; BEGINNING_BYTES]) -> Result<(), OpenError> {
    if size < DATABASE_BYTES_MIN {
        return Err(OpenError::TooSmall(size));
    }
    let found: Vec<_> = beginning.chunks(PAGE_BYTES).map(Superblock::decode).collect();
    match choose(&found)? {
        None if size > DATABASE_BYTES_MAX => Err(OpenError::TooLarge(size)),
        _ => Ok(()),
    }
}

/// May there be a newer superblock than this one? Its map was durable before it. To go on from the older one would lose what
/// the log does not have any more, and read pages that others have been written over since.
async fn may_be_replaced(cpu: &Processor, pages: &Pages, superblock: &Superblock) -> Result<bool, OpenError> {
    let next = Superblock { generation: superblock.generation + 1, ..*superblock };
    Ok(read_map(cpu, pages, &next).await?.is_some())
}

/// The map of a superblock's generation; `None`: it is damaged, or that of another one.
async fn read_map(cpu: &Processor, pages: &Pages, superblock: &Superblock) -> Result<Option<Space>, OpenError> {
    let Superblock { layout, identity, generation, .. } = *superblock;
    let mut space = Space::new(layout);
    for index in 0..layout.map_pages() {
        let page = pages.read(cpu, PageNo(layout.map(generation).0 + index)).await?;
        if !space.decode(index, identity, generation, page.bytes()) {
            return Ok(None);
        }
    }
    Ok(Some(space))
}

fn database(pages: Pages, layout: Layout, superblock: &Superblock, space: Space) -> Arc<Database> {
    let state = State {
        tables: Tables::default(),
        recent: Delta::default(),
        last_written: LastWritten::default(),
        frozen: None,
        tree: Arc::new(Tree { root: superblock.root }),
        retired: Retired::default(),
        commits: superblock.commits,
        durable: superblock.commits,
        merged: superblock.commits,
        circle: Circle { place: superblock.log, used: 0, freed: 0, start: superblock.start },
        log_begins: superblock.log,
        is_log_full: false,
        generation: superblock.generation,
        failure: None,
        unwritten: Default::default(),
        is_checkpointing: false,
        is_awaited: false,
        checkpoint_failure: None,
        is_closing: false,
    };
    Arc::new_cyclic(|this: &Weak<Database>| Database {
        this: Weak::clone(this),
        pages,
        layout,
        state: RwLock::new(state),
        space: Mutex::new(space),
        log: Rendezvous::default(),
        counters: OnceLock::new(),
        changed: WaitList::default(),
    })
}

async fn format(cpu: &Processor, mut pages: Pages, layout: Layout) -> Result<Arc<Database>, OpenError> {
    let now = cpu.time_of_day();
    pages.identity = (now.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanoseconds));
    let superblock = Superblock {
        identity: pages.identity,
        generation: 1,
        layout,
        commits: Sequence(0),
        log: LogPlace { page: 0, group: 1 },
        start: Start::default(),
        root: None,
    };
    let database = database(pages, layout, &superblock, Space::new(layout));
    database.fill_log(cpu).await?;
    let map = database.map_without(cpu, &[]).await;
    database.write_map(cpu, superblock.generation, &map).await?;
    database.write_superblock(cpu, &superblock).await?;
    Ok(database)
}

async fn recover(cpu: &Processor, mut pages: Pages, superblock: Superblock) -> Result<Arc<Database>, OpenError> {
    let layout = superblock.layout;
    pages.identity = superblock.identity;
    let space = read_map(cpu, &pages, &superblock).await?;
    let space = space.ok_or(OpenError::Damaged("the map of its pages has a wrong checksum"))?;
    let database = database(pages, layout, &superblock, space);
    let mut recent = Delta::default();
    let change = |at, key, row| {
        // The tree may have more than the log: a group whose changes it has would take back those of groups that were lost.
        if at > superblock.commits {
            recent.insert(key, Entry { at, row });
        }
    };
    let (mut circle, last) = database.replay(cpu, &superblock, change).await?;
    // What was found may not be durable, and from now on others build on it. So may the superblock, and what it has
    // made free.
    database.pages.flush(cpu).await?;
    circle.start = Start { number: superblock.start.number + 1, group: circle.place.group };
    let started = Superblock { start: circle.start, ..superblock };
    // Into both places: a program of version 1 would take the older one, not knowing this one. Into its own last: until then
    // that is the one to take.
    for generation in [superblock.generation + 1, superblock.generation] {
        database.write_superblock_at(cpu, Layout::superblock(generation), &started).await?;
    }
    {
        let mut state = database.state.write();
        let last = last.map_or(superblock.commits, |last| last.max(superblock.commits));
        (state.circle, state.recent, state.commits, state.durable) = (circle, recent, last, last);
    }
    database.read_catalog(cpu).await?;
    Ok(database)
}

impl Database {
    /// Writes zeroes all over the log: in a sparse file each group that comes to a place for the first time would have the file
    /// system allocate it, which is a commit of its journal and takes another flush or two.
    async fn fill_log(&self, cpu: &Processor) -> Result<(), OpenError> {
        static ZEROES: [u8; RUN_PAGES_MAX * PAGE_BYTES] = [0; RUN_PAGES_MAX * PAGE_BYTES];
        let (log, pages) = (self.layout.log(), self.layout.log_pages);
        for page in (0..pages).step_by(RUN_PAGES_MAX) {
            let count = (pages - page).min(RUN_PAGES_MAX as u64) as usize;
            let place = PageNo(log.0 + page);
            self.pages.write_run(cpu, place, &ZEROES[..count * PAGE_BYTES], Stability::Unstable).await?;
        }
        Ok(self.pages.flush(cpu).await?)
    }

    async fn read_catalog(self: &Arc<Self>, cpu: &Processor) -> Result<(), OpenError> {
        let mut from = Vec::new();
        let mut tables = BTreeMap::new();
        loop {
            // One transaction may not read as many names as there may be. Nobody else has the database yet.
            let mut transaction = self.begin();
            let range = (Bound::Excluded(from.as_slice()), Bound::Unbounded);
            let Some((name, row)) = transaction.next(cpu, CATALOG, range, false).await? else { break };
            let number: [u8; 4] = (&*row).try_into().map_err(|_| OpenError::Damaged("the list of its tables"))?;
            let table = TableNo(u32::from_le_bytes(number));
            tables.insert(String::from_utf8_lossy(&name).into_owned(), table);
            from = name.to_vec();
        }
        self.state.write().tables = Tables::new(tables);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
