//! Debian's etcd, and nodes as processes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use awase::membership::Event;
use policy::membership::{Address, Incarnation, NodeId};

use crate::node::{Node, settings};

const DEADLINE: Duration = Duration::from_secs(15);

/// A server that is killed at the end.
pub struct Etcd {
    pub url: String,
    peer: String,
    process: Child,
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}", listener.local_addr().expect("an address"))
}

impl Etcd {
    /// `None` where it is not installed.
    pub fn start(data: &Path) -> Option<Etcd> {
        // Another process may take a port before it is used.
        for _ in 0..5 {
            match Etcd::start_at(data, &free_port(), &free_port()) {
                Ok(Some(etcd)) => return Some(etcd),
                Ok(None) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
                Err(error) => panic!("etcd: {error}"),
            }
        }
        panic!("etcd does not start");
    }

    /// `Ok(None)` when it ended at once.
    fn start_at(data: &Path, url: &str, peer: &str) -> Result<Option<Etcd>, std::io::Error> {
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data).args(["--listen-client-urls", url, "--advertise-client-urls", url]);
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
        Ok(Some(Etcd { url: url.to_owned(), peer: peer.to_owned(), process }))
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// The same again, on what it has on disk.
    pub fn restart(mut self, data: &Path) -> Etcd {
        self.kill();
        let started = Etcd::start_at(data, &self.url, &self.peer).expect("it is installed");
        started.expect("its ports are free")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A node as a process of this program.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Read while another was waited for.
    read: Vec<String>,
}

const NODE: &str = "AWASE_TEST_NODE";
const ETCD: &str = "AWASE_TEST_ETCD";

impl Process {
    pub fn start(name: &str, etcd: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "started::a_node_of_its_own", "--nocapture"]);
        command.env(NODE, name).env(ETCD, etcd).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program runs");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The harness prints into the same lines.
            for line in lines.filter_map(|line| line.split_once('@').map(|(_, line)| line.to_owned())) {
                let _ = sender.send(line);
            }
        });
        Process { child, input, lines, read: Vec::new() }
    }

    fn line(&mut self, begin: &str) -> String {
        loop {
            if let Some(index) = self.read.iter().position(|line| line.starts_with(begin)) {
                return self.read.remove(index)[begin.len()..].trim().to_owned();
            }
            let line = self.lines.recv_timeout(DEADLINE);
            self.read.push(line.unwrap_or_else(|error| panic!("no {begin:?}: {error}")));
        }
    }

    /// Waits until it serves, and returns as whom.
    pub fn serves(&mut self) -> Address {
        let line = self.line("serve ");
        let (node, epoch) = line.split_once(' ').expect("node and epoch");
        let (node, epoch) = (node.parse().expect("a number"), epoch.parse().expect("a number"));
        Address { node: NodeId(node), incarnation: Incarnation(epoch) }
    }

    /// Asks it whether it would answer in this epoch.
    pub fn answers(&mut self, epoch: Incarnation) -> bool {
        writeln!(self.input, "{}", epoch.0).expect("it reads");
        self.line("answers ") == "true"
    }

    pub fn signal(&self, signal: libc::c_int) {
        let process = libc::pid_t::try_from(self.child.id()).expect("a process");
        // SAFETY: it takes no pointers; the process is a child that was not waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says as whom it serves, and answers for each epoch on its input whether it would answer. Ends with its input.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn a_node_of_its_own() {
    let of = |variable| std::env::var(variable).expect("it is started by another test");
    let node = Node::with(settings(&of(NODE), &[of(ETCD)]), |event| {
        if let Event::Serve(me) = event {
            println!("\n@serve {} {}", me.node.0, me.incarnation.0);
        }
    });
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let epoch = Incarnation(line.parse().expect("an epoch"));
        println!("\n@answers {}", node.member().fence().answers(epoch));
    }
}
