//! What the blog says without numbers: a disk in memory, the latency of one I/O, processor time at equal rates, metadata
//! that stays mapped, and drivers that cannot do without.

use super::super::Run;
use super::machine::{self, Buffers, Outcome, Server};
use super::server;
use crate::result::{Finding, Results};

/// One I/O in so many is of metadata.
const METADATA_ONE_IN: u32 = 10;
/// A copy of 4 KB in memory, on a server of 2013: some 4 GB/s.
const COPY_NS: u64 = 1000;
/// Pause between two I/O of a thread where rates are to be equal: far below what mapped buffers allow.
const PAUSE_NS: u64 = 2_000_000;

const KINDS: [Buffers; 4] =
    [Buffers::Mapped, Buffers::Unmapped, Buffers::Metadata(METADATA_ONE_IN), Buffers::HalfOfDrivers];
const ENDS: [Buffers; 2] = [Buffers::Mapped, Buffers::Unmapped];

pub(super) const STEPS: u64 = (KINDS.len() + 3 * ENDS.len()) as u64;

pub(super) fn add(run: &Run<'_>, results: &mut Results) {
    let usual = server(run, run.get("processors") as usize);
    let of = |server: &Server, buffers: Buffers| {
        let outcome = machine::run(server, buffers, run.seed);
        run.step();
        outcome
    };
    let kinds = KINDS.map(|buffers| of(&usual, buffers));
    results.tables.push(run.table("kinds", kinds.map(|outcome| [outcome.rate / 1000.0, outcome.shootdowns / 1000.0])));
    let memory = ENDS.map(|buffers| of(&Server { copy_ns: Some(COPY_NS), ..usual.clone() }, buffers));
    results.tables.push(run.table("memory", memory.map(|outcome| [outcome.rate / 1000.0])));
    // One thread: nobody waits for anybody.
    let alone = ENDS.map(|buffers| of(&Server { threads: 1, ..usual.clone() }, buffers));
    let equal = ENDS.map(|buffers| of(&Server { pause_ns: PAUSE_NS, ..usual.clone() }, buffers));
    let spent = |outcome: &Outcome| {
        let percent = outcome.work + outcome.lock + outcome.answers + outcome.interrupted;
        percent / 100.0 * usual.processors as f64 * 1e6 / outcome.rate
    };
    let row = |of: usize| [alone[of].latency_us, equal[of].rate / 1000.0, spent(&equal[of])];
    results.tables.push(run.table("costs", [row(0), row(1)]));
    if !run.compares() {
        return;
    }
    results.findings.extend([
        Finding::new(
            "The latency of one I/O changes little: by less than a tenth",
            (alone[0].latency_us / alone[1].latency_us - 1.0).abs() < 0.1,
        ),
        Finding::new(
            format!(
                "At equal rates an I/O costs much more processor time with mapped buffers: {:.0} us instead of {:.0}",
                spent(&equal[0]),
                spent(&equal[1])
            ),
            spent(&equal[0]) > 1.5 * spent(&equal[1]),
        ),
        Finding::new("Memory disks gain, too", memory[1].rate > 1.5 * memory[0].rate),
        Finding::new(
            "With metadata mapped and contents not, most of the gain is left",
            kinds[2].rate - kinds[0].rate > 0.5 * (kinds[1].rate - kinds[0].rate),
        ),
        Finding::new(
            "Where every second disk's driver cannot do without a mapping, a tenth less is served at least than without any",
            kinds[3].rate < 0.9 * kinds[1].rate,
        ),
    ]);
}
