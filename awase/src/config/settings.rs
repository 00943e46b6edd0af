//! Settings of the whole server: processors, memory, listeners, limits.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use kernel::tree::OPEN_FILES_MAX;
use machine::linux::Engine;

use super::cluster::{Cluster, endpoint, misnamed, peers};
use super::form::{Form, auto, bytes, list, named, number, on_off, optional, parsed, path, text, time};
use super::given::Refusal;
use super::key::{Key, Keys, keys};
use super::problem::Place;

/// Registered with IANA.
pub const NBD_PORT: u16 = 10809;

/// Beside that of NBD; not registered.
pub const CLUSTER_PORT: u16 = 10810;

/// Registered with IANA; only root may bind it.
pub const NFS_PORT: u16 = 2049;

pub const NFS_PORT_OF_USERS: u16 = 20490;

/// In the range that Prometheus exporters use.
pub const METRICS_PORT: u16 = 9809;

/// Beyond any supported host; each processor costs memory.
const PROCESSORS_MAX: u16 = 1024;

/// Smallest cache: a few frames for each request that may be in flight. Bytes.
const MEMORY_MIN: u64 = 8 << 20;

/// PostgreSQL's own is 5432.
pub const POSTGRES_PORT: u16 = 5433;

const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Bounds on what clients can make the server allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections: u32,
    /// Requests in flight on one connection.
    pub requests_a_connection: u32,
    /// Payload of the requests in flight on one connection. Bytes.
    pub bytes_a_connection: u64,
    /// Files of directories that are open at a time; `None`: as the descriptor limit allows.
    pub open_files: Option<u32>,
    /// A client that makes no progress within a message for this long is disconnected.
    pub stall_timeout: Duration,
    /// The longest that a draining server waits for requests in flight.
    pub drain_timeout: Duration,
}

/// The control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// A Unix socket in the data directory.
    #[default]
    InData,
    At(PathBuf),
    Nowhere,
}

const DATA: &str = "awase-data";

/// Longest path of a Unix socket: `sun_path` holds 108 bytes with the final zero (unix(7)).
pub(super) const SOCKET_BYTES_MAX: usize = 107;

const NBD_SOCKET_NAME: &str = "nbd.sock";

/// Name of the control socket in the data directory.
pub const CONTROL_NAME: &str = "control";

/// Name of the socket for programs that map shared disks, in the data directory.
const SHM_NAME: &str = "shm";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `None`: one for each core that the process may use.
    pub processors: Option<u16>,
    /// The most memory for the cache; `None`: all that the host can spare. Bytes.
    pub memory: Option<u64>,
    pub engine: Engine,
    /// The longest that an idle processor polls before it sleeps.
    pub idle_poll: Duration,
    /// The data directory: what the server creates by itself.
    pub data: PathBuf,
    pub nbd: Vec<SocketAddr>,
    /// One in `data`, if none was set.
    pub nbd_unix: Vec<PathBuf>,
    /// `None`: one on loopback.
    pub nfs: Option<Vec<SocketAddr>>,
    pub nfs_unix: Vec<PathBuf>,
    /// `None`: one on loopback.
    pub postgres: Option<Vec<SocketAddr>>,
    /// One in `data`, if none was set.
    pub postgres_unix: Vec<PathBuf>,
    /// `None`: one on loopback, if its port is free.
    pub metrics: Option<Vec<SocketAddr>>,
    /// Host names accepted in requests for metrics, besides the usual ones.
    pub metrics_names: Vec<String>,
    /// Register NFS with the host's rpcbind.
    pub rpcbind: bool,
    pub control: Control,
    /// For programs that map shared disks.
    pub shm: Control,
    pub cluster: Cluster,
    pub limits: Limits,
    /// Where each key was set, if it was.
    pub places: BTreeMap<String, Place>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            processors: None,
            memory: None,
            engine: Engine::Auto,
            idle_poll: policy::idle::Config::default().longest,
            data: DATA.into(),
            nbd: vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), NBD_PORT)],
            nbd_unix: vec![PathBuf::from(DATA).join(NBD_SOCKET_NAME)],
            nfs: None,
            nfs_unix: Vec::new(),
            postgres: None,
            postgres_unix: vec![postgres_socket(Path::new(DATA), POSTGRES_PORT)],
            metrics: None,
            metrics_names: Vec::new(),
            rpcbind: false,
            control: Control::InData,
            shm: Control::InData,
            cluster: Cluster::default(),
            limits: Limits {
                connections: 2048,
                requests_a_connection: 128,
                bytes_a_connection: 64 << 20,
                open_files: None,
                stall_timeout: Duration::from_secs(60),
                drain_timeout: Duration::from_secs(30),
            },
            places: BTreeMap::new(),
        }
    }
}

impl Control {
    /// With this name in the data directory, unless configured.
    fn path(&self, data: &Path, name: &str) -> Option<PathBuf> {
        match self {
            Control::InData => Some(data.join(name)),
            Control::At(path) => Some(path.clone()),
            Control::Nowhere => None,
        }
    }
}

