//! The servers that are compared.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench::process::{Interrupted, Process};
use crate::bench::workload::Memory;

/// Timeout of a server's start: reading back a large image is not part of it.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// The first bytes that every NBD server sends (NBD protocol, fixed newstyle negotiation).
const GREETING: &[u8; 8] = b"NBDMAGIC";

const EXPORT: &str = "disk";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// No server: fio uses the file itself, which is the limit for all servers.
    Raw,
    Awase(&'static [&'static str]),
    NbdkitFile,
    NbdkitMemory,
    /// qemu-nbd without the host's cache, with `io_uring`.
    QemuNbd,
}

impl Peer {
    pub fn label(&self) -> &'static str {
        match self {
            Peer::Raw => "raw file (io_uring)",
            Peer::Awase(_) => "Awase",
            Peer::NbdkitFile => "nbdkit file",
            Peer::NbdkitMemory => "nbdkit memory",
            Peer::QemuNbd => "qemu-nbd",
        }
    }
}

/// What a server is to export, and where.
pub struct Order<'a> {
    pub awase: &'a Path,
    pub image: &'a Path,
    pub bytes: u64,
    pub memory: Memory,
    /// Connections that clients will make.
    pub connections: u32,
    /// A directory for this server alone.
    pub place: &'a Path,
}

pub struct Server {
    pub process: Process,
    socket: PathBuf,
}

impl Server {
    /// Starts a server and waits for its greeting; `None` if the peer is no server.
    pub fn start(peer: &Peer, order: &Order<'_>, interrupted: &Interrupted) -> Result<Option<Server>> {
        let socket = order.place.join("nbd.sock");
        let Some(command) = command(peer, order, &socket) else { return Ok(None) };
        let process = Process::start(command, &order.place.join("server.log"), interrupted)?;
        let mut server = Server { process, socket };
        server.await_greeting().with_context(|| format!("{} did not start", peer.label()))?;
        Ok(Some(server))
    }

    /// The URI of the export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///{EXPORT}?socket={}", self.socket.display())
    }

    fn await_greeting(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Ok(mut stream) = UnixStream::connect(&self.socket) {
                stream.set_read_timeout(Some(START_PATIENCE))?;
                let mut greeting = [0; GREETING.len()];
                stream.read_exact(&mut greeting).context("no greeting")?;
                if greeting == *GREETING {
                    return Ok(());
                }
                bail!("it speaks no NBD: {greeting:?}");
            }
            if let Some(status) = self.process.ended()? {
                bail!("it ended ({status}): {}", self.process.messages());
            }
            if Instant::now() > deadline {
                bail!("no socket within {} s: {}", START_PATIENCE.as_secs(), self.process.messages());
            }
            // Polled: only Awase reports its readiness.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn command(peer: &Peer, order: &Order<'_>, socket: &Path) -> Option<Command> {
    Some(match peer {
        Peer::Raw => return None,
        Peer::Awase(flags) => {
            let mut command = Command::new(order.awase);
            command.arg("serve").arg("--data").arg(order.place).args(["--nbd", "none", "--nbd-unix"]).arg(socket);
            command.arg("--export").arg(format!("name={EXPORT},kind=file,path={}", order.image.display()));
            let memory = match order.memory {
                Memory::Auto => "auto".into(),
                Memory::Mib(mib) => format!("{mib}MiB"),
                Memory::TenthOfImage => format!("{}MiB", (order.bytes / 10) >> 20),
            };
            command.args(["--memory", &memory]).args(*flags);
            command
        }
        Peer::NbdkitFile => {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(socket).arg("file").arg(order.image);
            command
        }
        Peer::NbdkitMemory => {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(socket).arg("memory").arg(order.bytes.to_string());
            command
        }
        Peer::QemuNbd => {
            let mut command = Command::new("qemu-nbd");
            command.args(["--format=raw", "--cache=none", "--aio=io_uring", "--persistent"]);
            command.arg(format!("--shared={}", order.connections.max(8)));
            command.args(["--export-name", EXPORT, "--socket"]).arg(socket).arg(order.image);
            command
        }
    })
}
