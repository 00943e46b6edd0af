//! What the cache guarantees, whatever the policies decide.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use policy::cache::Algorithm;
use policy::sizing::Mode;
use policy::unit::Instant;
use policy::{queue, sizing, writeback};
use proptest::prelude::*;

use super::super::Simulation;
use super::*;
use crate::drive::Drive;
use crate::drive::mechanical::Mechanical;

const BUFFER: u64 = 8192;
const MEMORY: u64 = 200 * BUFFER;

struct Host {
    run: Simulation,
    memory: Memory,
    buffers: Buffers,
}

fn host(dynamic: bool, smooth: bool, replacement: Algorithm) -> Host {
    let run = Simulation::new(1);
    let queue = queue::Config { depth: 1, elevator: true, ..queue::Config::default() };
    let disk = Disk::new(&run, Drive::Mechanical(Mechanical::named("hd1280")), queue);
    let memory = Memory::new(MEMORY, 10 * BUFFER);
    let config = Config {
        buffer_bytes: BUFFER,
        replacement,
        sizing: sizing::Config {
            mode: if dynamic { Mode::Dynamic } else { Mode::Fixed { bytes: 20 * BUFFER } },
            reserve_bytes_min: 0,
            floor_bytes: 4 * BUFFER,
            ..sizing::Config::default()
        },
        write_back: writeback::Config {
            smooth,
            limit_permille: if smooth { 400 } else { 1000 },
            ..writeback::Config::default()
        },
    };
    let buffers = Buffers::new(&run, &disk, &memory, config);
    Host { run, memory, buffers }
}

impl Host {
    /// Runs until the work is done. After an hour, a waiter was never woken.
    fn complete<W: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Buffers) -> W) {
        let end = Instant::ZERO + Duration::from_secs(3600);
        assert!(self.run.complete_by(end, work(self.buffers.clone())).is_some(), "a waiter is never woken");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u64),
    ReadAhead(u64),
    Write(u64, Write),
    Sync,
    Pause(u64),
    /// A program takes or returns this number of pages of a buffer's size.
    Take(u64),
    GiveBack(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let block = 0..60u64;
    let how = prop_oneof![Just(Write::Synchronous), Just(Write::Asynchronous), Just(Write::Delayed)];
    prop_oneof![
        4 => block.clone().prop_map(Step::Read),
        2 => block.clone().prop_map(Step::ReadAhead),
        6 => (block, how).prop_map(|(block, how)| Step::Write(block, how)),
        1 => Just(Step::Sync),
        1 => (0..400u64).prop_map(Step::Pause),
        1 => (1..150u64).prop_map(Step::Take),
        1 => (1..150u64).prop_map(Step::GiveBack),
    ]
}

/// A process on blocks of its own, which knows what it wrote last.
async fn process(host: (Virtual, Memory, Buffers), own: u64, steps: Vec<Step>, known: Rc<RefCell<HashMap<u64, u64>>>) {
    let (time, memory, buffers) = host;
    let mut taken = 0;
    for (version, step) in (1..).zip(steps) {
        let expected = |block| Content(known.borrow().get(&block).copied().unwrap_or(0));
        match step {
            Step::Read(block) => {
                let block = own + block;
                assert_eq!(buffers.read(DiskBlock(block)).await.content, expected(block));
            }
            Step::ReadAhead(block) => {
                let block = own + block;
                let read = buffers.read_ahead(DiskBlock(block), Some(DiskBlock(block + 1))).await;
                assert_eq!(read.content, expected(block));
            }
            Step::Write(block, how) => {
                let block = own + block;
                known.borrow_mut().insert(block, version);
                buffers.write(DiskBlock(block), Content(version), how).await;
                if how == Write::Synchronous {
                    assert_eq!(buffers.on_disk(DiskBlock(block)), Content(version));
                }
            }
            Step::Sync => buffers.sync(),
            Step::Pause(ms) => time.sleep(Duration::from_millis(ms)).await,
            Step::Take(pages) => {
                let got = (0..pages).take_while(|_| memory.take(BUFFER)).count() as u64;
                taken += got;
            }
            Step::GiveBack(pages) => {
                memory.give_back(pages.min(taken) * BUFFER);
                taken -= pages.min(taken);
            }
        }
    }
    memory.give_back(taken * BUFFER);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two processes read what they wrote last, whatever is evicted, returned or written meanwhile; in the end all of
    /// it is on the disk.
    #[test]
    fn no_block_is_lost(
        one in prop::collection::vec(step(), 1..120),
        other in prop::collection::vec(step(), 1..120),
        dynamic: bool,
        smooth: bool,
        lru: bool,
    ) {
        let host = host(dynamic, smooth, if lru { Algorithm::Lru } else { Algorithm::S3Fifo });
        let known = Rc::new(RefCell::new(HashMap::new()));
        let left = Rc::new(Cell::new(2));
        for (own, steps) in [(0, one), (1000, other)] {
            let has = (host.run.clone(), host.memory.clone(), host.buffers.clone());
            let (known, left) = (Rc::clone(&known), Rc::clone(&left));
            host.run.spawn(async move {
                process(has, own, steps, known).await;
                left.set(left.get() - 1);
            });
        }
        let time = host.run.clone();
        host.complete(|buffers| async move {
            while left.get() > 0 {
                time.sleep(Duration::from_millis(10)).await;
            }
            buffers.sync();
            buffers.until_clean().await;
        });
        for (block, version) in known.borrow().iter() {
            prop_assert_eq!(host.buffers.on_disk(DiskBlock(*block)), Content(*version));
        }
        prop_assert!(host.buffers.bytes_held() <= MEMORY);
        prop_assert_eq!(host.buffers.bytes_held(), host.memory.cache());
    }
}

