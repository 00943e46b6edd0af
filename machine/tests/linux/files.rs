//! Files on both engines.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::rig::{Memory, Rig, on_both_engines, pattern};
use crate::tree_file_systems::{Kind, Mounted};
use machine::linux::file::{DirectIo, OpenOptions, make_directories, open};
use machine::{Errno, File, Op, OpenFile, Park, Segments};
use policy::unit::{ByteOffset, Stability};
use tempfile::TempDir;
use testkit::failing_disk::{FailingDisk, Faults};
use testkit::skip;

on_both_engines!(
    several_segments_are_written_and_read_back_in_order,
    registered_memory_is_written_and_read_back,
    a_region_can_be_withdrawn_and_offered_again,
    a_read_ends_early_only_at_the_end_of_the_file,
    a_stable_write_and_a_flush_succeed,
    a_zeroed_range_reads_as_zeroes_and_the_size_stays,
    a_discarded_range_reads_as_zeroes_and_the_size_stays,
    data_and_holes_are_found,
    many_runs_of_data_are_found_at_once,
    errors_of_the_host_are_returned,
    ten_thousand_operations_complete_once_each,
    dropping_the_machine_waits_for_operations_in_flight,
    an_incomplete_last_sector_of_an_image_is_written_and_flushed,
);

const KIB: usize = 1024;

struct Disk {
    _directory: TempDir,
    path: PathBuf,
    open: OpenFile,
}

impl Disk {
    fn new(size: u64, direct: DirectIo) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("disk.img");
        let options = OpenOptions { writable: true, create_size: Some(size), direct, ..OpenOptions::default() };
        let open = open(&path, options).expect("opened");
        Disk { _directory: directory, path, open }
    }

    fn file(&self) -> File {
        self.open.file
    }

    fn write(&self, at: usize, from: Segments) -> Op {
        Op::Write { file: self.file(), at: ByteOffset(at as u64), from, stability: Stability::Unstable }
    }

    fn read(&self, at: usize, into: Segments) -> Op {
        Op::Read { file: self.file(), at: ByteOffset(at as u64), into }
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("read")
    }
}

fn several_segments_are_written_and_read_back_in_order(mut rig: Rig) {
    let disk = Disk::new(1 << 20, DirectIo::Auto);
    let from = Memory::filled(64 * KIB, 7);
    // Neighbours, a separate one, and one before the others.
    let pieces = [(16 * KIB, 4 * KIB), (20 * KIB, 8 * KIB), (40 * KIB, 4 * KIB), (0, 8 * KIB)];
    let written = rig.run(disk.write(8 * KIB, from.segments(&pieces)));
    assert_eq!(written, Ok(24 * KIB as u64));
    let expected: Vec<u8> = pieces.iter().flat_map(|&(at, len)| from.bytes()[at..at + len].to_vec()).collect();
    assert_eq!(disk.content()[8 * KIB..32 * KIB], expected);
    let into = Memory::new(64 * KIB);
    let back = [(32 * KIB, 4 * KIB), (0, 20 * KIB)];
    let count = rig.run(disk.read(8 * KIB, into.segments(&back)));
    assert_eq!(count, Ok(24 * KIB as u64));
    assert_eq!(into.bytes()[32 * KIB..36 * KIB], expected[..4 * KIB]);
    assert_eq!(into.bytes()[..20 * KIB], expected[4 * KIB..]);
}

fn registered_memory_is_written_and_read_back(mut rig: Rig) {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        let disk = Disk::new(1 << 20, direct);
        let mut from = Memory::filled(64 * KIB, 3);
        from.offer(&mut *rig.machine, 5);
        let mut into = Memory::new(64 * KIB);
        into.offer(&mut *rig.machine, 6);
        let apart = [(0, 4 * KIB), (8 * KIB, 4 * KIB), (60 * KIB, 4 * KIB)];
        let adjacent = [(16 * KIB, 8 * KIB), (24 * KIB, 8 * KIB)];
        for (k, pieces) in [&apart[..], &adjacent[..]].into_iter().enumerate() {
            let total: usize = pieces.iter().map(|p| p.1).sum();
            let at = k * 128 * KIB;
            let written = rig.run(disk.write(at, from.segments(pieces)));
            assert_eq!(written, Ok(total as u64));
            let count = rig.run(disk.read(at, into.segments(pieces)));
            assert_eq!(count, Ok(total as u64));
            for &(at, len) in pieces {
                let range = at..at + len;
                assert_eq!(into.bytes()[range.clone()], from.bytes()[range]);
            }
        }
        for memory in [&from, &into] {
            let region = memory.region.expect("offered");
            rig.machine.withdraw_region(region);
        }
    }
}

