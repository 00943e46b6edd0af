//! A disk whose changes go beside.

use std::sync::Arc;

use kernel::device::{Checked, DeviceRef, FileDevice, Overlay};
use kernel::volume::{Extent, Volume};
use kernel::{ForcedUnitAccess, Processor};
use machine::Errno;
use policy::unit::{BLOCK_BYTES, ByteRange};
use sim::DiskConfig;
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{Server, block, fill, read};
use testkit::scene::{context, stable};

const BLOCKS: u64 = 256;

/// A volume over two disks, of which the lower one has its block's number in every byte.
fn overlaid(server: &Server, blocks_max: u64) -> Arc<Volume> {
    let below = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        for number in 0..BLOCKS {
            fill(&cpu, &below, block(number), number as u8, context()).await.expect("a disk that works");
        }
        below.close(&cpu).await.expect("a disk that works");
    });
    server.volume_on(Arc::new(Checked::new(over(server, blocks_max))), ForcedUnitAccess::Never)
}

fn over(server: &Server, blocks_max: u64) -> DeviceRef {
    let config = DiskConfig::new(BLOCKS * BLOCK_BYTES);
    let beside = server.world.add_disk(server.host.id, config);
    let beside = Arc::new(FileDevice::new(server.world.open(beside, true)));
    Arc::new(Overlay::new(server.file(), beside, blocks_max))
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
