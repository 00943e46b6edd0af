//! The cluster whose nodes share disks: which node this is, and where the others are.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::form::{Form, quoted};
use super::given::Refusal;

/// Nodes at most: a bit for each says which are homes.
const NODES_MAX: usize = 64;

/// Longest name of a node. Bytes.
const NAME_BYTES_MAX: usize = 64;

/// Of a cluster in etcd, unless configured.
const NAME: &str = "default";

/// Unless configured: whoever takes over from a dead node waits for it.
const LEASE: Duration = Duration::from_secs(2);

/// Each of the peers has a key of its own in a file.
pub const PEERS: &str = "cluster.peers";

/// Where a node stores its part of a shared disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Gone when the server ends.
    Memory,
    Path(PathBuf),
    /// What every node reaches.
    Device(PathBuf),
}

/// A node of the cluster, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Host and port.
    pub address: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The name of this node.
    pub node: Option<String>,
    pub listen: Option<SocketAddr>,
    /// All nodes, this one included, in order of their names. Fixed; else empty.
    pub peers: Vec<Node>,
    /// Endpoints of the etcd in which the members register; empty: the peers are fixed.
    pub etcd: Vec<String>,
    /// Its name in etcd.
    pub name: String,
    pub lease: Duration,
    /// Where the others reach this node, if not where it listens.
    pub advertise: Option<SocketAddr>,
}

impl Default for Cluster {
    fn default() -> Self {
        let (peers, etcd, name) = (Vec::new(), Vec::new(), NAME.to_owned());
        Cluster { node: None, listen: None, peers, etcd, name, lease: LEASE, advertise: None }
    }
}

impl Cluster {
    /// Do nodes come and go, as etcd says?
    pub fn is_joined(&self) -> bool {
        !self.etcd.is_empty()
    }

    /// Where the others reach this node.
    pub fn address(&self) -> Option<SocketAddr> {
        self.advertise.or(self.listen)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().map(|node| node.name.as_str())
    }
}

/// Why a node or a cluster cannot have this name.
pub(super) fn misnamed(name: &str) -> Option<String> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let is_good = !name.is_empty() && name.len() <= NAME_BYTES_MAX && is_plain;
    (!is_good).then(|| format!("is not 1 to {NAME_BYTES_MAX} letters, digits, - or _"))
}

/// The address of an endpoint of etcd.
pub(super) fn endpoint(url: &str) -> Result<String, Refusal> {
    let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let (host, port) = rest.and_then(|rest| rest.rsplit_once(':')).ok_or(Refusal::NotAllowed)?;
    let is_good = !host.is_empty() && !host.contains(['/', '@', '?']) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_good { Ok(format!("http://{host}:{port}")) } else { Err(Refusal::NotAllowed) }
}

/// A table, whose keys are read one by one (`take`).
pub fn peers() -> Form<Vec<Node>> {
    let show = |nodes: &Vec<Node>| {
        let nodes: Vec<_> = nodes.iter().map(|node| format!("{} = {}", node.name, quoted(&node.address))).collect();
        Some(if nodes.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", nodes.join(", ")) })
    };
    Form { allowed: allowed(), read: Box::new(|_| Err(Refusal::NotAllowed)), show: Box::new(show) }
}

pub(super) fn allowed() -> String {
    "a table such as { a = \"10.0.0.1:10810\", b = \"10.0.0.2:10810\" }".to_owned()
}

pub(super) fn add(nodes: &mut Vec<Node>, name: &str, address: &str) -> Result<(), Refusal> {
    let because = |why: String| Err(Refusal::Because(why));
    if let Some(why) = misnamed(name) {
        return because(format!("holds {name:?}, which {why}"));
    }
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
        return because(format!("holds {address:?}, which is not a host and a port"));
    }
    if nodes.iter().any(|node| node.name == name) {
        return because(format!("holds {name:?} twice"));
    }
    if let Some(node) = nodes.iter().find(|node| node.address == address) {
        return because(format!("holds {address:?}, which {:?} has already", node.name));
    }
    if nodes.len() >= NODES_MAX {
        return because(format!("holds more than {NODES_MAX} nodes"));
    }
    nodes.push(Node { name: name.to_owned(), address: address.to_owned() });
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(())
}
