//! `awase serve`: the main thread waits for signals; the processors serve.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use kernel::Switches;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::banner;
use crate::config::{self, Config, Given, Overrides, Place, Problems, SETTINGS};
use crate::host_memory;
use crate::listeners::Sockets;
use crate::metrics::{FrontEnd, Listeners};
use crate::open_files;
use crate::predecessor::Deadline;
use crate::server::{Failures, Server};
use crate::tell::{self, tell};

/// How often retired exports are checked, while there are any.
const RETIRED_INTERVAL: Duration = Duration::from_secs(1);

enum Event {
    Signal(i32),
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
    forward_signals(sender.clone())?;
    open_files::raise_limit();
    // Sockets first: a server that cannot be reached must not create disks.
    let (sockets, any_passed) = Sockets::open(&config, Deadline::for_takeover())?;
    let (metrics, unserved) = Listeners::open(&config.settings)?;
    let (server, notices) = Server::start(&config, sockets)?;
    let (metrics, without_thread) = metrics.serve(server.view());
    let unserved = unserved.into_iter().chain(without_thread);
    let limits = [open_files::notice(&config.settings.limits), host_memory::notice(&config, server.uses_io_uring())];
    let notices = config.notices.iter().cloned().chain(notices).chain(unserved);
    notices.chain(limits.into_iter().flatten()).for_each(tell);
    let mut front = Front { server, config, overrides, metrics, output_is_ours: !any_passed };
    front.print(&banner::banner(&front.config, &front.server, front.metrics.addresses()));
    notify(&[NotifyState::Ready]);
    front.run(&events)?;
    notify(&[NotifyState::Stopping]);
    front.drain(&events, sender)
}

struct Front<'a> {
    server: Server,
    config: Config,
    overrides: &'a Overrides,
    metrics: FrontEnd,
    /// Standard output is not that of a client who has handed over sockets.
    output_is_ours: bool,
}

impl Front<'_> {
    /// Returns when a signal ends the server.
    fn run(&mut self, events: &Receiver<Event>) -> anyhow::Result<()> {
        loop {
            match self.next(events)? {
                Some(Event::Signal(SIGHUP)) => self.reload(),
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

    /// Reads the configuration again. If it has problems, they are reported and nothing changes.
    fn reload(&mut self) {
        let now = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
        notify(&[NotifyState::Reloading, now]);
        let load = || anyhow::Ok(Config::load(self.overrides)?);
        let changed = load().and_then(|config| {
            let report = self.server.change(&config)?;
            Ok((config, report))
        });
        match changed {
            Ok((config, report)) => {
                let switches = self.change_switches(&config.switches);
                for line in
                    report.iter().chain(&switches).chain(&needs_restart(&self.config, &config)).chain(&config.notices)
                {
                    self.print(&format!("{line}\n"));
                }
                self.config.exports = config.exports;
                self.config.directories = config.directories;
                self.config.databases = config.databases;
                self.config.users = config.users;
                self.server.name_clients(&config.clients);
                self.config.clients = config.clients;
                self.config.switches = config.switches;
            }
            Err(error) => {
                match error.downcast_ref::<Problems>() {
                    Some(problems) => problems.0.iter().for_each(tell),
                    None => tell(format_args!("{error:#}")),
                }
                tell("the configuration was not changed");
            }
        }
        notify(&[NotifyState::Ready]);
    }

    /// A server goes on where nobody reads what it says. Clients that start their own server write to the standard output that
    /// it has from them (`nbdcopy -- [ awase serve ] -`).
    fn print(&self, text: &str) {
        if self.output_is_ours {
            let _ = tell::print(text);
        } else {
            tell::print_to_stderr(text);
        }
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
    fn drain(mut self, events: &Receiver<Event>, sender: Sender<Event>) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        self.print(
            "finishing the requests in flight and writing everything to the disks; a second signal ends at once\n",
        );
        let on_end = move |failures| {
            // The receiver is dropped with the process.
            let _ = sender.send(Event::Drained(failures));
        };
        self.server.drain(self.config.settings.limits.drain_timeout, on_end);
        loop {
            match events.recv()? {
                Event::Signal(SIGHUP) => {}
                Event::Signal(_) if begun.elapsed() < crate::signals::SAME_SIGNAL => {}
                Event::Signal(_) => {
                    tell("ended at once by a second signal; what was not flushed may be lost");
                    self.server.abandon();
                    // Processors are not waited for.
                    std::process::exit(1);
                }
                Event::Drained(failures) => {
                    for (what, error) in &failures {
                        tell(format_args!("{what} could not be written to its disk: {error}"));
                    }
                    self.server.stop();
                    return Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
            }
        }
    }
}

/// Forwards signals as events: a handler itself may call almost nothing (signal-safety(7)).
fn forward_signals(sender: Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(forward).context("cannot start a thread")?;
    Ok(())
}

/// Reports settings that have changed but do not follow a reload.
fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    let settings = SETTINGS.iter().filter(|key| (key.show)(&old.settings) != (key.show)(&new.settings));
    settings.map(|key| format!("{} has changed, which takes effect after a restart", key.name)).collect()
}

/// Notifies systemd, if it asked for it. A failure is printed and no error.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tell(format_args!("systemd cannot be notified: {error}"));
    }
}
