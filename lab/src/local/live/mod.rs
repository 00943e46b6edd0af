//! All switches on this machine: a whole server, its clients, and each switch with one value and another.
//!
//! The values of a switch alternate, round after round, in an order that is reversed each time. Where possible they use
//! one server, whose switches are set at run time. So other load on the host affects all values alike.

mod case;
mod recording;
mod stage;
mod tables;

use std::collections::BTreeSet;
use std::time::Duration;

use super::clients::{Clients, Generator, Time};
use super::repetitions::{Repetitions, alternating};
use super::{Effort, Export, Host, LocalError, LocalRun, Measured, Medium, Server, ServerConfig, Spent};
use crate::measure::load::{Load, Operation, Outcome};
use case::{CASES, CLIENTS, Case, DEPTH, Fixture, Value, Work};
use papers::parameter::Parameters;

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

/// The numbers of one cell, in this order: requests a second; median, 99th and 99.9th percentile of the latency in
/// microseconds; microseconds of CPU time a request; kernel entries a request.
type Numbers = [f64; 6];

const RATE: usize = 0;
const MEDIAN: usize = 1;
const P99: usize = 2;
const P999: usize = 3;
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
    let all = CASES.iter().filter_map(|case| case.values.first()).flat_map(Value::switches);
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Settings {
    seconds: f64,
    rounds: u32,
    depth: u32,
    clients: u32,
    processors: u16,
    tiny: bool,
}

impl Settings {
    fn by(effort: Effort, parameters: &Parameters) -> Self {
        let number = |name| parameters.get(name) as u32;
        Settings {
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
        let least = Duration::from_millis(if self.tiny { 0 } else { case.time_min_ms });
        let measured = (whole / self.slices(case)).max(whole.min(SLICE_MIN)).max(least);
        Time { warm: measured.mul_f64(WARM_PART), measured }
    }

    /// With the run's numbers where the case leaves them open.
    fn clients(&self, Clients { protocol, load }: Clients) -> Clients {
        let or = |number, open, settings| if number == open { settings } else { number };
        let load = Load {
            file_bytes: if self.tiny { load.file_bytes.min(REGION_TINY) } else { load.file_bytes },
            in_flight: or(load.in_flight, DEPTH, self.depth),
            connections: or(load.connections, CLIENTS, self.clients),
            ..load
        };
        Clients { protocol, load }
    }

    /// Estimated time of one round of a case.
    fn round_time(&self, case: &Case) -> Duration {
        let time = self.time(case);
        let start = if matches!(case.fixture, Fixture::Fresh { .. }) { START_TIME } else { SETTLE_TIME };
        (time.warm + time.measured + start) * case.values.len() as u32
    }
}

pub(super) fn steps(effort: Effort, parameters: &Parameters) -> u64 {
    let settings = Settings::by(effort, parameters);
    CASES.iter().map(|case| u64::from(settings.rounds(case)) * case.values.len() as u64).sum::<u64>() + recording::STEPS
}

pub(super) fn takes(effort: Effort, parameters: &Parameters) -> Duration {
    let settings = Settings::by(effort, parameters);
    let all: Duration = CASES.iter().map(|case| settings.round_time(case) * settings.rounds(case)).sum();
    all + START_TIME * 6
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let settings = Settings::by(run.effort, run.parameters);
    let mut servers = Servers { host: run.host, settings, server: None };
    let mut all = Vec::new();
    for case in CASES.iter() {
        all.push(measure_case(run, &mut servers, case)?);
    }
    servers.server = None;
    let costs = recording::measure(run)?;
    Ok(tables::measured(run, settings, &all, costs))
}

fn of_case(error: LocalError, case: &Case, value: &Value) -> LocalError {
    match error {
        LocalError::Load(what) => LocalError::Load(format!("{}: {}: {what}", case.name, value.name)),
        LocalError::Server(what) => LocalError::Server(format!("{}: {}: {what}", case.name, value.name)),
        other => other,
    }
}

struct Servers<'a> {
    host: &'a Host,
    settings: Settings,
    server: Option<(ServerConfig, Server)>,
}

impl<'a> Servers<'a> {
    /// The wanted server: the running one if it fits, else a new one.
    fn server(&mut self, serving: ServerConfig) -> Result<&Server, LocalError> {
        if self.server.as_ref().is_none_or(|(of, _)| *of != serving) {
            // The previous server must free its memory first.
            self.server = None;
            let server = self.host.serve(&serving)?;
            self.server = Some((serving, server));
        }
        self.server.as_ref().map(|(_, server)| server).ok_or(LocalError::NoResult)
    }

    fn serving(&self, memory: u64, value: Option<&'static Value>) -> ServerConfig {
        let disk = |name, medium| Export { name, medium };
        let exports = vec![
            disk("ram", Medium::Ram { bytes: RAM_BYTES }),
            disk("test", Medium::FixedLatency { bytes: DISK_BYTES, latency: TEST_LATENCY }),
            disk("disk", Medium::Disk { bytes: DISK_BYTES }),
        ];
        ServerConfig {
            processors: self.settings.processors,
            memory,
            exports,
            switches: value.into_iter().flat_map(Value::switches).collect(),
            watched: value.is_some_and(|value| value.watched),
            program: None,
        }
    }
}

