//! Drives a load: one thread, any number of connections, each with the given number of requests in flight.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nfs3_types::nfs3::nfs_fh3;

use super::connection::Connection;
use super::nbd::{self, Replies};
use super::nfs::Calls;
use super::plan::{Flight, Next, Plan, Step};
use super::session::{Endpoint, Session};
use super::{Length, Load, Operation, Outcome, Sends, TIMEOUT, Target, files};
use crate::measure::epoll::Epoll;
use crate::measure::process::unless;
use crate::measure::spread::XorShift;

const RECEIVE_BYTES: usize = 256 << 10;

/// A wait without events ends after this, to look whether the load is interrupted.
const WAIT_MS: u32 = 200;

/// Ends a load before its time.
#[derive(Clone, Copy)]
pub struct Stop<'a> {
    /// The load that this one accompanies is over.
    pub over: &'a AtomicBool,
    /// The whole measurement is interrupted.
    pub interrupted: &'a AtomicBool,
}

impl<'a> Stop<'a> {
    /// Ends only on interruption.
    pub fn when(interrupted: &'a AtomicBool) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Stop { over: &NEVER, interrupted }
    }
}

/// Runs a load. Its files must exist ([`super::prepare`]), except those that it extends.
///
/// # Errors
/// When the server does not answer, or with a wrong reply.
pub fn drive(target: &Target, load: &Load, length: Length, stop: &Stop<'_>) -> Result<Outcome> {
    Drive::open(target, load, length)?.run(stop)
}

enum Protocol {
    Nbd(Replies),
    Nfs(Box<Calls>),
}

/// One connection and its plan.
struct Lane {
    connection: Connection,
    protocol: Protocol,
    plan: Plan,
    flights: Vec<Option<Flight>>,
    in_flight: usize,
    is_blocked: bool,
}

/// Open connections to a server.
pub struct Drive {
    load: Load,
    length: Length,
    lanes: Vec<Lane>,
    outcome: Outcome,
    /// Start of the measured time.
    warm: Instant,
}

impl Drive {
    /// # Errors
    /// When the server does not answer, or does not take such requests.
    pub fn open(target: &Target, load: &Load, length: Length) -> Result<Drive> {
        load.check()?;
        match target {
            Target::Nbd { at, export } => {
                Drive::new(load, length, |_| Ok((nbd::connect(at, export)?, Protocol::Nbd(Replies::default()))))
            }
            Target::Nfs(endpoint) => {
                let (mut session, root) = Session::mount(endpoint)?;
                let limits = session.limits(&root)?;
                let reads = matches!(load.operation, Operation::Read(_) | Operation::ReadAndAttributes(_));
                let (bytes, most) = (load.request_bytes, if reads { limits.read } else { limits.write });
                ensure!(bytes <= most, "the server takes at most {most} bytes a request, not {bytes}");
                let files = (0..load.connections).map(|number| files::open(&mut session, &root, load, number));
                let files = files.collect::<Result<_>>()?;
                drop(session);
                Drive::of_files(endpoint, load, length, &root, files)
            }
        }
    }

    /// With open files, separate ones for each connection.
    pub(super) fn of_files(
        endpoint: &Endpoint,
        load: &Load,
        length: Length,
        root: &nfs_fh3,
        mut files: Vec<Vec<nfs_fh3>>,
    ) -> Result<Drive> {
        Drive::new(load, length, |number| {
            let files = std::mem::take(&mut files[number]);
            Ok((endpoint.connect()?, Protocol::Nfs(Box::new(Calls::new(endpoint, number, root, files)))))
        })
    }

    fn new(
        load: &Load,
        length: Length,
        mut connect: impl FnMut(usize) -> Result<(OwnedFd, Protocol)>,
    ) -> Result<Drive> {
        let payload: Arc<[u8]> = random_bytes(load.request_bytes as usize).into();
        let lane = |number: u32| -> Result<Lane> {
            let (socket, protocol) = connect(number as usize)?;
            Ok(Lane {
                connection: Connection::new(socket, Arc::clone(&payload))?,
                protocol,
                plan: Plan::new(load, length, number),
                flights: vec![None; load.in_flight as usize],
                in_flight: 0,
                is_blocked: false,
            })
        };
        let lanes = (0..load.connections).map(lane).collect::<Result<_>>()?;
        Ok(Drive { load: *load, length, lanes, outcome: Outcome::default(), warm: Instant::now() })
    }

