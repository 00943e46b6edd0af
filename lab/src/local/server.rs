//! A whole server for the lab: this program in a process of its own, which ends with its parent.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::ensure;
use tempfile::TempDir;

use super::{Export, LocalError, Medium, Program, Protocol, ServerConfig, Spent};
use crate::measure::load::{Address, Endpoint, Target};
use crate::measure::process::{Interrupted, Process};
use awase::config::{CONTROL_NAME, show_duration};
use awase::control::client::Client;

/// Start of the banner's last line: the server is ready.
const LAST_LINE: &str = "Ctrl-C ";

/// In front of the ports of NBD and of NFS, in the banner.
const NBD_MARK: &str = "nbd://127.0.0.1:";
const NFS_MARK: &str = "?nfsport=";

/// In front of the port of databases.
const POSTGRES_MARK: &str = "postgres://127.0.0.1:";

/// In front of the web page's port.
const PAGE_MARK: &str = "http://127.0.0.1:";

/// The socket of NBD, in the data directory.
const SOCKET_NAME: &str = "nbd.sock";

/// The exported directory.
const DIRECTORY: &str = "files";

/// A database beside that of a program, in memory.
pub(super) const IN_MEMORY: &str = "in_memory";

/// Size of a database; its file is sparse.
const DATABASE_SIZE: &str = "256MiB";

/// How often an open page asks for its numbers.
const PAGE_PERIOD: Duration = Duration::from_millis(500);

/// The files on the host's disk that servers use, one server after another.
pub(crate) struct Scratch {
    pub(crate) image: PathBuf,
    pub(crate) files: PathBuf,
}

/// A running server, which leaves no files. Killed when dropped: its dirty data need not be written out.
pub struct Server {
    process: Process,
    /// Its data directory. Not in the scratch directory: socket paths must be short.
    data: TempDir,
    /// What it printed when it was ready.
    banner: String,
    /// Present while the server is watched.
    page: Option<Page>,
}

