//! A server of a directory, and a mount of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testkit::server::{AWASE, Sandbox, Server};

/// Served by every server of these tests.
pub const EXPORT: &str = "name=files,kind=directory,secure=false,squash=no_root_squash,path=files";

/// Ample: what is killed ends within a second.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Without FUSE there is nothing to test.
pub fn has_fuse() -> bool {
    let has = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !has {
        testkit::skip::note_kernel("/dev/fuse cannot be opened here");
    }
    has
}

/// Dropped in this order: who looks into a mount whose server is gone waits for ever.
pub struct Fixture {
    pub mount: Mount,
    pub server: Option<Server>,
    pub port: u16,
    pub sandbox: Sandbox,
}

impl Fixture {
    /// `None` where there is no FUSE.
    pub fn new(options: &str) -> Option<Fixture> {
        if !has_fuse() {
            return None;
        }
        let sandbox = Sandbox::new();
        sandbox.make_directory("files");
        let (server, port) = sandbox.serve_directories(0, &["--export", EXPORT]);
        let mount = Mount::new(&sandbox, port, "mnt", options);
        Some(Fixture { mount, server: Some(server), port, sandbox })
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.directory.join(name)
    }

    /// The same on the server's host.
    pub fn served(&self, name: &str) -> PathBuf {
        self.sandbox.file("files").join(name)
    }

    /// The server dies as in a crash, and another one takes its place.
    pub fn restart_server(&mut self) {
        self.server.take().expect("it runs").crash();
        let (server, _) = self.sandbox.serve_directories(self.port, &["--export", EXPORT]);
        self.server = Some(server);
    }
}

/// A mount in the foreground, until dropped.
pub struct Mount {
    pub directory: PathBuf,
    child: Child,
    _output: BufReader<ChildStdout>,
}

impl Mount {
    pub fn new(sandbox: &Sandbox, port: u16, directory: &str, options: &str) -> Mount {
        Mount::of(sandbox, &format!("nfs://127.0.0.1:{port}/files"), directory, options)
    }

    pub fn of(sandbox: &Sandbox, url: &str, directory: &str, options: &str) -> Mount {
        Mount::start(Command::new(&*AWASE), url, &sandbox.make_directory(directory), options)
    }

    /// By `command`, which is `awase`.
    pub fn start(mut command: Command, url: &str, directory: &Path, options: &str) -> Mount {
        command.arg("mount").arg(url).arg(directory).arg("--foreground");
        command.args(["-o", options]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("awase mount");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("what it says");
        assert!(line.starts_with("mounted nfs://127.0.0.1:"), "it did not mount: {line:?}");
        Mount { directory: directory.to_owned(), child, _output: output }
    }

    /// Ends in order: everything is stored, and it is unmounted.
    pub fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().expect("wait");
        assert!(status.success(), "the mount ended with {status}");
    }

    /// Dies as in a crash.
    pub fn kill(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
        detach(&self.directory);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        await_end(&mut self.child, "the mount")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("kill");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        detach(&self.directory);
    }
}

/// Waits until a process has ended, but not for ever.
pub fn await_end(child: &mut Child, what: &str) -> ExitStatus {
    let end = Instant::now() + END_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        assert!(Instant::now() < end, "{what} does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Takes away what is mounted there when it is dropped.
pub struct Detached(pub PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// Takes away what is mounted there, if anything is.
fn detach(directory: &Path) {
    let _ = Command::new("umount").args(["-q", "-l"]).arg(directory).stderr(Stdio::null()).status();
}

/// Runs a line of shell in `directory`.
pub fn shell(directory: &Path, line: &str) -> String {
    let output = Command::new("timeout").args(["120", "sh", "-ec", line]).current_dir(directory).output();
    let output = output.expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line} failed with {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
