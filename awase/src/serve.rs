//! `awase serve`: the main thread waits for signals; the processors serve.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use kernel::Switches;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use transactions::terminal::User;

use crate::banner;
use crate::config::{self, Config, Given, Overrides, Place, Problems, SETTINGS};
use crate::host_memory;
use crate::listeners::Sockets;
use crate::metrics::{FrontEnd, Listeners};
use crate::open_files;
use crate::predecessor::Deadline;
use crate::server::{Failures, Server};
use crate::signals::SAME_SIGNAL;
use crate::systemd;
use crate::tell::{self, Stream, tell};

/// How often retired exports are checked, while there are any.
const RETIRED_INTERVAL: Duration = Duration::from_secs(1);

/// How long what a second signal ends at once may still take to leave nothing in the way of the next server.
const AT_ONCE: Duration = Duration::from_millis(500);

/// What is told last where a reload is refused.
const UNCHANGED: &str = "the configuration was not changed";

enum Event {
    Reload,
    /// The configuration that was read again.
    Loaded(anyhow::Result<Box<Config>>),
    End,
    EndAtOnce,
    /// All is written, except for these exports.
    Drained(Failures),
}

/// Serves until a signal ends it.
///
/// # Errors
/// When the configuration is wrong or the host refuses something.
pub fn serve(overrides: &Overrides) -> anyhow::Result<ExitCode> {
    let config = Config::load(overrides)?;
    // Before there are other threads, which inherit it.
    host_memory::prepare();
    let (sender, events) = channel();
    tell::begin_serving().context("cannot start a thread")?;
    let is_written = Arc::new(AtomicBool::new(false));
    forward_signals(sender.clone(), Arc::clone(&is_written))?;
    open_files::raise_limit();
    // Sockets first: a server that cannot be reached must not create disks.
    let (sockets, any_passed) = Sockets::open(&config, Deadline::for_takeover())?;
    let (metrics, unserved) = Listeners::open(&config.settings)?;
    let end = sender.clone();
    let (server, notices) = Server::start(&config, sockets, Box::new(move || drop(end.send(Event::End))))?;
    let (metrics, without_thread) = metrics.serve(server.view());
    let unserved = unserved.into_iter().chain(without_thread);
    let limits = [open_files::notice(&config.settings.limits), host_memory::notice(&config, server.uses_io_uring())];
    let notices = config.notices.iter().cloned().chain(notices).chain(unserved);
    tell::tell_all(notices.chain(limits.into_iter().flatten()));
    // Clients that start their own server write to the standard output that it has from them
    // (`nbdcopy -- [ awase serve ] -`).
    let output = if any_passed { Stream::Error } else { Stream::Output };
    let mut front = Front { server, config, overrides, metrics, output, sender, reloads: 0, is_written };
    front.print(banner::banner(&front.config, &front.server, front.metrics.addresses()));
    systemd::notify_ready(&banner::summary(&front.server));
    systemd::begin_watchdog(front.server.kernel());
    front.run(&events)?;
    systemd::notify_stopping();
    front.drain(&events)
}

struct Front<'a> {
    server: Server,
    config: Config,
    overrides: &'a Overrides,
    metrics: FrontEnd,
    /// For what is no problem.
    output: Stream,
    sender: Sender<Event>,
    /// Those that are not done.
    reloads: u32,
    /// Nothing can be lost any more, whatever ends the process.
    is_written: Arc<AtomicBool>,
}

