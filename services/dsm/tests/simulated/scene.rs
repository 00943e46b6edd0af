//! Nodes that share a volume, on simulated hosts with a network that the test can cut.

pub mod device;
pub mod members;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dsm::{Connector, Dsm, Shared, SharedConfig};
use kernel::connection::Peer;
use kernel::device::{Checked, DeviceRef, FileDevice, RamDisk};
use kernel::queue::Queued;
use kernel::trace::{Mode, TraceMemory, Tracer, private_memory};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Processor, Switches, Volume};
use machine::{Connection, Errno};
use policy::coherence::{Address, Incarnation, NodeId};
use policy::unit::{DiskNo, Instant, ProcessorId};
use sim::{DiskConfig, DiskId, HostId, Latency, NetworkConfig, OpClass, Step, World};
use testkit::history::History;
use testkit::scene::disk::{drawn_switches, queue};
use testkit::scene::{Host, accept, small_kernel};

use members::Members;

const PORT: u16 = 10810;

/// Of a node that is traced.
const TRACE_WORDS: usize = 1 << 16;

/// A run with more steps counts as hanging.
const STEPS_MAX: u64 = 30_000_000;

/// Where homes store their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Memory,
    Path,
}

pub struct Setup {
    pub seed: u64,
    pub nodes: usize,
    /// Bytes.
    pub size: u64,
    pub backing: Backing,
    pub homes: u64,
    pub memory: u64,
    pub network: NetworkConfig,
    pub timeout: Duration,
    /// Nodes have leases, and homes move on a device that all reach.
    pub moves: bool,
    /// Then they do not move, and store where `backing` says.
    pub stays: bool,
    pub traced: bool,
    /// How long the disks of homes flush, if that is not drawn.
    pub flush: Option<Latency>,
}

impl Setup {
    pub fn new(seed: u64, nodes: usize) -> Setup {
        Setup {
            seed,
            nodes,
            size: 16 << 20,
            backing: if seed.is_multiple_of(2) { Backing::Path } else { Backing::Memory },
            homes: u64::MAX >> (64 - nodes),
            memory: 4 << 20,
            network: NetworkConfig { backlog_max: 64, ..NetworkConfig::drawn(seed) },
            timeout: Duration::from_secs(4),
            moves: false,
            stays: false,
            traced: false,
            flush: None,
        }
    }
}

/// A node that runs.
pub struct Node {
    pub trace: Option<TraceMemory>,
    pub dsm: Arc<Dsm>,
    /// `None`: it has not registered yet.
    pub shared: Option<Arc<Shared>>,
    pub volume: Option<Arc<Volume>>,
    /// Of the pages whose home it is, where homes do not move.
    storage: DeviceRef,
    /// Last: the others have frames of its kernel.
    pub host: Host,
}

impl Node {
    /// While it is a member.
    pub fn shared(&self) -> &Arc<Shared> {
        self.shared.as_ref().expect("it is a member")
    }
}

type Made = Box<dyn FnOnce(Result<Connection, Errno>) + Send>;

/// Connections that nodes want: from, to.
type Wanted = Arc<Mutex<Vec<(usize, NodeId, Made)>>>;

struct Dial {
    from: usize,
    wanted: Wanted,
}

impl Connector for Dial {
    fn connect(&self, node: NodeId, made: Made) {
        self.wanted.lock().expect("one thread").push((self.from, node, made));
    }
}

pub struct Scene {
    pub world: World,
    pub setup: Setup,
    pub nodes: Vec<Option<Node>>,
    pub history: Rc<RefCell<History>>,
    hosts: Vec<HostId>,
    disks: Vec<DiskId>,
    incarnations: Vec<u32>,
    wanted: Wanted,
    /// Connections made, with their ends.
    made: Vec<(Connection, usize, usize)>,
    /// Pairs of nodes that cannot connect.
    cut: Vec<(usize, usize)>,
    pub told: Arc<Mutex<Vec<String>>>,
    /// Where homes move.
    members: Option<Members>,
    /// Those of all nodes that have begun.
    kernels: Vec<Weak<Kernel>>,
}

impl Scene {
    pub fn new(setup: Setup) -> Scene {
        let world = World::new(setup.seed);
        world.set_network(setup.network.clone());
        let hosts: Vec<HostId> = (0..setup.nodes).map(|node| world.add_host(&format!("node {node}"))).collect();
        let disk = |host: &HostId| {
            let drawn = DiskConfig::drawn(setup.size, setup.seed ^ u64::from(host.0));
            world.add_disk(*host, DiskConfig { flush: setup.flush.unwrap_or(drawn.flush), ..drawn })
        };
        let disks = hosts.iter().map(disk).collect();
        let mut scene = Scene {
            world,
            nodes: (0..setup.nodes).map(|_| None).collect(),
            history: Rc::default(),
            hosts,
            disks,
            incarnations: vec![1; setup.nodes],
            wanted: Wanted::default(),
            made: Vec::new(),
            cut: Vec::new(),
            told: Arc::default(),
            kernels: Vec::new(),
            members: setup.moves.then(|| Members::new(setup.nodes, setup.size, setup.seed)),
            setup,
        };
        (0..scene.nodes.len()).for_each(|node| scene.boot(node));
        scene
    }