impl Settings {
    /// Those that follow from others, where they were not set.
    pub(super) fn fill_in(&mut self) {
        if !self.places.contains_key("listen.nbd_unix") {
            self.nbd_unix = vec![self.data.join(NBD_SOCKET_NAME)];
        }
        if !self.places.contains_key("listen.postgres_unix") {
            let port = self.postgres_addresses().first().map_or(POSTGRES_PORT, SocketAddr::port);
            self.postgres_unix = vec![postgres_socket(&self.data, port)];
        }
    }

    /// Where a key was set, for messages about what the host refuses.
    pub fn place(&self, key: &str) -> Place {
        self.places.get(key).cloned().unwrap_or_default()
    }

    pub fn control_socket(&self) -> Option<PathBuf> {
        self.control.path(&self.data, CONTROL_NAME)
    }

    /// For programs that map shared disks.
    pub fn shm_socket(&self) -> Option<PathBuf> {
        self.shm.path(&self.data, SHM_NAME)
    }

    pub fn postgres_addresses(&self) -> Vec<SocketAddr> {
        self.postgres.clone().unwrap_or_else(|| vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), POSTGRES_PORT)])
    }

    pub fn nfs_addresses(&self) -> Vec<SocketAddr> {
        self.nfs.clone().unwrap_or_else(|| vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), nfs_port())])
    }
}

