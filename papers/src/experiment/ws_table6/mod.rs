//! WS table 6: a page gets the frame of its own cache colour.

mod beyond;
mod kernels;
pub mod program;

use crate::model::Simulation;
use crate::model::memory_cache::{CacheShape, MemoryCache};
use policy::color::{FreeFrames, Mode, PageNo, PhysicalFrame};

use super::{Run, mean};
use crate::parameter::Parameters;
use crate::result::{Finding, Plot, Results, Series, Source, Table};
use program::{Cycles, Linpack, Memory, Program};

const MODES: [(Mode, &str); 2] = [(Mode::NoHint, "without hint"), (Mode::Hint, "with hint")];

pub(super) fn steps(parameters: &Parameters) -> u64 {
    2 * parameters.get("runs") as u64 + beyond::STEPS
}

pub(super) fn simulate(run: &Run<'_>) -> Results {
    let machine = Machine::of(run);
    let rates = MODES.map(|(mode, _)| machine.rates(mode, run));
    let mut results = Results {
        tables: vec![
            of_runs(run, "mean", &rates, mean),
            of_runs(run, "deviation", &rates, spread),
            each_run(run, &rates),
        ],
        plots: vec![plot(run, &rates)],
        findings: findings(run, &rates),
        notes: run.notes(&[]),
    };
    if !run.is_brief {
        beyond::add(&machine, run, &mut results);
    }
    results
}

struct Machine {
    cycles: Cycles,
    shape: CacheShape,
    miss_cycles: f64,
    cycle_s: f64,
    page_bytes: u64,
    frames: u64,
    free_frames: usize,
    linpack: Linpack,
    repeats: u32,
    tick_s: f64,
}

impl Machine {
    fn of(run: &Run<'_>) -> Self {
        let cycle_ns = 1000.0 / run.get("cpu.clock");
        let power_of_two = |name: &str| (run.get(name) as u64).next_power_of_two();
        let line_bytes = power_of_two("cache.line");
        let memory_ns = run.get("memory.latency") + line_bytes as f64 * 1000.0 / run.get("memory.bandwidth");
        let page_bytes = power_of_two("memory.page");
        let frames = (run.get("memory.size") * 1e6) as u64 / page_bytes;
        let element = if run.get("linpack.element") < 8.0 { 4 } else { 8 };
        let n = run.get("linpack.n") as usize;
        Machine {
            cycles: Cycles {
                multiply_add: run.get("cpu.axpy"),
                move_one: run.get("cpu.move"),
                start: run.get("cpu.start"),
            },
            shape: CacheShape {
                bytes: (run.get("cache.size") as u64).next_power_of_two() << 10,
                line_bytes,
                ways: power_of_two("cache.ways") as u32,
                write_allocates: run.get("cache.ways") > 1.0,
            },
            miss_cycles: run.get("cache.stall") + memory_ns / cycle_ns,
            cycle_s: cycle_ns / 1e9,
            page_bytes,
            frames,
            free_frames: (frames as f64 * run.get("memory.free")) as usize,
            linpack: Linpack { n, lda: (run.get("linpack.lda") as usize).max(n), element },
            repeats: run.get("linpack.repeats") as u32,
            tick_s: 1.0 / run.get("clock.hz"),
        }
    }

    /// MFLOPS of Linpack, run by run.
    fn rates(&self, mode: Mode, run: &Run<'_>) -> Vec<f64> {
        let numbers = 0..run.get("runs") as u64;
        numbers.map(|number| self.rate(mode, run.seed.wrapping_mul(1000) + number, run)).collect()
    }

    fn rate(&self, mode: Mode, seed: u64, run: &Run<'_>) -> f64 {
        let chance = Simulation::new(seed);
        let pages = self.map(mode, self.shape, self.linpack.bytes(), self.free_frames, &chance);
        let mut memory = Mapped::new(self, self.shape, &pages.frames);
        // One pass to warm the cache, as in all other passes.
        self.linpack.run(self.cycles, &mut memory);
        memory.spent = 0.0;
        self.linpack.run(self.cycles, &mut memory);
        run.step();
        let seconds = memory.spent * f64::from(self.repeats) * self.cycle_s;
        // The clock has the resolution of its ticks, whose phase is random.
        let ticks = ((seconds / self.tick_s + chance.fraction()) as u64).max(1);
        self.linpack.work() * f64::from(self.repeats) / (ticks as f64 * self.tick_s) / 1e6
    }

    /// Frames for a program of `bytes` bytes, out of `free` ones in random order.
    fn map(&self, mode: Mode, shape: CacheShape, bytes: u64, free: usize, chance: &Simulation) -> Pages {
        let mut all: Vec<u64> = (0..self.frames).collect();
        let mut frames = FreeFrames::new(mode, shape.colors(self.page_bytes));
        for index in 0..free.min(all.len()) {
            let other = index + chance.below((all.len() - index) as u64) as usize;
            all.swap(index, other);
            frames.put(PhysicalFrame(all[index]));
        }
        let pages = bytes.div_ceil(self.page_bytes) + 1;
        let taken = (0..pages).map(|page| frames.take(PageNo(page)).map_or(0, |frame| frame.0)).collect();
        Pages { missed: frames.missed(), frames: taken }
    }
}

