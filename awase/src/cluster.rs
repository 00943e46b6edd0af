//! This node's part in the cluster: the protocol with its peers, and the disks that it shares with them.

pub mod backing;
mod dial;
pub mod joined;
mod volume;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use dsm::{Dsm, Shared, SharedConfig};
use kernel::connection::Acceptor;
use kernel::device::DeviceRef;
use kernel::{Kernel, Volume};
use machine::linux::file::make_directories;
use machine::linux::net::{self, ListeningSocket, NetError};
use parking_lot::Mutex;
use policy::coherence::{Address, Incarnation, NodeId};
use policy::unit::ProcessorId;

use crate::accepting::HostSockets;
use crate::closing;
use crate::config::{Config, Disk, Export, Place, Problem, Problems, Settings};
use crate::guard::{self, Guard};
use crate::media;
use crate::membership::{self, Claims, Member};
use crate::predecessor::Deadline;
use crate::processors::Processors;
use crate::tell::tell;
use backing::Backing;
use dial::Addresses;
pub use joined::{End, Replace};
use volume::volume_of;

/// The processor of all connections between nodes. Rejected: different ones for nodes on one machine. To wake another core
/// costs a page of the other node 70 µs instead of 27, and what is read in order gains nothing.
const PROCESSOR: ProcessorId = ProcessorId(0);

/// Above the clusters' names in etcd.
const PREFIX: &str = "/awase";

/// So many leases a server waits at its start until it is a member: so long an earlier process may be one in its place.
const LEASES_MAX: u32 = 3;

/// Peers at a time; more than there are nodes, since a connection may be made anew before the old one has ended.
const CONNECTIONS_MAX: u32 = 1024;

pub struct Cluster {
    nodes: Nodes,
    backing: Backing,
    dsm: Arc<Dsm>,
    acceptor: Arc<Acceptor>,
    socket: ListeningSocket,
}

enum Nodes {
    /// The last is at random: the number of a start is another process's, too, if the data directory was lost.
    Fixed { names: Vec<String>, me: Address, process: u64 },
    Joined {
        node: Arc<joined::Node>,
        member: Mutex<Option<Member>>,
        settings: Box<membership::Settings>,
        guard: Arc<Guard>,
    },
}

impl Cluster {
    /// Joins the cluster, if a disk is shared. `end` is called when this node can be no member any more.
    ///
    /// # Errors
    /// When the address cannot be listened at, or the number of this start not be written.
    pub fn start(config: &Config, processors: &Processors, end: End) -> anyhow::Result<Option<Cluster>> {
        let settings = &config.settings;
        let is_shared = config.volumes().any(|export| export.kind == Disk::Shared);
        let (Some(name), Some(listen)) = (&settings.cluster.node, settings.cluster.listen) else { return Ok(None) };
        let Some(backing) = Backing::of(settings).filter(|_| is_shared) else { return Ok(None) };
        backing.refuse_missing(config.volumes())?;
        let refused = |error: NetError| {
            let problem =
                Problem::new(&settings.place("cluster.listen"), "cluster.listen", format!("cannot be served: {error}"));
            Problems::from(problem.allowed("an address of this host whose port nobody uses"))
        };
        let socket = listen_for_peers(listen).map_err(refused)?;
        let addresses = Addresses::default();
        let dsm = Dsm::new(addresses.clone());
        let nodes = if settings.cluster.is_joined() {
            join(config, name, &dsm, addresses, end)?
        } else {
            let names: Vec<String> = settings.cluster.names().map(str::to_owned).collect();
            let Some(number) = names.iter().position(|other| other == name) else { return Ok(None) };
            let incarnation = incarnation(settings, name).context("the number of this start cannot be written")?;
            let peers = (0..).map(NodeId).zip(&settings.cluster.peers);
            peers.for_each(|(number, peer)| addresses.set(number, peer.address.clone()));
            let process = getrandom::u64().map_err(std::io::Error::from).context("the host has no random numbers")?;
            Nodes::Fixed { names, me: Address { node: NodeId(number as u16), incarnation }, process }
        };
        let acceptor = Acceptor::new(1, |_| None, CONNECTIONS_MAX, HostSockets);
        acceptor.add(&*dsm);
        let (accepting, protocol, listener) = (Arc::clone(&acceptor), Arc::clone(&dsm), socket.listener());
        drop(processors.start_task(PROCESSOR, move |cpu| accepting.accept(cpu, protocol, listener)));
        Ok(Some(Cluster { nodes, backing, dsm, acceptor, socket }))
    }

