//! What another processor sees in the middle of what never waits. It is held there by a lock of a shard.

use std::sync::Barrier;
use std::{ptr, thread};

use futures_util::FutureExt;
use policy::unit::DiskNo;
use sim::World;

use super::*;
use crate::cache::State as BufferState;
use crate::device::RamDisk;
use crate::request::JobId;
use crate::{Frames, KernelConfig, Processor, Switches};

/// A volume in memory, of which nothing is written by itself.
fn scene(test: impl FnOnce(&Processor, &Volume)) {
    let config = KernelConfig {
        processors: 2,
        memory_max: 64 << 20,
        chunk_bytes: Some(64 << 10),
        sizing: None,
        write_back: policy::writeback::Config::default(),
        switches: Switches::default(),
    };
    let kernel = Kernel::new(config).expect("address space");
    let world = World::new(1);
    let host = world.add_host("server");
    let cpus = [0, 1].map(|no| Processor::new(world.machine(host, ProcessorId(no)), &kernel));
    let forced_unit_access = ForcedUnitAccess::Never;
    let config = VolumeConfig { name: "disk".into(), read_only: false, forced_unit_access, grows: false };
    let device = Arc::new(RamDisk::new(4 << 20, DiskNo(0)));
    let volume = Volume::open(&kernel, device, config, ProcessorId(0)).expect("a number");
    test(&cpus[0], &volume);
    cpus.iter().for_each(Processor::abandon);
}

/// The first of blocks that do not lie in the shard of the first blocks.
fn in_another_shard(volume: &Volume) -> BlockNo {
    let place = |block: BlockNo| ptr::from_ref(&*volume.lock_shard(block)).addr();
    let first = place(BlockNo(0));
    BlockNo(0).to(volume.blocks_end()).iter().find(|block| place(*block) != first).expect("several shards")
}

#[test]
fn what_a_failed_flush_covered_is_not_taken_for_durable_before_it_is_dirty_again() {
    scene(|cpu, volume| {
        let block = BlockNo(5);
        let mut frames = Frames::new();
        assert!(volume.memory.try_allocate(1, &mut frames));
        volume.install(block.run(1), &mut frames.drain(..));
        volume.change_states(block.run(1), |state| state.without(BufferState::DIRTY).with(BufferState::UNFLUSHED));
        volume.state.lock().unflushed.since_mut().insert(block.run(1));
        thread::scope(|scope| {
            let shard = volume.lock_shard(block);
            scope.spawn(|| volume.on_failed_flush(Errno::IO));
            while volume.state.lock().unflushed.since().contains(block) {
                thread::yield_now();
            }
            assert_eq!(volume.failures_so_far(), 0);
            assert!(!volume.is_clean());
            assert_eq!(volume.undurable_blocks(), 1);
            assert!(volume.awaits_flush(block.run(1)));
            let extents = volume.extents(cpu, block.run(1).bytes(), 1).now_or_never().expect("memory does not wait");
            assert!(!extents.expect("found")[0].zero);
            drop(shard);
        });
        assert_eq!(volume.failures_so_far(), 1);
        assert_eq!((volume.dirty_blocks(), volume.undurable_blocks()), (1, 1));
    });
}

#[test]
fn what_is_abandoned_while_the_blocks_before_it_are_looked_up_is_not_read_from_the_device() {
    scene(|cpu, volume| {
        let abandoned = in_another_shard(volume);
        let blocks = BlockNo(0).to(abandoned + 1);
        let mut frames = Frames::new();
        assert!(volume.memory.try_allocate(blocks.len() as usize, &mut frames));
        drop(frames);
        let is_held = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let shard = volume.lock_shard(abandoned);
                is_held.wait();
                while volume.lock_shard(blocks.start).find(volume.key(blocks.start)).is_none() {
                    thread::yield_now();
                }
                let forgotten = Some(vec![abandoned.run(1)]);
                volume.restore_loss(&Loss { errno: Errno::IO, size: volume.size(), forgotten });
                drop(shard);
            });
            is_held.wait();
            let found = volume.look_up(cpu, blocks, Context::synchronous(JobId(1)));
            assert_eq!(found.err(), Some(Errno::IO));
        });
        assert!(volume.lock_shard(abandoned).find(volume.key(abandoned)).is_none(), "the device has older content");
    });
}
