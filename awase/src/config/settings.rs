//! Settings of the whole server: processors, memory, listeners, limits.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use kernel::tree::OPEN_FILES_MAX;
use machine::linux::Engine;

use super::given::{Given, Refusal, show_bytes, show_duration};
use super::key::Key;
use super::problem::Place;

/// Registered with IANA.
pub const NBD_PORT: u16 = 10809;

/// Registered with IANA; only root may bind it.
pub const NFS_PORT: u16 = 2049;

pub const NFS_PORT_OF_USERS: u16 = 20490;

/// In the range that Prometheus exporters use.
pub const METRICS_PORT: u16 = 9809;

/// Beyond any supported host; each processor costs memory.
const PROCESSORS_MAX: u64 = 1024;

/// Smallest cache: a few frames for each request that may be in flight. Bytes.
const MEMORY_MIN: u64 = 8 << 20;

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

/// Name of the control socket in the data directory.
pub const CONTROL_NAME: &str = "control";

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
    /// `None`: one in `data`.
    pub nbd_unix: Option<Vec<PathBuf>>,
    /// `None`: one on loopback.
    pub nfs: Option<Vec<SocketAddr>>,
    pub nfs_unix: Vec<PathBuf>,
    /// `None`: one on loopback, if its port is free.
    pub metrics: Option<Vec<SocketAddr>>,
    /// Host names accepted in requests for metrics, besides the usual ones.
    pub metrics_names: Vec<String>,
    /// Register NFS with the host's rpcbind.
    pub rpcbind: bool,
    pub control: Control,
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
            data: "awase-data".into(),
            nbd: vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), NBD_PORT)],
            nbd_unix: None,
            nfs: None,
            nfs_unix: Vec::new(),
            metrics: None,
            metrics_names: Vec::new(),
            rpcbind: false,
            control: Control::InData,
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

impl Settings {
    /// Where a key was set, for messages about what the host refuses.
    pub fn place(&self, key: &str) -> Place {
        self.places.get(key).cloned().unwrap_or_default()
    }

    pub fn unix_sockets(&self) -> Vec<PathBuf> {
        self.nbd_unix.clone().unwrap_or_else(|| vec![self.data.join("nbd.sock")])
    }

    pub fn control_socket(&self) -> Option<PathBuf> {
        match &self.control {
            Control::InData => Some(self.data.join(CONTROL_NAME)),
            Control::At(path) => Some(path.clone()),
            Control::Nowhere => None,
        }
    }

    pub fn nfs_addresses(&self) -> Vec<SocketAddr> {
        self.nfs.clone().unwrap_or_else(|| vec![SocketAddr::new(IpAddr::from([127, 0, 0, 1]), nfs_port())])
    }
}

