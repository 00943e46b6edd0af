//! Faults of a disk requested by a test.

use std::collections::BTreeSet;

use machine::{Errno, FoundRuns};
use policy::unit::{ByteOffset, ByteRange};
use sim::{DiskConfig, DiskFaults, OpClass};

use crate::rig::{Rig, stamped, stamps_of};

const SIZE: u64 = 64 * 1024;

fn rig(seed: u64) -> Rig {
    Rig::new(seed, DiskConfig::new(SIZE))
}

#[test]
fn only_the_next_operations_of_a_class_fail() {
    let mut rig = rig(1);
    rig.world.fail_next(rig.disk, OpClass::Read, 2, Errno::TIMED_OUT);
    assert_eq!(rig.write(0, stamped(8, 1)), Ok(4096));
    assert_eq!(rig.read(0, 4096).0, Err(Errno::TIMED_OUT));
    assert_eq!(rig.read(0, 4096).0, Err(Errno::TIMED_OUT));
    assert_eq!(rig.read(0, 4096).0, Ok(4096));
}

#[test]
fn a_write_without_space_changes_nothing() {
    let mut rig = rig(1);
    rig.write(0, stamped(8, 1)).unwrap();
    rig.world.fail_next(rig.disk, OpClass::Write, 1, Errno::NO_SPACE);
    assert_eq!(rig.write(0, stamped(8, 2)), Err(Errno::NO_SPACE));
    assert_eq!(rig.read(0, 4096).1, stamped(8, 1));
}

#[test]
fn a_full_disk_takes_what_fits_and_overwrites_allocated_blocks() {
    let mut rig = rig(1);
    rig.world.limit_space(rig.disk, Some(8192));
    assert_eq!(rig.write(4096, stamped(24, 1)), Ok(8192), "a short write");
    assert_eq!(rig.write(12288, stamped(8, 1)), Err(Errno::NO_SPACE));
    assert_eq!(rig.write(8192, stamped(8, 2)), Ok(4096));
    rig.perform(|side, file| side.discard(file, 4096, 4096)).0.unwrap();
    assert_eq!(rig.write(12288, stamped(8, 1)), Ok(4096), "a discard makes room");
}

#[test]
fn zeroing_that_lacks_space_has_zeroed_what_fits() {
    let mut rig = rig(1);
    rig.write(0, stamped(8, 1)).unwrap();
    rig.write(8192, stamped(8, 1)).unwrap();
    rig.world.limit_space(rig.disk, Some(8192));
    assert_eq!(rig.perform(|side, file| side.zero(file, 0, 12288, false)).0, Err(Errno::NO_SPACE));
    assert_eq!(rig.read(0, 12288).1, [vec![0; 8192], stamped(8, 1)].concat());
}

#[test]
fn zeroing_may_be_refused_on_the_way() {
    let mut rig = rig(1);
    rig.world.set_faults(rig.disk, DiskFaults { write_error_permille: 1000, ..DiskFaults::default() });
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        rig.world.write_disk(rig.disk, ByteOffset(0), &stamped(16, 1));
        let refused = rig.perform(|side, file| side.zero(file, 0, 8192, false)).0;
        let bytes = rig.read(0, 8192).1;
        let zeroed = bytes.iter().zip(stamped(16, 1)).filter(|(is, was)| **is != *was).count() > 0;
        seen.insert((refused == Err(Errno::NO_SPACE), zeroed));
        assert!(bytes.len() == 8192 && refused.is_err());
    }
    assert!(seen.contains(&(true, true)) && seen.contains(&(false, true)), "{seen:?}");
}

#[test]
fn a_bad_range_fails_until_it_is_healed() {
    let mut rig = rig(1);
    rig.world.fail_range(rig.disk, ByteRange::new(8192, 512), OpClass::Write);
    assert_eq!(rig.write(4096, stamped(8, 1)), Ok(4096));
    assert_eq!(rig.write(4096, stamped(16, 1)), Err(Errno::IO));
    assert_eq!(rig.write(8192, stamped(8, 1)), Err(Errno::IO));
    assert_eq!(rig.read(8192, 4096).0, Ok(4096));
    rig.world.heal(rig.disk);
    assert_eq!(rig.write(8192, stamped(8, 1)), Ok(4096));
}

#[test]
fn a_latent_error_is_removed_where_it_is_rewritten() {
    let mut rig = rig(1);
    rig.world.latent_error(rig.disk, ByteRange::new(4096, 4096));
    assert_eq!(rig.read(0, 8192).0, Err(Errno::IO));
    assert_eq!(rig.read(0, 4096).0, Ok(4096));
    rig.write(4096 + 512, stamped(2, 1)).unwrap();
    assert_eq!(rig.read(4096 + 512, 1024).0, Ok(1024));
    assert_eq!(rig.read(4096, 512).0, Err(Errno::IO));
    assert_eq!(rig.read(4096 + 1536, 512).0, Err(Errno::IO));
    rig.write(4096, stamped(8, 2)).unwrap();
    assert_eq!(rig.read(0, 8192).0, Ok(8192));
}

#[test]
fn a_failed_write_may_have_written_any_of_its_sectors() {
    let after = |seed, faults| {
        let mut rig = rig(seed);
        rig.world.set_faults(rig.disk, faults);
        rig.world.fail_next(rig.disk, OpClass::Write, 1, Errno::IO);
        assert_eq!(rig.write(0, stamped(8, 1)), Err(Errno::IO));
        stamps_of(&rig.read(0, 4096).1)
    };
    let tears = DiskFaults::default();
    assert!((0..50).any(|seed| after(seed, tears).contains(&Some(1)) && after(seed, tears).contains(&Some(0))));
    let clean = DiskFaults { failed_write_tears: false, ..tears };
    assert!((0..50).all(|seed| after(seed, clean) == [Some(0); 8]));
}

