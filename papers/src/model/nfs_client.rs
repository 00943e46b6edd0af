//! An NFS client (protocol version 2, RFC 1094): a process that reads or writes a file from start to end, and the block
//! I/O daemons (`biod`) that read ahead and write behind for it.
//!
//! As in the reference port of Sun: an asynchronous block goes to an idle daemon; without one, the process itself does
//! a write, and drops a read-ahead. Calls are never retransmitted, however long they take: the experiments say where
//! that matters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use policy::readahead::{self, ReadAhead};
use policy::unit::{BlockNo, BlockRange};

use super::Virtual;
use super::host::Host;
use super::wait::{Answer, Gate, Mailbox};

/// Bytes of one transfer, the most that version 2 has.
pub const TRANSFER_BYTES: u64 = 8192;

/// Bytes of a READ call: RPC header with a UNIX credential of about 60 bytes (RFC 1057), file handle, arguments.
const READ_CALL_BYTES: u64 = 24 + 8 + 60 + 8 + 32 + 12;
const WRITE_CALL_BYTES: u64 = READ_CALL_BYTES + 4;
/// Bytes of a reply without data: RPC header, status, attributes (RFC 1094, 2.3.5).
const REPLY_BYTES: u64 = 24 + 4 + 68;

pub enum Message {
    Call(Call),
    /// To the client: the answer to complete.
    Reply(Answer<()>),
}

pub struct Call {
    pub procedure: Procedure,
    /// Which block of the file, of [`TRANSFER_BYTES`].
    pub block: u64,
    pub reply: Answer<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Procedure {
    Read,
    /// Writes the block; the reply guarantees that it is on the disk.
    Write,
}

impl Procedure {
    fn call_bytes(self) -> u64 {
        match self {
            Procedure::Read => READ_CALL_BYTES,
            Procedure::Write => WRITE_CALL_BYTES + TRANSFER_BYTES,
        }
    }

    pub fn reply_bytes(self) -> u64 {
        match self {
            Procedure::Read => REPLY_BYTES + 4 + TRANSFER_BYTES,
            Procedure::Write => REPLY_BYTES,
        }
    }
}

/// A process's own work for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// System call and other work for a block.
    pub per_block: Duration,
}

pub struct Client {
    host: Rc<Host<Message>>,
    daemons: Mailbox<(Procedure, u64)>,
    idle: Cell<u32>,
    /// Blocks fetched or being fetched.
    cache: RefCell<BTreeMap<u64, Answer<()>>>,
    writes_behind: Cell<u64>,
    written: Gate,
    time: Virtual,
}

impl Client {
    pub fn new(time: &Virtual, host: &Rc<Host<Message>>, daemons: u32) -> Rc<Self> {
        let client = Rc::new(Client {
            host: Rc::clone(host),
            daemons: Mailbox::new(time),
            idle: Cell::new(daemons),
            cache: RefCell::default(),
            writes_behind: Cell::new(0),
            written: Gate::new(time),
            time: time.clone(),
        });
        for _ in 0..daemons {
            time.spawn(Rc::clone(&client).daemon());
        }
        let receiver = Rc::clone(host);
        time.spawn(async move {
            loop {
                if let Message::Reply(answer) = receiver.receive().await {
                    answer.give(());
                }
            }
        });
        client
    }

    /// Reads blocks from the start of the file, as a process does, with that read-ahead.
    pub async fn read_file(&self, blocks: u64, config: readahead::Config, process: Process) {
        let mut ahead = ReadAhead::new(config);
        for block in 0..blocks {
            let wanted = ahead.on_read(BlockNo(block).run(1));
            let fetched = self.cache.borrow().get(&block).cloned();
            if fetched.is_none() {
                // `breada` waits inside of the first strategy call, for the network has no queue of its own.
                self.call(Procedure::Read, block).await;
            }
            for block in wanted.into_iter().flat_map(BlockRange::iter).filter(|block| block.0 < blocks) {
                self.read_ahead(block.0);
            }
            if let Some(fetched) = fetched {
                fetched.wait().await;
                self.cache.borrow_mut().remove(&block);
            }
            self.host.compute(process.per_block + self.host.costs().copy(TRANSFER_BYTES)).await;
        }
    }

    /// Writes blocks from the start of the file, and closes it, which waits for all of them.
    pub async fn write_file(&self, blocks: u64, process: Process) {
        for block in 0..blocks {
            self.host.compute(process.per_block + self.host.costs().copy(TRANSFER_BYTES)).await;
            if self.hand_over(Procedure::Write, block) {
                self.writes_behind.set(self.writes_behind.get() + 1);
            } else {
                self.call(Procedure::Write, block).await;
            }
        }
        self.written.until(|| self.writes_behind.get() == 0).await;
    }

    fn read_ahead(&self, block: u64) {
        if !self.cache.borrow().contains_key(&block) && self.hand_over(Procedure::Read, block) {
            self.cache.borrow_mut().insert(block, Answer::new(&self.time));
        }
    }

    /// Gives a block to an idle daemon, if there is one.
    fn hand_over(&self, procedure: Procedure, block: u64) -> bool {
        if self.idle.get() == 0 {
            return false;
        }
        self.idle.set(self.idle.get() - 1);
        self.daemons.send((procedure, block));
        true
    }

    async fn daemon(self: Rc<Self>) {
        loop {
            let (procedure, block) = self.daemons.receive().await;
            self.call(procedure, block).await;
            self.idle.set(self.idle.get() + 1);
            match procedure {
                Procedure::Read => {
                    let fetched = self.cache.borrow().get(&block).cloned();
                    if let Some(fetched) = fetched {
                        fetched.give(());
                    }
                }
                Procedure::Write => {
                    self.writes_behind.set(self.writes_behind.get() - 1);
                    self.written.open();
                }
            }
        }
    }

    async fn call(&self, procedure: Procedure, block: u64) {
        let costs = self.host.costs();
        self.host.compute(costs.rpc / 2).await;
        let reply = Answer::new(&self.time);
        self.host.send(Message::Call(Call { procedure, block, reply: reply.clone() }), procedure.call_bytes());
        reply.wait().await;
        let copied = if procedure == Procedure::Read { costs.copy(TRANSFER_BYTES) } else { Duration::ZERO };
        self.host.compute(costs.rpc / 2 + copied).await;
    }
}
