//! This node's part in the cluster: the protocol with its peers, and the disks that it shares with them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use dsm::{Connector, Dsm, Shared, SharedConfig};
use kernel::connection::Acceptor;
use kernel::device::DeviceRef;
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Kernel, Volume};
use machine::linux::net::{self, ListeningSocket};
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::coherence::{Address, Incarnation, NodeId};
use policy::unit::ProcessorId;

use crate::accepting::HostSockets;
use crate::config::{Config, Disk, Export, Place, Problem, Problems, Settings};
use crate::processors::Processors;

/// The processor of all connections between nodes.
const PROCESSOR: ProcessorId = ProcessorId(0);

/// An attempt to reach a peer ends after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Peers at a time; more than there are nodes, since a connection may be made anew before the old one has ended.
const CONNECTIONS_MAX: u32 = 1024;

pub struct Cluster {
    names: Vec<String>,
    dsm: Arc<Dsm>,
    acceptor: Arc<Acceptor>,
    socket: ListeningSocket,
}

impl Cluster {
    /// Joins the cluster, if a disk is shared.
    ///
    /// # Errors
    /// When the address cannot be listened at, or the number of this start not be written.
    pub fn start(config: &Config, processors: &Processors) -> anyhow::Result<Option<Cluster>> {
        let settings = &config.settings;
        let is_shared = config.exports.iter().any(|export| export.kind == Disk::Shared);
        let (Some(name), Some(listen)) = (&settings.cluster.node, settings.cluster.listen) else { return Ok(None) };
        let names: Vec<String> = settings.cluster.names().map(str::to_owned).collect();
        let Some(number) = names.iter().position(|other| other == name).filter(|_| is_shared) else { return Ok(None) };
        let refused = |error: net::NetError| {
            let problem =
                Problem::new(&settings.place("cluster.listen"), "cluster.listen", format!("cannot be served: {error}"));
            Problems::from(problem.allowed("an address of this host whose port nobody uses"))
        };
        let (socket, _) = net::listen_tcp(listen).map_err(refused)?;
        let incarnation = incarnation(settings, name).context("the number of this start cannot be written")?;
        let me = Address { node: NodeId(number as u16), incarnation };
        let addresses = settings.cluster.peers.iter().map(|node| node.address.clone()).collect();
        let dsm = Dsm::new(me, Dialler { addresses });
        let acceptor = Acceptor::new([None].into(), CONNECTIONS_MAX, HostSockets);
        acceptor.add(&*dsm);
        let (accepting, protocol, listener) = (Arc::clone(&acceptor), Arc::clone(&dsm), socket.listener());
        drop(processors.start_task(PROCESSOR, move |cpu| accepting.accept(cpu, protocol, listener)));
        Ok(Some(Cluster { names, dsm, acceptor, socket }))
    }

    /// Opens a shared disk; `storage` is for the pages whose home this node is.
    ///
    /// # Errors
    /// When too many volumes are open.
    pub fn open(
        &self,
        kernel: &Arc<Kernel>,
        export: &Export,
        storage: DeviceRef,
        home: ProcessorId,
    ) -> Result<Arc<Volume>, Problem> {
        let bits = |name: &String| self.names.iter().position(|other| other == name).map_or(0, |number| 1 << number);
        let homes = if export.homes.is_empty() { &self.names } else { &export.homes };
        let config = SharedConfig {
            name: export.name.clone(),
            size: storage.facts().size,
            nodes: self.names.clone(),
            homes: homes.iter().fold(0, |all, home| all | bits(home)),
            is_volatile: export.path().is_none(),
            timeout: dsm::TIMEOUT,
        };
        let shared = Shared::new(config, self.dsm.address(), storage, Box::new(|line| eprintln!("awase: {line}")));
        let config = VolumeConfig {
            name: export.name.clone(),
            read_only: export.read_only,
            forced_unit_access: ForcedUnitAccess::Never,
            grows: false,
        };
        let volume = Volume::open_shared(kernel, shared.clone(), shared.clone(), config, home)
            .map_err(|error| Problem::new(&export.place, export.key("name"), format!("cannot be served: {error}")))?;
        shared.set_volume(&volume);
        self.dsm.add(&shared);
        let dsm = Arc::clone(&self.dsm);
        kernel.mailbox(PROCESSOR).start(move |cpu| dsm.serve(&cpu, &shared));
        Ok(volume)
    }

    /// The disk of this name, if it is shared.
    pub fn volume(&self, name: &str) -> Option<Weak<Shared>> {
        self.dsm.volumes().iter().find(|shared| shared.name() == name).map(Arc::downgrade)
    }

    pub fn protocol(&self) -> &Arc<Dsm> {
        &self.dsm
    }

    /// Accepts no more peers, after the volumes were closed and the peers told.
    pub fn stop(&self) {
        self.acceptor.stop();
        self.socket.stop();
    }
}

/// Shared disks stay as they are until a restart: the other nodes have them, too.
///
/// # Errors
/// The first one that `wanted` adds, drops or changes.
pub fn refuse_changes<'a>(served: impl Iterator<Item = &'a Export>, wanted: &[Export]) -> Result<(), Problem> {
    let of = |export: &&Export| export.kind == Disk::Shared;
    let served: BTreeMap<&str, &Export> = served.filter(of).map(|export| (export.name.as_str(), export)).collect();
    let same = |export: &&Export| served.get(export.name.as_str()).is_some_and(|old| old.has_same_medium(export));
    let problem = |place: &Place, key: String, what| Err(Problem::new(place, key, what).allowed("a restart"));
    if let Some(other) = wanted.iter().filter(of).find(|export| !same(export)) {
        return problem(&other.place, other.key("kind"), "= \"shared\" is added or changed while the server runs");
    }
    let is_wanted = |old: &&Export| wanted.iter().filter(of).any(|export| export.name == old.name);
    match served.into_values().find(|old| !is_wanted(old)) {
        Some(old) => problem(&old.place, old.key("kind"), "= \"shared\" is dropped while the server runs"),
        None => Ok(()),
    }
}

/// Counts the starts of this node, in the data directory: peers know a later process from an earlier one by it.
fn incarnation(settings: &Settings, name: &str) -> anyhow::Result<Incarnation> {
    let path = settings.data.join(format!("cluster.{name}.starts"));
    std::fs::create_dir_all(&settings.data)?;
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

/// Connects to peers, each attempt on a thread of its own: names are looked up and answers awaited there.
struct Dialler {
    /// Host and port, by number of the node.
    addresses: Vec<String>,
}

impl Connector for Dialler {
    fn connect(&self, node: NodeId, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>) {
        let address = self.addresses.get(usize::from(node.0)).cloned().unwrap_or_default();
        let made = Arc::new(Mutex::new(Some(made)));
        let own = Arc::clone(&made);
        let dialling = move || {
            let result = dial(&address);
            let made = own.lock().take();
            made.into_iter().for_each(|made| made(result));
        };
        let thread = std::thread::Builder::new().name("cluster-dial".into()).spawn(dialling);
        // Without a thread the attempt has failed.
        if let Err(error) = thread {
            let made = made.lock().take();
            made.into_iter().for_each(|made| made(Err(Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))));
        }
    }
}

fn dial(address: &str) -> Result<Connection, Errno> {
    let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EHOSTUNREACH));
    let mut last = Errno(libc::EHOSTUNREACH);
    for address in address.to_socket_addrs().map_err(errno)? {
        match std::net::TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return net::adopt_connection(stream.into()).map_err(errno),
            Err(error) => last = errno(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

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