/// A client that has the server's page open. Dropping it closes the page.
struct Page {
    close: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    fn open(at: SocketAddr) -> Page {
        let (close, closed) = channel();
        let look = move || {
            while closed.recv_timeout(PAGE_PERIOD) == Err(RecvTimeoutError::Timeout) {
                // A failed request is repeated in the next period.
                let _ = ask(at);
            }
        };
        Page { close: Some(close), thread: Some(thread::spawn(look)) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.close = None;
        // The thread returns nothing.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn ask(at: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(PAGE_PERIOD))?;
    stream.write_all(format!("GET /live.json HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes())?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

impl Server {
    /// Starts `program` and waits until it is ready.
    pub(crate) fn start(
        program: &Path,
        config: &ServerConfig,
        scratch: &Scratch,
        interrupted: &Interrupted,
    ) -> Result<Server, LocalError> {
        let data = tempfile::Builder::new().prefix("awase-live-").tempdir();
        let data = data.map_err(|error| LocalError::Server(format!("no temporary directory: {error}")))?;
        let mut command = command(program, config, scratch, data.path())?;
        if let Some(of) = config.program {
            let config = with_database(of, scratch, data.path());
            command.arg("--config").arg(config.map_err(|error| LocalError::Server(format!("its database: {error}")))?);
        }
        let process = Process::start(command, &data.path().join("server.log"), interrupted).map_err(failed)?;
        let mut server = Server { process, data, banner: String::new(), page: None };
        let control = server.data.path().join(CONTROL_NAME);
        server.banner = (server.process)
            .ready(|process| {
                let banner = process.output();
                ensure!(banner.lines().last().is_some_and(|line| line.starts_with(LAST_LINE)), "it is not ready");
                Client::connect(&control).map(|_| banner)
            })
            .map_err(failed)?;
        server.page = if config.watched { server.at(PAGE_MARK).map(Page::open) } else { None };
        Ok(server)
    }

    /// The address of loopback that the banner names behind a mark.
    fn at(&self, mark: &str) -> Option<SocketAddr> {
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port(&self.banner, mark)?)))
    }

    /// Connects each time: a server closes silent connections after a while.
    fn control(&self) -> anyhow::Result<Client> {
        Client::connect(&self.data.path().join(CONTROL_NAME))
    }
}

fn failed(error: anyhow::Error) -> LocalError {
    LocalError::Server(format!("{error:#}"))
}

impl Drop for Server {
    /// Removes what a killed server leaves behind.
    fn drop(&mut self) {
        self.page = None;
        self.process.kill();
        awase::trace::file::remove_of(self.data.path());
    }
}

impl Server {
    /// Where its clients find it; `None` if it does not speak this protocol.
    pub(crate) fn target(&self, protocol: Protocol) -> Option<Target> {
        Some(match protocol {
            Protocol::Nbd(export) => {
                Target::Nbd { at: Address::Unix(self.data.path().join(SOCKET_NAME)), export: export.to_owned() }
            }
            Protocol::NbdOverTcp(export) => {
                Target::Nbd { at: Address::Tcp(self.at(NBD_MARK)?), export: export.to_owned() }
            }
            Protocol::Nfs => {
                let (at, export) = (self.at(NFS_MARK)?, format!("/{DIRECTORY}"));
                Target::Nfs(Endpoint { nfs: at, mount: at, export, uid: 0, gid: 0 })
            }
        })
    }

    /// Where its database is reached, if it has one.
    pub(crate) fn postgres(&self) -> Option<SocketAddr> {
        self.at(POSTGRES_MARK)
    }

    /// Sets a switch at run time.
    ///
    /// # Errors
    /// When there is no such switch or value, or the server has ended.
    pub fn set(&self, switch: &str, value: &str) -> Result<(), LocalError> {
        self.control().and_then(|mut control| control.set(switch, value)).map(drop).map_err(failed)
    }

    /// What it has spent so far.
    ///
    /// # Errors
    /// When the server has ended.
    pub fn spent(&self) -> Result<Spent, LocalError> {
        let cpu = cpu_time(self.process.id(), "")?;
        let status = self.control().and_then(|mut control| control.status()).map_err(failed)?;
        let processors = status["processors"].as_array().into_iter().flatten();
        let kernel_entries = processors.filter_map(|processor| processor["kernel_entries"].as_u64()).sum();
        Ok(Spent { cpu, kernel_entries })
    }

    /// Transactions that its databases have committed.
    pub(crate) fn commits(&self) -> Result<u64, LocalError> {
        let status = self.control().and_then(|mut control| control.status()).map_err(failed)?;
        let databases = status["databases"].as_array().into_iter().flatten();
        Ok(databases.filter_map(|database| database["commits"].as_u64()).sum())
    }
}

fn command(program: &Path, config: &ServerConfig, scratch: &Scratch, data: &Path) -> Result<Command, LocalError> {
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(data);
    command.args(["--processors", &config.processors.to_string(), "--memory", &config.memory.to_string()]);
    let metrics = if config.watched { "127.0.0.1:0" } else { "none" };
    command.args(["--nbd", "127.0.0.1:0", "--nfs", "127.0.0.1:0", "--postgres", "127.0.0.1:0", "--metrics", metrics]);
    command.arg("--nbd-unix").arg(data.join(SOCKET_NAME));
    for Export { name, medium } in &config.exports {
        let what = match medium {
            Medium::Disk { .. } => format!("kind=file,path={}", scratch.image.display()),
            Medium::Ram { bytes } => format!("kind=ram,size={bytes}"),
            Medium::FixedLatency { bytes, latency } => {
                format!("kind=testdev,size={bytes},latency={}", show_duration(*latency))
            }
            Medium::Mechanical { .. } => return Err(LocalError::Server("it exports no modelled disk".to_owned())),
        };
        command.arg("--export").arg(format!("name={name},{what}"));
    }
    // SAFETY: both calls only return a number.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let squash = format!("squash=all_squash,anonymous_uid={user},anonymous_gid={group}");
    command
        .arg("--export")
        .arg(format!("name={DIRECTORY},kind=directory,secure=false,path={},{squash}", scratch.files.display()));
    for (name, value) in &config.switches {
        command.arg("--switch").arg(format!("{name}={value}"));
    }
    command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
    Ok(command)
}

/// Makes a new database with a program, beside the image, and one in memory. Returns the configuration that has it.
fn with_database(of: Program, scratch: &Scratch, data: &Path) -> io::Result<PathBuf> {
    let (programs, config) = (data.join("programs"), data.join("awase.toml"));
    let file = scratch.image.with_file_name(of.name);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(&programs)?;
    fs::write(programs.join(of.name).with_extension("wasm"), of.bytes)?;
    let text = format!(
        "[[database]]\nname = {:?}\npath = {file:?}\nsize = {DATABASE_SIZE:?}\nprograms = {programs:?}\n\
         [[database]]\nname = {IN_MEMORY:?}\nkind = \"ram\"\nsize = {DATABASE_SIZE:?}\nprograms = {programs:?}\n",
        of.name
    );
    fs::write(&config, text)?;
    Ok(config)
}

/// The port behind a mark.
fn port(banner: &str, mark: &str) -> Option<u16> {
    let (_, rest) = banner.split_once(mark)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// CPU time of the threads of a process whose names begin with `named`.
pub(crate) fn cpu_time(process: u32, named: &str) -> Result<Duration, LocalError> {
    let failed = |error: io::Error| LocalError::Server(format!("/proc/{process}/task: {error}"));
    let mut ns = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).map_err(failed)?.flatten() {
        let path = thread.path();
        // A thread may end meanwhile.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.starts_with(named) {
            let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            ns += text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_the_banner() {
        let banner = "  nbd://127.0.0.1:40002/disk\n  http://127.0.0.1:40001/ (live plots)\n  nfs-ls 'nfs://127.0.0.1/files?nfsport=34567&mountport=34567'";
        assert_eq!(port(banner, NFS_MARK), Some(34567));
        assert_eq!(port(banner, PAGE_MARK), Some(40001));
        assert_eq!(port(banner, NBD_MARK), Some(40002));
        assert_eq!(port("no directory", NFS_MARK), None);
    }
}
