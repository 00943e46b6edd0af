//! The buffer cache of a Unix kernel, with the operations of 4.3BSD: `bread`, `breada`, `bwrite`, `bawrite`, `bdwrite`,
//! and what the update process does every 30 s.
//!
//! The operations and their waiting are those of Leffler, McKusick, Karels, Quarterman, *The Design and Implementation
//! of the 4.3BSD UNIX Operating System* (1989), section 7.4, and of its source (`ufs_bio.c` 7.1): a buffer has one user
//! at a time, others wait; a task that needs a buffer takes the next one in order of replacement, starts the write of
//! dirty ones met on the way, and waits when all are in use. The policies decide which buffer is replaced
//! ([`policy::cache`]), how much memory the cache has ([`policy::sizing`]), and when dirty buffers are written
//! ([`policy::writeback`]). With LRU, a fixed size and a storm every 30 s they do what 4.3BSD did.
//!
//! Contents are numbers: a read must return what was written last, or the model is wrong.

mod pool;
mod tasks;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;

use policy::cache::{Algorithm, Slot};
use policy::sizing::{self, Sizing};
use policy::unit::{ByteRange, Class};
use policy::writeback::{self, Admission, DirtyFacts, WriteBack};

use super::disk::Disk;
use super::memory::Memory;
use super::wait::Gate;
use super::{Virtual, buffers::pool::Pool};

/// A block as large as a buffer, counted from the start of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskBlock(pub u64);

/// The version number of a block's content; 0: never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content(pub u64);

#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of a block and of a buffer.
    pub buffer_bytes: u64,
    pub replacement: Algorithm,
    /// How much memory it has. A fixed size, or the floor of a dynamic one, is taken at the start, as a kernel does at
    /// boot: programs cannot get it.
    pub sizing: sizing::Config,
    /// When dirty buffers are written. In blocks of a buffer's size.
    pub write_back: writeback::Config,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Returns when the block is on the disk (`bwrite`).
    Synchronous,
    /// Starts the write at once and returns (`bawrite`): 4.3BSD for a full block.
    Asynchronous,
    /// Leaves the block to the update process or to write-back (`bdwrite`): 4.3BSD for a part of a block.
    Delayed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub content: Content,
    /// Without waiting for the disk?
    pub cached: bool,
}

/// Counters of a cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Read from the disk, read-ahead included.
    pub disk_reads: u64,
    pub disk_writes: u64,
    /// Evicted for other blocks, or to return memory.
    pub evicted: u64,
    /// Written because a buffer was needed and dirty ones were next (`getnewbuf`).
    pub written_for_room: u64,
}

/// A buffer cache before one disk, or before two. Its daemons run from the start.
#[derive(Clone)]
pub struct Buffers(Rc<Shared>);

struct Shared {
    time: Virtual,
    disk: Disk,
    /// Blocks from the first of these on are another disk's.
    second: OnceCell<(DiskBlock, Disk)>,
    memory: Memory,
    config: Config,
    /// Opens when a buffer is released or memory arrives.
    changed: Gate,
    pool: RefCell<Pool>,
    sizing: RefCell<Sizing>,
    write_back: RefCell<WriteBack>,
    on_disk: RefCell<HashMap<DiskBlock, Content>>,
    /// Bytes that the cache may hold.
    target: Cell<u64>,
    cursor: Cell<DiskBlock>,
    /// The cache must return memory, and all of it is dirty or in use.
    is_short: Cell<bool>,
    /// Writers that wait until less is dirty.
    held_up: Cell<u32>,
    counts: Cell<Counts>,
}

impl Buffers {
    /// An empty cache that takes its memory from `memory`.
    pub fn new(time: &Virtual, disk: &Disk, memory: &Memory, config: Config) -> Self {
        let buffers = Buffers(Rc::new(Shared {
            time: time.clone(),
            disk: disk.clone(),
            second: OnceCell::new(),
            memory: memory.clone(),
            changed: Gate::new(time),
            pool: RefCell::new(Pool::new(config.replacement)),
            sizing: RefCell::new(Sizing::new(config.sizing.clone())),
            write_back: RefCell::new(WriteBack::new(config.write_back.clone())),
            on_disk: RefCell::default(),
            target: Cell::new(0),
            cursor: Cell::default(),
            is_short: Cell::new(false),
            held_up: Cell::new(0),
            counts: Cell::default(),
            config,
        }));
        buffers.take_first();
        time.spawn(tasks::follow_memory(buffers.clone()));
        time.spawn(tasks::write_back(buffers.clone()));
        buffers
    }

