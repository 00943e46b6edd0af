//! A server process for a test: in its own directory, on a Unix socket there, so that tests do not share servers.

use std::fs::Permissions;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tempfile::TempDir;

/// Only a server that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The program: `AWASE_PROGRAM`, else the one that cargo has built for the tests.
pub static AWASE: LazyLock<String> = LazyLock::new(|| {
    std::env::var("AWASE_PROGRAM").unwrap_or_else(|_| {
        let test = std::env::current_exe().expect("a path");
        // target/PROFILE/deps/TEST
        let built = test.ancestors().nth(2).expect("below target").join("awase");
        assert!(built.exists(), "no {} (`cargo test --package awase` builds it)", built.display());
        built.into_os_string().into_string().expect("UTF-8")
    })
});

/// A temporary directory for one test, which several servers may use one after another.
#[derive(Clone)]
pub struct Sandbox(Arc<Directory>);

struct Directory(TempDir);

impl Drop for Directory {
    fn drop(&mut self) {
        // Killed servers leave their traces in memory.
        for link in ["awase-data/trace", "awase-data/trace.previous"] {
            if let Ok(trace) = std::fs::read_link(self.0.path().join(link)) {
                let _ = std::fs::remove_file(trace);
            }
        }
    }
}

impl Sandbox {
    #[expect(clippy::new_without_default, reason = "it creates a directory")]
    pub fn new() -> Sandbox {
        let directory = tempfile::Builder::new().prefix("awase-").tempdir().expect("temporary directory");
        Sandbox(Arc::new(Directory(directory)))
    }

    pub fn path(&self) -> &Path {
        self.0.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.file(name), text).expect("write a file of the test");
        self.file(name)
    }

    /// Makes a directory that every user may write to.
    pub fn make_directory(&self, name: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::create_dir_all(&path).expect("directory");
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("chmod");
        path
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(&*AWASE)
            .args(arguments)
            .current_dir(self.path())
            .env_remove("NOTIFY_SOCKET")
            .output()
            .expect("run awase")
    }

    /// Starts a server that listens on the default Unix socket, and waits until it is ready.
    pub fn serve(&self, arguments: &[&str]) -> Server {
        let mut command = Command::new(&*AWASE);
        // Ports would be shared by all tests.
        command
            .args(["serve", "--nbd", "none", "--nfs", "none", "--postgres", "none", "--metrics", "none"])
            .args(arguments);
        choose_engine(&mut command, arguments);
        self.start(command)
    }

    /// Starts a server of directories at `port` of loopback (0 for any free one) and waits until it is ready. Returns the
    /// port, too.
    pub fn serve_directories(&self, port: u16, arguments: &[&str]) -> (Server, u16) {
        let mut command = Command::new(&*AWASE);
        command.args([
            "serve",
            "--nbd",
            "none",
            "--nfs",
            &format!("127.0.0.1:{port}"),
            "--postgres",
            "none",
            "--metrics",
            "none",
        ]);
        command.args(arguments);
        choose_engine(&mut command, arguments);
        let mut server = self.start(command);
        let port = nfs_port(&server.banner());
        (server, port)
    }

    pub fn start(&self, mut command: Command) -> Server {
        let notify_path = self.file("notify.sock");
        let _ = std::fs::remove_file(&notify_path);
        let notify = UnixDatagram::bind(&notify_path).expect("notify socket");
        let child = command
            .current_dir(self.path())
            .env("NOTIFY_SOCKET", &notify_path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start awase");
        let mut server = Server { child, notify, sandbox: self.clone(), errors: Vec::new() };
        server.await_notice("READY=1");
        server
    }
}

