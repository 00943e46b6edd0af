//! Block status of a disk with many holes.

use std::sync::Arc;
use std::time::Duration;

use kernel::volume::{Extent, Volume};
use kernel::{ForcedUnitAccess, Processor};
use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange};
use sim::{DiskConfig, Latency};
use testkit::scene::context;
use testkit::scene::disk::{Server, fill};

const RUNS: u64 = 1000;
const SIZE: u64 = 2 * RUNS * BLOCK_BYTES;

/// The time of each request.
const REQUEST: Duration = Duration::from_millis(1);

/// A disk of which every other block is stored, beginning with the second.
fn fragmented() -> Server {
    let config = DiskConfig { read: Latency::us(1000, 1000), ns_per_kib: 0, ..DiskConfig::new(SIZE) };
    let server = Server::with_disk(1, config);
    for number in 0..RUNS {
        server.world.write_disk(server.disk, ByteOffset((2 * number + 1) * BLOCK_BYTES), &[1; BLOCK_BYTES as usize]);
    }
    server
}

/// Up to `extents_max` extents of `range`, as blocks and whether they are zero, and how many requests that took.
async fn found(cpu: &Processor, volume: &Volume, range: ByteRange, extents_max: usize) -> (Vec<(u64, bool)>, u128) {
    let begin = cpu.now();
    let extents = volume.extents(cpu, range, extents_max).await.expect("a disk that works");
    let blocks = |Extent { range, zero, .. }: &Extent| (range.len / BLOCK_BYTES, *zero);
    (extents.iter().map(blocks).collect(), cpu.now().since(begin).as_nanos() / REQUEST.as_nanos())
}

/// Runs `task` when the volume asks the disk for nothing.
fn run(server: &Server, task: impl AsyncFnOnce(Processor, Arc<Volume>) + 'static) {
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        cpu.sleep(REQUEST * 3 * RUNS as u32).await;
        task(cpu, volume).await;
    });
}

#[test]
fn many_are_found_with_few_requests_to_the_disk() {
    run(&fragmented(), async |cpu, volume| {
        let (extents, requests) = found(&cpu, &volume, ByteRange::new(0, SIZE), usize::MAX).await;
        assert_eq!(extents, [(1, true), (1, false)].repeat(RUNS as usize));
        assert!(requests <= RUNS as u128 / 20, "{requests} requests for {RUNS} runs of data");
    });
}

#[test]
fn one_is_found_with_one_request() {
    run(&fragmented(), async |cpu, volume| {
        for (block, blocks) in [(0, 1), (1, 1), (0, RUNS), (1, RUNS), (500, RUNS), (501, RUNS)] {
            let range = ByteRange::new(block * BLOCK_BYTES, blocks * BLOCK_BYTES);
            assert_eq!(found(&cpu, &volume, range, 1).await, (vec![(1, block % 2 == 0)], 1), "{range:?}");
        }
    });
}

#[test]
fn those_of_the_cache_are_found_among_those_of_the_disk() {
    run(&fragmented(), async |cpu, volume| {
        let range = |block, blocks| ByteRange::new(block * BLOCK_BYTES, blocks * BLOCK_BYTES);
        fill(&cpu, &volume, range(4, 1), 2, context()).await.expect("cached");
        let (extents, _) = found(&cpu, &volume, range(0, 8), 100).await;
        assert_eq!(extents, [(1, true), (1, false), (1, true), (3, false), (1, true), (1, false)]);
        assert_eq!(found(&cpu, &volume, range(4, 1), 1).await, (vec![(1, false)], 1));
    });
}
