//! The servers that are compared: how each is started, when it is ready, and how it ends.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nfs3_types::{mount, nfs3, portmap};
use papers::parameter::Text;
use papers::parameter::sheet::text;
use serde::Deserialize;

use crate::measure::load::{Address, Endpoint, Session, Target, nbd};
use crate::measure::process::{Interrupted, Process};

/// NFS-Ganesha, as a program of the host.
pub const GANESHA: &str = "ganesha.nfsd";

/// Printed when a program is missing.
const GANESHA_PACKAGES: &str = "NFS-Ganesha needs: sudo apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind";

const EXPORT: &str = "disk";

/// Size of every file where nothing is stored: more than any load reads.
const NULL_FILE_BYTES: u64 = 1 << 40;

/// What is measured under one name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Form")]
pub struct Contender {
    /// Its name in the report.
    pub label: Text,
    pub peer: Peer,
    /// Requests in flight, if not the workload's number.
    pub in_flight: Option<u32>,
}

/// How a workload names a contender: by the label of a known one, or, if it is Awase with something of its own, whole.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Known(String),
    Own(Own),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    #[serde(deserialize_with = "text")]
    label: Text,
    #[serde(default)]
    peer: Peer,
    in_flight: Option<u32>,
}

impl TryFrom<Form> for Contender {
    type Error = String;

    fn try_from(form: Form) -> std::result::Result<Self, String> {
        match form {
            Form::Own(Own { label, peer, in_flight }) => Ok(Contender { label, peer, in_flight }),
            Form::Known(named) => {
                let known = KNOWN.iter().find(|(label, _)| *label == named);
                let (label, peer) = *known.ok_or_else(|| format!("there is no contender {named}"))?;
                Ok(Contender { label, peer, in_flight: None })
            }
        }
    }
}

const KNOWN: [(&str, Peer); 19] = [
    ("Awase", Peer::Awase("")),
    ("nbdkit file", Peer::NbdkitFile),
    ("nbdkit memory", Peer::NbdkitMemory),
    ("qemu-nbd", Peer::QemuNbd),
    ("NFS-Ganesha", Peer::Ganesha),
    ("NFS-Ganesha, chattr +D", Peer::GaneshaOnSynchronousDirectory),
    // Nothing is stored.
    ("null", Peer::Null("")),
    // The same, which sleeps at once when there is nothing to do: less processor time, and less of the client's, where it
    // shares the core.
    ("null, asleep when idle", Peer::Null("--poll-us 0")),
    // The same with data from all over the memory, as in a cache: what it costs to read memory that no processor's cache
    // holds is part of every server's work.
    ("null, data from 128 MiB", Peer::Null("--spread")),
    // Each request to the disk, one flush for all in flight.
    ("pass", Peer::Pass { part: 1, poll_us: 0 }),
    // A flush for half as many: the other half is written meanwhile.
    ("pass, half a group", Peer::Pass { part: 2, poll_us: 0 }),
    // Where the time that it takes to wake up counts.
    ("pass, polling", Peer::Pass { part: 1, poll_us: 500 }),
    ("raw file (io_uring)", Peer::Raw),
    // Changes of names without a server.
    ("the host alone", Peer::Raw),
    // Clients of directories. The first two without a mount.
    ("raw client", Peer::Driver),
    ("libnfs", Peer::Libnfs),
    ("pass-through FUSE", Peer::PassThrough),
    ("sshfs", Peer::Sshfs),
    ("rclone mount", Peer::Rclone),
];

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// No server: the file itself, or changes of names by the host alone ([`super::nfs`]).
    Raw,
    /// The shortest server without a disk ([`crate::limit`]), with these flags.
    Null(#[serde(deserialize_with = "text")] Text),
    /// The shortest server with one request to the disk for each of the client's. A flush is for this part of the stable
    /// writes or flushes that are in flight.
    Pass {
        part: u32,
        poll_us: u32,
    },
    /// With these flags of `awase serve`.
    Awase(#[serde(deserialize_with = "text")] Text),
    /// A directory with `names = "ordered"`.
    AwaseOrdered,
    /// The same, mounted with `noclosecommit`: names and content survive a crash as on a local disk.
    AwaseAsLocal,
    NbdkitFile,
    NbdkitMemory,
    /// qemu-nbd without the host's cache, with `io_uring`.
    QemuNbd,
    /// NFS-Ganesha with its file system abstraction for local directories (VFS), as it is installed.
    Ganesha,
    /// The same, on a directory in which names change durably (`chattr +D`): Ganesha has no setting for that.
    GaneshaOnSynchronousDirectory,
    /// The load driver of this program, on Awase's server.
    Driver,
    /// libnfs's asynchronous calls, on Awase's server.
    Libnfs,
    /// The shortest file system in user space over a directory of the host ([`crate::limit`]).
    PassThrough,
    /// sshfs, on OpenSSH's `sftp-server`.
    Sshfs,
    /// `rclone mount`, of a directory of the host.
    Rclone,
}

impl Default for Peer {
    fn default() -> Self {
        Peer::Awase("")
    }
}

/// What a contender is in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Awase, as it is or otherwise.
    Own,
    /// Another server that people use.
    Peer,
    /// What no server exceeds: the greatest of those that a workload has counts.
    Limit(Limit),
}

