//! The live view: draws, waits for keys and seconds, and leaves the terminal as it was, however it ends.

use std::io::{stdin, stdout};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::disable_raw_mode;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::INTERVAL;
use super::draw::{Desk, draw, shows_switches};
use super::sections::sections;
use super::view::View;
use crate::control::client::Client;

/// How soon a signal is noticed.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the view may take to end by itself after a signal: the server may be slow to answer. It takes longer when its
/// terminal takes no output.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Gives the terminal back. A panic does it before it prints (`ratatui::try_init` sets the hook).
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Where this fails, nothing can be told either.
        let _ = ratatui::try_restore();
        let _ = execute!(stdout(), Show);
    }
}

/// Shows the server until `q` or a signal.
///
/// # Errors
/// When the terminal does not work.
pub(super) fn run(path: &Path, client: Client, view: View) -> anyhow::Result<()> {
    let ended = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&ended), signal as usize)
            .context("cannot handle signals")?;
    }
    // Before the first change of the terminal, so that half a change is taken back, too.
    let restored = Restored;
    // Not dropped: it would show the cursor, and panic where it can neither do that nor tell.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().context("this terminal cannot be drawn on")?);
    let watched = Arc::clone(&ended);
    thread::Builder::new().name("watch".to_owned()).spawn(move || watch(&watched)).context("cannot start a thread")?;
    let mut top = Top { path, client: Some(client), view, desk: Desk::default(), switches_in_sight: false };
    let result = top.run(&mut terminal, &ended);
    drop(restored);
    // Who closes a terminal wants no error, and there is nowhere to print one.
    if is_closed() { process::exit(128 + SIGHUP) } else { result }
}

/// Ends the program where the view cannot: it waits for keys of a terminal that is closed, whose end it reads over and
/// over, or writes to one that takes no output.
fn watch(ended: &AtomicUsize) {
    let mut end_at = None;
    loop {
        thread::sleep(SIGNAL_INTERVAL);
        if is_closed() {
            process::exit(128 + SIGHUP);
        }
        let signal = ended.load(Ordering::Relaxed) as i32;
        if signal != 0 && Instant::now() >= *end_at.get_or_insert_with(|| Instant::now() + END_TIMEOUT) {
            // The rest of it is output.
            let _ = disable_raw_mode();
            process::exit(128 + signal);
        }
    }
}

fn is_closed() -> bool {
    let mut polled = libc::pollfd { fd: stdin().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, which lives until poll returns.
    unsafe { libc::poll(&mut polled, 1, 0) == 1 && polled.revents & libc::POLLHUP != 0 }
}

struct Top<'a> {
    path: &'a Path,
    /// `None` while the server is gone.
    client: Option<Client>,
    view: View,
    desk: Desk,
    switches_in_sight: bool,
}

/// Goes on or ends.
#[derive(PartialEq, Eq)]
enum Next {
    On,
    End,
}

impl Top<'_> {
    fn run(&mut self, terminal: &mut DefaultTerminal, ended: &AtomicUsize) -> anyhow::Result<()> {
        let mut look_at = Instant::now() + INTERVAL;
        loop {
            let sections = sections(&self.view, self.desk.order);
            self.switches_in_sight = shows_switches(&sections, self.desk.page, terminal.size()?.height);
            terminal.draw(|frame| draw(frame, &sections, &self.desk))?;
            let left = look_at.saturating_duration_since(Instant::now());
            if event::poll(left.min(SIGNAL_INTERVAL))?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && self.on_key(key) == Next::End
            {
                return Ok(());
            }
            if ended.load(Ordering::Relaxed) != 0 {
                return Ok(());
            }
            if Instant::now() >= look_at {
                look_at = Instant::now() + INTERVAL;
                self.look();
            }
        }
    }

    /// Asks the server, or looks whether there is one again.
    fn look(&mut self) {
        let was_gone = self.client.is_none();
        let looked = match &mut self.client {
            Some(client) => self.view.look(client),
            None => Client::connect(self.path).and_then(|client| self.view.look(self.client.insert(client))),
        };
        match looked {
            Ok(()) if was_gone => self.desk.message = "the server is back".to_owned(),
            Ok(()) => {}
            Err(error) => {
                self.client = None;
                self.desk.message = format!("the server is gone; what was last known is shown ({error:#})");
            }
        }
        self.desk.selected = self.desk.selected.min(self.view.switches.len().saturating_sub(1));
    }

    fn on_key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Next::End } else { Next::On };
        }
        if self.desk.typed.is_some() {
            self.on_key_while_typing(key.code);
            return Next::On;
        }
        self.desk.message.clear();
        let last = self.view.switches.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Tab => self.desk.page = self.desk.page.next(),
            KeyCode::Char('s') => self.desk.order = self.desk.order.next(),
            // Nothing is changed out of sight.
            _ if !self.switches_in_sight => {}
            KeyCode::Up | KeyCode::Char('k') => self.desk.selected = self.desk.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.desk.selected = (self.desk.selected + 1).min(last),
            KeyCode::Home => self.desk.selected = 0,
            KeyCode::End => self.desk.selected = last,
            KeyCode::Right | KeyCode::Enter | KeyCode::Char(' ') => self.choose_beside(1),
            KeyCode::Left => self.choose_beside(-1),
            KeyCode::Char('e') => self.desk.typed = Some(String::new()),
            _ => {}
        }
        Next::On
    }

    fn on_key_while_typing(&mut self, key: KeyCode) {
        let Some(mut typed) = self.desk.typed.take() else { return };
        match key {
            KeyCode::Esc => return,
            KeyCode::Enter => return self.set(typed.trim()),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(character) => typed.push(character),
            _ => {}
        }
        self.desk.typed = Some(typed);
    }

    fn choose_beside(&mut self, by: isize) {
        let chosen = self.view.switches.get(self.desk.selected).and_then(|switch| switch.choice_beside(by));
        if let Some(value) = chosen {
            self.set(&value);
        }
    }

    fn set(&mut self, value: &str) {
        let (Some(client), Some(switch)) = (&mut self.client, self.view.switches.get_mut(self.desk.selected)) else {
            return;
        };
        self.desk.message = match client.set(&switch.name, value) {
            Ok((now, notes)) => {
                switch.value = now;
                notes.join("; ")
            }
            Err(error) => format!("{error:#}"),
        };
    }
}
