//! NFS server processes (`nfsd`), as in section 5 of *Improved Performance of Workstation Unix Kernel* (Tezuka).
//!
//! Before: a write holds the inode's lock over three synchronous disk writes (block allocation, data, inode), so that the
//! processes go one after another. After: the data is written asynchronously, allocation and inode are only changed in
//! memory, the lock is released, and the processes meet: when `policy::gather` says so, one of them writes what was changed
//! for all who have come, and all reply.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use policy::gather::{Gather, Start};
use policy::readahead::{self, ReadAhead};
use policy::unit::{ByteOffset, ByteRange, Class, Instant};

use super::Virtual;
use super::host::Host;
use super::nfs_client::{Call, Message, Procedure, TRANSFER_BYTES};
use super::wait::{Answer, Gate, Resource};

/// What the file lies on.
pub trait Store: 'static {
    /// Reads a range.
    fn read(&self, range: ByteRange, class: Class) -> impl Future<Output = ()>;
    /// Writes a range; done when it is on the medium.
    fn write(&self, range: ByteRange, class: Class) -> impl Future<Output = ()>;
}

/// Where a file's blocks lie on the disk, each of [`TRANSFER_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The block that holds its inode.
    pub inode: ByteOffset,
    /// Data, in order.
    pub data: Vec<ByteOffset>,
    /// For each data block what is written for its allocation: the block that points to it.
    pub allocation: Vec<ByteOffset>,
}

/// How the server does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Server processes.
    pub processes: u32,
    /// Do writes meet, or does each do its three disk accesses under the lock?
    pub gather: bool,
    /// Is the file in the server's memory when it is read?
    pub cached: bool,
    /// How far the server itself reads ahead on its disk.
    pub read_ahead: readahead::Mode,
}

/// What happened at the server, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// What.
    pub what: Happening,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A write was acknowledged.
    Acknowledged,
    /// Something was asked of the disk: one block written or read.
    Asked,
    /// The flush of a group of so many writes ended.
    Flushed(u32),
}

/// The server's side of one file.
pub struct Server<S> {
    time: Virtual,
    host: Rc<Host<Message>>,
    store: Rc<S>,
    place: Placement,
    config: Config,
    inode: Resource,
    rendezvous: Rendezvous,
    reader: RefCell<ReadAhead>,
    /// Blocks being read, or read and not asked for yet.
    buffers: RefCell<std::collections::BTreeMap<u64, Answer<()>>>,
    events: RefCell<Vec<Event>>,
}

/// Where those meet who want what they changed to be on the disk.
struct Rendezvous {
    policy: RefCell<Gather>,
    leading: Cell<bool>,
    forming: RefCell<Answer<()>>,
    changed: RefCell<BTreeSet<u64>>,
    somebody_came: Gate,
}

impl<S: Store> Server<S> {
    /// A server of one file with its processes.
    pub fn new(time: &Virtual, host: &Rc<Host<Message>>, store: Rc<S>, place: Placement, config: Config) -> Rc<Self> {
        let rendezvous = Rendezvous {
            policy: RefCell::new(Gather::new()),
            leading: Cell::new(false),
            forming: RefCell::new(Answer::new(time)),
            changed: RefCell::default(),
            somebody_came: Gate::new(time),
        };
        let reads = readahead::Config { mode: config.read_ahead, ..readahead::Config::default() };
        let server = Rc::new(Server {
            time: time.clone(),
            host: Rc::clone(host),
            store,
            place,
            inode: Resource::new(time, 1),
            rendezvous,
            reader: RefCell::new(ReadAhead::new(reads)),
            buffers: RefCell::default(),
            events: RefCell::default(),
            config,
        });
        for _ in 0..server.config.processes {
            time.spawn(Rc::clone(&server).process());
        }
        server
    }