    /// Runs it to its end, and waits for what is in flight then.
    ///
    /// # Errors
    /// When the server does not answer, or with a wrong reply.
    pub fn run(mut self, stop: &Stop<'_>) -> Result<Outcome> {
        let mut epoll = Epoll::new()?;
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut last = Instant::now();
        self.warm = last;
        let mut end = None;
        if let Length::For { warm, measured } = self.length {
            (self.warm, end) = (last + warm, (last + warm).checked_add(measured));
        }
        for (number, lane) in lanes.iter_mut().enumerate() {
            epoll.add(&lane.connection, number)?;
            self.fill(lane, number, &epoll)?;
        }
        let (mut buffer, mut ready, mut is_stopped) = (vec![0; RECEIVE_BYTES], Vec::new(), false);
        while lanes.iter().any(|lane| lane.in_flight > 0) {
            epoll.wait(&mut ready, Some(WAIT_MS))?;
            if ready.is_empty() && last.elapsed() > TIMEOUT {
                bail!("no reply within {} s", TIMEOUT.as_secs());
            }
            unless(stop.interrupted)?;
            // At least one request is measured, however slow.
            let is_over = end.is_some_and(|end| last >= end && self.outcome.requests > 0);
            if !is_stopped && (is_over || stop.over.load(Ordering::Relaxed)) {
                lanes.iter_mut().for_each(|lane| lane.plan.stop());
                is_stopped = true;
            }
            for &number in &ready {
                last = Instant::now();
                self.take(&mut lanes[number], &mut buffer, last)?;
                self.fill(&mut lanes[number], number, &epoll)?;
            }
        }
        self.outcome.elapsed = last.saturating_duration_since(self.warm);
        Ok(self.outcome)
    }

    /// Takes the replies of a connection.
    fn take(&mut self, lane: &mut Lane, buffer: &mut [u8], now: Instant) -> Result<()> {
        let received = lane.connection.receive(buffer)?;
        let mut input = &buffer[..received];
        let bytes = self.load.request_bytes;
        while let Some(slot) = lane.answered(&mut input, bytes)? {
            let flight = lane.flights[slot].take().context("a reply to no request")?;
            lane.in_flight -= 1;
            if let Some(step) = lane.plan.after(flight.step) {
                lane.issue(slot, Flight { step, ..flight }, bytes)?;
                continue;
            }
            self.count(flight, now);
            if let Sends::Single { work } = self.load.sends {
                let start = spin(work);
                if let Next::Step(step) = lane.plan.next(slot, lane.in_flight) {
                    lane.issue(slot, Flight { step, start }, bytes)?;
                    lane.connection.send()?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, Flight { step, start }: Flight, now: Instant) {
        let outcome = &mut self.outcome;
        if matches!(step, Step::Commit { .. }) {
            outcome.commits += 1;
            return;
        }
        outcome.all += 1;
        if now < self.warm {
            return;
        }
        outcome.requests += 1;
        if matches!(step, Step::Read { .. } | Step::Write { .. }) {
            outcome.bytes += u64::from(self.load.request_bytes);
        }
        outcome.latencies.record(now.saturating_duration_since(start));
    }

    /// Fills the free slots of a connection and sends.
    fn fill(&self, lane: &mut Lane, number: usize, epoll: &Epoll) -> Result<()> {
        let start = Instant::now();
        for slot in 0..lane.flights.len() {
            if lane.flights[slot].is_some() {
                continue;
            }
            match lane.plan.next(slot, lane.in_flight) {
                Next::Step(step) => lane.issue(slot, Flight { step, start }, self.load.request_bytes)?,
                Next::Wait => break,
                Next::End => {}
            }
        }
        let is_blocked = !lane.connection.send()?;
        if is_blocked != lane.is_blocked {
            lane.is_blocked = is_blocked;
            epoll.change(&lane.connection, number, is_blocked)?;
        }
        Ok(())
    }
}

impl Lane {
    /// Consumes `input` until a request is answered, or to its end. Returns the request's slot.
    fn answered(&mut self, input: &mut &[u8], bytes: u32) -> Result<Option<usize>> {
        match &mut self.protocol {
            Protocol::Nbd(replies) => replies.next(input, &self.flights, bytes),
            Protocol::Nfs(calls) => calls.next(input, &self.flights, bytes),
        }
    }

    fn issue(&mut self, slot: usize, flight: Flight, bytes: u32) -> Result<()> {
        let Lane { connection, protocol, .. } = self;
        let step = flight.step;
        connection.queue(matches!(step, Step::Write { .. }), |out| match protocol {
            Protocol::Nbd(_) => {
                nbd::encode(out, slot, step, bytes);
                Ok(())
            }
            Protocol::Nfs(calls) => calls.encode(out, slot, step, bytes),
        })?;
        self.flights[slot] = Some(flight);
        self.in_flight += 1;
        Ok(())
    }
}

/// Spins for `work`. Returns the time after that.
fn spin(work: Duration) -> Instant {
    let end = Instant::now() + work;
    loop {
        let now = Instant::now();
        if now >= end {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Bytes that do not compress.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = XorShift(XorShift::SEED);
    (0..count.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(count).collect()
}
