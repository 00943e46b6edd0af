//! Nodes without failures: what one writes, others read.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Processor, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange};
use sim::{Latency, NetworkConfig};
use testkit::scene::disk::{block, fill, first_byte, read};
use testkit::scene::{context, stable};

use crate::scene::{Backing, Scene, Setup};

#[test]
fn what_one_node_writes_the_other_reads_in_both_directions() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = Scene::new(Setup::new(seed, 2));
        for turn in 0..6_u8 {
            let (writer, reader) = (usize::from(turn % 2), usize::from((turn + 1) % 2));
            // A block of either home.
            let write = async move |cpu: Processor, volume: Arc<Volume>| {
                for number in [3, 300] {
                    fill(&cpu, &volume, block(number), turn + 1, context()).await.expect("written");
                }
            };
            scene.run(writer, write);
            let seen = scene.run(reader, async |cpu, volume| {
                [first_byte(&cpu, &volume, 3).await, first_byte(&cpu, &volume, 300).await]
            });
            assert_eq!(seen, [Ok(turn + 1), Ok(turn + 1)], "seed {seed}");
        }
    }
}

#[test]
fn what_was_never_written_is_zero() {
    let mut scene = Scene::new(Setup::new(1, 3));
    let bytes = scene.run(2, async |cpu, volume| read(&cpu, &volume, ByteRange::new(0, 1 << 20), context()).await);
    assert_eq!(bytes, Ok(vec![0; 1 << 20]));
}

#[test]
fn parts_of_a_block_written_by_two_nodes_are_all_there() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = Scene::new(Setup::new(seed, 2));
        for part in 0..8_u64 {
            let write = async move |cpu: Processor, volume: Arc<Volume>| {
                let range = ByteRange::new(5 * BLOCK_BYTES + part * 512, 512);
                fill(&cpu, &volume, range, part as u8 + 1, context()).await
            };
            assert_eq!(scene.run((part % 2) as usize, write), Ok(()));
        }
        let bytes = scene.run(0, async |cpu, volume| read(&cpu, &volume, block(5), context()).await).expect("read");
        let expected: Vec<u8> = (1..9).flat_map(|part| [part; 512]).collect();
        assert!(bytes == expected, "seed {seed}");
    }
}

#[test]
fn a_read_that_hits_and_a_write_of_a_page_that_is_held_send_no_message() {
    let mut scene = Scene::new(Setup { backing: Backing::Memory, ..Setup::new(4, 2) });
    let use_it = async |cpu: Processor, volume: Arc<Volume>| {
        fill(&cpu, &volume, ByteRange::new(0, 64 << 10), 7, context()).await.expect("written");
        read(&cpu, &volume, ByteRange::new(0, 64 << 10), context()).await.expect("read");
    };
    scene.run(1, use_it);
    let fetched = |scene: &Scene| {
        scene.nodes[1].as_ref().and_then(|node| node.shared.as_ref()).map(|shared| shared.counters().fetches.get())
    };
    let before = fetched(&scene);
    scene.run(1, use_it);
    assert_eq!(fetched(&scene), before);
}

#[test]
fn large_writes_through_a_small_cache_are_read_by_another_node() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = Scene::new(Setup { memory: 2 << 20, ..Setup::new(seed, 2) });
        let pieces = 24_u64;
        let write = async move |cpu: Processor, volume: Arc<Volume>| {
            for piece in 0..pieces {
                let range = ByteRange::new(piece << 18, 1 << 18);
                fill(&cpu, &volume, range, piece as u8 + 1, context()).await.expect("written");
            }
            volume.flush(&cpu, context()).await
        };
        assert_eq!(scene.run(0, write), Ok(()));
        let read_all = async move |cpu: Processor, volume: Arc<Volume>| {
            for piece in 0..pieces {
                let bytes = read(&cpu, &volume, ByteRange::new(piece << 18, 1 << 18), context()).await.expect("read");
                assert!(bytes.iter().all(|byte| *byte == piece as u8 + 1), "piece {piece}");
            }
        };
        scene.run(1, read_all);
    }
}

#[test]
fn zeroes_replace_what_another_node_wrote() {
    let mut scene = Scene::new(Setup::new(6, 2));
    let range = ByteRange::new(0, 3 << 20);
    scene
        .run(0, async move |cpu, volume| fill(&cpu, &volume, ByteRange::new(0, 1 << 20), 9, context()).await)
        .expect("written");
    let zeroed = ByteRange::new(4096 * 3 + 100, 400_000);
    scene.run(1, async move |cpu, volume| volume.zero(&cpu, zeroed, true, false, stable()).await).expect("zeroed");
    let bytes = scene.run(0, async move |cpu, volume| read(&cpu, &volume, range, context()).await).expect("read");
    let is_zero = |at: u64| at >= 1 << 20 || (zeroed.at.0..zeroed.end().0).contains(&at);
    assert!(bytes.iter().zip(0..).all(|(byte, at)| (*byte == 0) == is_zero(at)));
}

/// The time of a write to a page that this many other nodes hold to read.
fn write_shared_by(readers: usize) -> Duration {
    let latency = Latency::us(50, 50);
    let network = NetworkConfig {
        latency,
        ns_per_kib: 0,
        buffer_bytes: 256 << 10,
        short_receive_permille: 0,
        short_send_permille: 0,
        backlog_max: 64,
    };
    let mut scene = Scene::new(Setup { backing: Backing::Memory, homes: 1, network, ..Setup::new(2, readers + 2) });
    scene.until_connected();
    for node in 2..readers + 2 {
        scene.run(node, async |cpu, volume| first_byte(&cpu, &volume, 3).await).expect("read");
    }
    let write = async |cpu: Processor, volume: Arc<Volume>| {
        let began = cpu.now();
        fill(&cpu, &volume, block(3), 7, context()).await.expect("written");
        cpu.now().since(began)
    };
    scene.run(1, write)
}

#[test]
fn a_write_to_a_page_that_many_nodes_share_costs_one_round_trip_more_than_to_one_that_none_does() {
    let round_trip = Duration::from_micros(100);
    let alone = write_shared_by(0);
    for readers in [1, 2, 8, 30] {
        let shared = write_shared_by(readers);
        // Nodes compute in no time, but their processors are woken one after the other.
        let most = alone + round_trip + round_trip / 5;
        assert!(shared >= alone && shared <= most, "{readers} readers: {shared:?}, without any {alone:?}");
    }
}

#[test]
fn a_page_that_two_nodes_write_in_turn_is_seen_to_bounce_at_its_home() {
    let mut scene = Scene::new(Setup { homes: 1, ..Setup::new(2, 3) });
    // A grant that another node makes is not in the home's time.
    scene.set_forwarding(false);
    for turn in 0..6_u8 {
        let part = ByteRange::new(5 * BLOCK_BYTES + u64::from(turn % 2) * 512, 512);
        let write = async move |cpu: Processor, volume: Arc<Volume>| fill(&cpu, &volume, part, turn, context()).await;
        scene.run(1 + usize::from(turn % 2), write).expect("written");
    }
    let home = scene.nodes[0].as_ref().and_then(|node| node.shared.as_ref()).expect("it runs");
    assert_eq!(home.bounces(), [(["1".to_owned(), "2".to_owned()], 4)]);
    let counters = home.counters();
    assert!(counters.holder.ns.get() > 0 && counters.home.ns.get() >= counters.holder.ns.get());
}