pub static SETTINGS: Keys<Settings> = keys! { Settings:
    processors: auto("\"auto\" (one for each core) or ", number(1..=PROCESSORS_MAX)),
        "The number of processors: threads pinned to a core, each with its own ring";
    memory: auto("\"auto\" (all that the host can spare) or ",
            bytes(MEMORY_MIN..=1 << 50, "a size of at least 8MiB such as \"512MiB\"")),
        "The most memory for the buffer cache", "WS-2";
    engine: named([(Engine::Auto, "auto"), (Engine::IoUring, "io_uring"), (Engine::Threads, "threads")]),
        "How the host is asked for I/O; auto: io_uring where it is permitted";
    idle_poll: time(Duration::ZERO..=Duration::from_millis(10), "a time up to 10ms such as \"100us\"; \"0\" for never"),
        "The longest that an idle processor polls for work before it sleeps; shorter where polling finds none. \
         For the only request that is in progress a tenth of it: while a lone client's write waits for a slower disk it sleeps. \
         With two to four processors the others poll, too, where that is found to shorten the waits of one with few \
         clients; and change cores where that shortens a lone request's waits for the disk (io_uring)";
    data: path("a directory"),
        "Directory for what the server creates by itself: the default disk image, directory, database and Unix \
         sockets, the control socket, the link to the trace, and the secret of NFS file handles";
    listen.nbd as nbd: list(parsed(
            "a list of addresses such as \"127.0.0.1:10809\" or \"[::]:10809\"; [] for none",
            |text| address(text, NBD_PORT))),
        "Addresses on which NBD is served";
    listen.nbd_unix as nbd_unix: sockets(),
        "Unix sockets on which NBD is served";
    listen.nfs as nfs: auto("\"auto\" (127.0.0.1:2049 for root, otherwise 127.0.0.1:20490), ", list(parsed(
            "a list of addresses such as \"[::]:2049\", or [] for none", |text| address(text, nfs_port())))),
        "Addresses on which NFS and MOUNT are served, if there are directories";
    listen.nfs_unix as nfs_unix: sockets(),
        "Unix sockets on which NFS and MOUNT are served, if there are directories. The host says who the caller is \
         (`SO_PEERCRED`), whatever it claims; root alone may act for others";
    listen.postgres as postgres: auto("\"auto\" (127.0.0.1:5433), ", list(parsed(
            "a list of addresses such as \"127.0.0.1:5433\", or [] for none", |text| address(text, POSTGRES_PORT)))),
        "Addresses on which databases are reached with PostgreSQL's protocol, if there are any. Others than loopback \
         need users with passwords";
    listen.postgres_unix as postgres_unix: sockets(),
        "Unix sockets on which databases are reached, if there are any. Clients of PostgreSQL are told the directory, \
         and expect `.s.PGSQL.` and the port as the name in it";
    listen.metrics as metrics: auto("\"auto\" (127.0.0.1:9809, if it is free), ", list(parsed(
            "a list of addresses such as \"127.0.0.1:9809\", or [] for none", |text| address(text, METRICS_PORT)))),
        "Addresses on which counters are served over HTTP, to every client that reaches them: `/metrics` for \
         Prometheus, `/` a page with live plots", "OLTP";
    listen.metrics_names as metrics_names: list(text("a list of host names such as \"storage.example.org\"")),
        "Host names accepted in requests for metrics, besides addresses, `localhost` and this host's own name. \
         Requests under other names are refused: a site could have its name resolve to this host and read the answers \
         (DNS rebinding)";
    listen.rpcbind as rpcbind: on_off(),
        "Register the port of NFS with this host's rpcbind, so that clients need not name it";
    listen.control as control: private_socket(CONTROL_NAME),
        "Unix socket of `awase top` and `awase set`, for the server's user alone";
    listen.shm as shm: private_socket(SHM_NAME),
        "Unix socket at which programs of this host map shared disks (`awase-shm`), for the server's user alone";
    cluster.node: named([(None, "none")])
            .or(optional(text("").unless(|name| misnamed(name))), "the name of this node, with `cluster.peers` one of those"),
        "This node of the cluster whose nodes share disks (kind `shared`)";
    cluster.listen: named([(None, "none")])
            .or(optional(parsed("", |text| address(text, CLUSTER_PORT))), "an address such as \"10.0.0.1:10810\""),
        "The address at which the other nodes reach this one. Who reaches it can read and write all that is shared: it \
         belongs into a network of the nodes alone";
    cluster.peers: peers(),
        "All nodes of the cluster with their addresses, this one included; the same on all nodes. Not with `cluster.etcd`";
    cluster.etcd: list(parsed("a list of endpoints of one etcd such as [\"http://10.0.0.9:2379\"]; [] for none", endpoint)),
        "The etcd in which nodes register: then they may come and go, and who is dead is decided (no TLS: it belongs into \
         a network of its own). Not with `cluster.peers`";
    cluster.name: text("a name of letters, digits, - and _").unless(|name| misnamed(name)),
        "The cluster's name in etcd: its keys begin with `/awase/NAME/`; the same on all nodes";
    cluster.lease: time(Duration::from_secs(1)..=Duration::from_secs(3600), "whole seconds from 1s to 60min such as \"2s\"")
            .unless(|lease| (lease.subsec_nanos() > 0).then(|| "is not a number of whole seconds".into())),
        "With `cluster.etcd`: a node of which etcd hears nothing for so long is dead. Others take over after that, and it \
         answers nothing any more before. At least one and a half of etcd's election timeouts; the same on all nodes. \
         For each second of it, programs of a node have at most 128 MiB of its shared disks in memory";
    cluster.advertise: named([(None, "none")])
            .or(optional(parsed("", |text| address(text, CLUSTER_PORT))), "an address such as \"10.0.0.1:10810\""),
        "With `cluster.etcd`: where the other nodes reach this one, if that is another address than `cluster.listen`";
    limits.connections: number(1..=65536),
        "Connections at a time; further ones are refused. One client has at most as many as stay free for others";
    limits.requests_a_connection: number(1..=4096),
        "Requests in flight on one connection; the client is slowed beyond that";
    limits.bytes_a_connection: bytes(32 << 20..=4 << 30, "a size from 32MiB (the largest request) to 4GiB"),
        "Payload of the requests in flight on one connection; the client is slowed beyond that";
    limits.open_files: auto("\"auto\" (60000, or what the host allows) or ", number(64..=OPEN_FILES_MAX as u32)),
        "Files of directories that are open at a time; beyond that the least used are closed";
    limits.stall_timeout: time(Duration::from_secs(1)..=TIMEOUT_MAX, "a time from 1s to 60min such as \"60s\""),
        "A client that takes longer for a request, or for a piece (1 MiB at most) of its payload, is disconnected";
    limits.drain_timeout: time(Duration::ZERO..=TIMEOUT_MAX, "a time from 0s to 60min such as \"30s\""),
        "The longest that a draining server waits for requests in flight";
};

/// Where clients of PostgreSQL that are told `directory` and `port` look for the socket.
pub fn postgres_socket(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

fn sockets() -> Form<Vec<PathBuf>> {
    list(socket("a path (at most 107 bytes), a list of paths, or [] for none"))
}

fn socket(allowed: &str) -> Form<PathBuf> {
    path(allowed).unless(|path| {
        let bytes = path.as_os_str().len();
        (bytes > SOCKET_BYTES_MAX).then(|| format!("is {bytes} bytes long, too long for a Unix socket"))
    })
}

fn private_socket(name: &str) -> Form<Control> {
    let path = socket("").map(Control::At, |control| match control {
        Control::At(path) => Some(path.clone()),
        _ => None,
    });
    let allowed = format!("\"auto\" ({name} in the data directory), a path (at most 107 bytes), or \"none\"");
    named([(Control::InData, "auto"), (Control::Nowhere, "none")]).or(path, &allowed)
}

/// The port of NFS where none is configured.
fn nfs_port() -> u16 {
    if rustix::process::geteuid().is_root() { NFS_PORT } else { NFS_PORT_OF_USERS }
}

/// An address with a port, or without: then `port`.
fn address(text: &str, port: u16) -> Result<SocketAddr, Refusal> {
    let bare = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, port));
    text.parse().or_else(|_| bare()).map_err(|_| Refusal::Because(format!("holds {text:?}, not an IP address")))
}
