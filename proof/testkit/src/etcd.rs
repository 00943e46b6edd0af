//! Debian's etcd.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A server that is killed at the end.
pub struct Etcd {
    pub url: String,
    peer: String,
    /// The program and what it is started with, before its own arguments.
    program: Vec<OsString>,
    process: Child,
}

fn unused_url() -> String {
    format!("http://127.0.0.1:{}", crate::port::unused())
}

impl Etcd {
    /// On loopback. `None` where it is not installed.
    pub fn start(data: &Path) -> Option<Etcd> {
        match Etcd::start_at(vec!["etcd".into()], data, &unused_url(), &unused_url()) {
            Ok(etcd) => Some(etcd.expect("its ports are free")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("etcd: {error}"),
        }
    }

    /// Elsewhere, by a program that starts it there.
    pub fn start_by(program: Vec<OsString>, data: &Path, url: &str, peer: &str) -> Etcd {
        Etcd::start_at(program, data, url, peer).expect("it is installed").expect("its ports are free")
    }

    /// `Ok(None)` when it ended at once.
    fn start_at(program: Vec<OsString>, data: &Path, url: &str, peer: &str) -> Result<Option<Etcd>, std::io::Error> {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg("--data-dir").arg(data).args([
            "--listen-client-urls",
            url,
            "--advertise-client-urls",
            url,
        ]);
        command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        // Its shortest lease is one and a half election timeouts, in whole seconds.
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("ready to serve client requests"));
        if !is_ready {
            process.wait()?;
            return Ok(None);
        }
        // Otherwise it would stop when the pipe is full.
        thread::spawn(move || lines.for_each(drop));
        Ok(Some(Etcd { url: url.to_owned(), peer: peer.to_owned(), program, process }))
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// The same again, on what it has on disk.
    pub fn restart(mut self, data: &Path) -> Etcd {
        self.kill();
        let program = std::mem::take(&mut self.program);
        Etcd::start_by(program, data, &self.url, &self.peer)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