pub static SETTINGS: &[Key<Settings>] = &[
    Key {
        name: "processors",
        allowed: "\"auto\" (one for each core) or a number from 1 to 1024",
        about: "The number of processors: threads pinned to a core, each with its own ring",
        paper: "",
        set: |settings, given| {
            settings.processors = unless_auto(given, |given| given.number(1..=PROCESSORS_MAX))?.map(|n| n as u16);
            Ok(())
        },
        show: |settings| Some(settings.processors.map_or("\"auto\"".into(), |n| n.to_string())),
    },
    Key {
        name: "memory",
        allowed: "\"auto\" (all that the host can spare) or a size of at least 8MiB such as \"512MiB\"",
        about: "The most memory for the buffer cache",
        paper: "WS-2",
        set: |settings, given| {
            settings.memory = unless_auto(given, |given| given.bytes(MEMORY_MIN..=1 << 50))?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", settings.memory.map_or("auto".into(), show_bytes))),
    },
    Key {
        name: "engine",
        allowed: "\"auto\", \"io_uring\", \"threads\"",
        about: "How the host is asked for I/O; auto: io_uring where it is permitted",
        paper: "",
        set: |settings, given| {
            let text = given.text()?;
            let engines = [Engine::Auto, Engine::IoUring, Engine::Threads];
            let found = engines.into_iter().find(|engine| engine.to_string() == text);
            settings.engine = found.ok_or(Refusal::NotAllowed)?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", settings.engine.to_string())),
    },
    Key {
        name: "idle_poll",
        allowed: "a time up to 10ms such as \"100us\"; \"0\" for never",
        about: "The longest that an idle processor polls for work before it sleeps; shorter where polling finds none (io_uring)",
        paper: "",
        set: |settings, given| {
            settings.idle_poll = given.duration(Duration::ZERO..=Duration::from_millis(10))?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", show_duration(settings.idle_poll))),
    },
    Key {
        name: "data",
        allowed: "a directory",
        about: "Directory for what the server creates by itself: the default disk image, directory and Unix socket, the control \
                socket, the link to the trace, and the secret of NFS file handles",
        paper: "",
        set: |settings, given| {
            settings.data = given.filled_text()?.into();
            Ok(())
        },
        show: |settings| Some(format!("{:?}", settings.data)),
    },
    Key {
        name: "listen.nbd",
        allowed: "a list of addresses such as \"127.0.0.1:10809\" or \"[::]:10809\"; [] for none",
        about: "Addresses on which NBD is served",
        paper: "",
        set: |settings, given| {
            settings.nbd = given.texts()?.iter().map(|text| address(text, NBD_PORT)).collect::<Result<_, _>>()?;
            Ok(())
        },
        show: |settings| Some(list(settings.nbd.iter().map(|address| format!("\"{address}\"")))),
    },
    Key {
        name: "listen.nbd_unix",
        allowed: "a path (at most 107 bytes), a list of paths, or [] for none",
        about: "Unix sockets on which NBD is served",
        paper: "",
        set: |settings, given| {
            settings.nbd_unix = Some(given.texts()?.into_iter().map(socket_path).collect::<Result<_, _>>()?);
            Ok(())
        },
        show: |settings| Some(list(settings.unix_sockets().iter().map(|path| format!("{path:?}")))),
    },
    Key {
        name: "listen.nfs",
        allowed: "\"auto\" (127.0.0.1:2049 for root, otherwise 127.0.0.1:20490), a list of addresses such as \
                  \"[::]:2049\", or [] for none",
        about: "Addresses on which NFS and MOUNT are served, if there are directories",
        paper: "",
        set: |settings, given| {
            settings.nfs = unless_auto(given, |given| {
                given.texts()?.iter().map(|text| address(text, nfs_port())).collect::<Result<_, _>>()
            })?;
            Ok(())
        },
        show: |settings| {
            let addresses = |all: &Vec<SocketAddr>| list(all.iter().map(|address| format!("\"{address}\"")));
            Some(settings.nfs.as_ref().map_or("\"auto\"".into(), addresses))
        },
    },
    Key {
        name: "listen.nfs_unix",
        allowed: "a path (at most 107 bytes), a list of paths, or [] for none",
        about: "Unix sockets on which NFS and MOUNT are served, if there are directories. The host says who the caller is \
                (`SO_PEERCRED`), whatever it claims; root alone may act for others",
        paper: "",
        set: |settings, given| {
            settings.nfs_unix = given.texts()?.into_iter().map(socket_path).collect::<Result<_, _>>()?;
            Ok(())
        },
        show: |settings| Some(list(settings.nfs_unix.iter().map(|path| format!("{path:?}")))),
    },
    Key {
        name: "listen.metrics",
        allowed: "\"auto\" (127.0.0.1:9809, if it is free), a list of addresses such as \"127.0.0.1:9809\", \
                  or [] for none",
        about: "Addresses on which counters are served over HTTP, to every client that reaches them: `/metrics` for \
                Prometheus, `/` a page with live plots",
        paper: "OLTP",
        set: |settings, given| {
            settings.metrics = unless_auto(given, |given| {
                given.texts()?.iter().map(|text| address(text, METRICS_PORT)).collect::<Result<_, _>>()
            })?;
            Ok(())
        },
        show: |settings| {
            let addresses = |all: &Vec<SocketAddr>| list(all.iter().map(|address| format!("\"{address}\"")));
            Some(settings.metrics.as_ref().map_or("\"auto\"".into(), addresses))
        },
    },
    Key {
        name: "listen.metrics_names",
        allowed: "a list of host names such as \"storage.example.org\"",
        about: "Host names accepted in requests for metrics, besides addresses, `localhost` and this host's own name. \
                Requests under other names are refused: a site could have its name resolve to this host and read the \
                answers (DNS rebinding)",
        paper: "",
        set: |settings, given| {
            settings.metrics_names = given.texts()?;
            Ok(())
        },
        show: |settings| Some(list(settings.metrics_names.iter().map(|name| format!("{name:?}")))),
    },
    Key {
        name: "listen.rpcbind",
        allowed: "true, false",
        about: "Register the port of NFS with this host's rpcbind, so that clients need not name it",
        paper: "",
        set: |settings, given| {
            settings.rpcbind = given.boolean()?;
            Ok(())
        },
        show: |settings| Some(settings.rpcbind.to_string()),
    },
    Key {
        name: "listen.control",
        allowed: "\"auto\" (control in the data directory), a path (at most 107 bytes), or \"none\"",
        about: "Unix socket of `awase top` and `awase set`, for the server's user alone",
        paper: "",
        set: |settings, given| {
            settings.control = match given.filled_text()? {
                "auto" => Control::InData,
                "none" => Control::Nowhere,
                path => Control::At(socket_path(path.to_owned())?),
            };
            Ok(())
        },
        show: |settings| {
            Some(match &settings.control {
                Control::InData => "\"auto\"".into(),
                Control::At(path) => format!("{path:?}"),
                Control::Nowhere => "\"none\"".into(),
            })
        },
    },
    Key {
        name: "limits.connections",
        allowed: "a number from 1 to 65536",
        about: "Connections at a time; further ones are refused. One client has at most as many as stay free for others",
        paper: "",
        set: |settings, given| {
            settings.limits.connections = given.number(1..=65536)? as u32;
            Ok(())
        },
        show: |settings| Some(settings.limits.connections.to_string()),
    },
    Key {
        name: "limits.requests_a_connection",
        allowed: "a number from 1 to 4096",
        about: "Requests in flight on one connection; the client is slowed beyond that",
        paper: "",
        set: |settings, given| {
            settings.limits.requests_a_connection = given.number(1..=4096)? as u32;
            Ok(())
        },
        show: |settings| Some(settings.limits.requests_a_connection.to_string()),
    },
    Key {
        name: "limits.bytes_a_connection",
        allowed: "a size from 32MiB (the largest request) to 4GiB",
        about: "Payload of the requests in flight on one connection; the client is slowed beyond that",
        paper: "",
        set: |settings, given| {
            settings.limits.bytes_a_connection = given.bytes(32 << 20..=4 << 30)?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", show_bytes(settings.limits.bytes_a_connection))),
    },
    Key {
        name: "limits.open_files",
        allowed: "\"auto\" (60000, or what the host allows) or a number from 64 to 60000",
        about: "Files of directories that are open at a time; beyond that the least used are closed",
        paper: "",
        set: |settings, given| {
            settings.limits.open_files =
                unless_auto(given, |given| given.number(64..=OPEN_FILES_MAX as u64))?.map(|n| n as u32);
            Ok(())
        },
        show: |settings| Some(settings.limits.open_files.map_or("\"auto\"".into(), |n| n.to_string())),
    },
    Key {
        name: "limits.stall_timeout",
        allowed: "a time from 1s to 60min such as \"60s\"",
        about: "A client that takes longer for a request, or for a piece (1 MiB at most) of its payload, is disconnected",
        paper: "",
        set: |settings, given| {
            settings.limits.stall_timeout = given.duration(Duration::from_secs(1)..=Duration::from_secs(3600))?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", show_duration(settings.limits.stall_timeout))),
    },
    Key {
        name: "limits.drain_timeout",
        allowed: "a time from 0s to 60min such as \"30s\"",
        about: "The longest that a draining server waits for requests in flight",
        paper: "",
        set: |settings, given| {
            settings.limits.drain_timeout = given.duration(Duration::ZERO..=Duration::from_secs(3600))?;
            Ok(())
        },
        show: |settings| Some(format!("{:?}", show_duration(settings.limits.drain_timeout))),
    },
];

fn unless_auto<T>(given: &Given, read: impl FnOnce(&Given) -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    if *given == Given::Text("auto".into()) { Ok(None) } else { read(given).map(Some) }
}

/// The port of NFS where none is configured.
fn nfs_port() -> u16 {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 { NFS_PORT } else { NFS_PORT_OF_USERS }
}

/// An address with a port, or without: then `port`.
fn address(text: &str, port: u16) -> Result<SocketAddr, Refusal> {
    let bare = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, port));
    text.parse().or_else(|_| bare()).map_err(|_| Refusal::Because(format!("holds {text:?}, not an IP address")))
}

/// `sun_path` holds 108 bytes with the final zero (unix(7)).
fn socket_path(text: String) -> Result<PathBuf, Refusal> {
    if text.len() > 107 {
        return Err(Refusal::Because(format!("is {} bytes long, too long for a Unix socket", text.len())));
    }
    Ok(text.into())
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}