    /// Opens a shared disk; `storage` is for the pages whose home this node is.
    ///
    /// # Errors
    /// When too many volumes are open, or that it has blocks in a file cannot be noted.
    pub fn open(
        &self,
        kernel: &Arc<Kernel>,
        export: &Export,
        storage: DeviceRef,
        home: ProcessorId,
    ) -> Result<Arc<Volume>, Problem> {
        self.backing.note(export)?;
        let (names, me, process) = match &self.nodes {
            Nodes::Joined { node, .. } => return node.open(kernel, export, storage, home),
            Nodes::Fixed { names, me, process } => (names, *me, *process),
        };
        let bits = |name: &String| names.iter().position(|other| other == name).map_or(0, |number| 1 << number);
        let homes = if export.homes.is_empty() { names } else { &export.homes };
        let config = SharedConfig {
            name: export.name.clone(),
            size: storage.facts().size,
            nodes: names.clone(),
            terms: None,
            homes: homes.iter().fold(0, |all, home| all | bits(home)),
            shards: None,
            process,
            is_volatile: export.path().is_none(),
            timeout: dsm::TIMEOUT,
        };
        let shared = Shared::new(config, me, storage, Box::new(|line| tell(line)));
        let volume = volume_of(kernel, export, &shared, home)?;
        self.dsm.add(&shared);
        let dsm = Arc::clone(&self.dsm);
        kernel.mailbox(PROCESSOR).start(move |cpu| dsm.serve(&cpu, &shared));
        Ok(volume)
    }

    /// This node, and what claims databases for it, where the members are in etcd.
    pub fn joined(&self) -> Option<(&Arc<joined::Node>, Claims)> {
        match &self.nodes {
            Nodes::Joined { node, settings, .. } => Some((node, Claims::new(settings))),
            Nodes::Fixed { .. } => None,
        }
    }

    /// What takes mapped memory back when the lease is over and this process is stopped.
    pub fn guard(&self) -> Option<Arc<Guard>> {
        match &self.nodes {
            Nodes::Joined { guard, .. } => Some(Arc::clone(guard)),
            Nodes::Fixed { .. } => None,
        }
    }

    /// The disk of this name, if it is shared.
    pub fn volume(&self, name: &str) -> Option<Weak<Shared>> {
        self.dsm.volumes().iter().find(|shared| shared.name() == name).map(Arc::downgrade)
    }

    /// Tells of shared disks that begin anew: their earlier volumes refuse everything from then on.
    pub fn on_replace(&self, replace: Replace) {
        if let Nodes::Joined { node, .. } = &self.nodes {
            node.on_replace(replace);
        }
    }

    /// The present volume of a shared disk, where that changes.
    pub fn current(&self, name: &str) -> Option<Arc<Volume>> {
        let Nodes::Joined { node, .. } = &self.nodes else { return None };
        node.volume(name)
    }

    /// Whether this node has nothing of shared disks to store: it has never been a member, or will be none any more.
    pub fn has_nothing(&self) -> bool {
        matches!(&self.nodes, Nodes::Joined { node, .. } if node.address().is_none() || node.is_over())
    }

    pub fn protocol(&self) -> &Arc<Dsm> {
        &self.dsm
    }

    /// Stops in order a node that has served nobody, for which it waits a while: its storage may fail all the time.
    pub fn leave(&self, processors: &Processors) {
        let dsm = Arc::clone(&self.dsm);
        let left = processors.start_task(PROCESSOR, move |cpu| async move {
            dsm.begin_to_leave();
            dsm.leave(&cpu).await
        });
        match left.recv_timeout(4 * dsm::TIMEOUT) {
            Ok(failed) => failed.into_iter().for_each(|(name, error)| {
                tell(format_args!("{} could not be written to its disk: {error}", closing::export(&name)));
            }),
            Err(_) => tell("shared disks did not end in time: what others have stored here may not be flushed"),
        }
        self.stop();
    }

    /// Deregisters, so that others take over at once, and accepts no more peers. Returns whether it has to be started anew.
    pub fn stop(&self) -> bool {
        if let Nodes::Joined { node, member, .. } = &self.nodes
            && let Some(member) = member.lock().take()
        {
            node.on_leaving();
            member.leave();
        }
        self.acceptor.stop();
        self.socket.stop();
        matches!(&self.nodes, Nodes::Joined { node, .. } if node.is_over())
    }
}

/// Listens, if need be once the predecessor's socket is closed.
fn listen_for_peers(at: SocketAddr) -> Result<ListeningSocket, NetError> {
    let is_in_use = |error: &NetError| matches!(error, NetError::AddrInUse(_));
    Deadline::for_takeover().retry(|| net::listen_tcp(at), is_in_use).map(|(socket, _)| socket)
}

