//! A simulated host that runs the kernel, and the loop that drives it.

pub mod content;
pub mod disk;
pub mod files;
pub mod model;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{Acceptor, Peer, Protocol, Sessions, Sockets};
use kernel::processor::LocalFuture;
use kernel::request::{Context, JobId};
use kernel::{Kernel, KernelConfig, Processor, Switches};
use machine::{Connection, Errno};
use policy::unit::{ProcessorId, Stability};
use sim::{HostId, Step, World};

/// A run with more steps counts as hanging.
const STEPS_MAX: u64 = 20_000_000;

/// A configuration for small simulated hosts: `memory` bytes of cache in chunks of 64 KiB.
pub fn small_kernel(processors: u16, memory: u64, switches: Switches) -> KernelConfig {
    KernelConfig {
        processors,
        memory_max: memory,
        chunk_bytes: Some(64 << 10),
        sizing: None,
        write_back: policy::writeback::Config { smooth: switches.smooth_write_back, ..Default::default() },
        switches,
    }
}

/// A world with one host.
pub fn boot(seed: u64, config: KernelConfig) -> (World, Host) {
    let world = World::new(seed);
    let host = Host::boot(&world, world.add_host("server"), config);
    (world, host)
}

#[derive(Clone)]
pub struct Host {
    pub id: HostId,
    pub kernel: Arc<Kernel>,
    pub processors: Vec<Processor>,
}

impl Host {
    pub fn boot(world: &World, id: HostId, config: KernelConfig) -> Host {
        Host::with_kernel(world, id, Kernel::new(config).expect("address space"))
    }

    /// Of its clients, on all processors.
    pub fn requests_in_progress(&self) -> usize {
        self.processors.iter().map(Processor::requests_in_progress).sum()
    }

    pub fn with_kernel(world: &World, id: HostId, kernel: Arc<Kernel>) -> Host {
        let processors =
            (0..kernel.processors()).map(|no| Processor::new(world.machine(id, ProcessorId(no)), &kernel)).collect();
        Host { id, kernel, processors }
    }

    /// Tasks of all processors that have not ended.
    pub fn tasks(&self) -> usize {
        self.processors.iter().map(Processor::tasks).sum()
    }

    /// Drops all its tasks and operations in flight, as when the process dies: nothing may keep its memory.
    pub fn die(self) {
        drop(self);
        assert_eq!(kernel::frame::pools_left_mapped(), 0, "frames were still referred to when a kernel was dropped");
    }
}

impl Drop for Host {
    /// Breaks the cycle of processors and their tasks.
    fn drop(&mut self) {
        self.processors.iter().for_each(Processor::abandon);
    }
}

/// Sockets of a simulated host, which tells nothing of who has connected.
struct SimulatedSockets<F>(F);

impl<F: Fn() -> Peer + Send + Sync + 'static> Sockets for SimulatedSockets<F> {
    fn peer(&self, _connection: Connection) -> Option<Peer> {
        Some((self.0)())
    }

    fn note_refusal(&self, _error: Errno) {}
}

/// Accepts on `host` for as long as it lives. `peer` says who it is that comes.
pub fn accept<P: Protocol>(
    world: &World,
    host: &Host,
    port: u16,
    protocol: &Arc<P>,
    peer: impl Fn() -> Peer + Send + Sync + 'static,
) -> Arc<Acceptor> {
    let (listener, cpu) = (world.listen(host.id, port), host.processors[0].clone());
    let acceptor = Acceptor::new(host.processors.len(), |_| None, u32::MAX, SimulatedSockets(peer));
    acceptor.add(&**protocol);
    cpu.spawn(Arc::clone(&acceptor).accept(cpu.clone(), Arc::clone(protocol), listener));
    world.kick(host.id, cpu.id());
    acceptor
}

/// Asserts that of connections which have all ended nothing is left on `host`, where there were so many tasks before:
/// neither a task nor a waiter.
pub fn assert_nothing_is_left(world: &World, host: &Host, others: &Host, sessions: &Sessions, tasks: usize) {
    let ended = drive(world, &[host, others], || host.tasks() == tasks && sessions.changed().is_empty());
    assert!(ended, "{} tasks in place of {tasks}, waiters: {}", host.tasks(), !sessions.changed().is_empty());
    assert_eq!(host.requests_in_progress(), 0);
}