/// In the order of the work that they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    Machine,
    Null,
    Pass,
}

impl Contender {
    pub const fn role(&self) -> Role {
        match self.peer {
            Peer::Raw | Peer::Driver | Peer::Libnfs => Role::Limit(Limit::Machine),
            Peer::Null(_) => Role::Limit(Limit::Null),
            Peer::Pass { .. } | Peer::PassThrough => Role::Limit(Limit::Pass),
            Peer::Awase(_) | Peer::AwaseOrdered | Peer::AwaseAsLocal => Role::Own,
            _ => Role::Peer,
        }
    }
}

/// The memory that Awase's cache may take.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Awase sizes its cache itself.
    #[default]
    Auto,
    Mib(u64),
    TenthOfImage,
}

/// What a server is to export.
#[derive(Clone, Copy)]
pub enum Export<'a> {
    /// A disk, over NBD on a Unix socket.
    Image {
        path: &'a Path,
        bytes: u64,
        memory: Memory,
        /// Connections that clients will make.
        connections: u32,
        /// Stable writes or flushes that they will have in flight: only [`Peer::Pass`] is told.
        group: u32,
    },
    /// Over NFS.
    Directory {
        path: &'a Path,
        /// As of an image.
        group: u32,
    },
}

#[derive(Clone, Copy)]
pub struct Order<'a> {
    pub awase: &'a Path,
    pub export: Export<'a>,
    /// A directory for this server alone.
    pub place: &'a Path,
}

pub struct Server {
    pub process: Process,
    pub target: Target,
    /// The port mapper, without which Ganesha does not start.
    port_mapper: Option<Process>,
}

impl Server {
    /// Starts a contender's server and waits until it answers; `None` if it has none.
    pub fn start(contender: &Contender, order: &Order<'_>, interrupted: &Interrupted) -> Result<Option<Server>> {
        let Some((command, target)) = command(contender.peer, order)? else { return Ok(None) };
        let is_ganesha = matches!(contender.peer, Peer::Ganesha | Peer::GaneshaOnSynchronousDirectory);
        let port_mapper =
            if is_ganesha { port_mapper(order.place, interrupted).context(GANESHA_PACKAGES)? } else { None };
        let process = Process::start(command, &order.place.join("server.log"), interrupted);
        let mut process = if is_ganesha { process.context(GANESHA_PACKAGES)? } else { process? };
        process.ready(|_| answers(&target)).with_context(|| {
            let messages = fs::read_to_string(ganesha_log(order)).unwrap_or_default();
            format!("{} did not start {}", contender.label, messages.trim())
        })?;
        Ok(Some(Server { process, target, port_mapper }))
    }

