//! A simulated disk without faults.

use machine::{Errno, FoundRuns};
use policy::unit::{ByteOffset, ByteRange, Instant, Stability};
use proptest::prelude::*;
use sim::{DiskConfig, NetworkConfig};

use crate::rig::{Rig, Side, run, stamped};

const SIZE: u64 = 64 * 1024;
const BAD_FILE: Errno = Errno(libc::EBADF);

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, len: u64, stability: Stability },
    Zero { at: u64, len: u64, may_release: bool },
    Discard { at: u64, len: u64 },
    Flush,
}

fn change(align: u64) -> impl Strategy<Value = Change> {
    let range =
        (0..SIZE / align - 1).prop_flat_map(move |at| (Just(at * align), 1..=(20_000 / align).min(SIZE / align - at)));
    let range = range.prop_map(move |(at, count)| (at, count * align));
    let stability = prop_oneof![Just(Stability::Unstable), Just(Stability::Stable)];
    prop_oneof![
        4 => (range.clone(), stability).prop_map(|((at, len), stability)| Change::Write { at, len, stability }),
        1 => (range.clone(), any::<bool>()).prop_map(|((at, len), may_release)| Change::Zero { at, len, may_release }),
        1 => range.prop_map(|(at, len)| Change::Discard { at, len }),
        1 => Just(Change::Flush),
    ]
}

