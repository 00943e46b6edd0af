//! A host of the simulated machine that runs the kernel, and the loop that drives it.

pub mod disk;
pub mod files;
pub mod model;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use kernel::connection::{Acceptor, Peer, Protocol, Service, Session};
use kernel::{Kernel, KernelConfig, Processor, Switches};
use machine::Connection;
use policy::unit::ProcessorId;
use sim::{HostId, Step, World};

/// Steps after which a run counts as hanging.
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

/// A host that runs the kernel.
pub struct Host {
    pub id: HostId,
    pub kernel: Arc<Kernel>,
    pub processors: Vec<Processor>,
}

impl Host {
    pub fn boot(world: &World, id: HostId, config: KernelConfig) -> Host {
        Host::with_kernel(world, id, Kernel::new(config).expect("address space"))
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

    /// Ends all its tasks, as when the process dies.
    pub fn die(self) {}
}

impl Drop for Host {
    /// Tasks have processors, and these their tasks.
    fn drop(&mut self) {
        self.processors.iter().for_each(Processor::abandon);
    }
}

/// A protocol that is made of functions.
pub struct Spoken<P, S> {
    pub service: Arc<Service>,
    pub peer: P,
    pub serve: S,
}

impl<P, S> Protocol for Spoken<P, S>
where
    P: Fn() -> Peer + Send + Sync + 'static,
    S: Fn(Processor, Connection, Peer) -> Session + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "test"
    }

    fn service(&self) -> &Service {
        &self.service
    }

    fn peer(&self, _connection: Connection) -> Option<Peer> {
        Some((self.peer)())
    }

    fn serve(self: Arc<Self>, cpu: Processor, connection: Connection, peer: Peer) -> Session {
        (self.serve)(cpu, connection, peer)
    }
}

/// Accepts on `host` for as long as it lives.
pub fn accept(world: &World, host: &Host, port: u16, protocol: impl Protocol) -> Arc<Acceptor> {
    let (listener, cpu) = (world.listen(host.id, port), host.processors[0].clone());
    let acceptor = Acceptor::new(host.processors.iter().map(|_| None).collect(), u32::MAX);
    let protocol: Arc<dyn Protocol> = Arc::new(protocol);
    acceptor.add(&protocol);
    cpu.spawn(Arc::clone(&acceptor).accept(cpu.clone(), protocol, listener));
    world.kick(host.id, cpu.id());
    acceptor
}

/// Asserts that of connections which have all ended nothing is left on `host`, where there were so many tasks before:
/// neither a task nor a waiter.
pub fn assert_nothing_is_left(world: &World, host: &Host, others: &Host, service: &Service, tasks: usize) {
    let ended = drive(world, &[host, others], || host.tasks() == tasks && service.changed().is_empty());
    assert!(ended, "{} tasks in place of {tasks}, waiters: {}", host.tasks(), !service.changed().is_empty());
}

/// Connections that are being served.
pub fn serving(acceptor: &Acceptor) -> usize {
    acceptor.connections().iter().sum::<u32>() as usize
}

/// Gives the processors of `hosts` their turns until `done` says so. Returns false when nothing happens any more.
pub fn drive(world: &World, hosts: &[&Host], mut done: impl FnMut() -> bool) -> bool {
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

/// Runs one task on the first processor of `host` to its end.
pub fn run<T: 'static>(world: &World, host: &Host, task: impl AsyncFnOnce(Processor) -> T + 'static) -> T {
    let cpu = host.processors[0].clone();
    let result = spawn(&cpu, task);
    world.kick(host.id, cpu.id());
    let ended = drive(world, &[host], || result.borrow().is_some());
    assert!(ended, "the task never ended: {}", world.describe());
    result.take().expect("just looked")
}

/// Starts a task whose result can be looked at.
pub fn spawn<T: 'static>(cpu: &Processor, task: impl AsyncFnOnce(Processor) -> T + 'static) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let (slot, here) = (Rc::clone(&result), cpu.clone());
    cpu.spawn(async move {
        let value = task(here).await;
        slot.replace(Some(value));
    });
    result
}
