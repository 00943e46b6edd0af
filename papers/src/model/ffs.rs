//! A Berkeley Fast File System in virtual time: what `write` and `read` wait for, and what they leave to the disk.
//!
//! As 4.3BSD does it (Leffler, McKusick, Karels, Quarterman, *The Design and Implementation of the 4.3BSD UNIX Operating
//! System*, 1989, sections 7.4 to 7.7; kernel sources `ufs_bio.c`, `ufs_bmap.c`, `ufs_alloc.c`, `ufs_inode.c`):
//!
//! | what | how |
//! |---|---|
//! | a full block of data | `bawrite`: started, not waited for |
//! | inode and directory of a new file, an indirect block when it is taken | `bwrite`: waited for, so that after a crash nothing points at garbage |
//! | bitmaps of a cylinder group, pointers in an indirect block, later changes of the inode | `bdwrite`: left in the cache |
//! | bitmaps of a group that is not in the cache | `bread`: waited for |
//! | directory and inode of a removed file | `bwrite`: the name goes first, then the inode without blocks (`itrunc`), so that no block has two owners |
//! | reading in sequence | `breada`: the block is waited for, the one behind it is started |

pub mod layout;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use policy::queue::RequestId;
use policy::readahead::{self, ReadAhead};
use policy::unit::Class::{Asynchronous, Synchronous};
use policy::unit::{BlockNo, BlockRange, ByteOffset, ByteRange, Class, Instant};

use super::Virtual;
use super::disk::Disk;
use super::wait::{Answer, Gate, Resource};
use crate::drive::Access;
use layout::{BITMAP_BYTES, DIRECT, Format, Layout};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    pub call: Duration,
    /// Time for each block read or written: to find or allocate it, and to copy it.
    pub block: Duration,
}

/// A mounted file system. Clones are the same one.
#[derive(Clone)]
pub struct FileSystem(Rc<State>);

struct State {
    time: Virtual,
    disk: Disk,
    processor: Resource,
    costs: Costs,
    layout: RefCell<Layout>,
    /// By their groups.
    directories: RefCell<BTreeMap<u64, u64>>,
    readahead: readahead::Config,
    buffers: u64,
    /// By their place on the disk.
    cache: RefCell<BTreeMap<ByteOffset, Buffer>>,
    /// Writes in flight without a waiter.
    writing: Cell<u64>,
    written: Gate,
    synchronous: Cell<Waits>,
}

/// A block in the cache, or being read.
#[derive(Clone)]
enum Buffer {
    Present,
    Coming(RequestId, Answer<Instant>),
}

/// System calls' waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub count: u64,
    pub time: Duration,
}

pub struct File {
    home: u64,
    blocks: Vec<u64>,
    readahead: ReadAhead,
}

impl File {
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }
}

impl FileSystem {
    /// An empty file system on that disk. Only its root directory is cached.
    pub fn new(
        time: &Virtual,
        disk: &Disk,
        format: Format,
        costs: Costs,
        buffers: u64,
        readahead: readahead::Config,
    ) -> Self {
        FileSystem(Rc::new(State {
            time: time.clone(),
            disk: disk.clone(),
            processor: Resource::new(time, 1),
            costs,
            layout: RefCell::new(Layout::new(format)),
            directories: RefCell::default(),
            readahead,
            buffers: buffers.max(1),
            cache: RefCell::default(),
            writing: Cell::new(0),
            written: Gate::new(time),
            synchronous: Cell::default(),
        }))
    }

    /// Makes a new file in group `home`: writes its inode, then its name, and waits for each.
    pub async fn create(&self, home: u64) -> File {
        let state = &self.0;
        state.processor.serve(state.costs.call).await;
        let inode = state.layout.borrow().inode_block(home);
        let directory = state.directory(home);
        state.load_bitmaps(home).await;
        state.write_and_wait(inode).await;
        state.write_and_wait(directory).await;
        File { home, blocks: Vec::new(), readahead: ReadAhead::new(state.readahead.clone()) }
    }

    /// Reads what a new name's place is looked up in: the directory and the block of inodes.
    pub async fn look_up(&self, home: u64) {
        let state = &self.0;
        let inode = state.layout.borrow().inode_block(home);
        for block in [state.directory(home), inode] {
            let range = state.range(block);
            state.start_read(range, Synchronous);
            state.wait_for(range).await;
        }
    }

    /// Removes a file: writes its directory, then its inode, and waits for each; its group's bitmaps change in the cache.
    pub async fn remove(&self, file: File) {
        let state = &self.0;
        state.processor.serve(state.costs.call).await;
        let inode = state.layout.borrow().inode_block(file.home);
        state.write_and_wait(state.directory(file.home)).await;
        state.write_and_wait(inode).await;
        state.load_bitmaps(file.home).await;
    }

    /// Appends blocks with one system call each. Returns when the last call returns; the disk may still be writing. On
    /// a full disk it ends early: see [`File::blocks`].
    pub async fn write(&self, file: &mut File, blocks: u64) {
        let state = &self.0;
        for _ in 0..blocks {
            state.processor.serve(state.costs.call).await;
            let Some(block) = state.allocate(file).await else { return };
            state.processor.serve(state.costs.block).await;
            state.write_in_background(block).await;
        }
    }

