//! `awase top` in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use awase::control::client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};
use testkit::server::{AWASE, Sandbox};

/// A pseudoterminal in which a program runs.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    drawn: Vec<u8>,
}

impl Terminal {
    fn new() -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        unlockpt(&ours).expect("unlocked");
        let size = Winsize { ws_row: ROWS as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("sized");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("the other end");
        Terminal { ours: ours.into(), theirs, drawn: Vec::new() }
    }

    /// Runs `awase top` with this as its controlling terminal.
    fn run(&self, directory: &Path) -> Child {
        let mut command = self.command(directory);
        // SAFETY: only system calls between fork and exec.
        unsafe { command.pre_exec(take_terminal) };
        command.spawn().expect("start awase top")
    }

    fn command(&self, directory: &Path) -> Command {
        let end = || Stdio::from(self.theirs.try_clone().expect("a descriptor"));
        let mut command = Command::new(&*AWASE);
        command.arg("top").current_dir(directory).env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        command
    }

    fn settings(&self) -> Settings {
        settings(&self.theirs)
    }

    /// Reads what is drawn until `text` is on the screen.
    fn await_text(&mut self, text: &str) -> String {
        loop {
            let screen = screen(&String::from_utf8_lossy(&self.drawn));
            if screen.contains(text) {
                return screen;
            }
            assert!(self.take(120), "no {text:?} on\n{screen}");
        }
    }

    /// Reads what is drawn within `within_s`; returns false on timeout.
    fn take(&mut self, within_s: i64) -> bool {
        let timeout = Timespec { tv_sec: within_s, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.ours, PollFlags::IN)], Some(&timeout)) != Ok(1) {
            return false;
        }
        let mut bytes = [0; 4096];
        let len = self.ours.read(&mut bytes).expect("drawn");
        self.drawn.extend(&bytes[..len]);
        true
    }

    /// Waits for the program's end. Returns all that it drew, and whether it succeeded.
    fn await_end(&mut self, mut program: Child) -> (String, bool) {
        let status = program.wait().expect("ended");
        while self.take(0) {}
        (String::from_utf8_lossy(&self.drawn).into_owned(), status.success())
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("pressed");
    }
}

/// Makes standard input this process's controlling terminal, so that its end causes a signal.
fn take_terminal() -> std::io::Result<()> {
    setsid()?;
    Ok(ioctl_tiocsctty(std::io::stdin())?)
}

fn signal(top: &Child, signal: Signal) {
    // The child was not waited for yet, so its id was not reused.
    kill_process(Pid::from_child(top), signal).expect("it runs");
}

/// Input, output and local modes, and the control characters.
type Settings = (InputModes, OutputModes, LocalModes, String);

fn settings(terminal: &OwnedFd) -> Settings {
    let found = tcgetattr(terminal).expect("a terminal");
    (found.input_modes, found.output_modes, found.local_modes, format!("{:?}", found.special_codes))
}

/// The screen after `drawn` was written: interprets cursor movement and clearing, ignores colours and modes.
fn screen(drawn: &str) -> String {
    let mut cells = vec![[' '; COLUMNS]; ROWS];
    let (mut row, mut column) = (0, 0);
    let mut characters = drawn.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            if let Some(cell) = cells.get_mut(row).and_then(|cells| cells.get_mut(column)) {
                *cell = character;
            }
            column += 1;
            continue;
        }
        let mut parameters = String::new();
        let command = characters.by_ref().skip(1).find(|character| {
            let is_command = character.is_ascii_alphabetic();
            parameters.extend((!is_command).then_some(*character));
            is_command
        });
        match command {
            Some('H') => {
                let mut numbers = parameters.split(';').map(|number| number.parse::<usize>().unwrap_or(1) - 1);
                (row, column) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            }
            Some('J') => cells = vec![[' '; COLUMNS]; ROWS],
            _ => {}
        }
    }
    cells.iter().map(|cells| cells.iter().collect::<String>() + "\n").collect()
}

const ROWS: usize = 50;
const COLUMNS: usize = 140;
const ENTER_SCREEN: &str = "\u{1b}[?1049h";
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";

