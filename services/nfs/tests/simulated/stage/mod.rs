//! A server of one simulated tree that crashes and restarts, its clients on another host, and a model of their replies.

pub mod client;
pub mod lane;
pub mod moves;
pub mod names;
pub mod operate;
pub mod rpc;
pub mod stripe;
pub mod verify;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use kernel::connection::{Acceptor, Peer};
use kernel::tree::{FileTree, FileTreeConfig, OpenFiles};
use kernel::{ForcedUnitAccess, Processor, Switches};
use machine::tree::{SetAttributes, TreeCall};
use nfs::{Export, ExportConfig, Limits, Nfs};
use nfs3_types::nfs3::writeverf3;
use sim::{HostId, NetworkConfig, TreeConfig, TreeId, World};

use client::Client;
use lane::{Lane, Terms};
use rpc::Book;
use stripe::Stripe;
use testkit::random::Random;
use testkit::scene::disk::{drawn_switches, queue};
use testkit::scene::{Host, accept, drive, run_beside, small_kernel};

pub const PORT: u16 = 2049;
const EXPORT: &str = "/files";

#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    pub cache: u64,
    /// Limit of the server's open files.
    pub files_max: usize,
    pub network: NetworkConfig,
    pub tree: TreeConfig,
    pub limits: Limits,
    pub switches: Switches,
}

impl Setup {
    /// Network, file system, disk and switches are drawn from the seed.
    pub fn drawn(seed: u64) -> Setup {
        let mut random = Random(seed ^ 0x57a9e);
        let tick_ns = [1, 1, 4_000_000][random.below(3) as usize];
        let tree = TreeConfig { tick_ns, journal: seed % 4 >= 2, ..TreeConfig::drawn(seed) };
        Setup {
            seed,
            cache: [512 << 10, 2 << 20][random.below(2) as usize],
            files_max: [4, 1000][random.below(2) as usize],
            network: NetworkConfig::drawn(seed),
            tree,
            limits: Limits::default(),
            switches: drawn_switches(seed),
        }
    }
}

/// The world, in which a server lives once or several times.
pub struct Stage {
    pub world: World,
    pub setup: Setup,
    pub tree: TreeId,
    pub server_host: HostId,
    pub clients: Host,
    past_verifiers: Rc<RefCell<BTreeSet<[u8; 8]>>>,
}

impl Stage {
    pub fn new(setup: Setup) -> Stage {
        let world = World::new(setup.seed);
        world.set_network(setup.network.clone());
        let server_host = world.add_host("server");
        let tree = world.add_tree(server_host, setup.tree.clone());
        let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        let node = world.tree_node(tree, "").expect("a root");
        let call = TreeCall::SetAttributes { node, attributes, guard: None };
        world.call_tree(tree, None, &call).expect("a root");
        world.sync_tree(tree);
        let clients = Host::boot(&world, world.add_host("clients"), small_kernel(1, 64 << 10, setup.switches.clone()));
        Stage { world, setup, tree, server_host, clients, past_verifiers: Rc::default() }
    }

    pub fn begin(&self) -> Life {
        let Setup { cache, files_max, switches, limits, .. } = self.setup.clone();
        let host = Host::boot(&self.world, self.server_host, small_kernel(2, cache, switches));
        let config = FileTreeConfig {
            name: EXPORT.into(),
            read_only: false,
            open_files: OpenFiles::new(files_max),
            forced_unit_access: [ForcedUnitAccess::Alone, ForcedUnitAccess::Never, ForcedUnitAccess::Always]
                [(self.setup.seed % 3) as usize],
            queue: queue(&host),
        };
        let tree = FileTree::new(&host.processors[0], self.world.open_tree(self.tree), config);
        let export = Export::new(ExportConfig { name: EXPORT.into(), ..ExportConfig::default() }, tree);
        let nfs = Nfs::new([7; 32], limits, vec![export]);
        let address = Some(SocketAddr::from(([192, 0, 2, 1], 700)));
        let peer = move || Peer { address, ..Peer::default() };
        let acceptor = accept(&self.world, &host, PORT, &nfs, peer);
        let over = Rc::new(Cell::new(false));
        Life { host, nfs, acceptor, over, verifiers: Rc::default(), past: Rc::clone(&self.past_verifiers) }
    }