    /// Starts a node, in a new incarnation.
    pub fn boot(&mut self, node: usize) {
        let Setup { seed, size, backing, homes, memory, timeout, .. } = self.setup;
        self.incarnations[node] += 1;
        let config = small_kernel(1 + (seed % 2) as u16, memory, drawn_switches(seed));
        let trace = self.setup.traced.then(|| private_memory(TRACE_WORDS));
        let kernel = match trace {
            Some(memory) => {
                let tracer = Arc::new(Tracer::new(Mode::Off, config.processors, memory, 0));
                Kernel::traced(config, tracer)
            }
            None => Kernel::new(config),
        };
        let host = Host::with_kernel(&self.world, self.hosts[node], kernel.expect("address space"));
        self.kernels.push(Arc::downgrade(&host.kernel));
        let dsm = Dsm::new(Dial { from: node, wanted: Arc::clone(&self.wanted) });
        accept(&self.world, &host, PORT, &dsm, Peer::default);
        let storage: DeviceRef = match backing {
            Backing::Memory => Arc::new(Checked::new(Arc::new(RamDisk::new(size, DiskNo(0))))),
            Backing::Path => {
                let file = Arc::new(FileDevice::new(self.world.open(self.disks[node], true)));
                Arc::new(Queued::new(queue(&host), Arc::new(Checked::new(file))))
            }
        };
        if self.setup.moves {
            self.nodes[node] = Some(Node { host, trace, dsm, shared: None, volume: None, storage });
            return self.register(node);
        }
        let config = SharedConfig {
            name: "shared".into(),
            size,
            nodes: (0..self.nodes.len()).map(|node| node.to_string()).collect(),
            terms: None,
            homes,
            shards: None,
            process: self.world.now().ns(),
            is_volatile: backing == Backing::Memory,
            timeout,
        };
        let me = Address { node: NodeId(node as u16), incarnation: Incarnation(self.incarnations[node]) };
        let told = Arc::clone(&self.told);
        let report = Box::new(move |line: &str| told.lock().expect("one thread").push(format!("{node}: {line}")));
        let shared = Shared::new(config, me, Arc::clone(&storage), report);
        let config = VolumeConfig {
            name: "shared".into(),
            read_only: false,
            forced_unit_access: ForcedUnitAccess::Never,
            grows: false,
        };
        let volume = Volume::open_shared(&host.kernel, shared.clone(), shared.clone(), config, ProcessorId(0));
        let volume = volume.expect("a number");
        shared.set_volume(&volume);
        dsm.add(&shared);
        dsm.serve(&host.processors[0], &shared);
        self.nodes[node] = Some(Node { host, trace, dsm, shared: Some(shared), volume: Some(volume), storage });
    }

    /// The process of a node dies.
    pub fn kill(&mut self, node: usize) {
        self.end(node, |world, host| world.kill(host));
    }

    /// The power of a node's host fails.
    pub fn power_cut(&mut self, node: usize) {
        self.end(node, |world, host| world.power_cut(host));
    }

    fn end(&mut self, node: usize, end: impl Fn(&World, HostId)) {
        let Some(running) = self.nodes[node].take() else { return };
        self.history.borrow_mut().crashes.push(self.world.now().ns());
        end(&self.world, self.hosts[node]);
        self.wanted.lock().expect("one thread").retain(|(from, _, _)| *from != node);
        let Node { host, dsm, shared, volume, storage, .. } = running;
        host.processors.iter().for_each(Processor::abandon);
        drop((dsm, shared, volume, storage));
        drop(host);
    }

    /// Where a node's storage is, in a file.
    pub fn disk(&self, node: usize) -> DiskId {
        self.disks[node]
    }

    /// The next flush of a node's disk fails.
    pub fn fail_disk_flush(&self, node: usize) {
        self.world.fail_next(self.disks[node], OpClass::Flush, 1, Errno::IO);
    }

    /// Two nodes cannot reach each other; what was under way between them is lost.
    pub fn cut(&mut self, one: usize, other: usize) {
        self.cut.push((one.min(other), one.max(other)));
        let between = |from: usize, to: usize| (from.min(to), from.max(to)) == (one.min(other), one.max(other));
        for (connection, _, _) in self.made.extract_if(.., |(_, from, to)| between(*from, *to)) {
            self.world.reset_connection(connection);
        }
    }

    /// What a node sends and receives arrives later by this.
    pub fn slow_down(&self, node: usize, by: Duration) {
        self.world.slow_down(self.hosts[node], by);
    }

