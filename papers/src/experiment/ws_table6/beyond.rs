//! Beyond table 6: caches with more ways, other programs, and exhausted colours.

use crate::model::Simulation;
use crate::model::memory_cache::CacheShape;
use policy::color::Mode;

use super::super::Run;
use super::kernels::{Aligned, HashJoin, Stencil, Transpose};
use super::program::{Linpack, Program};
use super::{MODES, Machine, Mapped};
use crate::result::{Finding, Plot, Results, Series, Source, Table};

/// Caches: name, KiB, ways. The last are a core's first and second level in 2026 (48 KiB are 12 ways: taken as 64 and
/// 16).
const SHAPES: [(&str, u64, u32); 6] = [
    ("64 KiB direct", 64, 1),
    ("64 KiB 2-way", 64, 2),
    ("64 KiB 4-way", 64, 4),
    ("256 KiB direct", 256, 1),
    ("256 KiB 4-way", 256, 4),
    ("2 MiB 16-way", 2048, 16),
];

const PROGRAMS: usize = 5;
const LISTS: u64 = 4;
/// Free frames for each page of the program, in the table of exhausted colours.
const FREE: [f64; 6] = [64.0, 16.0, 4.0, 2.0, 1.5, 1.0];

pub(super) const STEPS: u64 = SHAPES.len() as u64 * PROGRAMS as u64 + FREE.len() as u64;

/// Programs that use about `bytes` bytes.
fn programs(bytes: u64, cache: u64) -> [Box<dyn Program>; PROGRAMS] {
    let side = |bytes: u64| ((bytes / 8) as f64).sqrt() as u64;
    [
        // Half of each column is used; larger ones take long and show no more.
        Box::new(square_linpack(side(bytes.min(160 << 10)))),
        Box::new(Transpose { n: side(bytes / 2) }),
        Box::new(HashJoin { buckets: bytes / 32, probes: bytes / 16 }),
        Box::new(Stencil { n: side(bytes / 2) }),
        // What the paper calls the drawback: the hint knows nothing of the program.
        Box::new(Aligned { n: bytes / 16, apart: cache }),
    ]
}

fn square_linpack(n: u64) -> Linpack {
    Linpack { n: n as usize, lda: n as usize + 1, element: 8 }
}

/// Lines fetched for each thousand accesses, and pages that missed their colour.
fn misses(
    machine: &Machine,
    shape: CacheShape,
    mode: Mode,
    program: &dyn Program,
    free: usize,
    seed: u64,
) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for list in 0..LISTS {
        let chance = Simulation::new(seed.wrapping_mul(77) + list);
        let pages = machine.map(mode, shape, program.bytes(), free, &chance);
        let mut memory = Mapped::new(machine, shape, &pages.frames);
        program.run(machine.cycles, &mut memory);
        let (accesses, fetched) = (memory.cache.accesses(), memory.cache.misses());
        program.run(machine.cycles, &mut memory);
        let per_thousand = 1000.0 / (memory.cache.accesses() - accesses) as f64;
        sums.0 += (memory.cache.misses() - fetched) as f64 * per_thousand;
        sums.1 += pages.missed as f64 / pages.frames.len() as f64 * 100.0;
    }
    (sums.0 / LISTS as f64, sums.1 / LISTS as f64)
}

/// Adds the tables, a plot and findings.
pub(super) fn add(machine: &Machine, run: &Run<'_>, results: &mut Results) {
    let by_shape = shapes(machine, run);
    results.findings.push(Finding::new(
        "With more ways there is less to gain: of Linpack's misses without the hint, the hint saves less in 4 ways than in 1.",
        saved(&by_shape, 2) < saved(&by_shape, 0),
    ));
    results.findings.push(Finding::new(
        "The hint knows nothing of the program and may be wrong: two vectors a cache apart miss more with it than without, in a direct cache",
        saved_by(&by_shape, 0, PROGRAMS - 1) < 0.0,
    ));
    results.plots.push(plot(run, &by_shape));
    results.tables.push(by_shape);
    let scarce = scarce(machine, run);
    results.findings.push(Finding::new(
        "While frames are plenty no page misses its colour; when memory is nearly full, pages still get frames, of other colours.",
        scarce.cells[0][0].simulated == Some(0.0) && scarce.cells[FREE.len() - 1][0].simulated > Some(0.0),
    ));
    results.tables.push(scarce);
}

/// Misses a thousand accesses that the hint saves in Linpack with a cache.
fn saved(table: &Table, shape: usize) -> f64 {
    saved_by(table, shape, 0)
}

/// The same of another program.
fn saved_by(table: &Table, shape: usize, program: usize) -> f64 {
    let cells = &table.cells[shape][2 * program..];
    cells[0].simulated.unwrap_or_default() - cells[1].simulated.unwrap_or_default()
}

fn shapes(machine: &Machine, run: &Run<'_>) -> Table {
    let mut cells = Vec::new();
    let mut columns = Vec::new();
    for (index, (_, kib, ways)) in SHAPES.iter().enumerate() {
        let shape = CacheShape { bytes: kib << 10, line_bytes: 64, ways: *ways, write_allocates: true };
        let mut row = Vec::new();
        // Three quarters of the cache: without conflicts, all of it would stay.
        for program in programs(shape.bytes / 4 * 3, shape.bytes) {
            for (mode, name) in MODES {
                if index == 0 {
                    columns.push(format!("{}, {name}", program.name()));
                }
                let free = machine.frames as usize / 2;
                row.push(misses(machine, shape, mode, program.as_ref(), free, run.seed).0);
            }
            run.step();
        }
        cells.push(row);
    }
    run.table("caches", cells).of_rows(SHAPES.map(|(name, ..)| name)).of_columns(columns)
}

/// A bar for each program in the group of a cache.
fn plot(run: &Run<'_>, table: &Table) -> Plot {
    let misses = |column: usize| table.cells.iter().filter_map(move |cells| cells[column].simulated);
    let series = |(column, name): (usize, &String)| Series::bars(name, Source::Simulated, misses(column));
    run.plot("caches", table.columns.iter().enumerate().map(series).collect()).of_groups(&table.rows)
}

fn scarce(machine: &Machine, run: &Run<'_>) -> Table {
    let pages = machine.linpack.bytes().div_ceil(machine.page_bytes) + 1;
    let row = |free: f64| {
        let free = (pages as f64 * free) as usize;
        let of = |mode| misses(machine, machine.shape, mode, &machine.linpack, free, run.seed);
        let (without, with) = (of(Mode::NoHint), of(Mode::Hint));
        run.step();
        [with.1, without.0, with.0]
    };
    run.table("scarce", FREE.map(row)).of_rows(FREE)
}
