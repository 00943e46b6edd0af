//! A disk in memory holds what was written, across the parts that store its bytes.

use kernel::device::{Device, RamDisk};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::{FRAME_BYTES, Processor, Switches};
use machine::SeekTarget;
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
    let data = disk.seek(cpu, at, SeekTarget::Data).await.expect("inside the disk").map_or(SIZE, |found| found.0);
    assert!(model[at.0 as usize..data as usize].iter().all(|byte| *byte == 0), "data before {data}, from {at:?} on");
    let hole = disk.seek(cpu, at, SeekTarget::Hole).await.expect("inside the disk").expect("at the end if nowhere");
    assert!(hole >= at && hole.0 <= SIZE);
    if data == at.0 {
        let next = disk.seek(cpu, hole, SeekTarget::Data).await.expect("inside the disk").map_or(SIZE, |found| found.0);
        assert!(model[hole.0 as usize..next as usize].iter().all(|byte| *byte == 0), "data in a hole at {hole:?}");
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
        let hole = disk.seek(&cpu, ByteOffset(0), SeekTarget::Hole).await;
        assert_eq!(hole, Ok(Some(ByteOffset(pieces * 65536))));
        assert!(turns.get() >= 3, "only {}", turns.get());
    });
}
