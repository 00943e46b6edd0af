//! The OLTP paper's six techniques on this host: a whole server with a database on its disk, terminals of `awase load`, and
//! each technique alone, with those before it, and all.

use std::fs;
use std::process::Command;
use std::time::Duration;

use papers::parameter::{Parameters, sheet};
use papers::result::{Plot, Series};
use serde_json::Value;

use super::repetitions::{Repetitions, Spread, interleaved, table};
use super::server::IN_MEMORY;
use super::{Effort, LocalError, LocalRun, Measured, Program, Server, ServerConfig};
use crate::measure::process::Process;

const ROUNDS: Repetitions = Repetitions { most: 3, time_max: Duration::from_secs(100) };

/// Memory of the server. Bytes.
const MEMORY: u64 = 128 << 20;

/// As the paper's front-end processor has them: hundreds of terminals on few lines. Of 128, groups of transactions that wait
/// for the disk are so small that the processors are idle now and then.
const LINES: usize = 16;
const TERMINALS_OF_A_LINE: usize = 32;
/// Without it.
const CONNECTIONS: usize = 128;
const WARM: Duration = Duration::from_millis(200);
const MEASURED: Duration = Duration::from_millis(800);
/// Start of a load, and its check.
const OVERHEAD: Duration = Duration::from_millis(300);

/// Of one load, in any case.
const TIMEOUT: Duration = Duration::from_secs(60);

const PROGRAM: Program = Program { name: "oltp", bytes: include_bytes!("../../../program/oltp.wasm") };

const MIXES: [&str; 2] = ["heavy", "light"];

/// Of each technique: its row in the paper's table, and its switch when it is in use and when not.
const TECHNIQUES: [(&str, &str, [&str; 2]); 6] = [
    ("(1)", "quantum", ["adaptive", "off"]),
    ("(2)", "trace", ["direct", "unthinned"]),
    ("(3)", "immediate_dispatch", ["true", "false"]),
    ("(4)", "hottest_first", ["true", "false"]),
    ("(5)", "resolved_names", ["true", "false"]),
    ("(6)", "look_ahead", ["true", "false"]),
];

/// Which techniques are in use.
#[derive(Clone, Copy)]
enum InUse {
    None,
    Alone(usize),
    UpTo(usize),
}

impl InUse {
    /// The first technique with those before it is the first alone.
    fn all() -> Vec<InUse> {
        let alone = (0..TECHNIQUES.len()).map(InUse::Alone);
        [InUse::None].into_iter().chain(alone).chain((1..TECHNIQUES.len()).map(InUse::UpTo)).collect()
    }

    fn has(self, technique: usize) -> bool {
        match self {
            InUse::None => false,
            InUse::Alone(one) => technique == one,
            InUse::UpTo(last) => technique <= last,
        }
    }

    fn name(self) -> String {
        match self {
            InUse::None => "none".to_owned(),
            InUse::Alone(one) => format!("{} {}", TECHNIQUES[one].0, TECHNIQUES[one].1),
            InUse::UpTo(last) if last + 1 == TECHNIQUES.len() => "all".to_owned(),
            InUse::UpTo(last) => format!("(1) to {}", TECHNIQUES[last].0),
        }
    }
}

/// How the terminals reach the server, and where its database is.
#[derive(Clone, Copy, PartialEq)]
enum Setting {
    /// Through a front end. The database is in memory: one disk is no match for the paper's 30, with which the processor was
    /// the bottleneck.
    Paper,
    /// The database on the host's disk.
    Disk,
    /// Each terminal by a connection of its own.
    Connections,
}

impl Setting {
    fn suffix(self) -> &'static str {
        match self {
            Setting::Paper => "",
            Setting::Disk => ", on the disk",
            Setting::Connections => ", without a front end",
        }
    }
}

/// The paper's, and beside them the first and the last in other settings.
fn cells() -> Vec<(usize, Setting, InUse)> {
    let of = |mix| {
        let paper = InUse::all().into_iter().map(move |in_use| (mix, Setting::Paper, in_use));
        let ends = [InUse::None, InUse::UpTo(TECHNIQUES.len() - 1)];
        let others = [Setting::Disk, Setting::Connections].into_iter();
        paper.chain(others.flat_map(move |setting| ends.map(|in_use| (mix, setting, in_use))))
    };
    (0..MIXES.len()).flat_map(of).collect()
}