    pub fn stop(self) -> Result<()> {
        self.process.stop()?;
        self.port_mapper.map_or(Ok(()), Process::stop)
    }
}

/// Does a server speak its protocol, and has it its export?
fn answers(target: &Target) -> Result<()> {
    match target {
        Target::Nbd { at, export } => nbd::connect(at, export).map(drop),
        Target::Nfs(endpoint) => {
            Session::new(endpoint.nfs, 0, 0)?.null(nfs3::PROGRAM, nfs3::VERSION)?;
            Session::new(endpoint.mount, 0, 0)?.null(mount::PROGRAM, mount::VERSION)?;
            // The export may appear after the ports.
            Session::mount(endpoint).map(drop)
        }
    }
}

fn command(peer: Peer, order: &Order<'_>) -> Result<Option<(Command, Target)>> {
    match order.export {
        Export::Image { .. } => {
            let socket = order.place.join("nbd.sock");
            let command = image_command(peer, order, &socket)?;
            let target = Target::Nbd { at: Address::Unix(socket), export: EXPORT.into() };
            Ok(command.map(|command| (command, target)))
        }
        Export::Directory { path, group } => directory_command(peer, order, path, group),
    }
}

fn image_command(peer: Peer, order: &Order<'_>, socket: &Path) -> Result<Option<Command>> {
    let Export::Image { path, bytes, memory, connections, group } = order.export else { return Ok(None) };
    Ok(Some(match peer {
        Peer::Awase(flags) => {
            let mut command = awase(order, flags);
            command.args(["--nbd", "none", "--nbd-unix"]).arg(socket).arg("--export");
            command.arg(format!("name={EXPORT},kind=file,path={}", path.display())).arg("--memory");
            command.arg(match memory {
                Memory::Auto => "auto".into(),
                Memory::Mib(mib) => format!("{mib}MiB"),
                Memory::TenthOfImage => format!("{}MiB", (bytes / 10) >> 20),
            });
            command
        }
        Peer::QemuNbd => {
            let mut command = Command::new("qemu-nbd");
            command.args(["--format=raw", "--cache=none", "--aio=io_uring", "--persistent"]);
            command.arg(format!("--shared={}", connections.max(8)));
            command.args(["--export-name", EXPORT, "--socket"]).arg(socket).arg(path);
            command
        }
        Peer::NbdkitFile | Peer::NbdkitMemory => {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(socket);
            match peer {
                Peer::NbdkitFile => command.arg("file").arg(path),
                _ => command.arg("memory").arg(bytes.to_string()),
            };
            command
        }
        Peer::Null(_) | Peer::Pass { .. } => {
            let mut command = limit("nbd", peer, group)?;
            command.arg("--unix").arg(socket);
            match peer {
                Peer::Null(_) => command.args(["--null", &bytes.to_string()]),
                _ => command.arg("--pass").arg(path),
            };
            command
        }
        _ => return Ok(None),
    }))
}

