//! A disk whose changes go beside.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::device::{ChangedRun, Checked, Device, DeviceRef, FileDevice, FoundData, Gated, Overlay};
use kernel::queue::Queued;
use kernel::request::{Action, Outcome, Request};
use kernel::volume::{Extent, Volume};
use kernel::{ForcedUnitAccess, Processor};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange};
use sim::{DiskConfig, Latency};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{Server, block, fill, first_byte, queue, read};
use testkit::scene::{context, ended, spawn, stable};

const BLOCKS: u64 = 256;

/// A volume over two disks, of which the lower one has its block's number in every byte.
fn overlaid(server: &Server, blocks_max: u64) -> Arc<Volume> {
    number_blocks(server);
    server.volume_on(Arc::new(Checked::new(over(server, blocks_max))), ForcedUnitAccess::Never)
}

fn number_blocks(server: &Server) {
    let below = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        for number in 0..BLOCKS {
            fill(&cpu, &below, block(number), number as u8, context()).await.expect("a disk that works");
        }
        below.close(&cpu).await.expect("a disk that works");
    });
}

fn over(server: &Server, blocks_max: u64) -> DeviceRef {
    Arc::new(Overlay::new(server.file(), beside(server), blocks_max))
}

fn beside(server: &Server) -> DeviceRef {
    added(server, DiskConfig::new(BLOCKS * BLOCK_BYTES))
}

fn added(server: &Server, config: DiskConfig) -> DeviceRef {
    let beside = server.world.add_disk(server.host.id, config);
    Arc::new(FileDevice::new(server.world.open(beside, true)))
}

async fn check(cpu: &Processor, volume: &Volume, model: &[Vec<u8>]) {
    for (number, expected) in model.iter().enumerate() {
        let found = read(cpu, volume, block(number as u64), context()).await.expect("a disk that works");
        assert_eq!(found, *expected, "block {number}");
    }
}

#[test]
fn reads_find_what_was_written_zeroed_and_trimmed_and_below_nothing_changes() {
    let name = "reads_find_what_was_written_zeroed_and_trimmed_and_below_nothing_changes";
    for_seeds(name, 20, |seed| {
        let server = Server::with_disk(seed, DiskConfig::drawn(BLOCKS * BLOCK_BYTES, seed));
        let volume = overlaid(&server, BLOCKS);
        let original: Vec<Vec<u8>> = (0..BLOCKS).map(|number| vec![number as u8; 4096]).collect();
        let mut model = original.clone();
        let used = Arc::clone(&volume);
        server.run(async move |cpu, _, _| {
            let mut random = Random(seed);
            for step in 0..60 {
                let at = random.below(BLOCKS * BLOCK_BYTES - 1);
                let len = 1 + random.below((BLOCKS * BLOCK_BYTES - at).min(9 * BLOCK_BYTES));
                let range = ByteRange::new(at, len);
                let byte = match random.below(4) {
                    0 => {
                        used.zero(&cpu, range, random.chance(500), false, stable()).await.expect("a disk that works");
                        0
                    }
                    1 if at.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES) => {
                        used.discard(&cpu, range, context()).await.expect("a disk that works");
                        0
                    }
                    _ => {
                        let byte = 100 + step as u8;
                        fill(&cpu, &used, range, byte, context()).await.expect("a disk that works");
                        byte
                    }
                };
                for position in at..at + len {
                    model[(position / BLOCK_BYTES) as usize][(position % BLOCK_BYTES) as usize] = byte;
                }
                if random.chance(200) {
                    used.flush(&cpu, context()).await.expect("a disk that works");
                }
            }
            check(&cpu, &used, &model).await;
        });
        let below = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, _, _| check(&cpu, &below, &original).await);
        drop(volume);
    });
}

async fn perform(cpu: &Processor, device: &dyn Device, action: Action) -> Outcome {
    device.perform(cpu, Request { action, context: context() }).await.expect("a disk that works")
}

