//! All switches on this machine: a whole server, its clients, and each switch with one value and another.
//!
//! The values of a switch alternate, round after round, in an order that is reversed each time. Where possible they use
//! one server, whose switches are set at run time. So other load on the host affects all values alike.

mod case;
mod cases;
mod load;
mod recording;
mod stage;
mod tables;

use std::time::Duration;

use super::rounds::{Rounds, in_turn};
use super::{Effort, Export, Here, HereError, HereRun, Host, Measured, Medium, Served, Serving, Spent};
use crate::load::Outcome;
use crate::parameter::Parameters;
use case::{Bed, CLIENTS, Case, DEPTH, Load, Value};
use cases::CASES;
use load::{Asked, Asks, Clients, Speaks, Time};

/// Size of the exports. Bytes.
const RAM_BYTES: u64 = 160 << 20;
const DISK_BYTES: u64 = 256 << 20;
const TEST_LATENCY: Duration = Duration::from_micros(200);

/// Region that is read or written with little effort. Bytes.
const REGION_TINY: u64 = 2 << 20;

/// Part of a cell's time that passes before it is measured.
const WARM_PART: f64 = 0.3;

/// Least time of a slice, unless the whole round is shorter.
const SLICE_MIN: Duration = Duration::from_millis(100);

/// Estimated time to start a server and fill its cache.
const START_TIME: Duration = Duration::from_millis(500);
const SETTLE_TIME: Duration = Duration::from_millis(60);

/// A case begins no other round after this multiple of its expected time.
const OVERTIME: u32 = 3;

pub(super) struct Switches;

/// The numbers of one cell, in this order: requests a second; median, 99th and 99.9th percentile of the latency in
/// microseconds; microseconds of CPU time a request; kernel entries a request.
type Numbers = [f64; 6];

const RATE: usize = 0;
const MEDIAN: usize = 1;
const P99: usize = 2;
const CPU: usize = 4;
const ENTRIES: usize = 5;

/// The result of one case: for each of its values, the numbers of each round.
struct Measurements {
    case: &'static Case,
    /// `rounds[value][round]`.
    rounds: Vec<Vec<Numbers>>,
}

/// The switches that are measured, with their default values.
pub fn switches() -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<_> = CASES.iter().filter_map(|case| case.values.first()).flat_map(|value| value.set).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().copied().collect()
}

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Told {
    seconds: f64,
    rounds: u32,
    depth: u32,
    clients: u32,
    processors: u16,
    tiny: bool,
}

impl Told {
    fn by(effort: Effort, parameters: &Parameters) -> Self {
        let number = |name| parameters.get(name) as u32;
        Told {
            seconds: effort.pick(parameters.get("run.seconds"), 0.02),
            rounds: effort.pick(number("run.repetitions"), 1),
            depth: number("load.depth"),
            clients: number("load.clients"),
            processors: number("server.processors") as u16,
            tiny: effort == Effort::Tiny,
        }
    }

    fn rounds(&self, case: &Case) -> u32 {
        (self.rounds * self.slices(case)).min(case.rounds_max)
    }

    fn slices(&self, case: &Case) -> u32 {
        if self.tiny { 1 } else { case.slices }
    }

    fn time(&self, case: &Case) -> Time {
        let whole = Duration::from_secs_f64(self.seconds);
        let least = if self.tiny { Duration::ZERO } else { case.time_min };
        let measured = (whole / self.slices(case)).max(whole.min(SLICE_MIN)).max(least);
        Time { warm: measured.mul_f64(WARM_PART), measured }
    }

    fn clients(&self, clients: &Clients) -> Clients {
        let or = |number, otherwise, told| if number == otherwise { told } else { number };
        Clients {
            region: if self.tiny { clients.region.min(REGION_TINY) } else { clients.region },
            depth: or(clients.depth, DEPTH, self.depth),
            connections: or(clients.connections, CLIENTS, self.clients),
            ..*clients
        }
    }

