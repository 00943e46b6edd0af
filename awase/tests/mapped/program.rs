//! Programs that map a disk, as processes of their own: this very test, which is told what to do by its environment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;

use shm::{OnServerLost, Options};

use crate::cluster::PAGE;

const WHAT: &str = "AWASE_TEST_PROGRAM";

/// What a program says begins with this, among what the test's harness says.
const SAYS: &str = "program: ";

pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program that does one of the things below with the disk of the server at `socket`.
    pub fn start(socket: &Path, what: &str) -> Program {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "program::program", "--nocapture"])
            .env(WHAT, format!("{} {what}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Program { child, input, output: BufReader::new(output) }
    }

    /// What it says next.
    pub fn next(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("read") > 0 {
            if let Some((_, said)) = line.split_once(SAYS) {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the program ended: {:?}", self.child.wait());
    }

    pub fn go_on(&mut self) {
        writeln!(self.input.as_mut().expect("open"), "go on").expect("written");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    pub fn wait(&mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().expect("ended")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("{SAYS}{what}");
}

fn await_word() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("read");
}

#[test]
fn program() {
    let Ok(what) = std::env::var(WHAT) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().expect("a number");
    let on_lost = if words[1] == "signal" { OnServerLost::Signal } else { OnServerLost::Wait };
    let memory = Options::at(words[0]).on_server_lost(on_lost).open("s").unwrap_or_else(|error| panic!("{error}"));
    let word = |at: usize| memory.atomic_u64(at).expect("inside");
    match words[1] {
        // A number of times at an offset.
        "increment" => {
            for _ in 0..number(2) {
                word(number(3)).fetch_add(1, SeqCst);
            }
        }
        // Pages with their numbers from a value on, then waits.
        "fill" => {
            (0..number(2)).for_each(|page| word(page * PAGE).store((number(3) + page) as u64, SeqCst));
            say("filled");
            await_word();
        }
        "read" => say(word(number(2)).load(SeqCst)),
        // A page, and once more when the server has ended.
        "signal" => {
            say(word(number(2)).load(SeqCst));
            while memory.losses() == 0 {
                std::thread::yield_now();
            }
            say(word(number(2)).load(SeqCst));
        }
        other => panic!("{other} is nothing to do"),
    }
}