fn a_region_can_be_withdrawn_and_offered_again(mut rig: Rig) {
    let disk = Disk::new(1 << 20, DirectIo::Auto);
    for round in 0..3 {
        let mut memory = Memory::filled(16 * KIB, round);
        memory.offer(&mut *rig.machine, 9);
        let written = rig.run(disk.write(0, memory.all()));
        assert_eq!(written, Ok(16 * KIB as u64));
        assert_eq!(disk.content()[..16 * KIB], *memory.bytes());
        rig.machine.withdraw_region(memory.region.expect("offered"));
        // Segments may still refer to it: they are then transferred without registration.
        memory.bytes_mut().fill(0);
        let count = rig.run(disk.read(0, memory.all()));
        assert_eq!(count, Ok(16 * KIB as u64));
        assert_eq!(memory.bytes()[100], pattern(100 + round));
    }
}

fn a_read_ends_early_only_at_the_end_of_the_file(mut rig: Rig) {
    for direct in [DirectIo::Auto, DirectIo::Never] {
        let disk = Disk::new(10_000, direct);
        std::fs::write(&disk.path, [7u8; 10_000]).expect("written");
        let into = Memory::new(64 * KIB);
        let pieces = [(0, 4 * KIB), (8 * KIB, 4 * KIB), (32 * KIB, 32 * KIB)];
        let count = rig.run(disk.read(0, into.segments(&pieces)));
        assert_eq!(count, Ok(10_000), "{direct:?}");
        let count = rig.run(disk.read(12 * KIB, into.all()));
        assert_eq!(count, Ok(0), "{direct:?}");
        assert_eq!(into.bytes()[8 * KIB], 7);
        assert_eq!(into.bytes()[32 * KIB + 10_000 - 8 * KIB - 1], 7);
        assert_eq!(into.bytes()[32 * KIB + 10_000 - 8 * KIB], 0);
    }
}

fn a_stable_write_and_a_flush_succeed(mut rig: Rig) {
    let disk = Disk::new(1 << 20, DirectIo::Auto);
    let from = Memory::filled(8 * KIB, 1);
    let stable = |from| Op::Write { file: disk.file(), at: ByteOffset(4096), from, stability: Stability::Stable };
    assert_eq!(rig.run(stable(from.all())), Ok(8 * KIB as u64));
    let two = from.segments(&[(4 * KIB, 4 * KIB), (0, 4 * KIB)]);
    assert_eq!(rig.run(stable(two)), Ok(8 * KIB as u64));
    assert_eq!(disk.content()[4096..8192], from.bytes()[4096..]);
    assert_eq!(rig.run(Op::Flush { file: disk.file() }), Ok(0));
}

fn zeroes_after(rig: &mut Rig, disk: &Disk, op: Op) -> Result<(), Errno> {
    std::fs::write(&disk.path, vec![9u8; 64 * KIB]).expect("written");
    let result = rig.run(op);
    let content = disk.content();
    assert_eq!(content.len(), 64 * KIB, "the size stays");
    assert!(content[..8 * KIB].iter().all(|&byte| byte == 9));
    assert!(content[40 * KIB..].iter().all(|&byte| byte == 9));
    let within = if result.is_ok() { 0 } else { 9 };
    let range = &content[8 * KIB..40 * KIB];
    assert!(range.iter().all(|&byte| byte == within), "{result:?}");
    result.map(|value| assert_eq!(value, 0))
}

fn a_zeroed_range_reads_as_zeroes_and_the_size_stays(mut rig: Rig) {
    let disk = Disk::new(64 * KIB as u64, DirectIo::Never);
    for may_release in [true, false] {
        let op = Op::Zero { file: disk.file(), at: ByteOffset(8 * KIB as u64), len: 32 * KIB as u64, may_release };
        let result = zeroes_after(&mut rig, &disk, op);
        // Not every file system can zero without releasing (tmpfs cannot).
        if may_release || result.is_ok() {
            assert_eq!(result, Ok(()));
        } else {
            assert_eq!(result, Err(Errno::NOT_SUPPORTED));
        }
    }
}