    /// Estimated time of one round of a case.
    fn round_time(&self, case: &Case) -> Duration {
        let time = self.time(case);
        let start = if matches!(case.bed, Bed::Fresh { .. }) { START_TIME } else { SETTLE_TIME };
        (time.warm + time.measured + start) * case.values.len() as u32
    }
}

impl Here for Switches {
    fn experiment(&self) -> &'static str {
        "live"
    }

    fn steps(&self, effort: Effort, parameters: &Parameters) -> u64 {
        let told = Told::by(effort, parameters);
        CASES.iter().map(|case| u64::from(told.rounds(case)) * case.values.len() as u64).sum::<u64>() + recording::STEPS
    }

    fn takes(&self, effort: Effort, parameters: &Parameters) -> Option<Duration> {
        let told = Told::by(effort, parameters);
        let all: Duration = CASES.iter().map(|case| told.round_time(case) * told.rounds(case)).sum();
        Some(all + START_TIME * 6)
    }

    fn measure(&self, run: &HereRun<'_>) -> Result<Measured, HereError> {
        let told = Told::by(run.effort, run.parameters);
        let mut beds = Beds { host: run.host, told, server: None };
        let mut all = Vec::new();
        for case in CASES {
            all.push(measure(run, &mut beds, case)?);
        }
        beds.server = None;
        let costs = recording::measure(run)?;
        Ok(tables::measured(run, told, &all, costs))
    }
}

fn of_case(error: HereError, case: &Case, value: &Value) -> HereError {
    match error {
        HereError::Load(what) => HereError::Load(format!("{}: {}: {what}", case.name, value.name)),
        HereError::Server(what) => HereError::Server(format!("{}: {}: {what}", case.name, value.name)),
        other => other,
    }
}

struct Beds<'a> {
    host: &'a dyn Host,
    told: Told,
    server: Option<(Serving, Box<dyn Served + 'a>)>,
}

impl<'a> Beds<'a> {
    /// The wanted server: the running one if it fits, else a new one.
    fn server(&mut self, serving: Serving) -> Result<&mut (dyn Served + 'a), HereError> {
        if self.server.as_ref().is_none_or(|(of, _)| *of != serving) {
            // The previous server must free its memory first.
            self.server = None;
            let server = self.host.serve(&serving)?;
            self.server = Some((serving, server));
        }
        self.server.as_mut().map(|(_, server)| server.as_mut()).ok_or(HereError::Lost)
    }

    fn serving(&self, memory: u64, value: Option<&Value>) -> Serving {
        let disk = |name, medium| Export { name, medium };
        let exports = vec![
            disk("ram", Medium::Ram { bytes: RAM_BYTES }),
            disk("test", Medium::FixedLatency { bytes: DISK_BYTES, latency: TEST_LATENCY }),
            disk("disk", Medium::Disk { bytes: DISK_BYTES }),
        ];
        Serving {
            processors: self.told.processors,
            memory,
            exports,
            switches: value.map_or_else(Vec::new, |value| value.set.to_vec()),
            watched: value.is_some_and(|value| value.watched),
        }
    }
}

/// All rounds of a case.
fn measure(run: &HereRun<'_>, beds: &mut Beds<'_>, case: &'static Case) -> Result<Measurements, HereError> {
    let told = beds.told;
    let most = told.rounds(case);
    let rounds = Rounds { most, time_max: told.round_time(case) * most * OVERTIME };
    let rounds = in_turn(run, rounds, case.values.len(), |at| {
        let value = &case.values[at];
        cell(beds, case, value).map_err(|error| of_case(error, case, value))
    })?;
    if let (Bed::Server { memory }, Some(default)) = (case.bed, case.values.first()) {
        let serving = beds.serving(memory, None);
        set(beds.server(serving)?, default)?;
    }
    Ok(Measurements { case, rounds })
}