    /// What happened so far, in order.
    pub fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
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
                self.note(Happening::Acknowledged);
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
        self.rendezvous.policy.borrow_mut().on_announced(self.time.now());
        let lock = self.inode.acquire().await;
        self.host.compute(self.host.costs().copy(TRANSFER_BYTES)).await;
        let there = Answer::new(&self.time);
        let (server, told, data) = (Rc::clone(self), there.clone(), self.place.data[block as usize]);
        self.time.spawn(async move {
            server.put(data, Class::Asynchronous).await;
            told.give(());
        });
        drop(lock);
        there.wait().await;
        let meeting = &self.rendezvous;
        meeting.changed.borrow_mut().extend([self.place.allocation[block as usize].0, self.place.inode.0]);
        let round = meeting.forming.borrow().clone();
        meeting.policy.borrow_mut().on_there();
        meeting.policy.borrow_mut().on_arrival(self.time.now());
        meeting.somebody_came.open();
        if !meeting.leading.replace(true) {
            self.time.spawn(Rc::clone(self).lead());
        }
        round.wait().await;
    }

    /// Flushes for those who have come, then for the group that formed meanwhile, until nobody came.
    async fn lead(self: Rc<Self>) {
        let meeting = &self.rendezvous;
        loop {
            let start = meeting.policy.borrow_mut().start(self.time.now());
            if let Start::At(at) = start {
                let (time, gate) = (self.time.clone(), meeting.somebody_came.clone());
                self.time.spawn(async move {
                    time.sleep_until(at).await;
                    gate.open();
                });
                meeting.somebody_came.wait().await;
                continue;
            }
            let group = meeting.policy.borrow_mut().on_start(self.time.now());
            let round = meeting.forming.replace(Answer::new(&self.time));
            self.flush(std::mem::take(&mut *meeting.changed.borrow_mut())).await;
            meeting.policy.borrow_mut().on_end(self.time.now());
            self.note(Happening::Flushed(group));
            round.give(());
            self.time.yield_now().await;
            if meeting.policy.borrow().forming() == 0 {
                meeting.leading.set(false);
                return;
            }
        }
    }

    /// Writes these blocks, all asked for at once.
    async fn flush(self: &Rc<Self>, changed: BTreeSet<u64>) {
        let mut ends = Vec::new();
        for at in changed {
            let (server, end) = (Rc::clone(self), Answer::new(&self.time));
            ends.push(end.clone());
            self.time.spawn(async move {
                server.put(ByteOffset(at), Class::Synchronous).await;
                end.give(());
            });
        }
        for end in ends {
            end.wait().await;
        }
    }

    async fn read(self: &Rc<Self>, block: u64) {
        if !self.config.cached {
            let ahead = self.reader.borrow_mut().on_read(block..block + 1);
            let wanted = self.fetch(block, Class::Synchronous);
            let blocks = self.place.data.len() as u64;
            for block in ahead.into_iter().flatten().filter(|block| *block < blocks) {
                self.fetch(block, Class::Asynchronous);
            }
            wanted.wait().await;
        }
        self.host.compute(self.host.costs().copy(TRANSFER_BYTES)).await;
    }

    /// The buffer of that block, read from the disk if it was not yet.
    fn fetch(self: &Rc<Self>, block: u64, class: Class) -> Answer<()> {
        if let Some(known) = self.buffers.borrow().get(&block) {
            return known.clone();
        }
        let answer = Answer::new(&self.time);
        self.buffers.borrow_mut().insert(block, answer.clone());
        let (server, told, at) = (Rc::clone(self), answer.clone(), self.place.data[block as usize]);
        self.time.spawn(async move {
            server.note(Happening::Asked);
            server.store.read(ByteRange::new(at.0, TRANSFER_BYTES), class).await;
            server.host.compute(server.host.costs().disk_access).await;
            told.give(());
        });
        answer
    }

    async fn put(&self, at: ByteOffset, class: Class) {
        self.note(Happening::Asked);
        self.store.write(ByteRange::new(at.0, TRANSFER_BYTES), class).await;
        self.host.compute(self.host.costs().disk_access).await;
    }

    fn note(&self, what: Happening) {
        self.events.borrow_mut().push(Event { at: self.time.now(), what });
    }
}