    /// Reads the whole file in order, with one system call for each block.
    pub async fn read(&self, file: &mut File) {
        let state = &self.0;
        for index in 0..file.blocks.len() as u64 {
            state.processor.serve(state.costs.call).await;
            // The block with a waiter is started before those ahead of it.
            state.start_read(state.range(file.blocks[index as usize]), Synchronous);
            for ahead in file.readahead.on_read(BlockNo(index).run(1)).into_iter().flat_map(BlockRange::iter) {
                if let Some(&block) = file.blocks.get(ahead.0 as usize) {
                    state.start_read(state.range(block), Asynchronous);
                }
            }
            state.wait_for(state.range(file.blocks[index as usize])).await;
            state.processor.serve(state.costs.block).await;
        }
    }

    pub async fn settle(&self) {
        self.0.written.until(|| self.0.writing.get() == 0).await;
    }

    /// Empties the cache, as if the file system were mounted anew.
    pub fn forget(&self) {
        self.0.cache.borrow_mut().clear();
    }

    /// Blocks being written without a waiter.
    pub fn writing(&self) -> u64 {
        self.0.writing.get()
    }

    /// System calls' waits for the disk so far.
    pub fn waits(&self) -> Waits {
        self.0.synchronous.get()
    }
}

impl State {
    /// The block of a group's directory, taken at its first use.
    fn directory(&self, home: u64) -> u64 {
        *self.directories.borrow_mut().entry(home).or_insert_with(|| {
            let mut layout = self.layout.borrow_mut();
            let inode = layout.inode_block(home);
            layout.take(inode).unwrap_or(inode)
        })
    }

    /// Allocates the file's next block, and before it the indirect blocks that will point to it.
    async fn allocate(&self, file: &mut File) -> Option<u64> {
        let index = file.blocks.len() as u64;
        let pointers = self.layout.borrow().pointers();
        if index >= DIRECT && (index - DIRECT).is_multiple_of(pointers) {
            // The first of an indirect block; from the second one on, a block of pointers to those comes before it.
            let levels = if index == DIRECT + pointers { 2 } else { 1 };
            for _ in 0..levels {
                let preferred = self.layout.borrow().preferred(file.home, index, &[]);
                let block = self.take(preferred).await?;
                self.write_and_wait(block).await;
            }
        }
        let first = if index < DIRECT { 0 } else { DIRECT + (index - DIRECT) / pointers * pointers };
        let preferred = self.layout.borrow().preferred(file.home, index, &file.blocks[first as usize..]);
        let block = self.take(preferred).await?;
        file.blocks.push(block);
        Some(block)
    }

    /// Allocates a block. The bitmaps of its group must be in the cache; their change stays there.
    async fn take(&self, preferred: u64) -> Option<u64> {
        let group = self.layout.borrow().group_of(preferred);
        self.load_bitmaps(group).await;
        let block = self.layout.borrow_mut().take(preferred)?;
        let found = self.layout.borrow().group_of(block);
        if found != group {
            self.load_bitmaps(found).await;
        }
        Some(block)
    }

    async fn load_bitmaps(&self, group: u64) {
        let bitmaps = self.range(self.layout.borrow().bitmap_block(group));
        let bitmaps = ByteRange { len: bitmaps.len.min(BITMAP_BYTES), ..bitmaps };
        self.start_read(bitmaps, Synchronous);
        self.wait_for(bitmaps).await;
    }

    fn range(&self, block: u64) -> ByteRange {
        let bytes = self.layout.borrow().format().block_bytes;
        ByteRange::new(block * bytes, bytes)
    }

    /// Starts `bread`, or `breada` for a block without a waiter yet.
    fn start_read(&self, range: ByteRange, class: Class) {
        if self.cache.borrow().contains_key(&range.at) {
            return;
        }
        let (id, answer) = self.disk.submit_named(Access::Read, range, class);
        self.cache.borrow_mut().insert(range.at, Buffer::Coming(id, answer));
    }

    /// Waits for a read that was started, and promotes it.
    async fn wait_for(&self, range: ByteRange) {
        let buffer = self.cache.borrow().get(&range.at).cloned();
        let Some(Buffer::Coming(id, answer)) = buffer else { return };
        if !answer.is_given() {
            self.disk.promote(id);
            let issued = self.time.now();
            answer.wait().await;
            self.count_wait(issued);
        }
        self.cache.borrow_mut().insert(range.at, Buffer::Present);
    }

    async fn write_and_wait(&self, block: u64) {
        let (issued, range) = (self.time.now(), self.range(block));
        self.cache.borrow_mut().insert(range.at, Buffer::Present);
        self.disk.write(range, Synchronous).await;
        self.count_wait(issued);
    }

    /// `bawrite`. It waits only for a free buffer.
    async fn write_in_background(self: &Rc<Self>, block: u64) {
        self.written.until(|| self.writing.get() < self.buffers).await;
        let range = self.range(block);
        self.cache.borrow_mut().insert(range.at, Buffer::Present);
        self.writing.set(self.writing.get() + 1);
        let answer = self.disk.submit(Access::Write, range, Asynchronous);
        let state = Rc::clone(self);
        self.time.spawn(async move {
            answer.wait().await;
            state.writing.set(state.writing.get() - 1);
            state.written.open();
        });
    }

    fn count_wait(&self, since: Instant) {
        let Waits { count, time } = self.synchronous.get();
        self.synchronous.set(Waits { count: count + 1, time: time + (self.time.now() - since) });
    }
}

#[cfg(test)]
mod tests;
