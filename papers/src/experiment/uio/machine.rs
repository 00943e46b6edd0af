//! The server: processors, the shootdown of their translation buffers, and solid state disks behind host adapters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::model::wait::Resource;
use crate::model::{Simulation, Virtual};

/// What is done with the buffer of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Not mapped: FreeBSD 10.
    Unmapped,
    /// Mapped before, unmapped after with a shootdown; at both ends, if the server [has it so](Server::shoots_twice).
    Mapped,
    /// With a shootdown when it is mapped, too.
    ShotDownTwice,
    /// Unmapped in batches of this size on each processor, with one shootdown.
    Batched(u32),
    /// One I/O in so many is of metadata, which the kernel looks into: mapped. The others are not.
    Metadata(u32),
    /// On every second disk, whose driver cannot do without a mapping.
    HalfOfDrivers,
}

/// Costs in nanoseconds, and counts.
#[derive(Clone, Debug)]
pub struct Server {
    pub processors: usize,
    /// Processors of one socket.
    pub socket: usize,
    /// Threads that read, evenly over processors and disks.
    pub threads: usize,
    /// Processor time of an I/O, one half before and one after the disk.
    pub io_ns: u64,
    /// Is there a shootdown when a buffer is mapped, too?
    pub shoots_twice: bool,
    /// To map or unmap a buffer, without the shootdown.
    pub map_ns: u64,
    /// From the order to interrupt all others until they are.
    pub deliver_ns: u64,
    /// An interrupted processor's time before and after the counter.
    pub trap_ns: u64,
    /// To fetch a cache line for writing from a processor of the same socket.
    pub near_ns: u64,
    /// To fetch a cache line for writing from another socket.
    pub far_ns: u64,
    pub adapters: usize,
    /// One I/O of an adapter.
    pub adapter_ns: u64,
    /// Disks, evenly on the adapters.
    pub disks: usize,
    /// One I/O of a disk, when many are in flight.
    pub disk_ns: u64,
    /// Additional latency of an I/O on a disk, all in parallel.
    pub latency_ns: u64,
    /// A disk in memory: no adapter, and the processor moves the data itself, for so long.
    pub copy_ns: Option<u64>,
    /// Pause of each thread after an I/O: a fixed rate of requests.
    pub pause_ns: u64,
    /// Measured rounds, after a first one: a round is as many I/O as there are threads.
    pub rounds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub rate: f64,
    pub shootdowns: f64,
    /// Percent of the processors' time: work for I/O.
    pub work: f64,
    /// Percent: waiting for the lock of the shootdown.
    pub lock: f64,
    /// Percent: waiting for the others' answers.
    pub answers: f64,
    /// Percent: interrupted for the shootdowns of others, while it had work.
    pub interrupted: f64,
    /// Mean time of an I/O, from its request to its end. Microseconds.
    pub latency_us: f64,
}

#[derive(Default)]
struct Sums {
    ios: Cell<u64>,
    shootdowns: Cell<u64>,
    work_ns: Cell<u64>,
    lock_ns: Cell<u64>,
    answers_ns: Cell<u64>,
    interrupted_ns: Cell<u64>,
    latency_ns: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

pub fn run(server: &Server, buffers: Buffers, seed: u64) -> Outcome {
    let simulation = Simulation::new(seed);
    let time: &Virtual = &simulation;
    let many = |count: usize| (0..count).map(|_| Resource::new(time, 1)).collect::<Vec<_>>();
    let machine = Rc::new(Machine {
        server: server.clone(),
        buffers,
        time: time.clone(),
        processors: many(server.processors),
        interrupted_ns: vec![Cell::new(0); server.processors],
        unmapped: vec![Cell::new(0); server.processors],
        shootdown: Resource::new(time, 1),
        last: Cell::new(0),
        adapters: many(server.adapters),
        disks: many(server.disks),
        sums: RefCell::default(),
    });
    for thread in 0..server.threads {
        let machine = Rc::clone(&machine);
        simulation.spawn(async move { machine.read_for_ever(thread).await });
    }
    // At first threads leave the start in step. Later, too, those of a processor tend to be all before their disks or
    // all after them, so whole rounds are measured.
    let until = |ios: u64| simulation.run_while(|| machine.sums.borrow().ios.get() < ios);
    until(server.threads as u64);
    *machine.sums.borrow_mut() = Rc::default();
    let start = simulation.now();
    until(server.threads as u64 * server.rounds);
    let sums = Rc::clone(&machine.sums.borrow());
    let measured_ns = (simulation.now() - start).as_nanos() as f64;
    let second = 1e9 / measured_ns;
    let percent = |ns: &Cell<u64>| ns.get() as f64 * 100.0 / (measured_ns * server.processors as f64);
    Outcome {
        rate: sums.ios.get() as f64 * second,
        shootdowns: sums.shootdowns.get() as f64 * second,
        work: percent(&sums.work_ns),
        lock: percent(&sums.lock_ns),
        answers: percent(&sums.answers_ns),
        interrupted: percent(&sums.interrupted_ns),
        latency_us: sums.latency_ns.get() as f64 / 1e3 / sums.ios.get().max(1) as f64,
    }
}

struct Machine {
    server: Server,
    buffers: Buffers,
    time: Virtual,
    processors: Vec<Resource>,
    /// Time that each processor has spent in others' shootdowns.
    interrupted_ns: Vec<Cell<u64>>,
    /// Buffers of each processor that wait for a shootdown.
    unmapped: Vec<Cell<u32>>,
    /// `smp_ipi_mtx`: one shootdown at a time in the whole machine.
    shootdown: Resource,
    /// The processor that had the lock last.
    last: Cell<usize>,
    adapters: Vec<Resource>,
    disks: Vec<Resource>,
    sums: RefCell<Rc<Sums>>,
}

impl Machine {
    async fn read_for_ever(&self, thread: usize) {
        let server = &self.server;
        let (processor, disk) = (thread % server.processors, thread % server.disks);
        // Staggered starts.
        self.time.sleep(Duration::from_nanos(self.time.below(server.latency_ns + 1))).await;
        let mut number = thread as u32;
        loop {
            let requested = self.time.now();
            number = number.wrapping_add(1);
            let mapping = self.mapping(disk, number);
            let held = self.processors[processor].acquire().await;
            self.work(processor, server.io_ns / 2).await;
            self.map(processor, mapping).await;
            if let Some(copy_ns) = server.copy_ns {
                self.work(processor, copy_ns).await;
            }
            drop(held);
            if server.copy_ns.is_none() {
                self.adapters[disk % server.adapters].serve(Duration::from_nanos(server.adapter_ns)).await;
                self.disks[disk].serve(Duration::from_nanos(server.disk_ns)).await;
                self.time.sleep(Duration::from_nanos(server.latency_ns)).await;
            }
            let held = self.processors[processor].acquire().await;
            self.work(processor, server.io_ns / 2).await;
            self.unmap(processor, mapping).await;
            drop(held);
            let sums = Rc::clone(&self.sums.borrow());
            add(&sums.ios, 1);
            add(&sums.latency_ns, (self.time.now() - requested).as_nanos() as u64);
            if server.pause_ns > 0 {
                self.time.sleep(Duration::from_nanos(server.pause_ns)).await;
            }
        }
    }