struct Pages {
    frames: Vec<u64>,
    /// Pages that got another colour because their own was exhausted.
    missed: u64,
}

/// A program's memory: its pages, the cache, and the time spent.
struct Mapped<'a> {
    frames: &'a [u64],
    page_shift: u32,
    cache: MemoryCache,
    miss_cycles: f64,
    spent: f64,
}

impl<'a> Mapped<'a> {
    fn new(machine: &Machine, shape: CacheShape, frames: &'a [u64]) -> Self {
        Mapped {
            frames,
            page_shift: machine.page_bytes.trailing_zeros(),
            cache: MemoryCache::new(shape),
            miss_cycles: machine.miss_cycles,
            spent: 0.0,
        }
    }

    fn physical(&self, address: u64) -> u64 {
        let within = address & ((1 << self.page_shift) - 1);
        self.frames[(address >> self.page_shift) as usize] << self.page_shift | within
    }
}

impl Memory for Mapped<'_> {
    fn read(&mut self, address: u64) {
        if self.cache.read(self.physical(address)) {
            self.spent += self.miss_cycles;
        }
    }

    fn write(&mut self, address: u64) {
        if self.cache.write(self.physical(address)) {
            self.spent += self.miss_cycles;
        }
    }

    fn compute(&mut self, cycles: f64) {
        self.spent += cycles;
    }
}

fn spread(of: &[f64]) -> f64 {
    let mean = mean(of);
    let squares: f64 = of.iter().map(|rate| (rate - mean) * (rate - mean)).sum();
    (squares / (of.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// A number of all runs, beside that of the paper's.
fn of_runs(run: &Run<'_>, name: &str, rates: &[Vec<f64>; 2], of: fn(&[f64]) -> f64) -> Table {
    let published = run.published("linpack").iter().map(|rates| [of(rates)]);
    run.table(name, rates.iter().map(|rates| [of(rates)])).beside(published).of_rows(MODES.map(|(_, name)| name))
}

/// The runs in order of their rate: the free list of a run is random, in the paper and in the simulation.
fn sorted(rates: &[f64]) -> Vec<f64> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Not beside the paper's: sorted numbers of like mean and spread agree whatever the model.
fn each_run(run: &Run<'_>, rates: &[Vec<f64>; 2]) -> Table {
    let table = run.table("runs", rates.iter().map(|rates| sorted(rates)));
    table.of_rows(MODES.map(|(_, name)| name)).of_columns(1..=rates[0].len())
}

fn plot(run: &Run<'_>, rates: &[Vec<f64>; 2]) -> Plot {
    let series = |source: Source, of: &[Vec<f64>]| {
        let each = MODES.iter().zip(of);
        let series = each.map(|((_, name), rates)| Series::of(*name, source, (1..).map(f64::from).zip(sorted(rates))));
        series.collect::<Vec<_>>()
    };
    run.plot("runs", [series(Source::Paper, run.published("linpack")), series(Source::Simulated, rates)].concat())
}

/// The hint's worth; and what the paper found, if the machine is the paper's.
fn findings(run: &Run<'_>, rates: &[Vec<f64>; 2]) -> Vec<Finding> {
    let gain = |without: &[f64], with: &[f64]| (mean(with) / mean(without) - 1.0) * 100.0;
    let published = run.published("linpack");
    let (paper, simulated) = (gain(&published[0], &published[1]), gain(&rates[0], &rates[1]));
    let headline = format!(
        "With the hint, Linpack reaches {:.3} MFLOPS instead of {:.3}: {simulated:.1} % more{}",
        mean(&rates[1]),
        mean(&rates[0]),
        run.in_the_paper(|| format!("{paper:.1} %")),
    );
    if !run.compares() {
        return vec![Finding::new(headline, simulated > -1.0)];
    }
    vec![
        Finding::new(headline, (paper - simulated).abs() <= 3.0),
        Finding::new(
            format!(
                "The paper's runs differ no less with the hint (deviation {:.3}) than without ({:.3}); here by {:.3} and {:.3}",
                spread(&published[1]),
                spread(&published[0]),
                spread(&rates[1]),
                spread(&rates[0]),
            ),
            spread(&rates[1]) > 0.8 * spread(&rates[0]),
        ),
        Finding::new("With the hint every run is faster than the fastest without it", {
            let least = rates[1].iter().copied().fold(f64::MAX, f64::min);
            least > rates[0].iter().copied().fold(0.0, f64::max)
        }),
    ]
}