/// Copies what is beside below, as one does who keeps it.
async fn keep(cpu: &Processor, overlay: &Arc<Overlay>, beside: &DeviceRef, below: &DeviceRef) {
    let held = overlay.hold().await;
    for ChangedRun { blocks, is_zero } in held.runs() {
        let range = blocks.bytes();
        if is_zero {
            change(cpu, &**below, range, 0).await;
            continue;
        }
        let frames = cpu.kernel().allocate(cpu, blocks.len() as usize).await;
        assert_eq!(perform(cpu, &**beside, Action::Read(range, frames.clone())).await, Outcome::Done);
        assert_eq!(perform(cpu, &**below, Action::Write(range, frames)).await, Outcome::Done);
    }
    held.forget(cpu, context()).await;
}

/// Writes `byte` to all of `range`, or zeroes it.
async fn change(cpu: &Processor, device: &dyn Device, range: ByteRange, byte: u8) {
    if byte == 0 && perform(cpu, device, Action::Zero { range, may_release: true }).await == Outcome::Done {
        return;
    }
    let mut frames = cpu.kernel().allocate(cpu, range.blocks().len() as usize).await;
    frames.iter_mut().for_each(|frame| frame.bytes_mut().expect("unshared").fill(byte));
    assert_eq!(perform(cpu, device, Action::Write(range, frames)).await, Outcome::Done);
}

/// The first byte of each block.
async fn all_bytes(cpu: &Processor, device: &dyn Device) -> Vec<u8> {
    let frames = cpu.kernel().allocate(cpu, BLOCKS as usize).await;
    let action = Action::Read(ByteRange::new(0, BLOCKS * BLOCK_BYTES), frames.clone());
    assert_eq!(perform(cpu, device, action).await, Outcome::Done);
    frames.iter().map(|frame| frame.bytes()[0]).collect()
}

#[test]
fn what_is_kept_is_below_and_who_reads_and_writes_meanwhile_finds_what_it_wrote() {
    for_seeds("what_is_kept_is_below_and_who_reads_and_writes_meanwhile_finds_what_it_wrote", 40, |seed| {
        let server = Server::with_disk(seed, DiskConfig::drawn(BLOCKS * BLOCK_BYTES, seed));
        let (beside, below) = (beside(&server), server.file());
        let overlay = Arc::new(Overlay::new(Arc::clone(&below), Arc::clone(&beside), BLOCKS));
        let gated = Gated::new(Arc::clone(&overlay), overlay.clone());
        server.run(async move |cpu, _, _| {
            let kept = Rc::new(Cell::new(0));
            cpu.spawn({
                let (cpu, kept, overlay) = (cpu.clone(), Rc::clone(&kept), Arc::clone(&overlay));
                let (beside, below) = (Arc::clone(&beside), Arc::clone(&below));
                async move {
                    while kept.get() < 5 {
                        keep(&cpu, &overlay, &beside, &below).await;
                        kept.set(kept.get() + 1);
                    }
                }
            });
            let mut random = Random(seed);
            let mut model = vec![0; BLOCKS as usize];
            let mut steps = 0;
            while kept.get() < 5 || steps < 60 {
                steps += 1;
                let (first, len) = (random.below(BLOCKS - 8), 1 + random.below(8));
                let byte = if random.chance(300) { 0 } else { 1 + steps as u8 % 255 };
                change(&cpu, &gated, ByteRange::new(first * BLOCK_BYTES, len * BLOCK_BYTES), byte).await;
                model[first as usize..(first + len) as usize].fill(byte);
                assert_eq!(all_bytes(&cpu, &gated).await, model);
            }
            keep(&cpu, &overlay, &beside, &below).await;
            assert_eq!(all_bytes(&cpu, &*below).await, model);
            assert_eq!(all_bytes(&cpu, &*beside).await, vec![0; BLOCKS as usize], "it takes no space");
            assert_eq!(overlay.blocks_written(), 0);
        });
    });
}

