//! NFS server processes (`nfsd`), as in section 5 of *Improved Performance of Workstation Unix Kernel* (Tezuka).
//!
//! Before: a write holds the inode's lock during three synchronous disk writes (block allocation, data, inode), so that
//! the processes run one after another. After: the data is written asynchronously, allocation and inode are changed in
//! memory only, the lock is released, and the processes meet: when `policy::gather` decides so, one of them writes the
//! changes of all that have arrived, and all reply.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use policy::gather::{Gather, Start};
use policy::queue::RequestId;
use policy::readahead::{self, ReadAhead};
use policy::unit::{BlockNo, BlockRange, ByteOffset, ByteRange, Class, Instant};

use super::Virtual;
use super::disk::Disk;
use super::host::Host;
use super::nfs_client::{Call, Message, Procedure, TRANSFER_BYTES};
use super::wait::{Answer, Gate, Resource};
use crate::drive::Access;

/// Where a file's blocks lie on the disk, each of [`TRANSFER_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub inode: ByteOffset,
    pub data: Vec<ByteOffset>,
    /// For each data block, the block that points to it and is written for its allocation.
    pub allocation: Vec<ByteOffset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub processes: u32,
    /// Do writes meet, or does each do its three disk accesses under the lock?
    pub gather: bool,
    /// Is the file in the server's memory when it is read?
    pub cached: bool,
    /// The server's own read-ahead on its disk.
    pub read_ahead: readahead::Mode,
}

/// The end of a group's flush, for plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    pub at: Instant,
    pub writes: u32,
}

pub struct Server {
    time: Virtual,
    host: Rc<Host<Message>>,
    disk: Disk,
    place: Placement,
    config: Config,
    inode: Resource,
    rendezvous: Rendezvous,
    reader: RefCell<ReadAhead>,
    buffers: RefCell<BTreeMap<u64, (RequestId, Answer<()>)>>,
    acknowledged: RefCell<Vec<Instant>>,
    flushed: RefCell<Vec<Flushed>>,
}

/// Where processes meet whose changes must reach the disk.
struct Rendezvous {
    policy: RefCell<Gather>,
    /// A process flushes, or is about to.
    leading: Cell<bool>,
    wanted: RefCell<Group>,
    arrival: Gate,
}

/// The processes that share one flush.
struct Group {
    changed: BTreeSet<u64>,
    /// Data blocks being written.
    data: Vec<Answer<()>>,
    done: Answer<()>,
}

impl Group {
    fn new(time: &Virtual) -> Self {
        Group { changed: BTreeSet::new(), data: Vec::new(), done: Answer::new(time) }
    }
}

impl Server {
    pub fn new(time: &Virtual, host: &Rc<Host<Message>>, disk: &Disk, place: Placement, config: Config) -> Rc<Self> {
        let rendezvous = Rendezvous {
            policy: RefCell::new(Gather::default()),
            leading: Cell::new(false),
            wanted: RefCell::new(Group::new(time)),
            arrival: Gate::new(time),
        };
        let reads = readahead::Config { mode: config.read_ahead, ..readahead::Config::default() };
        let server = Rc::new(Server {
            time: time.clone(),
            host: Rc::clone(host),
            disk: disk.clone(),
            place,
            inode: Resource::new(time, 1),
            rendezvous,
            reader: RefCell::new(ReadAhead::new(reads)),
            buffers: RefCell::default(),
            acknowledged: RefCell::default(),
            flushed: RefCell::default(),
            config,
        });
        for _ in 0..server.config.processes {
            time.spawn(Rc::clone(&server).process());
        }
        server
    }

    pub fn acknowledged(&self) -> Vec<Instant> {
        self.acknowledged.borrow().clone()
    }

    pub fn flushed(&self) -> Vec<Flushed> {
        self.flushed.borrow().clone()
    }

    async fn process(self: Rc<Self>) {
        loop {
            let Message::Call(Call { procedure, block, reply }) = self.host.receive().await else { continue };
            let rpc = self.host.costs().rpc;
            self.host.compute(rpc / 2).await;
            match procedure {
                Procedure::Read => self.read(block).await,
                Procedure::Write if self.config.gather => self.write_gathered(block).await,
                Procedure::Write => self.write_through(block).await,
            }
            if procedure == Procedure::Write {
                self.acknowledged.borrow_mut().push(self.time.now());
            }
            self.host.compute(rpc / 2).await;
            self.host.send(Message::Reply(reply), procedure.reply_bytes());
        }
    }

