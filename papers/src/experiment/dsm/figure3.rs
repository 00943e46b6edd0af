//! Figure 3: a file read from start to end, from each medium.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::model::disk::Disk;
use crate::model::ethernet::{self, Ethernet};
use crate::model::host::{Costs, Host};
use crate::model::wait::Answer;
use crate::model::{Simulation, Virtual};
use policy::queue;
use policy::unit::{ByteRange, Class, Instant};

use super::machine::Machine;

/// Where the time of a shared page's reader goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    pub(super) kernel: Duration,
    pub(super) bus: Duration,
    pub(super) network: Duration,
}

impl Shares {
    pub(super) fn total(&self) -> Duration {
        self.kernel + self.bus + self.network
    }

    /// Percentages of the total: kernel, bus, network.
    pub(super) fn percent(&self) -> [f64; 3] {
        let total = self.total().as_secs_f64();
        [self.kernel, self.bus, self.network].map(|part| part.as_secs_f64() / total * 100.0)
    }
}

/// The shared RAM disk through the file system. The driver requests all pages of a block, waits for the last, and
/// copies them from the board into the kernel's buffer: nothing overlaps (the paper's shares add up to 100 %).
pub(super) fn shared(machine: &Machine, is_remote: bool) -> Shares {
    let (mut network, mut shares) = (machine.own_network(), Shares::default());
    let pages = machine.block_bytes.div_ceil(machine.board.page_bytes) as u32;
    // One wait of a block is part of what a page costs the kernel.
    let more_waits = pages.div_ceil(machine.board.commands.max(1)) - 1;
    for _ in 0..machine.blocks() {
        shares.kernel += machine.kernel(machine.block_bytes);
        if is_remote {
            shares.kernel += machine.kernel_wakeup * more_waits;
        }
        if is_remote {
            let now = Instant::ZERO + shares.total();
            let fetched = machine.board.fetch(network.as_mut(), now, 1, 0, pages);
            shares.bus += fetched.bus;
            shares.network += fetched.network;
        }
        shares.bus += machine.board.copy(machine.block_bytes);
    }
    shares
}

/// The same memory mapped into the process, which reads it in place: a fault for each page, and no copy but the words
/// that the process reads over the bus.
pub(super) fn mapped(machine: &Machine, is_remote: bool) -> Shares {
    let (mut network, mut shares) = (machine.own_network(), Shares::default());
    for _ in 0..machine.file_bytes.div_ceil(machine.board.page_bytes) {
        shares.kernel += machine.kernel_fault;
        if is_remote {
            let now = Instant::ZERO + shares.total();
            let fetched = machine.board.fetch(network.as_mut(), now, 1, 0, 1);
            shares.bus += fetched.bus;
            shares.network += fetched.network;
        }
        shares.bus += machine.board.copy(machine.board.page_bytes);
    }
    shares
}

/// A RAM disk in the kernel's memory: its driver copies into the buffer as the other does, but from memory.
pub(super) fn ram_disk(machine: &Machine) -> Duration {
    let block = machine.kernel(machine.block_bytes) + machine.copy(machine.block_bytes);
    block * machine.blocks() as u32
}

/// Blocks that a Berkeley file system places next to the inode; the pointers to all others, and these blocks, lie in
/// another cylinder group (Leffler et al. 1989).
const DIRECT_BLOCKS: u64 = 12;
/// Approximate distance of every second cylinder group, in bytes: 16 cylinders a group (newfs(8)).
const GROUP_BYTES: u64 = 12 << 20;

/// A file on a disk that a process or a server reads in order.
struct DiskFile {
    disk: Disk,
    block_bytes: u64,
    blocks: u64,
    ahead: u64,
    /// Blocks requested and not taken yet.
    requested: RefCell<BTreeMap<u64, Answer<Instant>>>,
    is_open: Cell<bool>,
    has_pointers: Cell<bool>,
}

impl DiskFile {
    fn new(time: &Virtual, machine: &Machine) -> Rc<Self> {
        // SunOS 4.1 sorts requests and issues them one at a time, block by block.
        let config =
            queue::Config { merge: false, priority: false, elevator: true, depth: 1, ..queue::Config::default() };
        Rc::new(DiskFile {
            disk: Disk::new(time, machine.drive, config),
            block_bytes: machine.block_bytes,
            blocks: machine.blocks(),
            ahead: machine.ahead,
            requested: RefCell::default(),
            is_open: Cell::new(false),
            has_pointers: Cell::new(false),
        })
    }

    fn range(&self, block: u64) -> ByteRange {
        let group =
            if block < DIRECT_BLOCKS { GROUP_BYTES } else { 3 * GROUP_BYTES - DIRECT_BLOCKS * self.block_bytes };
        // Behind the inode, or behind the block of pointers.
        ByteRange::new(group + (block + 1) * self.block_bytes, self.block_bytes)
    }

