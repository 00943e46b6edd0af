//! How a running server is watched: its counters over HTTP, as text for Prometheus and as a page with live plots.
//!
//! The front end is threads of its own, outside the path: they read what processors count (`kernel::counters`) and send
//! it. No processor waits for them or knows of them.

mod hosts;
mod http;
mod live;
mod prometheus;
mod sample;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::{METRICS_PORT, Problem, Problems, Settings};
use crate::predecessor::Patience;
use hosts::Hosts;
use http::{Answer, Doors};
pub(crate) use live::job as live_job;
pub(crate) use sample::disk_name;
pub use sample::{JOBS_SHOWN, View};

const KEY: &str = "listen.metrics";

/// The page: no other file and no other host is needed to show it.
const PAGE: &str = include_str!("page.html");

/// After a connection could not be accepted (no descriptors), the next attempt.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Sockets on which those who watch are awaited.
pub struct Listeners {
    listeners: Vec<(TcpListener, SocketAddr)>,
    hosts: Hosts,
}

impl Listeners {
    /// Those that are configured. Where nothing is configured, a port that somebody else uses is only told.
    ///
    /// # Errors
    /// When a configured address cannot be had.
    pub fn open(settings: &Settings) -> Result<(Listeners, Vec<String>), Problems> {
        let mut listeners = Listeners { listeners: Vec::new(), hosts: Hosts::new(&settings.metrics_names) };
        let (mut notices, mut problems) = (Vec::new(), Problems::default());
        let Some(addresses) = &settings.metrics else {
            let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
            match bind(usual, Patience::none()) {
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
                    .allowed("an address of this host whose port nobody uses, or \"none\"")
            };
            listeners.listeners.extend(problems.note(bind(*address, Patience::new()).map_err(refused)));
        }
        problems.or((listeners, notices))
    }

    /// Serves what `view` sees, until what is returned is dropped.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn serve(self, view: View) -> std::io::Result<FrontEnd> {
        let (view, stopping) = (Arc::new(view), Arc::new(AtomicBool::new(false)));
        let mut front = FrontEnd { addresses: Vec::new(), stopping };
        let doors = Arc::new(Doors::new(self.hosts));
        for (listener, address) in self.listeners {
            let (view, doors, stopping) = (Arc::clone(&view), Arc::clone(&doors), Arc::clone(&front.stopping));
            let run = move || accept(&listener, &view, &doors, &stopping);
            std::thread::Builder::new().name("metrics".into()).spawn(run)?;
            front.addresses.push(address);
        }
        Ok(front)
    }
}

fn bind(address: SocketAddr, patience: Patience) -> std::io::Result<(TcpListener, SocketAddr)> {
    let is_in_use = |error: &std::io::Error| error.kind() == ErrorKind::AddrInUse;
    let listener = patience.retry(|| TcpListener::bind(address), is_in_use)?;
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
            // Has the thread look. If that fails it goes with the process.
            let _ = TcpStream::connect(address);
        }
    }
}

fn accept(listener: &TcpListener, view: &Arc<View>, doors: &Arc<Doors>, stopping: &AtomicBool) {
    while !stopping.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                let view = Arc::clone(view);
                doors.admit(stream, move |path| answer(&view, path));
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
        _ => Answer::plain(404, "there are / (live plots), /metrics (Prometheus) and /live.json\n"),
    }
}
