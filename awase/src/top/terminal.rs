//! The live view: draws, waits for keys and the next sample, and restores the terminal however it ends.

use std::io::{stdin, stdout};
use std::mem::ManuallyDrop;
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::INTERVAL;
use super::draw::{UiState, draw, shows_switches};
use super::sections::sections;
use super::view::View;
use crate::control::client::Client;

/// Latency of noticing a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// After a signal, the view has this long to end by itself: the server may be slow to answer. It never does while its
/// terminal takes no output.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Restores the terminal when dropped. A panic does so before it prints (the hook of `ratatui::try_init`).
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // If this fails, an error could not be shown either.
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
    // Before the first change of the terminal, so that an incomplete change is undone, too.
    let restored = Restored;
    // Not dropped: its drop shows the cursor, and panics where it can neither do that nor print the error.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().context("this terminal cannot be drawn on")?);
    let watched = Arc::clone(&ended);
    thread::Builder::new().name("watch".to_owned()).spawn(move || watch(&watched)).context("cannot start a thread")?;
    let mut top = Top { path, client: Some(client), view, state: UiState::default(), switches_visible: false };
    let result = top.run(&mut terminal, &ended);
    drop(restored);
    // After the terminal was closed there is nowhere to print an error.
    if is_closed() { process::exit(128 + SIGHUP) } else { result }
}

/// Ends the program where the view cannot: it reads the end of a closed terminal over and over, or is blocked writing to
/// one that takes no output.
fn watch(ended: &AtomicUsize) {
    let mut end_at = None;
    loop {
        thread::sleep(SIGNAL_INTERVAL);
        if is_closed() {
            process::exit(128 + SIGHUP);
        }
        let signal = ended.load(Ordering::Relaxed) as i32;
        if signal != 0 && Instant::now() >= *end_at.get_or_insert_with(|| Instant::now() + END_TIMEOUT) {
            // Restoring more would need output.
            let _ = disable_raw_mode();
            process::exit(128 + signal);
        }
    }
}

fn is_closed() -> bool {
    let input = stdin();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())) == Ok(1) && polled[0].revents().contains(PollFlags::HUP)
}

struct Top<'a> {
    path: &'a Path,
    /// `None` while the server is not reached.
    client: Option<Client>,
    view: View,
    state: UiState,
    switches_visible: bool,
}

#[derive(PartialEq, Eq)]
enum Next {
    On,
    End,
}

impl Top<'_> {
    fn run(&mut self, terminal: &mut DefaultTerminal, ended: &AtomicUsize) -> anyhow::Result<()> {
        let mut sample_at = Instant::now() + INTERVAL;
        loop {
            let sections = sections(&self.view, self.state.sort_key);
            self.switches_visible = shows_switches(&sections, self.state.page, terminal.size()?.height);
            terminal.draw(|frame| draw(frame, &sections, &self.state))?;
            let left = sample_at.saturating_duration_since(Instant::now());
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
            if Instant::now() >= sample_at {
                sample_at = Instant::now() + INTERVAL;
                self.sample();
            }
        }
    }

    /// Samples the server, or reconnects first.
    fn sample(&mut self) {
        let was_gone = self.client.is_none();
        let sampled = match &mut self.client {
            Some(client) => self.view.sample(client),
            None => Client::connect(self.path).and_then(|client| self.view.sample(self.client.insert(client))),
        };
        match sampled {
            Ok(()) if was_gone => self.state.message = "the server is back".to_owned(),
            Ok(()) => {}
            Err(error) => {
                self.client = None;
                self.state.message = format!("the server is not reached; its last status is shown ({error:#})");
            }
        }
        self.state.selected = self.state.selected.min(self.view.switches.len().saturating_sub(1));
    }

    fn on_key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Next::End } else { Next::On };
        }
        if self.state.typed.is_some() {
            self.on_key_while_typing(key.code);
            return Next::On;
        }
        self.state.message.clear();
        let last = self.view.switches.len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Tab => self.state.page = self.state.page.next(),
            KeyCode::Char('s') => self.state.sort_key = self.state.sort_key.next(),
            // Switches are changed only while visible.
            _ if !self.switches_visible => {}
            KeyCode::Up | KeyCode::Char('k') => self.state.selected = self.state.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.state.selected = (self.state.selected + 1).min(last),
            KeyCode::Home => self.state.selected = 0,
            KeyCode::End => self.state.selected = last,
            KeyCode::Right | KeyCode::Enter | KeyCode::Char(' ') => self.choose(1),
            KeyCode::Left => self.choose(-1),
            KeyCode::Char('e') => self.state.typed = Some(String::new()),
            _ => {}
        }
        Next::On
    }

    fn on_key_while_typing(&mut self, key: KeyCode) {
        let Some(mut typed) = self.state.typed.take() else { return };
        match key {
            KeyCode::Esc => return,
            KeyCode::Enter => return self.set(typed.trim()),
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(character) => typed.push(character),
            _ => {}
        }
        self.state.typed = Some(typed);
    }

    fn choose(&mut self, by: isize) {
        let chosen = self.view.switches.get(self.state.selected).and_then(|switch| switch.neighbour(by));
        if let Some(value) = chosen {
            self.set(&value);
        }
    }

    fn set(&mut self, value: &str) {
        let (Some(client), Some(switch)) = (&mut self.client, self.view.switches.get_mut(self.state.selected)) else {
            return;
        };
        self.state.message = match client.set(&switch.name, value) {
            Ok((now, notes)) => {
                switch.value = now;
                notes.join("; ")
            }
            Err(error) => format!("{error:#}"),
        };
    }
}
