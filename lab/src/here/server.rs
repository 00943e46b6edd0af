//! A whole server for the lab: this program in a process of its own, which ends with its parent.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Export, HereError, Medium, Served, Serving, Spent};
use tempfile::TempDir;

use crate::bench::process::end_with_parent;
use awase::config::{CONTROL_NAME, show_duration};
use awase::control::client::Client;

/// Start of the banner's last line: the server is ready.
const LAST_LINE: &str = "Ctrl-C ";

/// In front of the NFS port, in the banner.
const PORT_MARK: &str = "?nfsport=";

/// In front of the web page's port.
const PAGE_MARK: &str = "http://127.0.0.1:";

/// How often an open page asks for its numbers.
const PAGE_PERIOD: Duration = Duration::from_millis(500);

/// The files on the host's disk that servers use, one server after another.
pub(crate) struct Scratch {
    pub(crate) image: PathBuf,
    pub(crate) files: PathBuf,
}

/// A running server. Killed when dropped: its dirty data need not be written out.
pub(crate) struct LabServer {
    child: Child,
    nbd: PathBuf,
    nfs: Option<SocketAddr>,
    /// Its data directory. Not in the scratch directory: socket paths must be short.
    data: TempDir,
    /// Present while the server is watched.
    _page: Option<Page>,
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

impl LabServer {
    /// Starts `program` and waits until it is ready.
    pub(crate) fn start(program: &Path, serving: &Serving, scratch: &Scratch) -> Result<LabServer, HereError> {
        let failed = |what: &str, error: io::Error| HereError::Server(format!("{what}: {error}"));
        let data = tempfile::Builder::new().prefix("awase-live-").tempdir();
        let data = data.map_err(|error| failed("no temporary directory", error))?;
        let nbd = data.path().join("nbd.sock");
        let mut command = command(program, serving, scratch, data.path())?;
        command.arg("--nbd-unix").arg(&nbd);
        let mut child =
            command.spawn().map_err(|error| failed(&format!("cannot start {}", program.display()), error))?;
        let banner = banner(&mut child);
        let connected = banner.and_then(|banner| {
            Client::connect(&data.path().join(CONTROL_NAME))
                .map_err(|error| HereError::Server(format!("{error:#}")))?;
            Ok(banner)
        });
        match connected {
            Ok(banner) => {
                let at = |mark| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port(&banner, mark)?)));
                let page = if serving.watched { at(PAGE_MARK).map(Page::open) } else { None };
                Ok(LabServer { child, nbd, nfs: at(PORT_MARK), data, _page: page })
            }
            Err(error) => {
                end(&mut child, data.path());
                Err(error)
            }
        }
    }
}

impl LabServer {
    /// Connects each time: a server closes silent connections after a while.
    fn control(&self) -> anyhow::Result<Client> {
        Client::connect(&self.data.path().join(CONTROL_NAME))
    }
}

impl Drop for LabServer {
    fn drop(&mut self) {
        end(&mut self.child, self.data.path());
    }
}

impl Served for LabServer {
    fn nbd(&self) -> &Path {
        &self.nbd
    }

    fn nfs(&self) -> Option<SocketAddr> {
        self.nfs
    }

    fn set(&mut self, switch: &str, value: &str) -> Result<(), HereError> {
        let done = self.control().and_then(|mut control| control.set(switch, value));
        done.map(drop).map_err(|error| HereError::Server(format!("{error:#}")))
    }

    fn spent(&mut self) -> Result<Spent, HereError> {
        let cpu = cpu_time(self.child.id(), "")?;
        let status = self
            .control()
            .and_then(|mut control| control.status())
            .map_err(|error| HereError::Server(format!("{error:#}")))?;
        let processors = status["processors"].as_array().into_iter().flatten();
        let kernel_entries = processors.filter_map(|processor| processor["kernel_entries"].as_u64()).sum();
        Ok(Spent { cpu, kernel_entries })
    }
}

fn command(program: &Path, serving: &Serving, scratch: &Scratch, data: &Path) -> Result<Command, HereError> {
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(data);
    command.args(["--processors", &serving.processors.to_string(), "--memory", &serving.memory.to_string()]);
    let metrics = if serving.watched { "127.0.0.1:0" } else { "none" };
    command.args(["--nbd", "none", "--nfs", "127.0.0.1:0", "--metrics", metrics]);
    for Export { name, medium } in &serving.exports {
        let what = match medium {
            Medium::Disk { .. } => format!("kind=file,path={}", scratch.image.display()),
            Medium::Ram { bytes } => format!("kind=ram,size={bytes}"),
            Medium::FixedLatency { bytes, latency } => {
                format!("kind=testdev,size={bytes},latency={}", show_duration(*latency))
            }
            Medium::Mechanical { .. } => return Err(HereError::Server("it exports no modelled disk".to_owned())),
        };
        command.arg("--export").arg(format!("name={name},{what}"));
    }
    // SAFETY: both calls only return a number.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let squash = format!("squash=all_squash,anonymous_uid={user},anonymous_gid={group}");
    command
        .arg("--export")
        .arg(format!("name=files,kind=directory,secure=false,path={},{squash}", scratch.files.display()));
    for (name, value) in &serving.switches {
        command.arg("--switch").arg(format!("{name}={value}"));
    }
    command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C is for the measuring process, which then ends the server.
    command.process_group(0);
    end_with_parent(&mut command);
    Ok(command)
}

/// The server's output until it is ready, or its standard error if it fails to start.
fn banner(child: &mut Child) -> Result<String, HereError> {
    let mut banner = String::new();
    let mut lines = BufReader::new(child.stdout.take().ok_or(HereError::Lost)?);
    while !banner.lines().last().is_some_and(|line| line.starts_with(LAST_LINE)) {
        if lines.read_line(&mut banner).map_or(0, |bytes| bytes) == 0 {
            let mut complaint = String::new();
            // An unreadable pipe leaves the message empty.
            let _ = child.stderr.take().map(|mut errors| errors.read_to_string(&mut complaint));
            return Err(HereError::Server(format!("it did not start: {}", complaint.trim())));
        }
    }
    // The server prints no more before its end, but the pipe must stay open: writing to a closed one would kill it.
    child.stdout = Some(lines.into_inner());
    Ok(banner)
}

/// The port behind a mark.
fn port(banner: &str, mark: &str) -> Option<u16> {
    let (_, rest) = banner.split_once(mark)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Kills a server, and removes what it leaves behind.
fn end(child: &mut Child, data: &Path) {
    let _ = child.kill();
    let _ = child.wait();
    awase::trace::file::remove_of(data);
}

/// CPU time of the threads of a process whose names begin with `named`.
pub(crate) fn cpu_time(process: u32, named: &str) -> Result<Duration, HereError> {
    let failed = |error: io::Error| HereError::Server(format!("/proc/{process}/task: {error}"));
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
        let banner =
            "  http://127.0.0.1:40001/ (live plots)\n  nfs-ls 'nfs://127.0.0.1/files?nfsport=34567&mountport=34567'";
        assert_eq!(port(banner, PORT_MARK), Some(34567));
        assert_eq!(port(banner, PAGE_MARK), Some(40001));
        assert_eq!(port("no directory", PORT_MARK), None);
    }
}
