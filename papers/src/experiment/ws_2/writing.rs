//! (b) When does `write` return?

use crate::model::buffers::Write;

use super::host::Setup;
use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results, Series};

/// Sizes of the file, in 128ths of memory: 0.5 to 32 MB on a machine with 64 MB.
const SIZES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

const CACHES: [(&str, Setup, Write); 3] = [
    ("fixed, asynchronous (4.3BSD)", Setup::BSD, Write::Asynchronous),
    ("dynamic, asynchronous (the paper)", Setup::PAPER, Write::Asynchronous),
    ("dynamic, steady write-back (Awase)", Setup::AWASE, Write::Delayed),
];

/// Seconds until the last write returned, and until all was on the disk.
type Written = (f64, f64);

/// Writes a file of each size, one after another, each into a cache full of clean blocks.
fn write_files(hardware: &Hardware, setup: Setup, how: Write, sizes: Vec<u64>) -> Vec<Written> {
    let host = hardware.start(setup);
    let written = host.complete(move |process| async move {
        process.read_file(process.hardware.disk_blocks() / 2, process.hardware.buffers()).await;
        let mut all = Vec::new();
        let mut start = 0;
        for blocks in sizes {
            let began = process.time.now();
            let returned_s = process.write_file(start, blocks, how).await;
            process.buffers.until_clean().await;
            all.push((returned_s, process.since(began)));
            start += blocks * process.hardware.stride();
        }
        all
    });
    written.unwrap_or_default()
}

/// Adds the tables, plots and findings of (b).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let blocks: Vec<u64> = SIZES.iter().map(|size| (hardware.memory / 128 * size / hardware.buffer).max(1)).collect();
    let mut all = Vec::new();
    for (_, setup, how) in CACHES {
        all.push(write_files(hardware, setup, how, blocks.clone()));
        run.step();
    }
    let megabytes: Vec<f64> =
        blocks.iter().map(|blocks| (blocks * hardware.buffer) as f64 / (1 << 20) as f64).collect();
    let table = |name: &str, of: fn(&Written) -> f64| {
        let table = run.table(name, all.iter().map(|row| row.iter().map(of)));
        let sizes = megabytes.iter().map(|size| format!("{size:.1} MB"));
        table.of_rows(CACHES.map(|(name, ..)| name)).of_columns(sizes)
    };
    results.tables.push(table("write-returns", |written| written.0));
    results.tables.push(table("write-done", |written| written.1));
    let line = |((name, ..), row): (&(&str, Setup, Write), &Vec<Written>)| {
        Series::simulated(*name, megabytes.iter().zip(row).map(|(size, (returned, _))| (*size, *returned)))
    };
    results.plots.push(run.plot("write-returns", CACHES.iter().zip(&all).map(line).collect()));
    let returned = |cache: usize, size: usize| all[cache].get(size).map_or(f64::NAN, |written| written.0);
    let copying = hardware.call().as_secs_f64() * blocks[6] as f64;
    results.findings.push(Finding::new(
        format!(
            "A file of half of memory: write returns after {:.1} s with the fixed cache, {:.1} s with \
                 the dynamic one (copying alone: {copying:.1} s)",
            returned(0, 6),
            returned(1, 6)
        ),
        returned(1, 6) < 1.1 * copying && returned(0, 6) > 2.0 * returned(1, 6),
    ));
    results.findings.push(Finding::new(
        "A file of a twentieth of memory or less fits even the fixed cache: the dynamic one does not return later",
        (0..3).all(|size| returned(2, size) <= 1.1 * returned(0, size)),
    ));
}