    /// A node's process is stopped, or goes on.
    pub fn pause(&self, node: usize, is_paused: bool) {
        self.world.pause(self.hosts[node], is_paused);
    }

    /// Connections that were made, but for those that were cut.
    pub fn connections(&self) -> usize {
        self.made.len()
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    fn connect(&mut self) {
        let wanted = std::mem::take(&mut *self.wanted.lock().expect("one thread"));
        for (from, to, made) in wanted {
            let to = usize::from(to.0);
            let result = if self.cut.contains(&(from.min(to), from.max(to))) {
                Err(Errno::TIMED_OUT)
            } else {
                self.world.connect(self.hosts[from], self.hosts[to], PORT)
            };
            if let Ok(connection) = result {
                self.made.push((connection, from, to));
            }
            made(result);
            self.world.kick(self.hosts[from], ProcessorId(0));
        }
    }

    /// Runs all nodes until `done`, or until a time.
    pub fn run_until(&mut self, limit: Option<Instant>, mut done: impl FnMut(&Scene) -> bool) -> bool {
        self.drive(limit, &mut done)
    }

    /// Compiled once, not for each test.
    fn drive(&mut self, limit: Option<Instant>, done: &mut dyn FnMut(&Scene) -> bool) -> bool {
        let processors: BTreeMap<_, _> = self
            .nodes
            .iter()
            .flatten()
            .flat_map(|node| node.host.processors.iter().map(|cpu| ((node.host.id, cpu.id()), cpu.clone())))
            .collect();
        for _ in 0..STEPS_MAX {
            if done(self) {
                return true;
            }
            self.connect();
            let step = limit.map_or_else(|| self.world.step(), |limit| self.world.step_until(limit));
            match step {
                Step::Processor(host, id) => {
                    if let Some(cpu) = processors.get(&(host, id)) {
                        cpu.turn();
                    }
                }
                Step::Nothing => return done(self),
            }
        }
        panic!("still running after {STEPS_MAX} steps: {}", self.world.describe());
    }

    /// Whether pages go straight from node to node, on all that run.
    pub fn set_forwarding(&self, is_on: bool) {
        self.switch(|switches| switches.forwarding = is_on);
    }

    /// Changes switches on all that run.
    pub fn switch(&self, change: impl Fn(&mut Switches)) {
        for node in self.nodes.iter().flatten() {
            let mut switches = (*node.host.kernel.switches()).clone();
            change(&mut switches);
            node.host.kernel.set_switches(switches);
        }
    }

    /// Waits until all nodes are connected, which ends a crash.
    pub fn until_connected(&mut self) {
        let limit = self.world.now() + Duration::from_secs(60);
        let others = self.nodes.len() - 1;
        let is_connected = move |scene: &Scene| scene.shared().all(|shared| shared.connected() == others);
        assert!(self.run_until(Some(limit), is_connected), "not connected: {:?}", self.told());
        self.history.borrow_mut().crashes.push(self.world.now().ns());
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.world.now() + time;
        self.run_until(Some(end), |scene| scene.world.now() >= end);
    }

    /// Runs a task at a node to its end, while all nodes run.
    pub fn run<T: 'static>(&mut self, node: usize, task: impl AsyncFnOnce(Processor, Arc<Volume>) -> T + 'static) -> T {
        let slot = self.start(node, task);
        let ended = self.run_until(None, |_| slot.borrow().is_some());
        assert!(ended, "the task never ended: {}", self.world.describe());
        slot.take().expect("just looked")
    }

    /// Starts a task at a node.
    pub fn start<T: 'static>(
        &self,
        node: usize,
        task: impl AsyncFnOnce(Processor, Arc<Volume>) -> T + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let running = self.nodes[node].as_ref().expect("it runs");
        let volume = Arc::clone(running.volume.as_ref().expect("it is a member"));
        let cpu = running.host.processors.last().expect("one").clone();
        let slot = testkit::scene::spawn(&cpu, async move |cpu| task(cpu, volume).await);
        self.world.kick(running.host.id, cpu.id());
        slot
    }

    /// Of the nodes that run.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.nodes.iter().flatten().filter_map(|node| node.shared.as_ref())
    }

    /// A node counts its starts from here on, as with an old copy of its data.
    pub fn count_starts(&mut self, node: usize, from: u32) {
        self.incarnations[node] = from;
    }

    pub fn incarnation(&self, node: usize) -> usize {
        self.incarnations[node] as usize
    }

    pub fn told(&self) -> Vec<String> {
        self.told.lock().expect("one thread").clone()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            // What is on its way has frames, too.
            self.kill(node);
        }
        // Otherwise a process would run out of address space after some thousand scenes.
        if !std::thread::panicking() {
            assert!(self.kernels.iter().all(|kernel| kernel.strong_count() == 0), "a kernel outlives its scene");
            assert_eq!(
                kernel::frame::pools_left_mapped(),
                0,
                "frames were still referred to when a kernel was dropped"
            );
        }
    }
}