    /// A client of the server's present life. `no` identifies the client.
    pub fn client(&self, life: &Life, no: u8) -> Rc<Client> {
        let cpu = self.clients.processors[0].clone();
        let route = Route { world: self.world.clone(), from: self.clients.id, to: self.server_host, no };
        let book = Book::new(cpu, route, Rc::clone(&life.over), self.setup.seed);
        Rc::new(Client::new(book, Rc::clone(&life.verifiers), Rc::clone(&self.past_verifiers)))
    }

    /// So many clients with what they need: a directory and a file in common, and names of their own.
    pub fn lanes(&self, life: &Life, count: usize, random: &mut Random, terms: Terms) -> Vec<Lane> {
        let clients: Vec<_> = (0..count).map(|no| self.client(life, no as u8)).collect();
        let randoms: Vec<_> = (0..count).map(|_| Random(random.next())).collect();
        self.run(life, async move |_| {
            let root = clients[0].mount().await.expect("the root");
            let common = clients[0].mkdir(&root, "common", 0o755).await.expect("a directory").obj.unwrap();
            let shared = clients[0].make(&root, "shared").await;
            let mut lanes = Vec::new();
            for (no, (client, random)) in clients.into_iter().zip(randoms).enumerate() {
                let stripe = Stripe::new(shared.clone(), no as u64, count as u64);
                lanes.push(Lane::begin(no, client, random, terms, (&root, &common), stripe).await);
            }
            lanes
        })
    }

    /// The end of the world.
    pub fn end(self, life: Life) {
        life.crash(&self, false, || true);
        self.clients.die();
    }

    /// Runs a task of the clients to its end.
    pub fn run<T: 'static>(&self, life: &Life, task: impl AsyncFnOnce(Processor) -> T + 'static) -> T {
        run_beside(&self.world, &self.clients, &[&life.host, &self.clients], task)
    }
}

/// From the clients to the server.
#[derive(Clone)]
pub struct Route {
    pub world: World,
    pub from: HostId,
    pub to: HostId,
    pub no: u8,
}

/// The server from one crash to the next.
pub struct Life {
    pub host: Host,
    pub nfs: Arc<Nfs>,
    pub acceptor: Arc<Acceptor>,
    /// Clients must not send to the server any more.
    over: Rc<Cell<bool>>,
    /// Verifiers that clients received.
    verifiers: Rc<RefCell<BTreeSet<[u8; 8]>>>,
    past: Rc<RefCell<BTreeSet<[u8; 8]>>>,
}

impl Life {
    /// The server dies, and with `power` its host; clients notice until `done`.
    pub fn crash(self, stage: &Stage, power: bool, done: impl FnMut() -> bool) {
        let Life { host, nfs, over, verifiers, past, .. } = self;
        over.set(true);
        drop(nfs);
        stage.world.crash(host.id, power);
        host.die();
        let ended = drive(&stage.world, &[&stage.clients], done);
        assert!(ended, "clients do not notice the crash: {}", stage.world.describe());
        past.borrow_mut().append(&mut verifiers.borrow_mut());
    }
}

/// Asserts that the verifier is of the present life, and records it.
fn note_verifier(
    verifier: writeverf3,
    present: &RefCell<BTreeSet<[u8; 8]>>,
    past: &RefCell<BTreeSet<[u8; 8]>>,
) -> [u8; 8] {
    assert!(!past.borrow().contains(&verifier.0), "the verifier is that of before a crash");
    present.borrow_mut().insert(verifier.0);
    verifier.0
}
