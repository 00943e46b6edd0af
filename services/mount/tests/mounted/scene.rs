//! A server of one simulated tree that crashes and restarts, and a mount of it on another host.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::connection::Peer;
use kernel::tree::{FileTree, FileTreeConfig, OpenFiles};
use kernel::{ForcedUnitAccess, Processor, Switches};
use machine::tree::{SetAttributes, TreeCall};
use machine::{Connection, Errno};
use mount::{
    Bounds, Caller, Connector, Export, Files, Host as ToHost, LookupCache, NodeId, Notice, Options, Port, Ports, Time,
    Timeouts,
};
use nfs::{ExportConfig, Limits, Nfs};
use policy::unit::DiskNo;
use sim::{HostId, NetworkConfig, TreeConfig, TreeId, World};
use testkit::random::Random;
use testkit::scene::disk::queue;
use testkit::scene::{Host, accept, drive, small_kernel, spawn};

use crate::made_up;

const PORT: u16 = 2049;
const EXPORT: &str = "/files";

type Made = Box<dyn FnOnce(Result<Connection, Errno>) + Send>;

/// Connections that the mount wants.
#[derive(Clone, Default)]
struct Wanted(Arc<Mutex<Vec<(Port, Made)>>>);

impl Connector for Wanted {
    fn connect(&self, port: Port, made: Made) {
        self.0.lock().expect("one thread").push((port, made));
    }

    fn report(&self, _line: &str) {}
}

/// The host whose processes use the mount.
#[derive(Default)]
pub struct Noted {
    pub changed: Mutex<Vec<NodeId>>,
}

impl ToHost for Noted {
    fn attributes_changed(&self, _id: NodeId) {}

    fn content_changed(&self, id: NodeId, _notice: Notice) {
        self.changed.lock().expect("one thread").push(id);
    }

    fn forget_names(&self, _names: Vec<(NodeId, Arc<[u8]>)>) {}

    fn time(&self) -> Time {
        Time { seconds: 1_700_000_000, nanoseconds: 0 }
    }

    fn report(&self, line: &str) {
        panic!("{line}");
    }
}

/// Connections that are reset in a scene, at most: where the network takes single bytes, a call never ends otherwise.
const RESETS_MAX: u32 = 40;

pub struct Scene {
    pub world: World,
    pub tree: TreeId,
    seed: u64,
    server_host: HostId,
    client_host: HostId,
    /// Without our service if its replies are made up.
    server: Option<(Host, Option<Arc<Nfs>>)>,
    client: Option<Host>,
    wanted: Wanted,
    made: Vec<Connection>,
    random: Random,
    /// Connections that are reset, of a million steps.
    pub resets_per_million: u64,
    /// Connections that were reset.
    pub resets: u32,
    pub noted: Arc<Noted>,
}

impl Scene {
    pub fn new(seed: u64) -> Scene {
        Scene::with_tree(seed, TreeConfig { tick_ns: 1, ..TreeConfig::drawn(seed) })
    }

    pub fn with_tree(seed: u64, tree: TreeConfig) -> Scene {
        let world = World::new(seed);
        world.set_network(NetworkConfig { backlog_max: 64, ..NetworkConfig::drawn(seed) });
        let server_host = world.add_host("server");
        let client_host = world.add_host("client");
        let tree = world.add_tree(server_host, tree);
        let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        let node = world.tree_node(tree, "").expect("a root");
        world.call_tree(tree, None, &TreeCall::SetAttributes { node, attributes, guard: None }).expect("a root");
        world.sync_tree(tree);
        let mut scene = Scene {
            world,
            tree,
            seed,
            server_host,
            client_host,
            server: None,
            client: None,
            wanted: Wanted::default(),
            made: Vec::new(),
            random: Random(seed ^ 0x5eed),
            resets_per_million: 0,
            resets: 0,
            noted: Arc::default(),
        };
        scene.start_server();
        scene.start_client();
        scene
    }

    pub fn start_client(&mut self) {
        let host = Host::boot(&self.world, self.client_host, small_kernel(1, 2 << 20, Switches::default()));
        self.client = Some(host);
    }

    fn boot_server(&self) -> Host {
        Host::boot(&self.world, self.server_host, small_kernel(2, 2 << 20, Switches::default()))
    }

    pub fn start_server(&mut self) {
        let host = self.boot_server();
        let config = FileTreeConfig {
            name: EXPORT.into(),
            read_only: false,
            open_files: OpenFiles::new(100),
            forced_unit_access: ForcedUnitAccess::Never,
            queue: queue(&host),
        };
        let tree = FileTree::new(&host.processors[0], self.world.open_tree(self.tree), config);
        let export = nfs::Export::new(ExportConfig { name: EXPORT.into(), ..ExportConfig::default() }, tree);
        let nfs = Nfs::new([7; 32], Limits::default(), vec![export]);
        let address = Some(SocketAddr::from(([192, 0, 2, 1], 700)));
        accept(&self.world, &host, PORT, &nfs, move || Peer { address, ..Peer::default() });
        self.server = Some((host, Some(nfs)));
    }