fn scan_resistant(client: &mut Client) -> String {
    let switches = client.switches().expect("an answer");
    let row = switches.as_array().expect("a list").iter().find(|row| row["name"] == "scan_resistant");
    row.and_then(|row| row["value"].as_str()).expect("the switch").to_owned()
}

#[test]
fn top_changes_a_switch_by_keys_and_restores_the_terminal() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&["--export", "name=vm,kind=ram,size=32MiB"]);
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let top = terminal.run(sandbox.path());
    let text = terminal.await_text("q ends");
    assert!(text.contains("vm") && text.contains("dynamic_cache"), "{text}");
    assert_ne!(terminal.settings(), before, "raw mode");
    // The second switch, off; then a value that is refused, typed.
    terminal.press("j ");
    let mut client = Client::connect(&sandbox.file("awase-data/control")).expect("a control socket");
    while scan_resistant(&mut client) != "false" {}
    terminal.press("emaybe\r");
    terminal.await_text("set: switches.scan_resistant");
    terminal.press("\t");
    terminal.await_text("by requests/s");
    terminal.press("s");
    terminal.await_text("by bytes/s");
    terminal.press("q");
    let (drawn, is_well) = terminal.await_end(top);
    assert!(is_well);
    assert_eq!(terminal.settings(), before);
    assert!(drawn.find(ENTER_SCREEN) < drawn.find(LEAVE_SCREEN), "the screen is restored");
}

#[test]
fn a_signal_ends_top_and_restores_the_terminal() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    for with in [Signal::INT, Signal::TERM] {
        let mut terminal = Terminal::new();
        let before = terminal.settings();
        let top = terminal.run(sandbox.path());
        terminal.await_text("q ends");
        signal(&top, with);
        let (drawn, is_well) = terminal.await_end(top);
        assert!(is_well);
        assert_eq!(terminal.settings(), before);
        assert!(drawn.contains(LEAVE_SCREEN), "the screen is restored");
    }
}

#[test]
fn top_survives_a_restart_of_the_server() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&[]);
    let mut terminal = Terminal::new();
    let top = terminal.run(sandbox.path());
    terminal.await_text("q ends");
    server.crash();
    terminal.await_text("the server is not reached");
    let _server = sandbox.serve(&[]);
    terminal.await_text("the server is back");
    terminal.press("q");
    assert!(terminal.await_end(top).1);
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    // Without a controlling terminal there is no signal.
    for is_controlling in [true, false] {
        let mut terminal = Terminal::new();
        let mut top = match is_controlling {
            true => terminal.run(sandbox.path()),
            false => terminal.command(sandbox.path()).spawn().expect("start awase top"),
        };
        terminal.await_text("q ends");
        drop(terminal);
        assert_eq!(top.wait().expect("ended").code(), Some(128 + libc::SIGHUP), "controlling: {is_controlling}");
    }
}

#[test]
fn a_signal_ends_top_while_its_terminal_takes_no_output() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    let mut terminal = Terminal::new();
    let before = terminal.settings();
    let mut top = terminal.run(sandbox.path());
    terminal.await_text("q ends");
    let call = format!("/proc/{}/syscall", top.id());
    let write = format!("{} 0x1 ", libc::SYS_write);
    let is_writing = || std::fs::read_to_string(&call).expect("what it does").starts_with(&write);
    let mut seen = 0;
    while seen < 5 {
        terminal.press("\t");
        std::thread::sleep(Duration::from_millis(5));
        seen = if is_writing() { seen + 1 } else { 0 };
    }
    signal(&top, Signal::TERM);
    assert_eq!(top.wait().expect("ended").code(), Some(128 + libc::SIGTERM));
    assert_eq!(terminal.settings(), before);
}

#[test]
fn top_needs_a_terminal() {
    let sandbox = Sandbox::new();
    let _server = sandbox.serve(&[]);
    let output = sandbox.run(&["top"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), errors.as_str()),
        (Some(1), "awase: awase top needs a terminal; --once prints one frame\n")
    );
}
