//! Nodes as processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use awase::membership::Event;
use policy::membership::{Address, Incarnation, NodeId};

use crate::node::{Node, settings};

const DEADLINE: Duration = Duration::from_secs(15);

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
