//! (e) The cost of a buffer cache's operations with many buffers.
//!
//! 4.3BSD was written for some hundred. It finds a block in one of a fixed number of chains (`BUFHSZ`); a missing block
//! costs two walks over a chain (`getblk`, then `brealloc` for overlaps). `bflush`, for the update process, searches
//! the list from its start for the first dirty buffer, starts its write, **and begins anew**: as many steps as there
//! are clean buffers, for each dirty one. `disksort` searches the queue for the request's place. Steps are counted on
//! the structures, with blocks anywhere on a disk and every tenth buffer dirty.

use crate::model::Simulation;
use policy::cache::{Algorithm, Replacement, Slot};

use super::machine::Hardware;
use crate::experiment::Run;
use crate::result::{Finding, Results, Series};

/// Numbers of buffers: 820 and 8,200 are a tenth and all of 64 MB.
const BUFFERS: [u64; 7] = [100, 820, 1000, 8200, 10_000, 100_000, 1_000_000];

/// One buffer in this many is dirty.
const DIRTY_SHARE: u64 = 10;

/// A line of the processor's cache, bytes: four words of an R3000.
const LINE_BYTES: f64 = 16.0;

/// Buffers examined by one operation, on average.
#[derive(Clone, Copy, Default)]
struct Steps {
    hit: f64,
    miss: f64,
    sync: f64,
    sort: f64,
}

/// Mean buffers examined to find a block in its chain, and the mean length of a chain without the block.
fn chains(random: &Simulation, buffers: u64, chains: u64) -> (f64, f64) {
    let mut lengths = vec![0u64; chains as usize];
    for _ in 0..buffers {
        lengths[random.below(chains) as usize] += 1;
    }
    let found: u64 = lengths.iter().map(|length| length * (length + 1) / 2).sum();
    (found as f64 / buffers as f64, buffers as f64 / chains as f64)
}

fn bsd(random: &Simulation, buffers: u64, hash_chains: u64) -> Steps {
    let (hit, chain) = chains(random, buffers, hash_chains);
    let (mut clean, mut dirty, mut sync) = (0u64, 0u64, 0u64);
    for _ in 0..buffers {
        if random.below(DIRTY_SHARE) == 0 {
            dirty += 1;
            // All clean ones before it, and itself.
            sync += clean + 1;
        } else {
            clean += 1;
        }
    }
    Steps { hit, miss: 2.0 * chain, sync: (sync + clean) as f64, sort: dirty as f64 / 2.0 }
}

/// With as many chains as buffers, a set of the dirty ones, an ordered queue; and what the policy itself examines.
fn awase(random: &Simulation, buffers: u64) -> Steps {
    let (hit, chain) = chains(random, buffers, buffers.next_power_of_two());
    let dirty = (buffers / DIRTY_SHARE).max(1);
    Steps {
        hit: hit + 1.0,
        miss: chain + policy_steps(random, buffers),
        sync: dirty as f64,
        sort: f64::from((dirty + 1).ilog2() + 1),
    }
}

/// Buffers that `policy::cache` examines for each inserted block, while every other read is a hit.
fn policy_steps(random: &Simulation, buffers: u64) -> f64 {
    let mut policy = Replacement::new(Algorithm::S3Fifo);
    let mut block = 0;
    let mut insert = |policy: &mut Replacement, slot: Slot| {
        block += 1;
        policy.on_insert(slot, block, buffers as usize);
    };
    for slot in 0..buffers {
        insert(&mut policy, Slot(slot as u32));
    }
    let before = policy.steps();
    let misses = buffers.min(50_000);
    for _ in 0..misses {
        policy.on_hit(Slot(random.below(buffers) as u32));
        if let Some(slot) = policy.evict(|_| true) {
            insert(&mut policy, slot);
        }
    }
    (policy.steps() - before) as f64 / misses as f64
}

/// Adds the tables, plots and findings of (e).
pub(super) fn run(run: &Run<'_>, hardware: &Hardware, results: &mut Results) {
    let hash_chains = run.get("hash.chains") as u64;
    let step_us =
        run.get("cost.step") / hardware.mips + hardware.memory_access_ns / 1e3 + LINE_BYTES / hardware.memory_rate;
    let random = Simulation::new(run.seed);
    let old: Vec<Steps> = BUFFERS.iter().map(|buffers| bsd(&random, *buffers, hash_chains)).collect();
    let new: Vec<Steps> = BUFFERS.iter().map(|buffers| awase(&random, *buffers)).collect();
    let row = |(old, new): (&Steps, &Steps)| {
        let steps = [old.hit, new.hit, old.miss, new.miss, old.sync, new.sync, old.sort, new.sort];
        steps.map(|steps| steps * step_us)
    };
    results.tables.push(run.table("operations", old.iter().zip(&new).map(row)).of_rows(BUFFERS));
    let line = |name: &str, all: &[Steps], of: fn(&Steps) -> f64| {
        let times = all.iter().map(|steps| of(steps) * step_us);
        Series::simulated(name, BUFFERS.iter().map(|buffers| *buffers as f64).zip(times))
    };
    results.plots.push(run.plot(
        "operations",
        vec![
            line("sync, 4.3BSD", &old, |steps| steps.sync),
            line("sync, Awase", &new, |steps| steps.sync),
            line("miss, 4.3BSD", &old, |steps| steps.miss),
            line("miss, Awase", &new, |steps| steps.miss),
        ],
    ));
    let last = BUFFERS.len() - 1;
    results.findings.push(Finding::new(
        "Finding and replacing a block costs the same with a million buffers as with a hundred",
        new[last].hit < 1.5 * new[0].hit && new[last].miss < 1.5 * new[0].miss,
    ));
    results.findings.push(Finding::new(
        format!(
            "4.3BSD's sync takes {:.3} s of processor time with 820 buffers, the fixed \
                 cache of 64 MB, and {:.1} s with ten times as many",
            old[1].sync * step_us / 1e6,
            old[3].sync * step_us / 1e6
        ),
        old[3].sync > 50.0 * old[1].sync,
    ));
    run.step();
}