impl Front<'_> {
    /// Returns when a signal ends the server.
    fn run(&mut self, events: &Receiver<Event>) -> anyhow::Result<()> {
        loop {
            match self.next(events)? {
                Some(Event::Reload) => self.reload(),
                Some(Event::Loaded(config)) => self.loaded(config),
                Some(_) => return Ok(()),
                None => self.server.close_retired(),
            }
        }
    }

    fn next(&self, events: &Receiver<Event>) -> anyhow::Result<Option<Event>> {
        if !self.server.has_retired() {
            return Ok(Some(events.recv()?));
        }
        match events.recv_timeout(RETIRED_INTERVAL) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the configuration again, in a thread: a file that hangs (a FIFO, a dead mount) must not be in the way of the end.
    fn reload(&mut self) {
        self.reloads += 1;
        if self.reloads > 1 {
            tell("the configuration is still being read; it is read once more after that");
            return;
        }
        systemd::notify_reloading();
        let (overrides, running, sender) = (self.overrides.clone(), self.config.clone(), self.sender.clone());
        let load = move || {
            let config = Config::load_again(&overrides, &running);
            // The receiver is dropped with the process.
            let _ = sender.send(Event::Loaded(config.map(Box::new).map_err(Into::into)));
        };
        if let Err(error) = std::thread::Builder::new().name("reload".into()).spawn(load) {
            self.loaded(Err(anyhow::Error::from(error).context("cannot start a thread")));
        }
    }

    /// Goes over to a configuration. If it has problems, they are reported and nothing changes.
    fn loaded(&mut self, config: anyhow::Result<Box<Config>>) {
        let changed = config.and_then(|config| {
            let report = self.server.change(&config)?;
            Ok((config, report))
        });
        let status = match changed {
            Ok((config, report)) => {
                let switches = self.change_switches(&config.switches);
                let users = change_of_users(&self.config.users, &config.users);
                let restart = needs_restart(&self.config, &config);
                let lines = report.iter().chain(&users).chain(&switches).chain(&restart).chain(&config.notices);
                self.print(lines.map(|line| format!("{line}\n")).collect::<String>());
                self.server.name_clients(&config.clients);
                self.config = Config { settings: self.config.settings.clone(), ..*config };
                banner::summary(&self.server)
            }
            Err(error) => {
                let problems = match error.downcast_ref::<Problems>() {
                    Some(problems) => problems.0.iter().map(ToString::to_string).collect(),
                    None => vec![format!("{error:#}")],
                };
                let count = problems.len();
                let count = if count > 1 { format!(" ({count} problems)") } else { String::new() };
                let status = format!("{UNCHANGED}{count}: {}", problems.first().map_or("", String::as_str));
                tell::tell_all(problems.into_iter().chain([UNCHANGED.to_owned()]));
                status
            }
        };
        systemd::notify_ready(&status);
        if std::mem::take(&mut self.reloads) > 1 {
            self.reload();
        }
    }

    fn print(&self, text: impl Into<String>) {
        tell::say(self.output, text.into());
    }

    /// Sets the switches that differ from those of the previous configuration, so a switch that was set on the running
    /// server is reset only if its configuration has changed. Returns a report, as lines of text.
    fn change_switches(&self, new: &Switches) -> Vec<String> {
        let mut report = Vec::new();
        for (name, value) in config::change(&self.config.switches, new) {
            // As in a flag, which every key can parse.
            let given = Given::Text(value.trim_matches('"').to_owned());
            match self.server.panel().set_switch(name, &given, &Place::Default) {
                Ok(unreached) => {
                    report.push(format!("switches.{name} = {value}"));
                    report.extend(unreached.iter().map(ToString::to_string));
                }
                Err(problem) => report.push(problem.to_string()),
            }
        }
        report
    }

    /// Finishes the requests in flight and writes everything to the disks. A second signal ends the process at once.
    fn drain(mut self, events: &Receiver<Event>) -> anyhow::Result<ExitCode> {
        self.print(
            "finishing the requests in flight and writing everything to the disks; a second signal ends at once\n",
        );
        let sender = self.sender.clone();
        let on_end = move |failures| {
            // The receiver is dropped with the process.
            let _ = sender.send(Event::Drained(failures));
        };
        self.server.drain(self.config.settings.limits.drain_timeout, on_end);
        loop {
            match events.recv()? {
                Event::EndAtOnce => {
                    tell("ended at once by a second signal; what was not flushed may be lost");
                    self.server.abandon();
                    tell::settle();
                    // Processors are not waited for.
                    std::process::exit(1);
                }
                Event::Drained(failures) => {
                    self.is_written.store(failures.is_empty(), Ordering::Relaxed);
                    let failed = failures.iter();
                    tell::tell_all(
                        failed.map(|(what, error)| format!("{what} could not be written to its disk: {error}")),
                    );
                    // As a failure, so that a service manager starts it anew.
                    let is_over = self.server.stop();
                    return Ok(if failures.is_empty() && !is_over { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
                _ => {}
            }
        }
    }
}

/// Forwards signals as events: a handler itself may call almost nothing (signal-safety(7)).
fn forward_signals(sender: Sender<Event>, is_written: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    let forward = move || {
        let mut ends: Option<Instant> = None;
        // Whoever receives the events may be gone at the very end.
        for signal in signals.forever() {
            if signal == SIGHUP {
                let _ = sender.send(Event::Reload);
                continue;
            }
            let since = *ends.get_or_insert_with(|| {
                let _ = sender.send(Event::End);
                Instant::now()
            });
            if since.elapsed() >= SAME_SIGNAL {
                let _ = sender.send(Event::EndAtOnce);
                // The main thread may wait for a file that hangs, or for who reads what it said.
                std::thread::sleep(AT_ONCE);
                std::process::exit(i32::from(!is_written.load(Ordering::Relaxed)));
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(forward).context("cannot start a thread")?;
    Ok(())
}

/// Reports who may connect to databases from now on, and who may not. That a password is another one cannot be known: each
/// is salted anew when it is read.
fn change_of_users(old: &[User], new: &[User]) -> Vec<String> {
    let is_among = |users: &[User], name: &str| users.iter().any(|user| user.name == name);
    let gone = old.iter().filter(|user| !is_among(new, &user.name));
    let gone =
        gone.map(|user| format!("user {:?} may not connect any more; sessions that have begun go on", user.name));
    let added = new.iter().filter(|user| !is_among(old, &user.name));
    let added = added.map(|user| format!("user {:?} may connect", user.name));
    let others = match (old.is_empty(), new.is_empty()) {
        (false, true) => Some("everybody on this host may connect to databases"),
        (true, false) => Some("nobody else may connect to databases any more; sessions that have begun go on"),
        _ => None,
    };
    gone.chain(added).chain(others.map(str::to_owned)).collect()
}

/// Reports settings that have changed but do not follow a reload.
fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    let settings = SETTINGS.iter().filter(|key| (key.show)(&old.settings) != (key.show)(&new.settings));
    settings.map(|key| format!("{} has changed, which takes effect after a restart", key.name)).collect()
}