/// The port of directories that a banner shows.
pub fn nfs_port(banner: &str) -> u16 {
    let found = banner.split_once("?nfsport=").and_then(|(_, rest)| rest.split_once('&'));
    found.and_then(|(port, _)| port.parse().ok()).unwrap_or_else(|| panic!("no port of NFS in:\n{banner}"))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `AWASE_ENGINE` applies unless the test chooses the engine.
fn choose_engine(command: &mut Command, arguments: &[&str]) {
    if let (Ok(engine), false) = (std::env::var("AWASE_ENGINE"), arguments.contains(&"--engine")) {
        command.args(["--engine", &engine]);
    }
}

/// A server under test. Killed when dropped.
pub struct Server {
    child: Child,
    notify: UnixDatagram,
    sandbox: Sandbox,
    /// Standard error read so far.
    errors: Vec<u8>,
}

impl Server {
    pub fn socket(&self) -> PathBuf {
        self.sandbox.file("awase-data/nbd.sock")
    }

    /// Standard output until now.
    pub fn banner(&mut self) -> String {
        let mut bytes = vec![0; 65536];
        // It is written at once and before the notice of readiness.
        let len = self.child.stdout.as_mut().expect("piped").read(&mut bytes).expect("a banner");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Waits for a notice to systemd.
    pub fn await_notice(&mut self, notice: &str) {
        let mut bytes = [0; 4096];
        let process = self.process();
        loop {
            // Notices sent before its end are still in the socket.
            let [is_readable, _] = poll([self.notify.as_fd(), process.as_fd()]);
            if !is_readable {
                let _ = self.child.kill();
                panic!("the server did not notify {notice}; it wrote: {}", self.read_output().1);
            }
            let len = self.notify.recv(&mut bytes).expect("a notice");
            if String::from_utf8_lossy(&bytes[..len]).lines().any(|line| line == notice) {
                return;
            }
        }
    }

    /// Waits for a message on standard error.
    pub fn await_error(&mut self, message: &str) {
        let mut bytes = [0; 4096];
        while !String::from_utf8_lossy(&self.errors).contains(message) {
            let stderr = self.child.stderr.as_mut().expect("piped");
            let [is_readable] = poll([stderr.as_fd()]);
            let len = if is_readable { stderr.read(&mut bytes).expect("standard error") } else { 0 };
            assert!(len > 0, "no {message:?} in: {}", String::from_utf8_lossy(&self.errors));
            self.errors.extend(&bytes[..len]);
        }
    }

    /// From now on [`await_error`](Self::await_error) waits for what is not written yet.
    pub fn forget_errors(&mut self) {
        let mut bytes = [0; 4096];
        let stderr = self.child.stderr.as_mut().expect("piped");
        while poll_for([stderr.as_fd()], Duration::ZERO) == [true] && stderr.read(&mut bytes).is_ok_and(|len| len > 0) {
        }
        self.errors.clear();
    }

    /// From now on nobody reads standard error: what is written there fails.
    pub fn close_errors(&mut self) {
        drop(self.child.stderr.take());
    }

    pub fn signal(&self, signal: i32) {
        let signal = Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }

    pub fn has_ended(&self) -> bool {
        poll_for([self.process().as_fd()], Duration::ZERO) == [true]
    }

    /// Waits for its end. Returns the status, standard output and standard error.
    pub fn wait(mut self) -> (ExitStatus, String, String) {
        self.await_end();
        let status = self.child.wait().expect("wait");
        let (output, errors) = self.read_output();
        (status, output, errors)
    }

    /// Ends it in order. Returns standard error.
    pub fn end(self) -> String {
        self.signal(libc::SIGTERM);
        let (status, _, errors) = self.wait();
        assert!(status.success(), "the server ended with {status}: {errors}");
        errors
    }

    /// Kills it, as a crash would.
    pub fn crash(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
    }

    fn await_end(&self) {
        assert_eq!(poll([self.process().as_fd()]), [true], "the server did not end");
    }

    /// A descriptor that becomes readable when the process ends (pidfd_open(2)).
    fn process(&self) -> OwnedFd {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("pidfd_open")
    }

    fn read_output(&mut self) -> (String, String) {
        let mut output = String::new();
        if let Some(stdout) = &mut self.child.stdout {
            let _ = stdout.read_to_string(&mut output);
        }
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_end(&mut self.errors);
        }
        (output, String::from_utf8_lossy(&self.errors).into_owned())
    }
}

/// What it has said is shown if the test fails.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("server {} said:\n{}", self.child.id(), self.read_output().1);
        }
    }
}

/// Waits until a descriptor is readable; returns which are. None on timeout.
fn poll<const N: usize>(fds: [BorrowedFd<'_>; N]) -> [bool; N] {
    poll_for(fds, TIMEOUT)
}

fn poll_for<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> [bool; N] {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout: Timespec = timeout.try_into().expect("seconds");
    rustix::event::poll(&mut polled, Some(&timeout)).expect("poll");
    polled.map(|polled| polled.revents().contains(PollFlags::IN))
}

/// Polls until `is_so`.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TIMEOUT, "still not: {what}");
        // What is waited for needs the processor.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a client program and returns its standard output.
pub fn client(program: &str, arguments: &[&str]) -> String {
    let output = attempt(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a client program that may fail.
pub fn attempt(program: &str, arguments: &[&str]) -> Output {
    // A client that hangs is killed by `timeout`, so that the test fails.
    Command::new("timeout")
        .arg(TIMEOUT.as_secs().to_string())
        .arg(program)
        .args(arguments)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error} (`make test` installs it)"))
}