/// The number of connections being served.
pub fn serving(acceptor: &Acceptor) -> usize {
    acceptor.connections().iter().sum::<u32>() as usize
}

/// Runs the processors of `hosts` until `done`. Returns false when no event is left.
pub fn drive(world: &World, hosts: &[&Host], mut done: impl FnMut() -> bool) -> bool {
    drive_until(world, hosts, &mut done)
}

/// Compiled once, not for each test.
fn drive_until(world: &World, hosts: &[&Host], done: &mut dyn FnMut() -> bool) -> bool {
    let processors: BTreeMap<_, _> =
        hosts.iter().flat_map(|host| host.processors.iter().map(|cpu| ((host.id, cpu.id()), cpu.clone()))).collect();
    for _ in 0..STEPS_MAX {
        if done() {
            return true;
        }
        match world.step() {
            Step::Processor(host, id) => {
                if let Some(cpu) = processors.get(&(host, id)) {
                    cpu.turn();
                }
            }
            Step::Nothing => return done(),
        }
    }
    panic!("still running after {STEPS_MAX} steps: {}", world.describe());
}

/// Runs a task on the first processor of `host` to its end.
pub fn run<T: 'static>(world: &World, host: &Host, task: impl AsyncFnOnce(Processor) -> T + 'static) -> T {
    run_beside(world, host, &[host], task)
}

/// As [`run`], while the processors of `hosts` run, too.
pub fn run_beside<T: 'static>(
    world: &World,
    host: &Host,
    hosts: &[&Host],
    task: impl AsyncFnOnce(Processor) -> T + 'static,
) -> T {
    run_to_end(world, &host.processors[0], host.id, hosts, task)
}

/// As [`run`], on this processor.
pub fn run_on<T: 'static>(
    world: &World,
    host: &Host,
    id: ProcessorId,
    task: impl AsyncFnOnce(Processor) -> T + 'static,
) -> T {
    run_to_end(world, &host.processors[usize::from(id.0)], host.id, &[host], task)
}

fn run_to_end<T: 'static>(
    world: &World,
    cpu: &Processor,
    host: HostId,
    hosts: &[&Host],
    task: impl AsyncFnOnce(Processor) -> T + 'static,
) -> T {
    let result = spawn(cpu, task);
    world.kick(host, cpu.id());
    let ended = drive(world, hosts, || result.borrow().is_some());
    assert!(ended, "the task never ended: {}", world.describe());
    result.take().expect("just looked")
}

/// Starts a task; the slot gets its result.
pub fn spawn<T: 'static>(cpu: &Processor, task: impl AsyncFnOnce(Processor) -> T + 'static) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let (slot, own) = (Rc::clone(&result), cpu.clone());
    let task: LocalFuture = Box::pin(async move {
        let value = task(own).await;
        slot.replace(Some(value));
    });
    cpu.spawn(task);
    result
}

/// Counts the turns of another task of the processor, for as long as the count is held.
pub fn count_turns(cpu: &Processor) -> Rc<Cell<u32>> {
    let turns = Rc::new(Cell::new(0));
    let (count, own) = (Rc::clone(&turns), cpu.clone());
    cpu.spawn(async move {
        while Rc::strong_count(&count) > 1 {
            count.set(count.get() + 1);
            own.yield_now().await;
        }
    });
    turns
}

/// Of a request for which a client waits.
pub fn context() -> Context {
    Context::synchronous(JobId(0))
}

/// Waits for the end of a task that was spawned.
pub async fn ended<T>(cpu: &Processor, slot: &Rc<RefCell<Option<T>>>) -> T {
    loop {
        if let Some(value) = slot.take() {
            return value;
        }
        cpu.sleep(Duration::from_micros(100)).await;
    }
}

pub fn stable() -> Context {
    context().with_stability(Stability::Stable)
}