    /// Another server takes the place of ours: `answers` has the results of a procedure with these arguments.
    pub fn make_up(&mut self, answers: impl Fn(u32, &[u8]) -> Vec<u8> + 'static) {
        self.crash_server(false);
        let host = self.boot_server();
        let (listener, cpu) = (self.world.listen(host.id, PORT), host.processors[0].clone());
        cpu.spawn(made_up::serve(cpu.clone(), listener, Rc::new(answers)));
        self.world.kick(host.id, cpu.id());
        self.server = Some((host, None));
    }

    /// The server's process dies, and with `power` its host.
    pub fn crash_server(&mut self, power: bool) {
        let (host, nfs) = self.server.take().expect("it runs");
        drop(nfs);
        self.world.crash(host.id, power);
        host.die();
    }

    /// The mount's process dies.
    pub fn kill_client(&mut self) {
        let host = self.client.take().expect("it runs");
        self.world.crash(host.id, false);
        self.wanted.0.lock().expect("one thread").clear();
        host.die();
    }

    /// Runs both until `done`.
    fn drive(&mut self, done: &mut dyn FnMut() -> bool) {
        let Scene {
            world,
            server,
            client,
            wanted,
            made,
            random,
            resets_per_million,
            resets,
            client_host,
            server_host,
            ..
        } = self;
        let mut hosts: Vec<&Host> = client.iter().collect();
        hosts.extend(server.iter().map(|(host, _)| host));
        let ended = drive(world, &hosts, || {
            for (port, tell) in wanted.0.lock().expect("one thread").drain(..) {
                let result = world.connect(*client_host, *server_host, port.0);
                made.extend(result.iter().copied());
                tell(result);
                // Whoever waits for it is on a processor that may be parked.
                client.iter().for_each(|host| world.kick(host.id, host.processors[0].id()));
            }
            if random.below(1_000_000) < *resets_per_million
                && *resets < RESETS_MAX
                && let Some(connection) = made.pop()
            {
                *resets += 1;
                world.reset_connection(connection);
            }
            done()
        });
        assert!(ended, "seed {}: it never ended: {}", self.seed, self.world.describe());
    }

    /// Runs a task on the client's processor to its end.
    pub fn run<T: 'static>(&mut self, task: impl AsyncFnOnce(Processor) -> T + 'static) -> T {
        let cpu = self.client.as_ref().expect("it runs").processors[0].clone();
        let result = spawn(&cpu, task);
        self.world.kick(self.client_host, cpu.id());
        let slot = Rc::clone(&result);
        self.drive(&mut || slot.borrow().is_some());
        result.take().expect("just looked")
    }

    /// As [`Scene::run`]; the server crashes and restarts after this time, and again each time twice as long after that.
    pub fn run_with_crashes<T: 'static>(
        &mut self,
        mut interval: Duration,
        power: bool,
        task: impl AsyncFnOnce(Processor) -> T + 'static,
    ) -> T {
        let cpu = self.client.as_ref().expect("it runs").processors[0].clone();
        let result = spawn(&cpu, task);
        self.world.kick(self.client_host, cpu.id());
        let mut crashes = 0;
        while result.borrow().is_none() {
            let (slot, world, until) = (Rc::clone(&result), self.world.clone(), self.world.now() + interval);
            // Something must happen at that time, or the world stands still.
            let alarm = cpu.clone();
            cpu.spawn(async move { alarm.sleep(interval).await });
            self.drive(&mut || slot.borrow().is_some() || world.now() >= until);
            if result.borrow().is_none() && crashes < 12 {
                crashes += 1;
                interval *= 2;
                self.crash_server(power);
                self.start_server();
            }
        }
        assert!(crashes > 0, "seed {}: the server never crashed", self.seed);
        result.take().expect("just looked")
    }

    pub fn mount(&mut self) -> Arc<Files> {
        self.mount_with(options(), 2)
    }

    pub fn mount_with(&mut self, options: Options, connections: usize) -> Arc<Files> {
        self.mount_as(0, options, connections)
    }

    pub fn mount_as(&mut self, uid: u32, options: Options, connections: usize) -> Arc<Files> {
        let serial = self.random.next();
        let timeouts = Timeouts { reply: Duration::from_millis(500), fails_after: None, fails_unconnected: false };
        let port = Some(Port(PORT));
        let export = Export {
            connector: Arc::new(self.wanted.clone()),
            caller: Caller { machine: "client".into(), uid, gid: uid, groups: Vec::new() },
            path: EXPORT.into(),
            ports: Ports { nfs: port, mount: port },
            connections,
            timeouts,
            serial,
        };
        let host = Arc::clone(&self.noted);
        self.run(async move |cpu| {
            let server = mount::mount(&cpu, &export).await.expect("mounted");
            Files::open(&cpu, server, DiskNo(1), options, serial, host).await.expect("opened")
        })
    }
}

pub fn options() -> Options {
    let seconds = Duration::from_secs;
    Options {
        read_size: 64 << 10,
        write_size: 64 << 10,
        read_only: false,
        files: Bounds { min: seconds(3), max: seconds(60) },
        directories: Bounds { min: seconds(30), max: seconds(60) },
        lookup_cache: LookupCache::All,
        commits_at_close: true,
        close_to_open: true,
        is_sync: false,
    }
}
