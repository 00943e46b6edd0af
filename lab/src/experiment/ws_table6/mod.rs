//! WS table 6: a page gets the frame of its own cache colour.

mod beyond;
mod kernels;
pub mod program;
#[cfg(test)]
mod tests;

use crate::model::Simulation;
use crate::model::memory_cache::{CacheShape, MemoryCache};
use policy::color::{FreeFrames, Mode, PageNo, PhysicalFrame};

use super::{Experiment, Run, in_the_paper};
use crate::parameter::{Origin, Parameter, Parameters};
use crate::result::{Axis, Cell, Drawing, Finding, Plot, Results, Series, Source, Table};
use program::{Cycles, Linpack, Memory, Program};

/// MFLOPS of the eight runs, without and with the hint.
const PUBLISHED: [[f64; 8]; 2] = [
    [5.600, 5.849, 5.689, 5.766, 5.714, 5.500, 5.686, 5.569],
    [6.232, 5.987, 6.209, 6.140, 6.198, 6.126, 5.984, 5.903],
];

const MODES: [(Mode, &str); 2] = [(Mode::NoHint, "without hint"), (Mode::Hint, "with hint")];

/// Cache-aware allocation of physical pages.
pub struct WsTable6;

impl Experiment for WsTable6 {
    fn name(&self) -> &'static str {
        "ws-table6"
    }

    fn title(&self) -> &'static str {
        "Pages get frames by cache colour: Linpack without and with the hint"
    }

    fn about(&self) -> &'static str {
        "In a direct-mapped cache with physical tags, two pages whose frames have the same number modulo the cache's size \
         push each other out, and which frames a program gets is luck. With the hint, a page gets a frame of its own page \
         number modulo the cache's size, so neighbours never conflict. Linpack's loops run here on simulated addresses, \
         through a simulated cache, with pages from a free list in the disorder of a used machine. Look at the mean, and \
         at how much luck is left in the runs."
    }

    fn paper(&self) -> &'static str {
        "WS table 6"
    }

    fn parameters(&self) -> Parameters {
        Parameters::new(self.name(), parameters())
    }

    fn modern(&self) -> &'static [(&'static str, f64)] {
        // The second cache level of a server's core: 2 MiB, 16 ways; main memory behind the third level.
        &[
            ("cpu.clock", 4000.0),
            ("cache.size", 2048.0),
            ("cache.ways", 16.0),
            ("cache.line", 64.0),
            ("memory.latency", 25.0),
            ("memory.bandwidth", 50_000.0),
            ("cpu.axpy", 0.5),
            ("linpack.n", 200.0),
            ("linpack.element", 8.0),
            ("clock.hz", 1e9),
            ("memory.size", 1024.0),
        ]
    }

    fn steps(&self, parameters: &Parameters) -> u64 {
        2 * parameters.get("runs") as u64 + beyond::STEPS
    }

    fn simulate(&self, run: &Run<'_>) -> Results {
        let machine = Machine::of(run);
        let rates = MODES.map(|(mode, _)| machine.rates(mode, run));
        let compares = !run.is_modern(self);
        let mut results = Results {
            tables: vec![means(&rates, compares), each_run(&rates, compares)],
            plots: vec![plot(&rates, compares)],
            findings: findings(&rates, compares, run.parameters.changed().next().is_none()),
            ..Results::default()
        };
        beyond::add(&machine, run, &mut results);
        if !compares {
            return results;
        }
        results.notes.push(
            "With the hint nothing is left to luck in the model but the clock; the paper's runs with the hint differ by 5 %, \
             for reasons that it does not tell (daemons, the kernel's own references)."
                .to_owned(),
        );
        results
    }
}