fn a_discarded_range_reads_as_zeroes_and_the_size_stays(mut rig: Rig) {
    let disk = Disk::new(64 * KIB as u64, DirectIo::Never);
    let op = Op::Discard { file: disk.file(), at: ByteOffset(8 * KIB as u64), len: 32 * KIB as u64 };
    assert_eq!(zeroes_after(&mut rig, &disk, op), Ok(()));
}

fn data_and_holes_are_found(mut rig: Rig) {
    const MIB: u64 = 1 << 20;
    let disk = Disk::new(4 * MIB, DirectIo::Auto);
    let from = Memory::filled(64 * KIB, 1);
    assert!(rig.run(disk.write(2 << 20, from.all())).is_ok());
    let (kib, data) = (KIB as u64, (2 * MIB, 2 * MIB + 64 * KIB as u64));
    let mut find = |within, runs_max| rig.find_data(disk.file(), within, runs_max);
    assert_eq!(find(0..4 * MIB, 9), (vec![data], Ok(4 * MIB)));
    assert_eq!(find(0..4 * MIB, 1), (vec![data], Ok(data.1)), "and not beyond");
    assert_eq!(find(0..MIB, 1), (vec![], Ok(MIB)));
    assert_eq!(find(0..data.0 + kib, 9), (vec![(data.0, data.0 + kib)], Ok(data.0 + kib)));
    assert_eq!(find(data.0 + kib..data.1, 9), (vec![(data.0 + kib, data.1)], Ok(data.1)));
    assert_eq!(find(3 * MIB..5 * MIB, 9), (vec![], Ok(5 * MIB)), "also behind the end");
    assert_eq!(find(4 * MIB..5 * MIB, 9), (vec![], Ok(5 * MIB)));
}

fn many_runs_of_data_are_found_at_once(mut rig: Rig) {
    let disk = Disk::new(4 << 20, DirectIo::Auto);
    let from = Memory::filled(4 * KIB, 1);
    let starts: Vec<usize> = (1..30).map(|number| number * 128 * KIB).collect();
    for start in &starts {
        assert!(rig.run(disk.write(*start, from.all())).is_ok());
    }
    let (mut found, mut at, mut calls) = (Vec::new(), 0, 0);
    while at < 4 << 20 {
        let (runs, end) = rig.find_data(disk.file(), at..4 << 20, 10);
        found.extend(runs.iter().map(|run| run.0 as usize));
        (at, calls) = (end.expect("found"), calls + 1);
    }
    assert_eq!((found, calls), (starts, 3));
}

fn errors_of_the_host_are_returned(mut rig: Rig) {
    let disk = Disk::new(1 << 20, DirectIo::Auto);
    let Disk { _directory, path, open: writable } = disk;
    drop(writable);
    let read_only = open(&path, OpenOptions::default()).expect("opened");
    let memory = Memory::new(8 * KIB);
    let bad = Err(Errno(libc::EBADF));
    let nowhere = File(0x00ff_ffff);
    let write = |file, from| Op::Write { file, at: ByteOffset(0), from, stability: Stability::Unstable };
    assert_eq!(rig.run(write(read_only.file, memory.all())), bad);
    let read = |at, into| Op::Read { file: nowhere, at: ByteOffset(at), into };
    assert_eq!(rig.run(read(0, memory.all())), bad);
    let pieces = memory.segments(&[(4 * KIB, 4 * KIB), (0, 4 * KIB)]);
    assert_eq!(rig.run(read(0, pieces)), bad);
    assert_eq!(rig.run(Op::Flush { file: nowhere }), bad);
    let beyond = Op::Discard { file: read_only.file, at: ByteOffset(u64::MAX - 4095), len: 4096 };
    assert!(rig.run(beyond).is_err());
}