    /// What is done with the buffer of this I/O.
    fn mapping(&self, disk: usize, number: u32) -> Buffers {
        match self.buffers {
            Buffers::Metadata(one_in) if number.is_multiple_of(one_in) => Buffers::Mapped,
            Buffers::HalfOfDrivers if disk.is_multiple_of(2) => Buffers::Mapped,
            Buffers::Metadata(_) | Buffers::HalfOfDrivers => Buffers::Unmapped,
            all => all,
        }
    }

    async fn map(&self, processor: usize, mapping: Buffers) {
        if mapping == Buffers::Unmapped {
            return;
        }
        self.work(processor, self.server.map_ns).await;
        if mapping == Buffers::ShotDownTwice || (mapping == Buffers::Mapped && self.server.shoots_twice) {
            self.shoot_down(processor).await;
        }
    }

    async fn unmap(&self, processor: usize, mapping: Buffers) {
        if mapping == Buffers::Unmapped {
            return;
        }
        self.work(processor, self.server.map_ns).await;
        let waiting = &self.unmapped[processor];
        waiting.set(waiting.get() + 1);
        let at_once = if let Buffers::Batched(count) = mapping { count } else { 1 };
        if waiting.get() >= at_once {
            waiting.set(0);
            self.shoot_down(processor).await;
        }
    }

    /// Works for `ns`, plus the time of interruptions meanwhile.
    async fn work(&self, processor: usize, ns: u64) {
        add(&self.sums.borrow().work_ns, ns);
        let interrupted = &self.interrupted_ns[processor];
        let (mut seen, mut left_ns) = (interrupted.get(), ns);
        while left_ns > 0 {
            self.time.sleep(Duration::from_nanos(left_ns)).await;
            left_ns = interrupted.get() - seen;
            seen += left_ns;
            add(&self.sums.borrow().interrupted_ns, left_ns);
        }
    }

    /// All other processors drop a translation. A waiter for the lock spins with interrupts enabled; the holder spins
    /// until all have counted themselves.
    async fn shoot_down(&self, processor: usize) {
        let server = &self.server;
        if server.processors == 1 {
            return;
        }
        let requested = self.time.now();
        let lock = self.shootdown.acquire().await;
        self.time.sleep(Duration::from_nanos(self.line_ns(self.last.replace(processor), processor))).await;
        add(&self.sums.borrow().lock_ns, (self.time.now() - requested).as_nanos() as u64);
        let reached_ns = server.deliver_ns + server.trap_ns / 2;
        let counted_ns = self.count_themselves(processor);
        let answered_ns = reached_ns + counted_ns + server.near_ns;
        self.time.sleep(Duration::from_nanos(answered_ns)).await;
        let sums = self.sums.borrow();
        add(&sums.answers_ns, answered_ns);
        add(&sums.shootdowns, 1);
        drop(lock);
    }

    /// The others add one each to the counter, whose cache line moves from one to the next: to all of a socket before
    /// it leaves the socket, since they have asked the cache that they share. Returns when the last one has.
    fn count_themselves(&self, processor: usize) -> u64 {
        let server = &self.server;
        let sockets = server.processors.div_ceil(server.socket);
        let (mut counted_ns, mut holder) = (0, processor);
        for step in 0..sockets {
            let socket = (processor / server.socket + step) % sockets;
            let members = socket * server.socket..((socket + 1) * server.socket).min(server.processors);
            for other in members.filter(|other| *other != processor) {
                counted_ns += self.line_ns(holder, other);
                holder = other;
                add(&self.interrupted_ns[other], server.trap_ns + counted_ns);
            }
        }
        counted_ns
    }

    fn line_ns(&self, from: usize, to: usize) -> u64 {
        let socket = self.server.socket;
        match (from == to, from / socket == to / socket) {
            (true, _) => 0,
            (_, true) => self.server.near_ns,
            _ => self.server.far_ns,
        }
    }
}