fn parameters() -> Vec<Parameter> {
    use Origin::{Chosen, Derived, Fitted, Paper, Published};
    let parameter = |name, about, unit, default, range, origin| Parameter { name, about, unit, default, range, origin };
    vec![
        parameter("runs", "runs with different free lists", "", 8.0, 1.0..=1000.0, Paper("table 6: eight runs")),
        parameter("cpu.clock", "clock of the processor", "MHz", 25.0, 1.0..=10_000.0, Paper("table 1, 1991")),
        parameter(
            "cpu.axpy",
            "cycles for one element of the inner loop, all in the cache",
            "cycles",
            7.5,
            0.1..=100.0,
            Fitted("mean without hint; 6 instructions an element, unrolled by 4, is the least"),
        ),
        parameter(
            "cpu.move",
            "cycles for one element that is scaled, compared or moved",
            "cycles",
            6.0,
            0.1..=100.0,
            Derived("load, operation, store, a quarter of the loop's end, two cycles of latency not hidden"),
        ),
        parameter(
            "cpu.start",
            "cycles to call and begin a loop",
            "cycles",
            30.0,
            0.0..=1000.0,
            Derived("some 25 instructions of call, registers saved, and the unrolled loop's odd elements"),
        ),
        parameter(
            "cache.size",
            "data cache",
            "KiB",
            64.0,
            1.0..=65_536.0,
            Paper("table 1 (128 KB, one half for data)"),
        ),
        parameter(
            "cache.ways",
            "places for one line",
            "",
            1.0,
            1.0..=64.0,
            Paper("section 6: the R3000's cache is direct-mapped, with physical addresses"),
        ),
        parameter(
            "cache.line",
            "bytes fetched at a miss",
            "bytes",
            16.0,
            4.0..=256.0,
            Chosen("a judgement: four words, the least that an R3000 refills at once; up to 32 are possible"),
        ),
        parameter(
            "cache.stall",
            "cycles beside memory's own for a miss",
            "cycles",
            2.0,
            0.0..=100.0,
            Chosen("a judgement: one cycle until the miss is seen, and one that runs anew; 1 to 4"),
        ),
        parameter("memory.latency", "access time", "ns", 80.0, 1.0..=10_000.0, Paper("table 1, 1991")),
        parameter("memory.bandwidth", "transfer rate", "MB/s", 100.0, 1.0..=1e6, Paper("table 1, 1991")),
        parameter("memory.size", "memory", "MB", 64.0, 4.0..=16_384.0, Paper("table 1, 1991")),
        parameter(
            "memory.free",
            "part of memory that is free, in disorder",
            "",
            0.5,
            0.02..=1.0,
            Chosen("a machine that has run for a while; half or a tenth makes no difference (see the last table)"),
        ),
        parameter(
            "memory.page",
            "bytes of a page",
            "bytes",
            4096.0,
            1024.0..=65_536.0,
            Published("the R3000's translation buffer: 4 KB"),
        ),
        parameter(
            "linpack.n",
            "equations",
            "",
            100.0,
            8.0..=600.0,
            Published("Dongarra's Linpack benchmark (netlib, linpackd): order 100"),
        ),
        parameter(
            "linpack.lda",
            "elements from column to column",
            "",
            201.0,
            8.0..=700.0,
            Published("the program (netlib, linpackd) declares a(201,200)"),
        ),
        parameter(
            "linpack.element",
            "bytes of an element",
            "bytes",
            4.0,
            4.0..=8.0,
            Derived(
                "6 MFLOPS at 25 MHz are 8 cycles an element: the loads and stores of 8 bytes alone take 6, with the rest 9",
            ),
        ),
        parameter(
            "linpack.repeats",
            "solutions that are timed together",
            "",
            10.0,
            1.0..=100.0,
            Published("the program times one and then ten; one takes 7 ticks of the clock"),
        ),
        parameter("clock.hz", "ticks of the clock that times", "Hz", 100.0, 1.0..=1e9, Published("4.3BSD: hz = 100")),
    ]
}

/// The machine that the programs run on.
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
        // Once for the cache to be as it is in all others.
        self.linpack.run(self.cycles, &mut memory);
        memory.spent = 0.0;
        self.linpack.run(self.cycles, &mut memory);
        run.step();
        let seconds = memory.spent * f64::from(self.repeats) * self.cycle_s;
        // The clock is read at its ticks, the first of which comes at any time.
        let ticks = ((seconds / self.tick_s + chance.fraction()) as u64).max(1);
        self.linpack.work() * f64::from(self.repeats) / (ticks as f64 * self.tick_s) / 1e6
    }

    /// Frames for a program of so many bytes, out of `free` ones in disorder.
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
    /// Pages that got another colour than their own because it had run out.
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

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