fn changes() -> impl Strategy<Value = (u32, u32, Vec<Change>)> {
    let shapes = prop_oneof![Just((512, 1)), Just((512, 512)), Just((4096, 512)), Just((4096, 4096))];
    shapes.prop_flat_map(|(sector_bytes, align)| {
        (Just(sector_bytes), Just(align), prop::collection::vec(change(u64::from(align)), 1..40))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn reads_return_what_was_written_last((sector_bytes, align, changes) in changes(), seed: u64) {
        let mut rig = Rig::new(seed, DiskConfig { sector_bytes, align, ..DiskConfig::new(SIZE) });
        let mut model = vec![0; SIZE as usize];
        for (i, change) in changes.iter().enumerate() {
            let (outcome, expected) = match *change {
                Change::Write { at, len, stability } => {
                    let bytes: Vec<u8> = (0..len).map(|b| (b + i as u64) as u8 | 1).collect();
                    model[at as usize..][..len as usize].copy_from_slice(&bytes);
                    (rig.perform(|side, file| side.write(file, at, bytes, stability)).0, len)
                }
                Change::Zero { at, len, may_release } => {
                    model[at as usize..][..len as usize].fill(0);
                    (rig.perform(|side, file| side.zero(file, at, len, may_release)).0, 0)
                }
                Change::Discard { at, len } => {
                    model[at as usize..][..len as usize].fill(0);
                    (rig.perform(|side, file| side.discard(file, at, len)).0, 0)
                }
                Change::Flush => (rig.flush(), 0),
            };
            prop_assert_eq!(outcome, Ok(expected));
            let (outcome, bytes) = rig.read(0, SIZE as usize);
            prop_assert_eq!(outcome, Ok(SIZE));
            prop_assert!(bytes == model, "after {:?}", change);
        }
        prop_assert_eq!(rig.flush(), Ok(0));
        let all = ByteRange::new(0, SIZE);
        prop_assert!(rig.world.read_durable(rig.disk, all) == model, "a flush makes all of it durable");
        rig.power_cut();
        prop_assert!(rig.world.read_disk(rig.disk, all) == model, "and it survives");
    }
}

#[test]
fn reads_end_at_the_end_of_the_disk_and_writes_find_no_space_there() {
    let mut rig = Rig::new(1, DiskConfig::new(SIZE));
    assert_eq!(rig.read(SIZE - 4096, 8192).0, Ok(4096));
    assert_eq!(rig.read(SIZE, 4096).0, Ok(0));
    assert_eq!(rig.write(SIZE - 4096, stamped(16, 1)), Ok(4096));
    assert_eq!(rig.write(SIZE, stamped(8, 1)), Err(Errno::NO_SPACE));
}

#[test]
fn operations_that_the_file_does_not_support_are_refused() {
    let config = DiskConfig {
        zero_supported: false,
        discard_supported: false,
        find_data_supported: false,
        ..DiskConfig::new(SIZE)
    };
    let mut rig = Rig::new(1, config);
    assert_eq!(rig.write(100, stamped(1, 1)), Err(Errno::INVALID));
    assert_eq!(rig.read(0, 100).0, Err(Errno::INVALID));
    assert_eq!(rig.perform(|side, file| side.zero(file, 0, 4096, true)).0, Err(Errno::NOT_SUPPORTED));
    assert_eq!(rig.perform(|side, file| side.discard(file, 0, 4096)).0, Err(Errno::NOT_SUPPORTED));
    let all = ByteRange::new(0, SIZE);
    assert_eq!(
        rig.perform(|side, file| side.find_data(file, all, 1, &FoundRuns::default())).0,
        Err(Errno::NOT_SUPPORTED)
    );
    let read_only = rig.world.open(rig.disk, false);
    assert!(!read_only.facts.writable);
    let write = rig.perform(|side, _| side.write(read_only.file, 0, stamped(1, 1), Stability::Unstable));
    assert_eq!(write.0, Err(BAD_FILE));
    let stranger = rig.world.add_host("stranger");
    let mut other = Side::new(&rig.world, stranger, 0);
    let token = other.read(rig.open.file, 0, 512);
    run(&rig.world, &mut [&mut other, &mut rig.side]);
    assert_eq!(other.take(token).0, Err(BAD_FILE), "a disk belongs to one host");
}

#[test]
fn holes_and_data_are_found_in_pages_of_4_kib() {
    let mut rig = Rig::new(1, DiskConfig::new(SIZE));
    let find = |rig: &mut Rig, at, len, runs_max| {
        let runs = FoundRuns::default();
        let end = rig.perform(|side, file| side.find_data(file, ByteRange::new(at, len), runs_max, &runs)).0;
        let runs: Vec<_> = runs.lock().iter().map(|run| (run.at.0, run.end().0)).collect();
        (runs, end)
    };
    assert_eq!(find(&mut rig, 0, SIZE, 1), (vec![], Ok(SIZE)));
    rig.write(8192, stamped(17, 1)).unwrap();
    assert_eq!(find(&mut rig, 0, SIZE, 1), (vec![(8192, 20480)], Ok(SIZE)));
    assert_eq!(find(&mut rig, 9000, 1000, 1), (vec![(9000, 10000)], Ok(10000)));
    assert_eq!(find(&mut rig, 4000, 4000, 1), (vec![], Ok(8000)));
    rig.perform(|side, file| side.discard(file, 8192, 4096)).0.unwrap();
    assert_eq!(find(&mut rig, 0, SIZE, 1), (vec![(12288, 20480)], Ok(SIZE)));
    rig.perform(|side, file| side.zero(file, 12288, 4096, false)).0.unwrap();
    assert_eq!(find(&mut rig, 0, SIZE, 1).0, [(12288, 20480)], "zeroes that must not release space are data");
    rig.write(SIZE - 4096, stamped(8, 1)).unwrap();
    let last = (SIZE - 4096, SIZE);
    assert_eq!(find(&mut rig, 0, SIZE, 1), (vec![(12288, 20480)], Ok(20480)));
    assert_eq!(find(&mut rig, 20480, SIZE - 20480, 1), (vec![last], Ok(SIZE)));
    let some = [(vec![(12288, 20480)], Ok(20480)), (vec![(12288, 20480), last], Ok(SIZE))];
    let found: Vec<_> = (0..30).map(|_| find(&mut rig, 0, SIZE, 2)).collect();
    assert!(found.iter().all(|found| some.contains(found)) && some.iter().all(|some| found.contains(some)));
}

#[test]
fn concurrent_operations_complete_out_of_order() {
    let mut rig = Rig::new(5, DiskConfig::new(SIZE));
    let file = rig.file();
    let started: Vec<u64> = (0..8).map(|i| rig.side.read(file, i * 4096, 4096)).collect();
    rig.run();
    let mut order = rig.side.order.clone();
    assert_ne!(order, started);
    order.sort_unstable();
    assert_eq!(order, started);
}

#[test]
fn a_disk_with_one_channel_serves_one_at_a_time() {
    let mut rig = Rig::new(5, DiskConfig { channels: 1, ..DiskConfig::new(SIZE) });
    let file = rig.file();
    let started: Vec<u64> = (0..8).map(|i| rig.side.read(file, i * 4096, 4096)).collect();
    rig.run();
    assert_eq!(rig.side.order, started);
    assert!(rig.world.now() >= Instant::from_ns(8 * 60_000));
}

#[test]
fn data_changed_in_flight_are_fetched_early_or_late() {
    let written = |seed| {
        let mut rig = Rig::new(seed, DiskConfig::new(SIZE));
        let token = rig.side.write(rig.open.file, 0, stamped(8, 1), Stability::Unstable);
        rig.side.run_slice();
        rig.side.overwrite(token, &stamped(8, 2));
        rig.run();
        rig.read(0, 4096).1
    };
    let seen: Vec<Vec<u8>> = (0..50).map(written).collect();
    assert!(seen.contains(&stamped(8, 1)) && seen.contains(&stamped(8, 2)));
}

#[test]
fn counters_count_the_operations_of_a_disk() {
    let mut rig = Rig::new(1, DiskConfig::new(SIZE));
    rig.write(0, stamped(8, 1)).unwrap();
    rig.perform(|side, file| side.write(file, 0, stamped(1, 1), Stability::Stable)).0.unwrap();
    rig.read(0, 8192).0.unwrap();
    rig.flush().unwrap();
    let counters = rig.world.disk_counters(rig.disk);
    assert_eq!((counters.writes, counters.stable_writes, counters.bytes_written), (2, 1, 4608));
    assert_eq!((counters.reads, counters.bytes_read, counters.flushes), (1, 8192, 1));
}

#[test]
fn a_disk_can_be_filled_beforehand() {
    let mut rig = Rig::new(1, DiskConfig::new(SIZE));
    rig.world.write_disk(rig.disk, ByteOffset(1000), b"there before");
    rig.power_cut();
    assert_eq!(rig.world.read_disk(rig.disk, ByteRange::new(1000, 12)), b"there before");
}

/// A mixed load of a disk and a connection, from a seed; returns the fingerprint and the end time.
fn mixed_load(seed: u64) -> (u64, Instant) {
    let mut rig = Rig::new(seed, DiskConfig::drawn(SIZE, seed));
    rig.world.set_network(NetworkConfig::drawn(seed));
    let file = rig.file();
    let listener = rig.world.listen(rig.host, 1);
    let away = rig.world.add_host("client");
    let mut client = Side::new(&rig.world, away, 0);
    let connection = rig.world.connect(away, rig.host, 1).unwrap();
    rig.side.accept(listener);
    for i in 0..20u64 {
        rig.side.write(file, i % 7 * 4096, stamped(16, i), Stability::Unstable);
        rig.side.flush(file);
        client.send(connection, vec![i as u8; 3000]);
    }
    run(&rig.world, &mut [&mut rig.side, &mut client]);
    (rig.world.fingerprint(), rig.world.now())
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..20 {
        assert_eq!(mixed_load(seed), mixed_load(seed), "seed {seed}");
        assert_ne!(mixed_load(seed).0, mixed_load(seed + 1).0, "seed {seed}");
    }
}
