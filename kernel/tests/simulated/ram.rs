//! A disk in memory holds what was written, across the parts that store its bytes.

use kernel::device::{Device, FoundData, RamDisk};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::{FRAME_BYTES, Processor, Switches};
use policy::unit::{ByteOffset, ByteRange, DiskNo};
use std::sync::Arc;
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::{boot, count_turns, run, small_kernel};

/// More pieces of 64 KiB than a disk has parts, and no whole number of blocks. Bytes.
const SIZE: u64 = (3 << 20) + 1536;
const BLOCKS_MAX: u64 = 64;
const STEPS: u64 = 200;

async fn perform(cpu: &Processor, disk: &RamDisk, action: Action) {
    let context = Context::synchronous(JobId(0));
    let done = disk.perform(cpu, Request { action, context }).await;
    assert_eq!(done, Ok(Outcome::Done), "inside the disk");
}

/// Some whole blocks, or up to the end of the disk.
fn some_blocks(random: &mut Random) -> ByteRange {
    let first = random.below(SIZE.div_ceil(FRAME_BYTES as u64));
    let end = ((first + 1 + random.below(BLOCKS_MAX)) * FRAME_BYTES as u64).min(SIZE);
    ByteRange::new(first * FRAME_BYTES as u64, end - first * FRAME_BYTES as u64)
}

async fn step(cpu: &Processor, disk: &RamDisk, model: &mut [u8], random: &mut Random) {
    let range = some_blocks(random);
    let bytes = &mut model[range.at.0 as usize..range.end().0 as usize];
    let mut frames = cpu.kernel().allocate(cpu, bytes.len().div_ceil(FRAME_BYTES)).await;
    match random.below(3) {
        0 => {
            for (frame, bytes) in frames.iter_mut().zip(bytes.chunks_mut(FRAME_BYTES)) {
                bytes.fill(random.next() as u8 | 1);
                frame.bytes_mut().expect("unshared")[..bytes.len()].copy_from_slice(bytes);
            }
            perform(cpu, disk, Action::Write(range, frames)).await;
        }
        1 => {
            bytes.fill(0);
            perform(cpu, disk, Action::Zero { range, may_release: true }).await;
        }
        _ => {
            perform(cpu, disk, Action::Read(range, frames.clone())).await;
            for (frame, bytes) in frames.iter().zip(bytes.chunks(FRAME_BYTES)) {
                assert!(frame.bytes()[..bytes.len()] == *bytes, "{range:?}");
            }
        }
    }
    let at = ByteOffset(random.below(SIZE));
    let within = at.to(ByteOffset(at.0 + 1 + random.below(SIZE - at.0)));
    let runs_max = 1 + random.below(4) as usize;
    let FoundData { runs, end } = disk.find_data(cpu, within, runs_max).await.expect("inside the disk");
    assert!(runs.len() <= runs_max && at < end && end <= within.end(), "{runs:?} up to {end} in {within:?}");
    assert!(runs.len() == runs_max || end == within.end(), "there may be more");
    let mut from = at;
    for data in runs.into_iter().chain([end.to(end)]) {
        assert!(from <= data.at && data.end() <= end, "{data:?} after {from} and up to {end}");
        assert!(model[from.0 as usize..data.at.0 as usize].iter().all(|byte| *byte == 0), "data before {data:?}");
        from = data.end();
    }
}

#[test]
fn what_was_written_is_read_and_what_was_not_or_was_zeroed_is_zeroes_and_found_as_a_hole_or_read_as_one() {
    let name = "what_was_written_is_read_and_what_was_not_or_was_zeroed_is_zeroes_and_found_as_a_hole_or_read_as_one";
    for_seeds(name, 8, |seed| {
        let (world, host) = boot(seed, small_kernel(1, 4 << 20, Switches::default()));
        let disk = Arc::new(RamDisk::new(SIZE, DiskNo(0)));
        run(&world, &host, async move |cpu| {
            let (mut model, mut random) = (vec![0; SIZE as usize], Random(seed));
            for _ in 0..STEPS {
                step(&cpu, &disk, &mut model, &mut random).await;
            }
        });
    });
}

#[test]
fn others_get_their_turns_while_the_end_of_much_data_is_sought() {
    let (world, host) = boot(1, small_kernel(1, 4 << 20, Switches::default()));
    // Pieces of 64 KiB, of each of which a block is written.
    let pieces = 4096;
    let disk = Arc::new(RamDisk::new((pieces + 1) * 65536, DiskNo(0)));
    run(&world, &host, async move |cpu| {
        let frames = cpu.kernel().allocate(&cpu, 1).await;
        for number in 0..pieces {
            let range = ByteRange::new(number * 65536, FRAME_BYTES as u64);
            perform(&cpu, &disk, Action::Write(range, frames.clone())).await;
        }
        let turns = count_turns(&cpu);
        let (data, all) = (ByteRange::new(0, pieces * 65536), ByteRange::new(0, (pieces + 1) * 65536));
        let found = disk.find_data(&cpu, all, 2).await;
        assert_eq!(found, Ok(FoundData { runs: vec![data], end: all.end() }));
        assert!(turns.get() >= 3, "only {}", turns.get());
    });
}