fn spread(of: &[f64]) -> f64 {
    let mean = mean(of);
    let squares: f64 = of.iter().map(|rate| (rate - mean) * (rate - mean)).sum();
    (squares / (of.len() as f64 - 1.0).max(1.0)).sqrt()
}

fn means(rates: &[Vec<f64>; 2], compares: bool) -> Table {
    let row = |mode: usize| {
        let cell = |of: fn(&[f64]) -> f64| Cell {
            paper: compares.then(|| of(&PUBLISHED[mode])),
            ..Cell::simulated(of(&rates[mode]))
        };
        let mut cells = vec![cell(mean), cell(spread)];
        if compares && mode == 0 {
            cells[0] = cells[0].fitted();
        }
        cells
    };
    Table {
        name: "mean".to_owned(),
        title: "Table 6: Linpack, mean and standard deviation of the runs".to_owned(),
        unit: "MFLOPS".to_owned(),
        rows_are: "pages".to_owned(),
        rows: MODES.iter().map(|(_, name)| (*name).to_owned()).collect(),
        columns_are: "of the runs".to_owned(),
        columns: vec!["mean".to_owned(), "deviation".to_owned()],
        cells: vec![row(0), row(1)],
        in_points: false,
        digits: 3,
    }
}

/// The runs in order of their rate: which free list a run had is chance, there and here.
fn sorted(rates: &[f64]) -> Vec<f64> {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn each_run(rates: &[Vec<f64>; 2], compares: bool) -> Table {
    let count = rates[0].len();
    let row = |mode: usize| {
        let paper = sorted(&PUBLISHED[mode]);
        let simulated = sorted(&rates[mode]).into_iter().enumerate();
        simulated
            .map(|(i, rate)| Cell { paper: paper.get(i).copied().filter(|_| compares), ..Cell::simulated(rate) })
            .collect()
    };
    Table {
        name: "runs".to_owned(),
        title: "Table 6: Linpack, each run, the slowest first".to_owned(),
        unit: "MFLOPS".to_owned(),
        rows_are: "pages".to_owned(),
        rows: MODES.iter().map(|(_, name)| (*name).to_owned()).collect(),
        columns_are: "run".to_owned(),
        columns: (1..=count).map(|run| run.to_string()).collect(),
        cells: vec![row(0), row(1)],
        in_points: false,
        digits: 3,
    }
}

fn plot(rates: &[Vec<f64>; 2], compares: bool) -> Plot {
    let series = |source: Source, of: &[Vec<f64>]| -> Vec<Series> {
        let points =
            |rates: &[f64]| sorted(rates).into_iter().enumerate().map(|(i, rate)| (i as f64 + 1.0, rate)).collect();
        let each = MODES.iter().zip(of);
        each.map(|((_, name), rates)| Series { name: (*name).to_owned(), source, points: points(rates) }).collect()
    };
    let published = PUBLISHED.map(|runs| runs.to_vec());
    Plot {
        name: "runs".to_owned(),
        title: "Linpack, run by run, the slowest first".to_owned(),
        drawing: Drawing::Lines,
        x: Axis::linear("run", ""),
        y: Axis::linear("rate", "MFLOPS"),
        series: [series(Source::Paper, if compares { &published } else { &[] }), series(Source::Simulated, rates)]
            .concat(),
    }
}

/// What the hint is worth; and what the paper found, where the machine is the paper's.
fn findings(rates: &[Vec<f64>; 2], compares: bool, is_papers: bool) -> Vec<Finding> {
    let gain = |without: &[f64], with: &[f64]| (mean(with) / mean(without) - 1.0) * 100.0;
    let (paper, simulated) = (gain(&PUBLISHED[0], &PUBLISHED[1]), gain(&rates[0], &rates[1]));
    let headline = format!(
        "With the hint, Linpack reaches {:.3} MFLOPS instead of {:.3}: {simulated:.1} % more{}",
        mean(&rates[1]),
        mean(&rates[0]),
        in_the_paper(compares, || format!("{paper:.1} %")),
    );
    if !is_papers {
        return vec![Finding::new(headline, simulated > -1.0)];
    }
    vec![
        Finding::new(headline, (paper - simulated).abs() <= 3.0),
        Finding::new(
            "Without the hint, the rate depends on luck: it differs more from run to run than with it.",
            spread(&rates[0]) > spread(&rates[1]),
        ),
    ]
}