pub(super) fn steps(effort: Effort, _: &Parameters) -> u64 {
    cells().len() as u64 * u64::from(effort.pick(ROUNDS.most, 1))
}

pub(super) fn takes(effort: Effort, parameters: &Parameters) -> Duration {
    (WARM + MEASURED + OVERHEAD) * steps(effort, parameters) as u32
}

pub(super) fn measure(run: &LocalRun<'_>) -> Result<Measured, LocalError> {
    let server = run.host.serve(&ServerConfig {
        processors: run.host.processors(),
        memory: MEMORY,
        program: Some(PROGRAM),
        ..ServerConfig::default()
    })?;
    let cells = cells();
    let rates = interleaved(run, ROUNDS, cells.len(), |cell| {
        let (mix, setting, in_use) = cells[cell];
        for (technique, (_, switch, values)) in TECHNIQUES.iter().enumerate() {
            server.set(switch, values[usize::from(!in_use.has(technique))])?;
        }
        let before = (server.spent()?.cpu, server.commits()?);
        let rate = load(run, &server, MIXES[mix], setting)?;
        let (cpu, commits) = (server.spent()?.cpu - before.0, server.commits()? - before.1);
        Ok([rate, cpu.as_secs_f64() * 1e6 / commits.max(1) as f64])
    })?;
    Ok(measured(run, &cells, &rates))
}

/// Transactions a second of a mix, whose sums must be right after it.
fn load(run: &LocalRun<'_>, server: &Server, mix: &str, setting: Setting) -> Result<f64, LocalError> {
    let failed = |what: String| LocalError::Load(format!("the {mix} mix: {what}"));
    let place = tempfile::tempdir().map_err(|error| failed(error.to_string()))?;
    let file = place.path().join("mix.toml");
    let warm = run.pick(WARM, Duration::ZERO);
    let (lines, pipeline) = match setting {
        Setting::Paper | Setting::Disk => (run.pick(LINES, 2), run.pick(TERMINALS_OF_A_LINE, 2)),
        Setting::Connections => (run.pick(CONNECTIONS, 4), 1),
    };
    let database = if setting == Setting::Disk { PROGRAM.name } else { IN_MEMORY };
    let text = format!(
        "database = {database:?}\nterminals = {lines}\npipeline = {pipeline}\nwarm_up = \"{}ms\"\n\n\
         [[transaction]]\nname = {mix:?}\nsql = \"SELECT {mix}($1)\"\narguments = [{{ uniform = [0, 9999] }}]\n\n\
         [[check]]\nname = \"the sum\"\nsql = \"SELECT records($1)\"\nover = [0, 9]\nexpect = \"0\"\n",
        warm.as_millis(),
    );
    fs::write(&file, text).map_err(|error| failed(error.to_string()))?;
    let at = server.postgres().ok_or_else(|| failed("the server has no database".to_owned()))?;
    let mut command = Command::new(run.host.program());
    command.arg("load").arg(&file).args(["--quiet", "--json", "--server", &at.to_string()]);
    command.args(["--duration", &format!("{}ms", run.pick(MEASURED, Duration::from_millis(20)).as_millis())]);
    let process = Process::start(command, &place.path().join("load.log"), run.host.interrupted());
    let output = process.and_then(|process| process.finish(TIMEOUT)).map_err(|error| failed(format!("{error:#}")))?;
    let result: Value = serde_json::from_str(&output).map_err(|error| failed(error.to_string()))?;
    result["transactions_a_second"].as_f64().ok_or_else(|| failed(output))
}

/// Of each cell, transactions a second and microseconds of the server's CPU time for one.
type Numbers = [Spread; 2];