    /// The paper's listing before: (2) lock, (3) allocate, (4) data, (5) inode, (6) unlock.
    async fn write_through(&self, block: u64) {
        let lock = self.inode.acquire().await;
        self.host.compute(self.host.costs().copy(TRANSFER_BYTES)).await;
        for at in [self.place.allocation[block as usize], self.place.data[block as usize], self.place.inode] {
            self.put(at, Class::Synchronous).await;
        }
        drop(lock);
    }

    /// The paper's listing after: (2) to (6) without waiting for the disk, (12) rendezvous, (13) flush.
    async fn write_gathered(self: &Rc<Self>, block: u64) {
        let meeting = &self.rendezvous;
        meeting.policy.borrow_mut().on_data_issued(self.time.now(), 1);
        let lock = self.inode.acquire().await;
        self.host.compute(self.host.costs().copy(TRANSFER_BYTES)).await;
        let data = self.begin_put(self.place.data[block as usize], Class::Asynchronous);
        drop(lock);
        let done = {
            let mut wanted = meeting.wanted.borrow_mut();
            wanted.changed.extend([self.place.allocation[block as usize].0, self.place.inode.0]);
            wanted.data.push(data);
            wanted.done.clone()
        };
        meeting.policy.borrow_mut().on_data_done(self.time.now(), 1);
        meeting.policy.borrow_mut().on_arrival(self.time.now(), 1);
        meeting.arrival.open();
        if !meeting.leading.replace(true) {
            self.time.spawn(Rc::clone(self).lead());
        }
        done.wait().await;
    }

    /// Flushes for the group that has arrived, then for those that formed meanwhile, until none has.
    async fn lead(self: Rc<Self>) {
        let meeting = &self.rendezvous;
        while meeting.policy.borrow().waiting() > 0 {
            let start = meeting.policy.borrow().start(self.time.now());
            if let Start::At(at) = start {
                meeting.arrival.wait_until(at).await;
                continue;
            }
            let writes = meeting.policy.borrow_mut().on_start(self.time.now());
            let group = meeting.wanted.replace(Group::new(&self.time));
            for data in group.data {
                data.wait().await;
            }
            let changed: Vec<_> =
                group.changed.iter().map(|at| self.begin_put(ByteOffset(*at), Class::Synchronous)).collect();
            for written in changed {
                written.wait().await;
            }
            meeting.policy.borrow_mut().on_end(self.time.now());
            self.flushed.borrow_mut().push(Flushed { at: self.time.now(), writes });
            group.done.give(());
            self.time.yield_now().await;
        }
        meeting.leading.set(false);
    }

    async fn read(self: &Rc<Self>, block: u64) {
        if !self.config.cached {
            let ahead = self.reader.borrow_mut().on_read(BlockNo(block).run(1));
            let wanted = self.fetch(block, Class::Synchronous);
            let blocks = self.place.data.len() as u64;
            for block in ahead.into_iter().flat_map(BlockRange::iter).filter(|block| block.0 < blocks) {
                self.fetch(block.0, Class::Asynchronous);
            }
            wanted.wait().await;
        }
        self.host.compute(self.host.costs().copy(TRANSFER_BYTES)).await;
    }

    /// The buffer of that block, read from the disk if necessary.
    fn fetch(self: &Rc<Self>, block: u64, class: Class) -> Answer<()> {
        if let Some((id, known)) = self.buffers.borrow().get(&block) {
            if class == Class::Synchronous && !known.is_given() {
                self.disk.promote(*id);
            }
            return known.clone();
        }
        let range = ByteRange { at: self.place.data[block as usize], len: TRANSFER_BYTES };
        let (id, read) = self.disk.submit_named(Access::Read, range, class);
        let server = Rc::clone(self);
        let answer = Answer::of(&self.time, async move {
            read.wait().await;
            server.host.compute(server.host.costs().disk_access).await;
        });
        self.buffers.borrow_mut().insert(block, (id, answer.clone()));
        answer
    }

    fn begin_put(self: &Rc<Self>, at: ByteOffset, class: Class) -> Answer<()> {
        let server = Rc::clone(self);
        Answer::of(&self.time, async move { server.put(at, class).await })
    }

    async fn put(&self, at: ByteOffset, class: Class) {
        self.disk.write(ByteRange { at, len: TRANSFER_BYTES }, class).await;
        self.host.compute(self.host.costs().disk_access).await;
    }
}
