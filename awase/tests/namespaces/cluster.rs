//! The servers of a cluster, each on a host of its own, with a device that all of them reach.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use testkit::etcd::Etcd;
use testkit::server::{AWASE, Sandbox, Server};

use crate::network::{Network, address};

pub const NODES: usize = 3;
pub const LEASE: Duration = Duration::from_secs(2);
/// The host on which etcd is.
pub const ETCD: usize = NODES;

const SIZE: u64 = 64 << 20;
const NAMES: [&str; NODES] = ["a", "b", "c"];

pub struct Cluster {
    pub servers: [Option<Server>; NODES],
    pub sandboxes: [Sandbox; NODES],
    _etcd: Etcd,
    pub network: Network,
    _common: Sandbox,
}

fn command(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

impl Cluster {
    pub fn new() -> Cluster {
        let network = Network::new(NODES + 1);
        let common = Sandbox::new();
        let url = |port: u16| format!("http://{}:{port}", address(ETCD));
        let etcd = Etcd::start_by(network.at(ETCD, "etcd"), &common.file("etcd"), &url(3000), &url(3001));
        let device = std::fs::File::create(common.file("device")).expect("made");
        device.set_len(SIZE).expect("sparse");
        let sandboxes = [(); NODES].map(|()| Sandbox::new());
        for (node, sandbox) in sandboxes.iter().enumerate() {
            let text = format!(
                "[cluster]\nnode = \"{}\"\nlisten = \"{}:4000\"\netcd = [\"{}\"]\n\
                 [[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"{SIZE}B\"\nshared_device = {:?}\n",
                NAMES[node],
                address(node),
                etcd.url,
                common.file("device"),
            );
            sandbox.write("node.toml", &text);
        }
        let servers = [const { None }; NODES];
        let mut cluster = Cluster { servers, sandboxes, _etcd: etcd, network, _common: common };
        (0..NODES).for_each(|node| cluster.start(node));
        cluster
    }

    pub fn start(&mut self, node: usize) {
        let mut command = command(&self.network.at(node, &*AWASE));
        command.args(["serve", "--nbd", "none", "--nfs", "none", "--postgres", "none", "--metrics", "none"]).args([
            "--config",
            "node.toml",
            "--memory",
            "64MiB",
        ]);
        self.servers[node] = Some(self.sandboxes[node].start(command));
    }

    pub fn server(&mut self, node: usize) -> &mut Server {
        self.servers[node].as_mut().expect("it runs")
    }

    pub fn kill(&mut self, node: usize) {
        self.servers[node].take().expect("it runs").crash();
    }
}