fn cell(beds: &mut Beds<'_>, case: &Case, value: &Value) -> Result<Numbers, HereError> {
    let (told, host) = (beds.told, beds.host);
    let time = told.time(case);
    match case.bed {
        Bed::Kernel { processors } => stage::cell(host, &case.load, value, processors, time),
        Bed::Server { memory } => {
            let serving = beds.serving(memory, None);
            let server = beds.server(serving)?;
            if let (Load::Clients { measured, beside: None, cached: true }, Some(default)) =
                (&case.load, case.values.first())
            {
                // With the defaults: some values would make it slow.
                set(server, default)?;
                asked(host, server, told).fill(&told.clients(measured))?;
            }
            set(server, value)?;
            ask(host, server, told, &case.load, time)
        }
        Bed::Fresh { memory } => {
            // A fresh server each time, even if the switches are equal: memory that a server has taken stays as it is.
            beds.server = None;
            let serving = beds.serving(value.memory.unwrap_or(memory), Some(value));
            let server = beds.server(serving)?;
            if let Load::Clients { measured, cached: true, .. } = &case.load {
                asked(host, server, told).fill(&told.clients(measured))?;
            }
            ask(host, server, told, &case.load, time)
        }
    }
}

fn set(server: &mut dyn Served, value: &Value) -> Result<(), HereError> {
    value.set.iter().try_for_each(|(switch, to)| server.set(switch, to))
}

fn asked<'a>(host: &'a dyn Host, server: &'a dyn Served, told: Told) -> Asked<'a> {
    Asked { host, server, processors: told.processors }
}

/// Runs the clients of a case.
fn ask(host: &dyn Host, server: &mut dyn Served, told: Told, load: &Load, time: Time) -> Result<Numbers, HereError> {
    let Load::Clients { measured, beside, cached } = load else { return Err(HereError::Lost) };
    let (measured, beside) = (told.clients(measured), beside.map(|clients| told.clients(&clients)));
    if *cached && beside.is_some() {
        // Read three times, so that the replacement policy knows it as reused and a scan must not evict it.
        (0..3).try_for_each(|_| asked(host, server, told).fill(&measured))?;
    }
    let before = server.spent()?;
    let outcome = asked(host, server, told).run(&measured, beside.as_ref(), time)?;
    let numbers = numbers(&outcome, before, server.spent()?);
    for clients in [Some(measured), beside].into_iter().flatten() {
        if let (Asks::Writes { .. }, Speaks::Nbd(export)) = (clients.asks, clients.protocol) {
            asked(host, server, told).flush(export)?;
        }
    }
    Ok(numbers)
}

fn numbers(outcome: &Outcome, before: Spent, after: Spent) -> Numbers {
    let each = |spent: f64| spent / outcome.all.max(1) as f64;
    let percentile = |percent| outcome.latencies.percentile_us(percent);
    [
        outcome.rate(),
        percentile(50.0),
        percentile(99.0),
        percentile(99.9),
        each(after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6),
        each(after.kernel_entries.saturating_sub(before.kernel_entries) as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_case_set_the_same_switches_and_the_first_has_no_paper() {
        for case in CASES {
            let switches = |value: &Value| value.set.iter().map(|(switch, _)| *switch).collect::<Vec<_>>();
            assert!(case.values.len() >= 2, "{}", case.name);
            assert!(case.values.iter().all(|value| switches(value) == switches(&case.values[0])), "{}", case.name);
            assert!(case.values[0].paper.is_none(), "{}: a default is compared with itself", case.name);
            let mut named: Vec<_> = case.values.iter().map(|value| value.name).collect();
            named.dedup();
            assert_eq!(named.len(), case.values.len(), "{}", case.name);
        }
    }

    #[test]
    fn cases_have_names_of_their_own_and_the_exports_that_they_ask() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        for case in CASES {
            let Load::Clients { measured, beside, .. } = case.load else { continue };
            for clients in [Some(measured), beside].into_iter().flatten() {
                let Speaks::Nbd(export) = clients.protocol else { continue };
                let bytes = match export {
                    "ram" => RAM_BYTES,
                    "test" | "disk" => DISK_BYTES,
                    other => panic!("{}: {other:?}", case.name),
                };
                assert!(clients.from + clients.region <= bytes, "{}", case.name);
            }
        }
    }
}