fn ten_thousand_operations_complete_once_each(mut rig: Rig) {
    const COUNT: usize = 10_000;
    let disk = Disk::new((COUNT * 512) as u64, DirectIo::Never);
    let from = Memory::filled(COUNT * 512, 11);
    let mut tokens: Vec<_> =
        (0..COUNT).map(|k| rig.start(disk.write(k * 512, from.segments(&[(k * 512, 512)])))).collect();
    while rig.done.len() < COUNT {
        let before = rig.done.len();
        let give_up = rig.machine.now() + std::time::Duration::from_secs(60);
        rig.machine.enter(Park::Until { deadline: Some(give_up), requests: 0 }, &mut rig.done);
        assert!(rig.done.len() > before, "{before} completed, then no more");
    }
    let mut completed: Vec<_> = rig.done.iter().map(|c| c.token).collect();
    completed.sort_by_key(|token| token.0);
    tokens.sort_by_key(|token| token.0);
    assert_eq!(completed, tokens);
    assert!(rig.done.iter().all(|c| c.result == Ok(512)));
    assert_eq!(disk.content(), from.bytes());
}

fn dropping_the_machine_waits_for_operations_in_flight(mut rig: Rig) {
    const COUNT: usize = 256;
    let disk = Disk::new((COUNT * 64 * KIB) as u64, DirectIo::Auto);
    std::fs::write(&disk.path, vec![5u8; COUNT * 64 * KIB]).expect("written");
    let mut into = Memory::new(COUNT * 64 * KIB);
    for k in 0..COUNT {
        let at = k * 64 * KIB;
        rig.start(disk.read(at, into.segments(&[(at, 64 * KIB)])));
    }
    rig.machine.enter(Park::No, &mut rig.done);
    drop(rig);
    // From here on only the test may write to the memory.
    into.bytes_mut().fill(1);
    for _ in 0..20 {
        assert!(into.bytes().iter().all(|&byte| byte == 1));
    }
}

fn an_incomplete_last_sector_of_an_image_is_written_and_flushed(mut rig: Rig) {
    const WHOLE: u64 = 1 << 20;
    let Some(mounted) = Mounted::new(Kind::LargeSectors("mkfs.ext4", &["-q", "-F", "-b", "4096"])) else { return };
    let path = mounted.path().join("disk.img");
    let (size, direct) = (Some(WHOLE + 512), DirectIo::Always);
    let options = OpenOptions { writable: true, create_size: size, direct, ..OpenOptions::default() };
    let disk = open(&path, options).expect("opened");
    assert_eq!(disk.facts.align, 4096);
    let tail = disk.tail.expect("an incomplete sector needs buffered I/O");
    let from = Memory::filled(4 * KIB, 5);
    for (file, at, len) in [(disk.file, WHOLE - 4096, 4 * KIB), (tail, WHOLE, 512)] {
        let from = from.segments(&[(0, len)]);
        let op = Op::Write { file, at: ByteOffset(at), from, stability: Stability::Unstable };
        assert_eq!(rig.run(op), Ok(len as u64));
    }
    assert_eq!(rig.run(Op::Flush { file: disk.file }), Ok(0));
    let into = Memory::new(8 * KIB);
    let read = Op::Read { file: disk.file, at: ByteOffset(WHOLE - 4096), into: into.all() };
    assert_eq!(rig.run(read), Ok(4096 + 512), "both descriptors see the same content");
    assert_eq!(into.bytes()[..4 * KIB], from.bytes()[..4 * KIB]);
    assert_eq!(into.bytes()[4 * KIB..][..512], from.bytes()[..512]);
    assert_eq!(std::fs::metadata(&path).expect("it exists").len(), WHOLE + 512, "the size is unchanged");
    drop(disk);
}

#[test]
fn directories_that_are_made_have_durable_names() {
    let directory = TempDir::new().expect("temporary directory");
    let none = Faults { fsync_permille: 0, write_permille: 0, delay_permille: 0, delay_us_max: 0 };
    let disk = match FailingDisk::new(directory.path(), none, 1) {
        Ok(disk) => disk,
        Err(error) => skip!("nothing can be mounted by FUSE: {error}"),
    };
    let path = directory.path().join("a/b/c");
    make_directories(&path).expect("made");
    make_directories(&path).expect("there");
    let above: Vec<_> = path.ancestors().skip(1).take(3).collect();
    let inode = |path: &&Path| std::fs::metadata(path).expect("found").ino();
    assert_eq!(disk.synced_directories(), above.iter().rev().map(inode).collect::<Vec<_>>());
    std::fs::write(path.join("file"), []).expect("made");
    assert!(make_directories(&path.join("file")).is_err() && make_directories(&path.join("file/d")).is_err());
    make_directories(Path::new("")).expect("the current one");
}
