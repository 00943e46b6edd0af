use policy::unit::{ByteRange, Instant};

use super::super::{Access, Timing};
use super::*;

const BLOCK: u64 = 8192;

fn disk() -> Mechanical {
    Mechanical::named("scsi-1990")
}

/// Times of commands, each issued when the one before is done.
fn in_turn(model: Mechanical, commands: &[(Access, u64, u64)]) -> Vec<Duration> {
    let mut mechanism = Mechanism::new(model);
    let mut now = Instant::ZERO;
    let mut served = |&(access, at, len): &(Access, u64, u64)| -> Duration {
        let Timing { done, seek, rotation, transfer, .. } = mechanism.serve(now, access, ByteRange::new(at, len));
        let took = done - std::mem::replace(&mut now, done);
        assert_eq!(took, model.overhead + seek + rotation + transfer, "all of the time is accounted for");
        took
    };
    commands.iter().map(&mut served).collect()
}

#[test]
fn a_write_behind_the_last_one_comes_too_late_and_waits_for_a_rotation() {
    let times = in_turn(disk(), &[(Access::Write, 0, BLOCK), (Access::Write, BLOCK, BLOCK)]);
    let rotation = disk().rotation();
    assert!(times[1] > rotation && times[1] < rotation * 2, "{times:?}");
}

#[test]
fn one_large_write_saves_the_rotations_of_many_small_ones() {
    let small: Vec<_> = (0..16).map(|block| (Access::Write, block * BLOCK, BLOCK)).collect();
    let small: Duration = in_turn(disk(), &small).iter().sum();
    let large = in_turn(disk(), &[(Access::Write, 0, 16 * BLOCK)])[0];
    assert!(large * 2 < small, "{large:?} {small:?}");
}

#[test]
fn a_read_behind_the_last_one_finds_its_sectors_in_the_track_buffer() {
    let reads = [(Access::Read, 0, BLOCK), (Access::Read, BLOCK, BLOCK), (Access::Read, 2 * BLOCK, BLOCK)];
    let ahead = in_turn(disk(), &reads);
    let without = in_turn(Mechanical { read_ahead: false, ..disk() }, &reads);
    assert!(ahead[1] < disk().rotation() / 2, "{ahead:?}");
    assert!(without[1] > disk().rotation(), "{without:?}");
}

#[test]
fn a_long_read_takes_what_the_medium_takes_with_its_switches() {
    let model = disk();
    let sectors = u64::from(model.sectors_per_track) * 10;
    let time = in_turn(model, &[(Access::Read, 0, sectors * 512)])[0];
    // Ten rotations and nine switches, each within its skew, plus the wait for the first sector.
    let skew = model.rotation() * model.track_skew / model.sectors_per_track;
    let medium = model.rotation() * 10 + skew * 9;
    assert!(time >= medium && time < medium + model.rotation() + model.overhead * 2, "{time:?} {medium:?}");
}

#[test]
fn a_bus_slower_than_the_medium_limits_both_directions() {
    let slow = Mechanical { bus_bytes_per_second: 500_000, ..disk() };
    for access in [Access::Read, Access::Write] {
        let time = in_turn(slow, &[(access, 0, 512 << 10)])[0].as_secs_f64();
        let bus = f64::from(512 << 10) / 500_000.0;
        assert!(time > bus && time < bus * 1.1, "{access:?} {time} {bus}");
    }
}

#[test]
fn a_magneto_optical_disk_erases_writes_and_verifies_in_rotations_of_their_own() {
    let sectors = |passes| {
        let model = Mechanical { write_passes: passes, ..Mechanical::named("mo-1990") };
        in_turn(model, &[(Access::Write, 0, BLOCK)])[0]
    };
    let rotation = Mechanical::named("mo-1990").rotation();
    for (passes, more) in [(2, 1), (3, 2)] {
        let difference = sectors(passes) - sectors(1);
        assert!(difference.abs_diff(rotation * more) < rotation, "{passes}: {difference:?}");
    }
    assert!(sectors(3).abs_diff(sectors(2) + rotation) < us(1));
}

#[test]
fn seeks_grow_with_distance_and_have_the_mean_of_the_data_sheet() {
    for name in ["scsi-1990", "hd639", "hd1280", "mo-1990"] {
        let drive = Mechanical::named(name);
        let cylinders = u64::from(drive.cylinders);
        let times: Vec<_> = (0..cylinders).map(|distance| drive.seek.time(distance, cylinders)).collect();
        assert!(times.is_sorted(), "{name}");
        assert_eq!(times[1], drive.seek.single);
        // Of all pairs of cylinders, 2 (n − d) lie d apart.
        let weighted = times.iter().zip(0..).map(|(time, d)| time.as_secs_f64() * (2 * (cylinders - d)) as f64);
        let mean = weighted.sum::<f64>() / (cylinders * cylinders) as f64;
        let published = drive.seek.mean.as_secs_f64();
        assert!((mean / published - 1.0).abs() < 0.03, "{name}: {mean} {published}");
        let longest = times[times.len() - 1];
        assert!(longest.abs_diff(drive.seek.full) < drive.seek.full / 100, "{name}: {longest:?}");
    }
}

#[test]
fn a_stretched_disk_has_the_longest_seek_across_all_of_it() {
    let size = 100 << 30;
    let mut mechanism = Mechanism::stretched(disk(), size);
    let timing = mechanism.serve(Instant::ZERO, Access::Read, ByteRange::new(size - BLOCK, BLOCK));
    assert!(timing.seek.abs_diff(disk().seek.full) < disk().seek.full / 50, "{timing:?}");
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}