    /// Blocks from `first` on are those of another disk, from now on.
    pub fn set_second(&self, first: DiskBlock, disk: Disk) {
        // A second call would move blocks that are cached: the first one holds.
        let _ = self.0.second.set((first, disk));
    }

    pub async fn read(&self, block: DiskBlock) -> Read {
        let (slot, waited) = self.get(block).await;
        let content = self.pool().content(slot);
        if let Some(content) = content {
            self.pool().on_used(slot);
            self.release(slot);
            return Read { content, cached: !waited };
        }
        let content = self.fetch(slot, block, Class::Synchronous).await;
        self.pool().on_used(slot);
        Read { content, cached: false }
    }

    /// Reads a block and starts to read the next one (`breada`).
    pub async fn read_ahead(&self, block: DiskBlock, next: Option<DiskBlock>) -> Read {
        let was_cached = self.is_cached(block);
        if !was_cached {
            let (slot, _) = self.get(block).await;
            self.start_fetch(slot, block, Class::Synchronous);
        }
        if let Some(next) = next
            && !self.is_cached(next)
        {
            let (slot, _) = self.get(next).await;
            self.start_fetch(slot, next, Class::Asynchronous);
        }
        let read = self.read(block).await;
        Read { cached: read.cached && was_cached, ..read }
    }

    /// Writes a whole block. Returns when the caller may continue.
    pub async fn write(&self, block: DiskBlock, content: Content, how: Write) {
        self.until_admitted().await;
        let (slot, _) = self.get(block).await;
        {
            let mut pool = self.pool();
            pool.change(slot, content);
            pool.on_used(slot);
        }
        match how {
            Write::Delayed => self.release(slot),
            Write::Asynchronous => self.start_write(slot),
            Write::Synchronous => self.write_out(slot, Class::Synchronous).await,
        }
    }

    /// Starts to write all that is dirty (`sync`, `bflush`).
    pub fn sync(&self) {
        while self.start_next_write() {}
    }

    pub async fn until_clean(&self) {
        self.0.changed.until(|| self.dirty_blocks() == 0).await;
    }

    /// Is the block in a buffer, or being read into one (`incore`)?
    pub fn is_cached(&self, block: DiskBlock) -> bool {
        self.pool().find(block).is_some()
    }

    pub fn on_disk(&self, block: DiskBlock) -> Content {
        self.0.on_disk.borrow().get(&block).copied().unwrap_or_default()
    }

    pub fn bytes_held(&self) -> u64 {
        self.pool().held() * self.0.config.buffer_bytes
    }

    /// Blocks that are not yet written.
    pub fn dirty_blocks(&self) -> u64 {
        self.pool().dirty()
    }

    pub fn counts(&self) -> Counts {
        self.0.counts.get()
    }