#[test]
fn short_writes_write_the_length_that_they_report() {
    let mut lens = Vec::new();
    for seed in 0..50 {
        let mut rig = rig(seed);
        rig.world.set_faults(rig.disk, DiskFaults { short_write_permille: 500, ..DiskFaults::default() });
        let len = rig.write(0, stamped(8, 1)).unwrap();
        let stamps = stamps_of(&rig.read(0, 4096).1);
        let written = (len / 512) as usize;
        assert!(stamps[..written].iter().all(|stamp| *stamp == Some(1)), "seed {seed}");
        assert!(stamps[written..].iter().all(|stamp| *stamp == Some(0)), "seed {seed}");
        lens.push(len);
    }
    lens.sort_unstable();
    lens.dedup();
    assert!(lens.len() > 3 && lens.iter().all(|len| *len > 0 && len % 512 == 0), "{lens:?}");
}

#[test]
fn random_errors_occur_as_often_as_configured() {
    let faults = DiskFaults {
        read_error_permille: 300,
        write_error_permille: 300,
        flush_error_permille: 300,
        ..DiskFaults::default()
    };
    let mut rig = rig(1);
    rig.world.set_faults(rig.disk, faults);
    let mut failed = [0; 6];
    for _ in 0..300 {
        failed[0] += usize::from(rig.read(0, 512).0.is_err());
        failed[1] += usize::from(rig.write(0, stamped(1, 1)).is_err());
        failed[2] += usize::from(rig.flush().is_err());
        failed[3] += usize::from(rig.perform(|side, file| side.zero(file, 0, 512, true)).0.is_err());
        let runs = FoundRuns::default();
        let within = ByteRange::new(0, 512);
        failed[4] += usize::from(rig.perform(|side, file| side.find_data(file, within, 1, &runs)).0.is_err());
        failed[5] += usize::from(rig.perform(|side, file| side.write_back(file)).0.is_err());
    }
    assert!(failed.iter().all(|count| (50..130).contains(count)), "{failed:?}");
    rig.world.heal(rig.disk);
    assert!((0..100).all(|_| rig.read(0, 512).0.is_ok()));
}

#[test]
fn a_disk_configured_to_flip_bits_returns_one_wrong_byte() {
    let mut rig = rig(1);
    rig.write(0, stamped(16, 1)).unwrap();
    rig.world.set_faults(rig.disk, DiskFaults { read_flip_permille: 1000, ..DiskFaults::default() });
    let (outcome, bytes) = rig.read(0, 8192);
    assert_eq!(outcome, Ok(8192));
    assert_eq!(bytes.iter().zip(stamped(16, 1)).filter(|(is, was)| **is != *was).count(), 1);
}

/// Writes, fails a flush, then flushes successfully; returns what is read before and after a power cut.
fn after_failed_flush(seed: u64, drops: bool) -> (Vec<Option<u64>>, Vec<Option<u64>>) {
    let mut rig = rig(seed);
    rig.world.set_faults(rig.disk, DiskFaults { failed_flush_drops: drops, ..DiskFaults::default() });
    rig.write(0, stamped(8, 1)).unwrap();
    rig.world.fail_next(rig.disk, OpClass::Flush, 1, Errno::IO);
    assert_eq!(rig.flush(), Err(Errno::IO));
    rig.write(4096, stamped(8, 2)).unwrap();
    assert_eq!(rig.flush(), Ok(0));
    let before = stamps_of(&rig.read(0, 8192).1);
    rig.power_cut();
    let after = stamps_of(&rig.read(0, 8192).1);
    assert_eq!(after[8..], [Some(2); 8], "seed {seed}: what was written after the failure is durable");
    (before, after)
}

#[test]
fn later_flushes_do_not_restore_what_a_failed_one_dropped() {
    let (lost, retained) = ([Some(0); 8], [Some(1); 8]);
    let runs: Vec<_> = (0..200).map(|seed| after_failed_flush(seed, true)).collect();
    let seen = |before: [Option<u64>; 8], after: [Option<u64>; 8]| {
        runs.iter().filter(|run| run.0[..8] == before && run.1[..8] == after).count()
    };
    assert!(seen(retained, lost) > 10, "reads show no loss until the power cut");
    assert!(seen(lost, lost) > 10, "or show it at once");
    assert!(seen(retained, retained) > 10, "or nothing was dropped");
    assert_eq!(seen(lost, retained), 0, "and nothing returns");
}

#[test]
fn a_disk_that_retains_what_a_failed_flush_covered_makes_it_durable_later() {
    for seed in 0..50 {
        assert_eq!(after_failed_flush(seed, false).1[..8], [Some(1); 8], "seed {seed}");
    }
}

#[test]
fn what_a_failed_flush_dropped_is_durable_when_written_and_flushed_again() {
    for seed in 0..100 {
        let mut rig = rig(seed);
        rig.write(0, stamped(16, 1)).unwrap();
        rig.world.fail_next(rig.disk, OpClass::Flush, 1, Errno::IO);
        rig.flush().unwrap_err();
        rig.write(0, stamped(16, 1)).unwrap();
        rig.flush().unwrap();
        rig.power_cut();
        assert_eq!(rig.read(0, 8192).1, stamped(16, 1), "seed {seed}");
    }
}