#[test]
fn while_changes_are_held_reads_of_the_disk_and_of_others_in_its_queue_go_on() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    number_blocks(&server);
    let (overlay, queue) = (Arc::new(Overlay::new(server.file(), beside(&server), BLOCKS)), queue(&server.host));
    let queued = |device| Arc::new(Queued::new(Arc::clone(&queue), Arc::new(Checked::new(device))));
    let gated = Arc::new(Gated::new(Arc::clone(&overlay), queued(overlay.clone())));
    let volume = server.volume_on(gated, ForcedUnitAccess::Never);
    let other = server.volume_on(queued(server.file()), ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let held = overlay.hold().await;
        // More requests than a disk has at a time.
        for number in (0..BLOCKS).step_by(2) {
            fill(&cpu, &volume, block(number), 7, context()).await.expect("cached");
        }
        let flush = {
            let volume = Arc::clone(&volume);
            spawn(&cpu, async move |cpu| volume.flush(&cpu, context()).await)
        };
        cpu.sleep(Duration::from_millis(10)).await;
        assert_eq!(first_byte(&cpu, &volume, 101).await, Ok(101));
        assert_eq!(first_byte(&cpu, &other, 102).await, Ok(102));
        assert!(flush.borrow().is_none() && overlay.blocks_written() == 0, "changes wait");
        drop(held);
        assert_eq!(ended(&cpu, &flush).await, Ok(()));
        assert_eq!(overlay.blocks_written(), BLOCKS / 2);
    });
}

#[test]
fn what_is_beside_has_a_bound_and_trimming_makes_room() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    let volume = overlaid(&server, 8);
    server.run(async move |cpu, _, _| {
        let put = async |number| fill(&cpu, &volume, block(number), 7, stable()).await;
        for number in 0..8 {
            put(number).await.expect("room");
        }
        put(3).await.expect("no more room is needed");
        let trimmed = ByteRange::new(0, 4 * BLOCK_BYTES);
        volume.discard(&cpu, trimmed, stable()).await.expect("a disk that works");
        for number in 20..24 {
            put(number).await.expect("room again");
        }
        assert_eq!(put(30).await, Err(Errno::NO_SPACE));
    });
}

#[test]
fn zeroes_that_must_stay_allocated_take_space_beside() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    // More than are written as data.
    let most = 64;
    let volume = overlaid(&server, most);
    server.run(async move |cpu, _, _| {
        let put = async |number| fill(&cpu, &volume, block(number), 7, stable()).await;
        let zero = async |blocks, may_release| {
            volume.zero(&cpu, ByteRange::new(0, blocks * BLOCK_BYTES), may_release, false, stable()).await
        };
        assert_eq!(zero(most + 1, false).await, Err(Errno::NO_SPACE));
        zero(most, false).await.expect("room");
        assert_eq!(put(100).await, Err(Errno::NO_SPACE));
        put(3).await.expect("it has its space");
        zero(most, true).await.expect("a disk that works");
        put(101).await.expect("room again");
    });
}

#[test]
fn zeroes_that_the_disk_beside_cannot_make_take_no_space() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    let most = 64;
    let beside = added(&server, DiskConfig { zero_supported: false, ..DiskConfig::new(BLOCKS * BLOCK_BYTES) });
    let over = Overlay::new(server.file(), beside, most);
    let volume = server.volume_on(Arc::new(over), ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let put = async |number| fill(&cpu, &volume, block(number), 7, stable()).await;
        put(3).await.expect("room");
        let all = ByteRange::new(0, most * BLOCK_BYTES);
        assert_eq!(volume.zero(&cpu, all, false, true, stable()).await, Err(Errno::NOT_SUPPORTED));
        for number in 100..99 + most {
            put(number).await.expect("what was asked for was not had");
        }
        assert_eq!(put(200).await, Err(Errno::NO_SPACE), "but what was written before is");
    });
}

#[test]
fn block_status_is_that_of_whichever_has_the_block() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    let below = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        fill(&cpu, &below, ByteRange::new(0, 8 * BLOCK_BYTES), 1, stable()).await.expect("a disk that works");
    });
    let volume = server.volume_on(over(&server, BLOCKS), ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let trimmed = ByteRange::new(2 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        volume.discard(&cpu, trimmed, stable()).await.expect("a disk that works");
        fill(&cpu, &volume, block(100), 2, stable()).await.expect("a disk that works");
        volume.flush(&cpu, context()).await.expect("a disk that works");
        let all = ByteRange::new(0, BLOCKS * BLOCK_BYTES);
        let found = volume.extents(&cpu, all, 100).await.expect("a disk that works");
        let blocks: Vec<_> = found.iter().map(|Extent { range, zero, .. }| (range.len / BLOCK_BYTES, *zero)).collect();
        assert_eq!(blocks, [(2, false), (2, true), (4, false), (92, true), (1, false), (155, true)]);
    });
}

