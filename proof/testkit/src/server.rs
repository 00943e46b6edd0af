//! A server of our own for a test: in a directory of its own, on a Unix socket, told apart from all others.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// So long may anything take that the tests wait for; only a hanging server ever takes it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program: what `AWASE_PROGRAM` names, else the one that cargo has built for the tests.
pub static AWASE: LazyLock<String> = LazyLock::new(|| {
    std::env::var("AWASE_PROGRAM").unwrap_or_else(|_| {
        let test = std::env::current_exe().expect("a path");
        // target/PROFILE/deps/TEST
        let built = test.ancestors().nth(2).expect("below target").join("awase");
        assert!(built.exists(), "no {} (`cargo test --package awase` builds it)", built.display());
        built.into_os_string().into_string().expect("UTF-8")
    })
});

/// A directory for one test, which several servers may use one after another.
#[derive(Clone)]
pub struct Place(Arc<Directory>);

struct Directory(TempDir);

impl Drop for Directory {
    fn drop(&mut self) {
        // Servers that were killed leave their traces in memory.
        for link in ["awase-data/trace", "awase-data/trace.previous"] {
            if let Ok(trace) = std::fs::read_link(self.0.path().join(link)) {
                let _ = std::fs::remove_file(trace);
            }
        }
    }
}

impl Place {
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Place {
        let directory = tempfile::Builder::new().prefix("awase-").tempdir().expect("temporary directory");
        Place(Arc::new(Directory(directory)))
    }

    pub fn path(&self) -> &Path {
        self.0.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.file(name), text).expect("write a file of the test");
        self.file(name)
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

    /// Starts a server here that listens on the default Unix socket, and waits until it is ready.
    pub fn serve(&self, arguments: &[&str]) -> Server {
        let mut command = Command::new(&*AWASE);
        // Ports are shared by all tests.
        command.args(["serve", "--nbd", "none", "--nfs", "none", "--metrics", "none"]).args(arguments);
        choose_engine(&mut command, arguments);
        self.start(command)
    }

    /// Starts a server here whose directories are at `port` of loopback, 0 for any that is free, and waits until it is
    /// ready. Gives the port, too.
    pub fn serve_directories(&self, port: u16, arguments: &[&str]) -> (Server, u16) {
        let mut command = Command::new(&*AWASE);
        command.args(["serve", "--nbd", "none", "--nfs", &format!("127.0.0.1:{port}"), "--metrics", "none"]);
        command.args(arguments);
        choose_engine(&mut command, arguments);
        let mut server = self.start(command);
        let banner = server.banner();
        let said = banner.split_once("?nfsport=").and_then(|(_, rest)| rest.split_once('&'));
        let port = said.and_then(|(port, _)| port.parse().ok());
        (server, port.unwrap_or_else(|| panic!("no port of NFS in:\n{banner}")))
    }

    /// Starts a server by a command of the test's own.
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
        let mut server = Server { child, notify, place: self.clone(), errors: Vec::new() };
        server.await_notice("READY=1");
        server
    }
}

/// Where the test does not choose the engine, `AWASE_ENGINE` does.
fn choose_engine(command: &mut Command, arguments: &[&str]) {
    if let (Ok(engine), false) = (std::env::var("AWASE_ENGINE"), arguments.contains(&"--engine")) {
        command.args(["--engine", &engine]);
    }
}

/// A server under test. Killed when dropped.
pub struct Server {
    child: Child,
    notify: UnixDatagram,
    place: Place,
    /// What was read of its standard error.
    errors: Vec<u8>,
}

impl Server {
    pub fn socket(&self) -> PathBuf {
        self.place.file("awase-data/nbd.sock")
    }

    /// What it has printed, now that it is ready.
    pub fn banner(&mut self) -> String {
        let mut bytes = vec![0; 65536];
        // All of it is in the pipe, written at once, before it said that it is ready.
        let len = self.child.stdout.as_mut().expect("piped").read(&mut bytes).expect("a banner");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How clients name an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Waits until it says so to systemd.
    pub fn await_notice(&mut self, notice: &str) {
        let mut bytes = [0; 4096];
        let process = self.process();
        loop {
            // What it said before it ended is still there.
            let [said, _] = poll([self.notify.as_fd(), process.as_fd()]);
            if !said {
                let _ = self.child.kill();
                panic!("the server did not say {notice}; it wrote: {}", self.read_output().1);
            }
            let len = self.notify.recv(&mut bytes).expect("a notice");
            if String::from_utf8_lossy(&bytes[..len]).lines().any(|line| line == notice) {
                return;
            }
        }
    }

    /// Waits until it writes so to standard error.
    pub fn await_error(&mut self, message: &str) {
        let mut bytes = [0; 4096];
        while !String::from_utf8_lossy(&self.errors).contains(message) {
            let stderr = self.child.stderr.as_mut().expect("piped");
            let [said] = poll([stderr.as_fd()]);
            let len = if said { stderr.read(&mut bytes).expect("standard error") } else { 0 };
            assert!(len > 0, "the server did not say {message:?}; it wrote: {}", String::from_utf8_lossy(&self.errors));
            self.errors.extend(&bytes[..len]);
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers; the child was not waited for yet, so its id is still its own.
        let result = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(result, 0, "kill: {}", io::Error::last_os_error());
    }

    /// Waits for its end. Gives the status, standard output and standard error.
    pub fn wait(mut self) -> (ExitStatus, String, String) {
        self.await_end();
        let status = self.child.wait().expect("wait");
        let (output, errors) = self.read_output();
        (status, output, errors)
    }

    /// Ends it without warning, as a crash would.
    pub fn crash(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
    }

    fn await_end(&self) {
        assert_eq!(poll([self.process().as_fd()]), [true], "the server did not end");
    }

    /// A descriptor that becomes readable when the process ends (pidfd_open(2)).
    fn process(&self) -> OwnedFd {
        // SAFETY: pidfd_open takes numbers and gives a new descriptor, which nobody else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, self.child.id() as i32, 0);
            assert!(fd >= 0, "pidfd_open: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as i32)
        }
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until one is readable; tells which are. None: the patience is over.
fn poll<const N: usize>(fds: [BorrowedFd<'_>; N]) -> [bool; N] {
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // SAFETY: as many structures as said, which live until poll returns.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, PATIENCE.as_millis() as i32) };
    assert!(ready >= 0, "poll: {}", io::Error::last_os_error());
    polled.map(|polled| polled.revents & libc::POLLIN != 0)
}

/// Asks until it is so.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::yield_now();
    }
}

/// Runs a client program and gives what it printed.
pub fn client(program: &str, arguments: &[&str]) -> String {
    let output = attempt(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a client program that may fail.
pub fn attempt(program: &str, arguments: &[&str]) -> Output {
    // A client that hangs is ended by `timeout`, so that the test fails instead.
    Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .arg(program)
        .args(arguments)
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error} (`make test` installs it)"))
}
