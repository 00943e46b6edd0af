//! `awase top` in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use awase::control::client::Client;
use testkit::server::{AWASE, Sandbox};

/// A pseudoterminal in which a program runs.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    drawn: Vec<u8>,
}

impl Terminal {
    fn new() -> Terminal {
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: numbers only.
        let ours = unsafe { libc::posix_openpt(flags) };
        assert!(ours >= 0, "posix_openpt: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and not owned elsewhere.
        let ours = unsafe { File::from_raw_fd(ours) };
        let size = libc::winsize { ws_row: ROWS as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        let fd = ours.as_raw_fd();
        // SAFETY: the descriptor is open, and the size outlives the call.
        let theirs = unsafe {
            assert_eq!((libc::unlockpt(fd), libc::ioctl(fd, libc::TIOCSWINSZ, &size)), (0, 0));
            libc::ioctl(fd, libc::TIOCGPTPEER, flags)
        };
        assert!(theirs >= 0, "the other end: {}", std::io::Error::last_os_error());
        // SAFETY: as above.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        Terminal { ours, theirs, drawn: Vec::new() }
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
            assert!(self.take(120_000), "no {text:?} on\n{screen}");
        }
    }

    /// Reads what is drawn within `within_ms`; returns false on timeout.
    fn take(&mut self, within_ms: i32) -> bool {
        let mut polled = libc::pollfd { fd: self.ours.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        if unsafe { libc::poll(&mut polled, 1, within_ms) } != 1 {
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
    // SAFETY: both take numbers only.
    if unsafe { libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 } {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

type Settings = (u32, u32, u32, [u8; 32]);

fn settings(terminal: &OwnedFd) -> Settings {
    // SAFETY: all zeroes is a valid value, which the call fills.
    let mut found: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure outlives the call.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut found) }, 0);
    (found.c_iflag, found.c_oflag, found.c_lflag, found.c_cc)
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
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut terminal = Terminal::new();
        let before = terminal.settings();
        let top = terminal.run(sandbox.path());
        terminal.await_text("q ends");
        // SAFETY: numbers only; the child was not waited for yet, so its id was not reused.
        assert_eq!(unsafe { libc::kill(top.id() as i32, signal) }, 0);
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
    // SAFETY: kill takes numbers; the child was not waited for yet, so its id is still its own.
    assert_eq!(unsafe { libc::kill(top.id() as i32, libc::SIGTERM) }, 0);
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