/// Blocks of data, as they are found with requests for some runs each.
async fn data_blocks(cpu: &Processor, device: &dyn Device, random: &mut Random) -> Vec<u64> {
    let (mut found, mut at, end) = (Vec::new(), ByteOffset(0), ByteOffset(BLOCKS * BLOCK_BYTES));
    while at < end {
        let runs_max = 1 + random.below(20) as usize;
        let FoundData { runs, end } = device.find_data(cpu, at.to(end), runs_max).await.expect("a disk that works");
        found.extend(runs.iter().flat_map(|run| run.blocks().iter()).map(|block| block.0));
        at = end;
    }
    found
}

#[test]
fn data_is_found_in_what_was_written_and_around_what_was_zeroed() {
    for_seeds("data_is_found_in_what_was_written_and_around_what_was_zeroed", 20, |seed| {
        let server = Server::with_disk(seed, DiskConfig::new(BLOCKS * BLOCK_BYTES));
        let mut random = Random(seed);
        let mut model: Vec<bool> = (0..BLOCKS).map(|_| random.chance(300)).collect();
        for number in (0..BLOCKS).filter(|number| model[*number as usize]) {
            server.world.write_disk(server.disk, block(number).at, &[1; BLOCK_BYTES as usize]);
        }
        let device = Checked::new(over(&server, BLOCKS));
        server.run(async move |cpu, _, _| {
            for _ in 0..100 {
                let first = random.below(BLOCKS);
                let len = 1 + random.below(4.min(BLOCKS - first));
                let range = ByteRange::new(first * BLOCK_BYTES, len * BLOCK_BYTES);
                let is_write = random.chance(500);
                change(&cpu, &device, range, u8::from(is_write)).await;
                model[first as usize..(first + len) as usize].fill(is_write);
                let expected: Vec<u64> = (0..BLOCKS).filter(|number| model[*number as usize]).collect();
                assert_eq!(data_blocks(&cpu, &device, &mut random).await, expected);
            }
        });
    });
}

#[test]
fn data_among_many_changes_is_found_with_few_requests_to_the_disk() {
    let config = DiskConfig { read: Latency::us(1000, 1000), ..DiskConfig::new(BLOCKS * BLOCK_BYTES) };
    let server = Server::with_disk(1, config);
    for number in (0..BLOCKS).step_by(2) {
        server.world.write_disk(server.disk, block(number).at, &[1; BLOCK_BYTES as usize]);
    }
    let device = over(&server, BLOCKS);
    server.run(async move |cpu, _, _| {
        for number in (1..BLOCKS).step_by(4) {
            change(&cpu, &*device, block(number), 2).await;
            change(&cpu, &*device, block(number + 1), 0).await;
        }
        let begin = cpu.now();
        let found = data_blocks(&cpu, &*device, &mut Random(1)).await;
        assert_eq!(found, (0..BLOCKS).filter(|number| number % 4 < 2).collect::<Vec<_>>());
        let requests = cpu.now().since(begin).as_millis();
        assert!(requests <= 60, "{requests}");
    });
}

#[test]
fn one_extent_of_data_goes_on_over_what_was_changed_in_it() {
    let server = Server::with_disk(1, DiskConfig::new(BLOCKS * BLOCK_BYTES));
    number_blocks(&server);
    let volume = server.volume_on(over(&server, BLOCKS), ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        for number in (1..BLOCKS).step_by(4) {
            fill(&cpu, &volume, block(number), 2, stable()).await.expect("a disk that works");
        }
        volume.discard(&cpu, block(BLOCKS - 1), stable()).await.expect("a disk that works");
        volume.flush(&cpu, context()).await.expect("a disk that works");
        for first in 0..BLOCKS - 1 {
            let range = block(first).at.to(block(BLOCKS).at);
            let found = volume.extents(&cpu, range, 1).await.expect("a disk that works");
            let data = Extent { range: block(first).at.to(block(BLOCKS - 1).at), allocated: true, zero: false };
            assert_eq!(found, [data]);
        }
    });
}
