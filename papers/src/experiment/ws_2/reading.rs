//! (a) Reading a set of files again: how large may it be to be read at the speed of memory?

use super::host::Setup;
use super::machine::{GENERATIONS, Hardware};
use crate::experiment::Run;
use crate::result::{Finding, Results, Series};
use policy::cache::Algorithm;

/// Sizes of the set of files, in percent of memory.
const SIZES: [u32; 14] = [5, 8, 10, 12, 20, 35, 50, 65, 80, 84, 86, 100, 120, 150];

/// A second reading is at the speed of memory if it takes at most this many times as long.
const AT_MEMORY_SPEED: f64 = 1.1;

const CACHES: [(&str, Setup); 3] = [
    ("fixed, LRU (4.3BSD)", Setup::BSD),
    ("dynamic, LRU", Setup::PAPER),
    ("dynamic, S3-FIFO (Awase)", Setup { replacement: Algorithm::S3Fifo, ..Setup::PAPER }),
];

#[derive(Default)]
struct Readings {
    first_s: f64,
    second_s: f64,
    third_s: f64,
}

fn read_again(hardware: &Hardware, setup: Setup, blocks: u64) -> Readings {
    let host = hardware.start(setup);
    let read = host.complete(move |process| async move {
        Readings {
            first_s: process.read_file(0, blocks).await,
            second_s: process.read_file(0, blocks).await,
            third_s: process.read_file(0, blocks).await,
        }
    });
    read.unwrap_or_default()
}

fn blocks(hardware: &Hardware, percent: u32) -> u64 {
    (hardware.buffers() * u64::from(percent) / 100).max(1)
}

/// Adds the tables, plots and findings of (a).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    over_size(run, hardware, results);
    over_generations(run, results);
}

fn over_size(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let memory_s = |percent| hardware.call().as_secs_f64() * blocks(hardware, percent) as f64;
    let mut all: Vec<Vec<Readings>> = Vec::new();
    for percent in SIZES {
        all.push(CACHES.iter().map(|(_, setup)| read_again(hardware, *setup, blocks(hardware, percent))).collect());
        run.step();
    }
    let row = |of: &Vec<Readings>| {
        let again = of.iter().map(|read| read.second_s);
        [of[0].first_s].into_iter().chain(again).chain([of[2].third_s]).collect::<Vec<_>>()
    };
    results.tables.push(run.table("reading", all.iter().map(row)).of_rows(SIZES));
    let rate = |percent, seconds: f64| (blocks(hardware, percent) * hardware.buffer) as f64 / 1e6 / seconds.max(1e-9);
    let line = |name: &str, value: &dyn Fn(&[Readings]) -> f64| {
        let point = |(percent, row): (&u32, &Vec<Readings>)| (f64::from(*percent), rate(*percent, value(row)));
        Series::simulated(name, SIZES.iter().zip(&all).map(point))
    };
    let again = CACHES.iter().enumerate().map(|(index, (name, _))| line(name, &|row| row[index].second_s));
    let mut series: Vec<Series> = again.collect();
    series.insert(0, line("first reading", &|row| row[0].first_s));
    series.push(line("the same, third reading", &|row| row[2].third_s));
    results.plots.push(run.plot("reading", series));
    let knee = |cache: usize| {
        let is_fast =
            |(percent, row): &(&u32, &Vec<Readings>)| row[cache].second_s <= AT_MEMORY_SPEED * memory_s(**percent);
        SIZES.iter().zip(&all).take_while(is_fast).map(|(percent, _)| *percent).last().unwrap_or(0)
    };
    let (fixed, dynamic) = (knee(0), knee(1).min(knee(2)));
    let half = SIZES.iter().zip(&all).find(|(percent, _)| **percent == 50);
    let sooner = half.map_or(1.0, |(_, row)| row[0].second_s / row[2].second_s);
    results.findings.push(Finding::new(
        format!(
            "Files of half of memory are read again {sooner:.0} times as fast with the dynamic cache as with the fixed one; \
             at the speed of memory are read again up to {fixed} % of memory with the fixed one, up to {dynamic} % with the \
             dynamic one"
        ),
        fixed <= 10 && dynamic >= 80,
    ));
    let all_of_memory = SIZES.iter().zip(&all).find(|(percent, _)| **percent == 100);
    let beyond = all_of_memory.map_or(0.0, |(_, row)| row[1].third_s / row[2].third_s);
    results.findings.push(Finding::new(
        format!(
            "A set as large as all of memory: the third reading is {beyond:.1} times as fast with \
                 S3-FIFO as with LRU, which has always just lost what comes next"
        ),
        beyond > 1.5,
    ));
}

fn over_generations(run: &Run<'_>, results: &mut Results) {
    let mut rows = Vec::new();
    let mut gains = Vec::new();
    for (_, numbers) in GENERATIONS {
        let hardware = Hardware::of_generation(run, numbers);
        let half = blocks(&hardware, 50);
        let fixed = read_again(&hardware, Setup::BSD, half);
        let dynamic = read_again(&hardware, Setup::AWASE, half);
        gains.push(fixed.second_s / dynamic.second_s);
        rows.push([fixed.first_s, fixed.second_s, dynamic.second_s, fixed.second_s / dynamic.second_s]);
        run.step();
    }
    results.tables.push(run.table("generations", rows).of_rows(GENERATIONS.map(|(name, _)| name)));
    results.findings.push(Finding::new(
        "The dynamic cache is worth more with every generation of table 1, since disks fall behind",
        gains.is_sorted() && gains.iter().all(|gain| *gain > 1.5),
    ));
}
