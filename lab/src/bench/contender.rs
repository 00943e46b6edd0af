//! The servers that are compared: how each is started, when it is ready, and how it ends.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nfs3_types::{mount, nfs3, portmap};

use crate::measure::load::{Address, Endpoint, Session, Target, nbd};
use crate::measure::process::{Interrupted, Process};

/// Printed when a program is missing.
const GANESHA_PACKAGES: &str = "NFS-Ganesha needs: sudo apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind";

const EXPORT: &str = "disk";

/// What is measured under one name.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub label: &'static str,
    pub peer: Peer,
    /// Requests in flight, if not the workload's number.
    pub in_flight: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// No server: the file itself, or the machine alone ([`super::nfs`]), which is the limit for all servers.
    Raw,
    /// With these flags of `awase serve`.
    Awase(&'static str),
    NbdkitFile,
    NbdkitMemory,
    /// qemu-nbd without the host's cache, with `io_uring`.
    QemuNbd,
    /// NFS-Ganesha with its file system abstraction for local directories (VFS), as it is installed.
    Ganesha,
    /// The same, on a directory in which names change durably (`chattr +D`): Ganesha has no setting for that.
    GaneshaOnSynchronousDirectory,
}

impl Contender {
    pub const fn new(label: &'static str, peer: Peer) -> Contender {
        Contender { label, peer, in_flight: None }
    }

    pub const fn awase(label: &'static str, flags: &'static str) -> Contender {
        Contender::new(label, Peer::Awase(flags))
    }
}

/// The memory that Awase's cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Awase sizes its cache itself.
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
    },
    /// Over NFS.
    Directory(&'a Path),
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
        Export::Image { path, bytes, memory, connections } => {
            let socket = order.place.join("nbd.sock");
            let command = match peer {
                Peer::Awase(flags) => {
                    let mut command = awase(order, flags);
                    command.args(["--nbd", "none", "--nbd-unix"]).arg(&socket).arg("--export");
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
                    command.args(["--export-name", EXPORT, "--socket"]).arg(&socket).arg(path);
                    command
                }
                Peer::NbdkitFile | Peer::NbdkitMemory => {
                    let mut command = Command::new("nbdkit");
                    command.args(["--foreground", "--unix"]).arg(&socket);
                    match peer {
                        Peer::NbdkitFile => command.arg("file").arg(path),
                        _ => command.arg("memory").arg(bytes.to_string()),
                    };
                    command
                }
                _ => return Ok(None),
            };
            Ok(Some((command, Target::Nbd { at: Address::Unix(socket), export: EXPORT.into() })))
        }
        Export::Directory(directory) => {
            let [nfs, mount] = free_ports()?;
            let of = |mount, export| Target::Nfs(Endpoint { nfs, mount, export, uid: 0, gid: 0 });
            match peer {
                Peer::Awase(flags) => {
                    let mut command = awase(order, flags);
                    command.args(["--nbd", "none", "--nbd-unix", "none", "--nfs", &nfs.to_string(), "--export"]);
                    let options = "name=files,kind=directory,secure=false,squash=no_root_squash";
                    command.arg(format!("{options},path={}", directory.display()));
                    Ok(Some((command, of(nfs, "/files".into()))))
                }
                Peer::Ganesha | Peer::GaneshaOnSynchronousDirectory => {
                    let configuration = order.place.join("ganesha.conf");
                    fs::write(&configuration, ganesha_configuration(directory, nfs.port(), mount.port())?)
                        .with_context(|| configuration.display().to_string())?;
                    let mut command = Command::new("ganesha.nfsd");
                    // In the foreground; only errors are logged, so that logging does not disturb the measurement.
                    command.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(ganesha_log(order));
                    command.arg("-p").arg(order.place.join("ganesha.pid")).args(["-N", "NIV_CRIT"]);
                    Ok(Some((command, of(mount, directory.display().to_string()))))
                }
                _ => Ok(None),
            }
        }
    }
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
