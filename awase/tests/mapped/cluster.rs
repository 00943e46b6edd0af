//! Nodes of one cluster on this host, that share a disk.

use shm::{Mapping, OnServerLost, Options};
use testkit::nbd::Client;
use testkit::port;
use testkit::server::{Sandbox, Server};

pub const SIZE: u64 = 32 << 20;

pub const PAGE: usize = 4096;

/// The first page of the second shard: its home is the second node.
pub const SHARD: usize = 1 << 20;

pub struct Cluster {
    pub sandboxes: Vec<Sandbox>,
    ports: Vec<u16>,
    backing: &'static str,
}

fn name(node: usize) -> char {
    char::from(b'a' + node as u8)
}

impl Cluster {
    pub fn new(nodes: usize, backing: &'static str) -> Cluster {
        let ports = (0..nodes).map(|_| port::unused()).collect();
        Cluster { sandboxes: (0..nodes).map(|_| Sandbox::new()).collect(), ports, backing }
    }

    /// Starts a node; it may take until it is connected.
    pub fn start(&self, node: usize) -> Server {
        self.start_with(node, &[])
    }

    /// As [`start`](Self::start), with more arguments.
    pub fn start_with(&self, node: usize, more: &[&str]) -> Server {
        let peers: Vec<String> = self
            .ports
            .iter()
            .enumerate()
            .map(|(node, port)| format!("{} = \"127.0.0.1:{port}\"", name(node)))
            .collect();
        let (peers, own, backing) = (peers.join(", "), self.ports[node], self.backing);
        let configuration = format!(
            "[cluster]\nnode = \"{}\"\nlisten = \"127.0.0.1:{own}\"\npeers = {{ {peers} }}\n\
             [[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"{SIZE}B\"\nbacking = \"{backing}\"\n",
            name(node)
        );
        self.sandboxes[node].write("node.toml", &configuration);
        let arguments = ["--config", "node.toml", "--memory", "32MiB"];
        self.sandboxes[node].serve(&[&arguments, more].concat())
    }

    pub fn all(&self) -> Vec<Server> {
        let mut servers: Vec<Server> = (0..self.ports.len()).map(|node| self.start(node)).collect();
        servers.iter_mut().for_each(|server| server.await_error("is connected"));
        servers
    }

    pub fn options(&self, node: usize) -> Options {
        Options::at(self.sandboxes[node].file("awase-data/shm")).on_server_lost(OnServerLost::Wait)
    }

    pub fn map(&self, node: usize) -> Mapping {
        self.options(node).open("s").unwrap_or_else(|error| panic!("{error}"))
    }
}

pub fn connect(server: &Server) -> Client {
    Client::connect(&server.socket(), "s").expect("connected")
}