fn directory_command(peer: Peer, order: &Order<'_>, directory: &Path, group: u32) -> Result<Option<(Command, Target)>> {
    let [nfs, mount] = free_ports()?;
    let of = |mount, export| Target::Nfs(Endpoint { nfs, mount, export, uid: 0, gid: 0 });
    Ok(Some(match peer {
        Peer::Awase(_) | Peer::AwaseOrdered => {
            let (flags, names) = match peer {
                Peer::Awase(flags) => (flags, "durable"),
                _ => ("", "ordered"),
            };
            let mut command = awase(order, flags);
            command.args(["--nbd", "none", "--nbd-unix", "none", "--nfs", &nfs.to_string(), "--export"]);
            let options = "name=files,kind=directory,secure=false,squash=no_root_squash";
            command.arg(format!("{options},names={names},path={}", directory.display()));
            (command, of(nfs, "/files".into()))
        }
        Peer::Null(_) | Peer::Pass { .. } => {
            let mut command = limit("nfs", peer, group)?;
            command.args(["--tcp", &nfs.to_string()]);
            match peer {
                Peer::Null(_) => command.args(["--null", &NULL_FILE_BYTES.to_string()]),
                _ => command.arg("--pass").arg(directory),
            };
            (command, of(nfs, "/files".into()))
        }
        Peer::Ganesha | Peer::GaneshaOnSynchronousDirectory => {
            let configuration = order.place.join("ganesha.conf");
            fs::write(&configuration, ganesha_configuration(directory, nfs.port(), mount.port())?)
                .with_context(|| configuration.display().to_string())?;
            let mut command = Command::new(GANESHA);
            // In the foreground; only errors are logged, so that logging does not disturb the measurement.
            command.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(ganesha_log(order));
            command.arg("-p").arg(order.place.join("ganesha.pid")).args(["-N", "NIV_CRIT"]);
            (command, of(mount, directory.display().to_string()))
        }
        _ => return Ok(None),
    }))
}

/// This program as the shortest server of a protocol.
fn limit(protocol: &str, peer: Peer, group: u32) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
    command.args(["limit", protocol]);
    match peer {
        Peer::Pass { part, poll_us } => command
            .args(["--group", &group.to_string(), "--part", &part.to_string()])
            .args(["--poll-us", &poll_us.to_string()]),
        Peer::Null(flags) => command.args(flags.split_whitespace()),
        _ => bail!("{peer:?} is another program"),
    };
    Ok(command)
}

fn awase(order: &Order<'_>, flags: &str) -> Command {
    let mut command = Command::new(order.awase);
    command.arg("serve").arg("--data").arg(order.place).args(flags.split_whitespace());
    command
}

fn ganesha_log(order: &Order<'_>) -> PathBuf {
    order.place.join("ganesha.messages")
}

/// NFSv3 over TCP alone; everything else is Ganesha's default.
fn ganesha_configuration(directory: &Path, nfs_port: u16, mount_port: u16) -> Result<String> {
    let path = directory.to_str().filter(|path| !path.contains(['"', '\\', '\n']));
    let path = path.with_context(|| format!("{} cannot be said in Ganesha's configuration", directory.display()))?;
    Ok(format!(
        "NFS_CORE_PARAM {{
    NFS_Port = {nfs_port};
    MNT_Port = {mount_port};
    Bind_addr = 127.0.0.1;
    Protocols = 3;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
}}
EXPORT {{
    Export_Id = 1;
    Path = \"{path}\";
    Pseudo = \"/bench\";
    Protocols = 3;
    Transports = TCP;
    Access_Type = RW;
    Squash = No_Root_Squash;
    SecType = sys;
    FSAL {{ Name = VFS; }}
}}
"
    ))
}

/// Starts rpcbind if none answers.
fn port_mapper(place: &Path, interrupted: &Interrupted) -> Result<Option<Process>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, portmap::PMAP_PORT));
    if TcpStream::connect(address).is_ok() {
        return Ok(None);
    }
    let mut command = Command::new("rpcbind");
    command.arg("-f");
    let mut process = Process::start(command, &place.join("rpcbind.log"), interrupted)?;
    process.ready(|_| Ok(TcpStream::connect(address)?)).context("rpcbind")?;
    Ok(Some(process))
}

/// Ports of loopback that were free a moment ago.
fn free_ports<const COUNT: usize>() -> Result<[SocketAddr; COUNT]> {
    let sockets: Vec<TcpListener> = (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    let mut ports = [SocketAddr::from(([127, 0, 0, 1], 0)); COUNT];
    for (port, socket) in ports.iter_mut().zip(&sockets) {
        *port = socket.local_addr()?;
    }
    Ok(ports)
}