#[test]
fn a_delayed_write_costs_no_disk_until_sync_and_a_synchronous_one_is_on_the_disk() {
    let host = host(false, false, Algorithm::Lru);
    host.complete(|buffers| async move {
        buffers.write(DiskBlock(1), Content(7), Write::Delayed).await;
        assert_eq!((buffers.dirty_blocks(), buffers.on_disk(DiskBlock(1))), (1, Content(0)));
        buffers.write(DiskBlock(2), Content(8), Write::Synchronous).await;
        assert_eq!((buffers.dirty_blocks(), buffers.on_disk(DiskBlock(2))), (1, Content(8)));
        buffers.sync();
        buffers.until_clean().await;
        assert_eq!(buffers.on_disk(DiskBlock(1)), Content(7));
        assert_eq!(buffers.counts().disk_writes, 2);
    });
}

#[test]
fn what_update_does_every_30_s_is_not_done_before_and_not_left_out() {
    let host = host(false, false, Algorithm::Lru);
    host.complete(|buffers| async move { buffers.write(DiskBlock(1), Content(7), Write::Delayed).await });
    host.run.run_until(Instant::ZERO + Duration::from_secs(29));
    assert_eq!(host.buffers.dirty_blocks(), 1);
    host.run.run_until(Instant::ZERO + Duration::from_secs(31));
    assert_eq!(host.buffers.dirty_blocks(), 0);
}

#[test]
fn the_dynamic_cache_grows_into_free_memory_and_returns_it_within_a_second() {
    let host = host(true, true, Algorithm::S3Fifo);
    host.complete(|buffers| async move {
        for block in 0..300 {
            buffers.read(DiskBlock(block)).await;
        }
    });
    assert!(host.buffers.bytes_held() > MEMORY * 3 / 4, "{} buffers", host.buffers.bytes_held() / BUFFER);
    let (memory, time) = (host.memory.clone(), host.run.clone());
    let start = host.run.now();
    host.complete(|_| async move {
        for _ in 0..150 {
            while !memory.take(BUFFER) {
                time.sleep(Duration::from_millis(1)).await;
            }
            time.sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(host.run.now() - start < Duration::from_secs(1), "{:?}", host.run.now() - start);
}

#[test]
fn the_next_block_is_on_its_way_when_it_is_asked_for() {
    let host = host(false, false, Algorithm::Lru);
    host.complete(|buffers| async move {
        assert!(!buffers.read_ahead(DiskBlock(0), Some(DiskBlock(1))).await.cached);
        assert!(buffers.is_cached(DiskBlock(1)) && !buffers.is_cached(DiskBlock(2)));
        buffers.read(DiskBlock(1)).await;
        assert!(buffers.read(DiskBlock(1)).await.cached);
        assert_eq!(buffers.counts().disk_reads, 2);
    });
}