/// All rounds of a case.
fn measure_case(
    run: &LocalRun<'_>,
    servers: &mut Servers<'_>,
    case: &'static Case,
) -> Result<Measurements, LocalError> {
    let settings = servers.settings;
    let most = settings.rounds(case);
    let repetitions = Repetitions { most, time_max: settings.round_time(case) * most * OVERTIME };
    let rounds = alternating(run, repetitions, case.values.len(), |at| {
        let value = &case.values[at];
        cell(servers, case, value).map_err(|error| of_case(error, case, value))
    })?;
    if let (Fixture::Server { memory_mib }, Some(default)) = (case.fixture, case.values.first()) {
        let serving = servers.serving(memory_mib << 20, None);
        set(servers.server(serving)?, default)?;
    }
    Ok(Measurements { case, rounds })
}

fn cell(servers: &mut Servers<'_>, case: &Case, value: &'static Value) -> Result<Numbers, LocalError> {
    let (settings, host) = (servers.settings, servers.host);
    let time = settings.time(case);
    match case.fixture {
        Fixture::Kernel { processors } => stage::cell(host, &case.work, value, processors, time),
        Fixture::Server { memory_mib } => {
            let serving = servers.serving(memory_mib << 20, None);
            let server = servers.server(serving)?;
            if let (Work::Clients { measured, others: None, cached: true }, Some(default)) =
                (&case.work, case.values.first())
            {
                // With the defaults: some values would make it slow.
                set(server, default)?;
                generator(host, server, settings).fill(&settings.clients(*measured))?;
            }
            set(server, value)?;
            run_clients(host, server, settings, &case.work, time)
        }
        Fixture::Fresh { memory_mib } => {
            // A fresh server each time, even if the switches are equal: memory that a server has taken stays as it is.
            servers.server = None;
            let serving = servers.serving(value.memory.unwrap_or(memory_mib << 20), Some(value));
            let server = servers.server(serving)?;
            if let Work::Clients { measured, cached: true, .. } = &case.work {
                generator(host, server, settings).fill(&settings.clients(*measured))?;
            }
            run_clients(host, server, settings, &case.work, time)
        }
    }
}

fn set(server: &Server, value: &Value) -> Result<(), LocalError> {
    value.switches().try_for_each(|(switch, to)| server.set(switch, to))
}

fn generator<'a>(host: &'a Host, server: &'a Server, settings: Settings) -> Generator<'a> {
    Generator { host, server, processors: settings.processors }
}

/// Runs the clients of a case.
fn run_clients(
    host: &Host,
    server: &Server,
    settings: Settings,
    work: &Work,
    time: Time,
) -> Result<Numbers, LocalError> {
    let Work::Clients { measured, others, cached } = work else { return Err(LocalError::NoResult) };
    let (measured, others) = (settings.clients(*measured), others.map(|clients| settings.clients(clients)));
    if *cached && others.is_some() {
        // Read three times, so that the replacement policy knows it as reused and a scan must not evict it.
        (0..3).try_for_each(|_| generator(host, server, settings).fill(&measured))?;
    }
    let before = server.spent()?;
    let (outcome, concurrent) = generator(host, server, settings).run(&measured, others.as_ref(), time)?;
    let all = outcome.all + concurrent.map_or(0, |others| others.all);
    let outcome = Outcome { all, ..outcome };
    let numbers = numbers(&outcome, before, server.spent()?);
    for clients in [Some(measured), others].into_iter().flatten() {
        if matches!(clients.load.operation, Operation::Overwrite(..)) {
            generator(host, server, settings).flush(clients.protocol)?;
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
    use super::super::Protocol;
    use super::*;

    #[test]
    fn values_of_a_case_set_the_same_switches_and_the_first_has_no_paper() {
        for case in CASES.iter() {
            assert!(case.values.len() >= 2, "{}", case.name);
            assert!(case.values.iter().all(|value| value.set.keys().eq(case.values[0].set.keys())), "{}", case.name);
            assert!(case.values[0].paper.is_none(), "{}: a default is compared with itself", case.name);
            let named: BTreeSet<_> = case.values.iter().map(|value| &value.name).collect();
            assert_eq!(named.len(), case.values.len(), "{}", case.name);
        }
    }

    #[test]
    fn cases_have_names_of_their_own_and_the_exports_that_they_ask() {
        let names: BTreeSet<_> = CASES.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), CASES.len());
        for case in CASES.iter() {
            let Work::Clients { measured, others, .. } = case.work else { continue };
            for clients in [Some(measured), others].into_iter().flatten() {
                let Protocol::Nbd(export) = clients.protocol else { continue };
                let bytes = match export {
                    "ram" => RAM_BYTES,
                    "test" | "disk" => DISK_BYTES,
                    other => panic!("{}: {other:?}", case.name),
                };
                assert!(clients.load.from + clients.load.file_bytes <= bytes, "{}", case.name);
            }
        }
    }
}
