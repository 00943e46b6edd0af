//! WS-5: how long a flush waits for writers, whatever the clients do.

mod closed_loop;

use std::time::Duration;

use policy::gather::Gather;

use super::{Run, mean};
use crate::result::{Finding, Plot, Results, Series};
use closed_loop::{Load, Rule, Variation, run};

/// Mean think times, in flushes.
const THINKS: [f64; 8] = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0];
/// Writers, and the clients that they share.
const WRITERS: [(u32, u32); 8] = [(1, 1), (2, 1), (4, 1), (4, 4), (8, 1), (16, 4), (64, 1), (64, 16)];
const VARIATIONS: [(Variation, &str); 3] =
    [(Variation::None, "constant"), (Variation::Uniform, "uniform"), (Variation::Exponential, "exponential")];
/// Constant waits, in flushes.
const WAITS: [f64; 7] = [0.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0];
/// What no cell is below.
const LEAST: f64 = 0.8;

/// Writes that a policy made durable, as a part of those of the best constant wait.
struct Ratio {
    gather: f64,
    /// Of the constant wait 0.
    at_once: f64,
    idle_max: Duration,
}

pub(super) const STEPS: u64 = (VARIATIONS.len() * THINKS.len() * WRITERS.len()) as u64;

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let maps = VARIATIONS.map(|(variation, _)| {
        THINKS.map(|think| WRITERS.map(|(writers, clients)| measure(run, variation, think, writers, clients)))
    });
    let table = |(map, (_, name)): (&Map, (_, &str))| {
        let ratios = map.iter().map(|row| row.iter().map(|ratio| ratio.gather));
        let columns = WRITERS.map(|(writers, clients)| format!("{writers} on {clients}"));
        run.table(name, ratios).of_rows(THINKS).of_columns(columns)
    };
    let below = all(&maps).filter(|ratio| ratio.at_once < LEAST).count();
    let mean = |of: fn(&Ratio) -> f64| format!("{:.3}", mean(&all(&maps).map(of).collect::<Vec<_>>()));
    let notes = run.notes(&[
        ("cells", all(&maps).count().to_string()),
        ("mean", mean(|ratio| ratio.gather)),
        ("at_once", mean(|ratio| ratio.at_once)),
        ("below", below.to_string()),
        ("least", LEAST.to_string()),
    ]);
    let tables = maps.iter().zip(VARIATIONS).map(table).collect();
    Results { tables, plots: vec![plot(run, &maps)], findings: findings(&maps), notes }
}

type Map = [[Ratio; WRITERS.len()]; THINKS.len()];

fn measure(run_of: &Run<'_>, variation: Variation, think: f64, writers: u32, clients: u32) -> Ratio {
    let ms = |name| Duration::from_secs_f64(run_of.get(name) / 1e3);
    let flush = ms("flush");
    let load =
        Load { writers, clients, think: flush.mul_f64(think), variation, send: ms("send"), write: ms("write"), flush };
    let time = flush.mul_f64(run_of.get("flushes"));
    let constant = |wait: f64| run(load, Rule::constant(flush.mul_f64(wait), writers), time, run_of.seed).0 as f64;
    let constants = WAITS.map(constant);
    let best = constants.iter().copied().fold(1.0, f64::max);
    let (durable, idle_max) = run(load, Rule::Gather(Gather::default()), time, run_of.seed);
    run_of.step();
    Ratio { gather: durable as f64 / best, at_once: constants[0] / best, idle_max }
}

fn all(maps: &[Map]) -> impl Iterator<Item = &Ratio> {
    maps.iter().flatten().flatten()
}

fn plot(run: &Run<'_>, maps: &[Map]) -> Plot {
    let least = |name: &str, of: fn(&Ratio) -> f64| {
        let row = |row: usize| maps.iter().flat_map(|map| &map[row]).map(of).fold(f64::MAX, f64::min);
        Series::simulated(name, THINKS.into_iter().zip((0..).map(row)))
    };
    run.plot("least", vec![least("the policy", |ratio| ratio.gather), least("no wait", |ratio| ratio.at_once)])
}

fn findings(maps: &[Map]) -> Vec<Finding> {
    let least = all(maps).map(|ratio| ratio.gather).fold(f64::MAX, f64::min);
    let alone = maps.iter().flatten().map(|row| &row[0]);
    vec![
        Finding::new(
            format!("No cell is below {LEAST} of the best constant wait; the lowest is {least:.2}"),
            least >= LEAST,
        ),
        Finding::new("A lone writer is never delayed", alone.clone().all(|ratio| ratio.idle_max.is_zero())),
    ]
}