fn measured(run: &LocalRun<'_>, cells: &[(usize, Setting, InUse)], numbers: &[Numbers]) -> Measured {
    let mut measured = Measured::default();
    let (mut rates, mut times) = (Vec::new(), Vec::new());
    for ((mix, setting, in_use), [rate, time]) in cells.iter().zip(numbers) {
        let row = format!("{}{}: {}", MIXES[*mix], setting.suffix(), in_use.name());
        rates.push((row.clone(), *rate));
        times.push((row, *time));
    }
    for (mix, numbers) in MIXES.iter().zip(numbers.chunks(cells.len() / MIXES.len())) {
        place(&mut measured, mix, numbers);
    }
    measured.tables.push(table("here-rates", "transactions with the techniques in use", "a second", 0, rates));
    measured.tables.push(table("here-times", "CPU time of the server for a transaction", "us", 1, times));
    measured.plots = ["here-alone", "here-cumulative"].map(|name| plot(name, cells, numbers)).to_vec();
    measured.notes.push(format!(
        "Here: a server on {} processors, and `awase load` on the same processors as the paper's front end: {} terminals \
         without time to think, whose requests come through {} lines. A heavy transaction asks the database 36 times, a \
         light one 19 times, as in the paper; each is one call of a program in WebAssembly. The database is in memory, so \
         that the processors are the bottleneck, as with the paper's 30 disks; on the disk, it is on {}, and a transaction \
         is durable when it is answered. Without a front end, each of {} terminals has a connection of its own.",
        run.host.processors(),
        run.pick(LINES * TERMINALS_OF_A_LINE, 4),
        run.pick(LINES, 2),
        run.host.disk(),
        run.pick(CONNECTIONS, 4),
    ));
    measured
}

/// What the paper has numbers of, of one mix.
fn place(measured: &mut Measured, mix: &str, numbers: &[Numbers]) {
    const HOUR: f64 = 3600.0;
    let hourly: Vec<(InUse, f64)> =
        InUse::all().into_iter().zip(numbers).map(|(in_use, [rate, _])| (in_use, rate.median * HOUR)).collect();
    for (in_use, rate) in &hourly {
        let mut place = |row: &str, way: &str| measured.cell("techniques", row, format!("{mix}, {way}"), *rate);
        match *in_use {
            InUse::None => ["alone", "cumulative"].iter().for_each(|way| place("none", way)),
            InUse::Alone(0) => ["alone", "cumulative"].iter().for_each(|way| place(TECHNIQUES[0].0, way)),
            InUse::Alone(one) => place(TECHNIQUES[one].0, "alone"),
            InUse::UpTo(last) => place(TECHNIQUES[last].0, "cumulative"),
        }
    }
    let (before, after) = (hourly[0].1, hourly[hourly.len() - 1].1);
    measured.cell("rates", mix, "before", before);
    measured.cell("rates", mix, "after", after);
    measured.cell("gains", mix, "", (after / before - 1.0) * 100.0);
}

/// Rates to that without techniques; what the paper has are all six.
fn plot(name: &str, cells: &[(usize, Setting, InUse)], numbers: &[Numbers]) -> Plot {
    let is_alone = name == "here-alone";
    let group = |in_use| match in_use {
        InUse::None => Some(0),
        InUse::Alone(one) => (is_alone || one == 0).then_some(one + 1),
        InUse::UpTo(last) => (!is_alone).then_some(last + 1),
    };
    let sheet = sheet::named("oltp");
    let local = MIXES.iter().enumerate().map(|(of, mix)| {
        let is_own = |(mix, setting, _): &(usize, Setting, InUse)| *mix == of && *setting == Setting::Paper;
        let of_mix = || cells.iter().zip(numbers).filter(|(cell, _)| is_own(cell));
        let none = of_mix().next().map_or(0.0, |(_, [rate, _])| rate.median);
        let points = of_mix().filter_map(|((.., in_use), [rate, _])| Some((group(*in_use)?, rate.median / none)));
        Series::local(*mix, points.map(|(group, ratio)| (group as f64, ratio)))
    });
    let rates = MIXES.iter().zip(sheet.published("rates"));
    let paper =
        rates.map(|(mix, rates)| Series::paper(*mix, [(0.0, 1.0), (TECHNIQUES.len() as f64, rates[1] / rates[0])]));
    let paper: Vec<Series> = if is_alone { Vec::new() } else { paper.collect() };
    sheet.plot(name, paper.into_iter().chain(local).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_the_papers_table_is_measured_alone_and_with_those_before_it() {
        let in_use: Vec<[bool; 6]> =
            InUse::all().iter().map(|in_use| std::array::from_fn(|one| in_use.has(one))).collect();
        assert_eq!(in_use.len(), 12);
        assert_eq!(in_use[0], [false; 6]);
        assert_eq!(in_use[11], [true; 6]);
        assert!((0..6).all(|one| in_use[1 + one].iter().filter(|has| **has).count() == 1 && in_use[1 + one][one]));
        let rows = &sheet::named("oltp").form("techniques").rows;
        assert!(TECHNIQUES.iter().all(|(row, ..)| rows.iter().any(|name| name.starts_with(row))), "{rows:?}");
    }
}