/// Begins to be a member of the cluster in etcd.
fn join(config: &Config, name: &str, dsm: &Arc<Dsm>, addresses: Addresses, end: joined::End) -> anyhow::Result<Nodes> {
    let cluster = &config.settings.cluster;
    let Some(address) = cluster.address() else { anyhow::bail!("cluster.listen is missing") };
    // A member that cannot serve them would keep the others from them.
    let mut problems = Problems::default();
    let found: Vec<_> = config.volumes().filter_map(|volume| problems.note(media::inspect(volume))).collect();
    drop(problems.or(found)?);
    let disks = config.exports.iter().filter(|export| export.kind == Disk::Shared).count();
    let pages_max = guard::pages_max(cluster.lease) / disks.max(1);
    let node = joined::Node::new(name.to_owned(), cluster.name.clone(), Arc::clone(dsm), addresses, pages_max, end);
    let settings = membership::Settings {
        etcd: cluster.etcd.clone(),
        prefix: PREFIX.into(),
        cluster: cluster.name.clone(),
        node: name.to_owned(),
        others: config.volumes().flat_map(|export| export.homes.clone()).collect(),
        address,
        disks: config.volumes().filter_map(|volume| Some((volume.name.clone(), volume.shared_size()?))).collect(),
        shards: joined::SHARDS,
        lease: cluster.lease,
    };
    let own = Arc::clone(&node);
    let member = Member::join(settings.clone(), move |event| own.on_event(event))?;
    node.begin(member.fence(), member.releases());
    let guard = Guard::new(cluster.lease);
    let own = Arc::clone(&node);
    guard.on_lapse(move || own.end_mappings());
    let own = Arc::clone(&guard);
    member.fence().on_renewed(move |until| own.renew(until));
    node.until_serving(cluster.lease * LEASES_MAX);
    Ok(Nodes::Joined { node, member: Mutex::new(Some(member)), settings: Box::new(settings), guard })
}

/// Shared volumes stay as they are until a restart: the other nodes have them, too.
///
/// # Errors
/// The first one that `wanted` adds, drops or changes.
pub fn refuse_changes<'a>(
    served: impl Iterator<Item = &'a Export>,
    wanted: impl Iterator<Item = &'a Export>,
) -> Result<(), Problem> {
    let of = |export: &&Export| export.kind == Disk::Shared;
    let served: BTreeMap<&str, &Export> = served.filter(of).map(|export| (export.name.as_str(), export)).collect();
    let wanted: Vec<&Export> = wanted.filter(of).collect();
    let same = |export: &&Export| served.get(export.name.as_str()).is_some_and(|old| old.has_same_medium(export));
    let problem = |place: &Place, key: String, what| Err(Problem::new(place, key, what).allowed("a restart"));
    if let Some(other) = wanted.iter().find(|export| !same(export)) {
        return problem(&other.place, other.key("kind"), "= \"shared\" is added or changed while the server runs");
    }
    let is_wanted = |old: &&Export| wanted.iter().any(|export| export.name == old.name);
    match served.into_values().find(|old| !is_wanted(old)) {
        Some(old) => problem(&old.place, old.key("kind"), "= \"shared\" is dropped while the server runs"),
        None => Ok(()),
    }
}

/// Counts the starts of this node, in the data directory: peers know a later process from an earlier one by it.
fn incarnation(settings: &Settings, name: &str) -> anyhow::Result<Incarnation> {
    let path = settings.data.join(format!("cluster.{name}.starts"));
    make_directories(&settings.data)?;
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().with_context(|| format!("{} holds no number", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Incarnation::FIRST.0,
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    // The first is for nodes that start with all others.
    let now = before + 1;
    replace(&path, &format!("{now}\n")).with_context(|| path.display().to_string())?;
    Ok(Incarnation(now))
}

/// Replaces a file so that after a crash it has the old or the new content.
fn replace(path: &Path, content: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_in_use_for_a_moment_is_waited_for() {
        let earlier = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = earlier.local_addr().expect("an address");
        let end = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(earlier);
        });
        assert_eq!(*listen_for_peers(at).expect("listening").address(), net::Address::Tcp(at));
        end.join().expect("ended");
    }

    #[test]
    fn each_start_has_a_higher_number_than_the_one_before() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = Settings { data: directory.path().join("data"), ..Settings::default() };
        let numbers: Vec<u32> = (0..3).map(|_| incarnation(&settings, "a").expect("counted").0).collect();
        assert_eq!(numbers, [2, 3, 4]);
        assert_eq!(incarnation(&settings, "b").expect("counted").0, 2, "each node has its own");
        std::fs::write(settings.data.join("cluster.a.starts"), "many").expect("written");
        let error = format!("{:#}", incarnation(&settings, "a").expect_err("no number"));
        assert!(error.contains("cluster.a.starts holds no number"), "{error}");
    }
}
