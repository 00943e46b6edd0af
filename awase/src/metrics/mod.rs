//! A running server's counters over HTTP, as text for Prometheus and as a page with live plots.
//!
//! The front end has its own threads, off the I/O path, which read the processors' counters (`kernel::counters`). No
//! processor waits for them.

mod hosts;
mod http;
mod live;
mod prometheus;
mod sample;
mod shared;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::{METRICS_PORT, Problem, Problems, Settings};
use crate::predecessor::Deadline;
use hosts::Hosts;
use http::{Answer, OpenConnections};
pub(crate) use live::job as live_job;
pub(crate) use prometheus::PROGRAM_REQUESTS;
pub(crate) use sample::disk_name;
pub use sample::{JOBS_SHOWN, View};
pub(crate) use shared::WAITS as SHARED_WAITS;

const KEY: &str = "listen.metrics";

/// Complete: it loads no other file and needs no other host.
const PAGE: &str = include_str!("page.html");

/// Delay before the next attempt after a connection could not be accepted (no descriptors).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

pub struct Listeners {
    listeners: Vec<(TcpListener, SocketAddr)>,
    hosts: Hosts,
}

impl Listeners {
    /// Opens the configured sockets. If none are configured, failure to open the default one is a notice and no error.
    ///
    /// # Errors
    /// When a configured address cannot be bound.
    pub fn open(settings: &Settings) -> Result<(Listeners, Vec<String>), Problems> {
        let mut listeners = Listeners { listeners: Vec::new(), hosts: Hosts::new(&settings.metrics_names) };
        let (mut notices, mut problems) = (Vec::new(), Problems::default());
        let Some(addresses) = &settings.metrics else {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
            match bind(usual, Deadline::passed()) {
                Ok(listener) => listeners.listeners.push(listener),
                Err(error) => notices.push(format!(
                    "no metrics are served at {usual}: {error}; {KEY} (--metrics) chooses another address, or none"
                )),
            }
            return Ok((listeners, notices));
        };
        for address in addresses {
            let refused = |error| {
                Problem::new(&settings.place(KEY), KEY, format!("cannot be served: {address}: {error}"))
                    .allowed("an address of this host whose port is free, or \"none\"")
            };
            listeners.listeners.extend(problems.note(bind(*address, Deadline::for_takeover()).map_err(refused)));
        }
        problems.or((listeners, notices))
    }

    /// Serves samples of `view` until the front end is dropped. Also returns a notice for each socket for which no thread
    /// can be started: the server has clients by then.
    pub fn serve(self, view: View) -> (FrontEnd, Vec<String>) {
        let (view, stopping) = (Arc::new(view), Arc::new(AtomicBool::new(false)));
        let (mut front, mut notices) = (FrontEnd { addresses: Vec::new(), stopping }, Vec::new());
        let connections = Arc::new(OpenConnections::new(self.hosts));
        for (listener, address) in self.listeners {
            let (view, connections, stopping) =
                (Arc::clone(&view), Arc::clone(&connections), Arc::clone(&front.stopping));
            let run = move || accept(&listener, &view, &connections, &stopping);
            match std::thread::Builder::new().name("metrics".into()).spawn(run) {
                Ok(_) => front.addresses.push(address),
                Err(error) => {
                    notices.push(format!("no metrics are served at {address}: cannot start a thread: {error}"));
                }
            }
        }
        (front, notices)
    }
}

fn bind(address: SocketAddr, deadline: Deadline) -> std::io::Result<(TcpListener, SocketAddr)> {
    let is_in_use = |error: &std::io::Error| error.kind() == ErrorKind::AddrInUse;
    let listener = deadline.retry(|| TcpListener::bind(address), is_in_use)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The front end while it runs.
pub struct FrontEnd {
    addresses: Vec<SocketAddr>,
    stopping: Arc<AtomicBool>,
}

impl FrontEnd {
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        for address in &self.addresses {
            // Wakes the thread from accept. If that fails, it ends with the process.
            let _ = TcpStream::connect(address);
        }
    }
}

fn accept(listener: &TcpListener, view: &Arc<View>, connections: &Arc<OpenConnections>, stopping: &AtomicBool) {
    while !stopping.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                let view = Arc::clone(view);
                connections.admit(stream, move |path| answer(&view, path));
            }
            Err(_) => std::thread::sleep(ACCEPT_RETRY),
        }
    }
}

fn answer(view: &View, path: &str) -> Answer {
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let of_sample = |kind, show: fn(&sample::Sample) -> String| match view.sample() {
        Some(sample) => Answer::ok(kind, show(&sample)),
        None => Answer::plain(503, "the server is ending\n"),
    };
    match path {
        "/" => Answer::ok("text/html; charset=utf-8", PAGE.to_owned()),
        "/metrics" => of_sample(TEXT, prometheus::text),
        "/live.json" => of_sample("application/json", live::json),
        _ => Answer::plain(404, "available: / (live plots), /metrics (Prometheus), /live.json\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_the_latency_of_every_group_of_requests() {
        for group in kernel::counters::Group::ALL {
            let is_shown = |line: &str| {
                let of = line.split_once("percentiles(now, old, [").map(|(_, of)| of);
                of.is_some_and(|of| of.contains(&format!("{:?}", group.name())))
            };
            assert!(PAGE.lines().any(is_shown), "{} is in no plot", group.name());
        }
    }
}