    fn ask(&self, block: u64) {
        let is_reachable = block < DIRECT_BLOCKS || self.has_pointers.get();
        if block < self.blocks && is_reachable && !self.requested.borrow().contains_key(&block) {
            let answer = self.disk.submit(crate::drive::Access::Read, self.range(block), Class::Synchronous);
            self.requested.borrow_mut().insert(block, answer);
        }
    }

    /// Waits for a block, and reads ahead of it. The first read opens the file, with nothing cached.
    async fn read(&self, block: u64) {
        if !self.is_open.replace(true) {
            // The directory's block, then the inode.
            self.disk.read(ByteRange::new(0, self.block_bytes), Class::Synchronous).await;
            self.disk.read(ByteRange::new(GROUP_BYTES, self.block_bytes), Class::Synchronous).await;
        }
        if block >= DIRECT_BLOCKS && !self.has_pointers.replace(true) {
            self.disk.read(ByteRange::new(3 * GROUP_BYTES, self.block_bytes), Class::Synchronous).await;
        }
        (block..=block + self.ahead).for_each(|wanted| self.ask(wanted));
        let answer = self.requested.borrow().get(&block).cloned();
        if let Some(answer) = answer {
            answer.wait().await;
        }
        self.requested.borrow_mut().remove(&block);
    }
}

/// A SCSI disk under the Berkeley file system.
pub(super) fn disk(machine: &Machine, seed: u64) -> Duration {
    let run = Simulation::new(seed);
    let (file, time) = (DiskFile::new(&run, machine), run.clone());
    let (blocks, block) = (machine.blocks(), machine.disk_access + machine.kernel(machine.block_bytes));
    run.spawn(async move {
        for number in 0..blocks {
            file.read(number).await;
            time.sleep(block).await;
        }
    });
    run.run();
    run.now().since(Instant::ZERO)
}

enum Datagram {
    Read(u64, Answer<()>),
    Data(Answer<()>),
}

/// Bytes of a READ call and of its reply without data: headers, credential, handle, attributes (RFC 1057, RFC 1094).
const CALL_BYTES: u64 = 144;
const REPLY_BYTES: u64 = 100;
const DAEMONS: u32 = 4;

/// NFS over Ethernet, from another workstation with such a disk.
pub(super) fn nfs(machine: &Machine, seed: u64) -> Duration {
    let run = Simulation::new(seed);
    let config = ethernet::Config { bits_per_second: machine.ethernet_bits_per_second, mtu_bytes: 1500 };
    let wire = Ethernet::new(&run, config);
    let costs = Costs {
        rpc: machine.rpc,
        frame: machine.frame,
        copy_bytes_per_second: machine.copy_bytes_per_second,
        // Included in the cost of a frame.
        interface_bytes_per_second: u64::MAX,
        checksum_bytes_per_second: None,
        disk_access: machine.disk_access,
    };
    let (client, server) = (Host::new(&run, &wire, 1, costs), Host::new(&run, &wire, 1, costs));
    client.connect(&run, &server);
    server.connect(&run, &client);
    serve(&run, machine, &server);
    let time = run.clone();
    let (blocks, ahead, block) = (machine.blocks(), machine.ahead, machine.kernel(machine.block_bytes));
    let replies = Rc::clone(&client);
    run.spawn(async move {
        loop {
            if let Datagram::Data(answer) = replies.receive().await {
                answer.give(());
            }
        }
    });
    let ended = run.complete(async move {
        let mut requested: BTreeMap<u64, Answer<()>> = BTreeMap::new();
        for number in 0..blocks {
            for wanted in number..(number + ahead + 1).min(blocks) {
                requested.entry(wanted).or_insert_with(|| call(&time, &client, wanted));
            }
            if let Some(answer) = requested.remove(&number) {
                answer.wait().await;
            }
            client.compute(block).await;
        }
        time.now()
    });
    ended.unwrap_or_default().since(Instant::ZERO)
}

/// A process or a block I/O daemon requests a block.
fn call(time: &Virtual, client: &Rc<Host<Datagram>>, block: u64) -> Answer<()> {
    let (answer, client) = (Answer::new(time), Rc::clone(client));
    let given = answer.clone();
    time.spawn(async move {
        client.compute(client.costs().rpc).await;
        client.send(Datagram::Read(block, given), CALL_BYTES);
    });
    answer
}

fn serve(time: &Virtual, machine: &Machine, server: &Rc<Host<Datagram>>) {
    let file = DiskFile::new(time, machine);
    let (block_bytes, work) = (machine.block_bytes, machine.kernel(machine.block_bytes) + machine.disk_access);
    for _ in 0..DAEMONS {
        let (server, file) = (Rc::clone(server), Rc::clone(&file));
        time.spawn(async move {
            loop {
                let Datagram::Read(block, answer) = server.receive().await else { continue };
                server.compute(server.costs().rpc).await;
                file.read(block).await;
                server.compute(work).await;
                server.send(Datagram::Data(answer), REPLY_BYTES + block_bytes);
            }
        });
    }
}