    fn pool(&self) -> RefMut<'_, Pool> {
        self.0.pool.borrow_mut()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.0.counts.get();
        change(&mut counts);
        self.0.counts.set(counts);
    }

    fn capacity(&self) -> usize {
        (self.0.target.get() / self.0.config.buffer_bytes).max(1) as usize
    }

    fn dirty_facts(&self) -> DirtyFacts {
        DirtyFacts { dirty_blocks: self.dirty_blocks(), cache_blocks: self.capacity() as u64 }
    }

    /// The block's buffer for exclusive use (`getblk`); and whether that took waiting.
    async fn get(&self, block: DiskBlock) -> (Slot, bool) {
        let mut waited = false;
        loop {
            let found = self.pool().find(block);
            match found {
                Some(slot) if !self.pool().is_busy(slot) => {
                    self.pool().hold(slot);
                    return (slot, waited);
                }
                Some(_) => {}
                None => {
                    self.make_room();
                    if let Some(slot) = self.pool().assign(block, self.capacity()) {
                        return (slot, waited);
                    }
                }
            }
            waited = true;
            self.0.changed.wait().await;
        }
    }

    /// Provides an unused buffer (`getnewbuf`): from memory while the cache may grow, else from another block.
    fn make_room(&self) {
        let bytes = self.0.config.buffer_bytes;
        if self.pool().has_unused() {
            return;
        }
        if self.bytes_held() + bytes <= self.0.target.get() && self.0.memory.lend(bytes) {
            return self.pool().add();
        }
        let found = self.evict();
        if !found && self.0.config.write_back.smooth {
            // Write-back was too slow: help it.
            self.start_next_write();
        }
    }

    /// Evicts a block. Without write-back, the dirty ones that are next are written, as 4.3BSD does.
    fn evict(&self) -> bool {
        let mut met = Vec::new();
        let found = self.pool().evict(&mut met);
        if found {
            self.count(|counts| counts.evicted += 1);
        }
        if !self.0.config.write_back.smooth {
            for slot in met {
                // With few buffers, one search may meet the same buffer twice.
                if !self.pool().is_busy(slot) {
                    self.count(|counts| counts.written_for_room += 1);
                    self.pool().hold(slot);
                    self.start_write(slot);
                }
            }
        }
        found
    }

    async fn until_admitted(&self) {
        let is_admitted = || self.0.write_back.borrow().admit(self.dirty_facts()) == Admission::Go;
        if !is_admitted() {
            self.0.held_up.set(self.0.held_up.get() + 1);
            self.0.changed.until(is_admitted).await;
            self.0.held_up.set(self.0.held_up.get() - 1);
        }
    }

    fn release(&self, slot: Slot) {
        self.pool().release(slot);
        self.0.changed.open();
    }

    /// The disk of a block, and its place there.
    fn place(&self, block: DiskBlock) -> (&Disk, ByteRange) {
        let bytes = self.0.config.buffer_bytes;
        let (disk, first) = match self.0.second.get() {
            Some((first, disk)) if block >= *first => (disk, first.0),
            _ => (&self.0.disk, 0),
        };
        (disk, ByteRange::new((block.0 - first) * bytes, bytes))
    }

    async fn fetch(&self, slot: Slot, block: DiskBlock, class: Class) -> Content {
        self.count(|counts| counts.disk_reads += 1);
        let (disk, range) = self.place(block);
        disk.read(range, class).await;
        let content = self.on_disk(block);
        self.pool().fill(slot, content);
        self.release(slot);
        content
    }

    fn start_fetch(&self, slot: Slot, block: DiskBlock, class: Class) {
        let pool = self.clone();
        self.0.time.spawn(async move {
            pool.fetch(slot, block, class).await;
        });
    }

    /// Writes a busy buffer and releases it.
    async fn write_out(&self, slot: Slot, class: Class) {
        let (block, content) = self.pool().begin_write(slot);
        self.finish_write(slot, block, content, class).await;
    }

    fn start_write(&self, slot: Slot) {
        let (block, content) = self.pool().begin_write(slot);
        let pool = self.clone();
        self.0.time.spawn(async move { pool.finish_write(slot, block, content, Class::Asynchronous).await });
    }

    async fn finish_write(&self, slot: Slot, block: DiskBlock, content: Content, class: Class) {
        self.count(|counts| counts.disk_writes += 1);
        let (disk, range) = self.place(block);
        disk.write(range, class).await;
        self.0.on_disk.borrow_mut().insert(block, content);
        self.pool().end_write(slot);
        self.0.changed.open();
    }

    /// Starts to write the next dirty block in cyclic order of the disk. False when there is none.
    fn start_next_write(&self) -> bool {
        let next = self.pool().next_dirty(self.0.cursor.get());
        let Some((block, slot)) = next else { return false };
        self.0.cursor.set(DiskBlock(block.0 + 1));
        self.pool().hold(slot);
        self.start_write(slot);
        true
    }
}
