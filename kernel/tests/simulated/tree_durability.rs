//! What files of a tree retain when syncs fail, and when files are closed, truncated or moved.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use kernel::Frames;
use kernel::tree::Vnode;
use kernel::volume::{GROWING_BYTES_MAX, VOLUME_BYTES_MAX};
use machine::Errno;
use policy::unit::{ByteOffset, ByteRange, ProcessorId};
use sim::{DiskFaults, OpClass, TreeConfig};
use testkit::rounds::for_seeds;
use testkit::scene::files::{
    context, file, frames_of, open, read, root, served, served_of, server_of, set_size, stable, write,
};
use testkit::scene::{ended, run, run_on, spawn};

#[test]
fn a_file_that_a_failed_sync_of_its_attributes_may_have_hurt_is_written_again_though_it_was_opened_meanwhile() {
    for_seeds("a_file_that_a_failed_sync_may_have_hurt_is_written_again", 200, |seed| {
        served(seed, 8, async move |cpu, tree, seen, id| {
            let (node, before) = file(&cpu, &tree, "file").await;
            drop(before);
            // Others, so that it is closed.
            for number in 0..20 {
                file(&cpu, &tree, &format!("other{number}")).await;
            }
            seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
            let sync = {
                let tree = Arc::clone(&tree);
                spawn(&cpu, async move |cpu| tree.make_durable(&cpu, &[node]).await)
            };
            let opened = tree.file(&cpu, node).await.expect("opened");
            let result = write(&cpu, &tree, &opened, 0, &[7; 4096], stable()).await;
            let is_durable = || seen.tree_durable_content(id, "/file").as_deref() == Some(&[7; 4096][..]);
            assert!(result.is_err() || is_durable());
            while sync.borrow().is_none() {
                cpu.sleep(Duration::from_micros(50)).await;
            }
            assert_eq!(*sync.borrow(), Some(Err(Errno::IO)));
            tree.commit(&cpu, &opened, context()).await.expect("written again");
            assert!(is_durable(), "seed {seed}");
        });
    });
}

#[test]
fn of_a_move_to_another_directory_the_new_name_is_durable_before_the_old_one_goes() {
    served(4, 8, async move |cpu, tree, seen, id| {
        let (moved, _) = file(&cpu, &tree, "file").await;
        let (from, to) = (root(&cpu, &tree).await, moved);
        let synced = || seen.tree_counters(id).0.nodes_synced;
        let before = synced();
        seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
        assert_eq!(tree.make_move_durable(&cpu, moved, to, from).await, Err(Errno::IO));
        assert_eq!(synced() - before, 1, "the old directory is not synced before the new one is durable");
        tree.make_move_durable(&cpu, moved, to, from).await.expect("synced");
        assert_eq!(synced() - before, 3);
    });
}

#[test]
fn a_lost_file_stays_lost_when_it_is_closed_and_opened_again() {
    served(4, 4, async move |cpu, tree, seen, id| {
        let (node, lost) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &lost, 0, &[7; 400 * 4096], context()).await.expect("cached");
        let fails = DiskFaults { write_error_permille: 1000, ..Default::default() };
        seen.set_tree_faults(id, fails);
        cpu.sleep(Duration::from_secs(60)).await;
        seen.set_tree_faults(id, Default::default());
        cpu.sleep(Duration::from_secs(60)).await;
        assert!(tree.commit(&cpu, &lost, context()).await.is_err(), "lost");
        let forgotten = |result: Result<Vec<u8>, Errno>| result.is_err();
        let mut before = Vec::new();
        for block in 0..400 {
            before.push(forgotten(read(&cpu, &tree, &lost, block * 4096, 4096).await));
        }
        assert!(before.contains(&true) && before.contains(&false));
        let closed = Arc::downgrade(&lost);
        drop(lost);
        for number in 0..20 {
            file(&cpu, &tree, &format!("other{number}")).await;
        }
        assert!(closed.upgrade().is_none(), "closed for others");
        let again = tree.file(&cpu, node).await.expect("opened");
        assert!(tree.commit(&cpu, &again, context()).await.is_err(), "still lost");
        assert!(write(&cpu, &tree, &again, 0, &[8; 4096], stable()).await.is_err());
        for (block, was_forgotten) in (0..).zip(before) {
            assert_eq!(forgotten(read(&cpu, &tree, &again, block * 4096, 4096).await), was_forgotten, "block {block}");
        }
    });
}

#[test]
fn cutting_a_file_off_costs_what_is_cached_and_not_what_is_addressed() {
    let max = 1 << 58;
    served_of(4, TreeConfig { file_bytes_max: max, ..TreeConfig::new() }, 8, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        assert_eq!(
            write(&cpu, &tree, &file, max, &[7], context()).await,
            Err(Errno::FILE_TOO_LARGE),
            "before it is taken"
        );
        write(&cpu, &tree, &file, max - 1, &[7], context()).await.expect("cached");
        set_size(&cpu, &tree, node, 1).await.expect("cut off");
        tree.commit(&cpu, &file, context()).await.expect("there is nothing to write");
        seen.write_tree(id, "/file", ByteOffset(0), &[9; 100]);
        cpu.sleep(Duration::from_secs(1)).await;
        assert!(read(&cpu, &tree, &file, 0, 200).await == Ok(vec![9; 100]));
    });
}

#[test]
fn a_size_beyond_what_a_volume_can_have_is_refused_and_of_such_a_file_of_the_host_the_beginning_is_read() {
    let config = TreeConfig { file_bytes_max: i64::MAX as u64, ..TreeConfig::new() };
    served_of(4, config, 8, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[7; 100], context()).await.expect("cached");
        for size in [GROWING_BYTES_MAX + 1, VOLUME_BYTES_MAX + 1, i64::MAX as u64] {
            assert_eq!(set_size(&cpu, &tree, node, size).await, Err(Errno::FILE_TOO_LARGE), "{size}");
        }
        assert_eq!(set_size(&cpu, &tree, node, GROWING_BYTES_MAX).await.expect("made longer").size, GROWING_BYTES_MAX);
        seen.write_tree(id, "/file", ByteOffset(2 * VOLUME_BYTES_MAX), &[9]);
        cpu.sleep(Duration::from_secs(1)).await;
        // In order, so that more is read ahead.
        for at in (1..=16).rev().map(|blocks| VOLUME_BYTES_MAX - blocks * 8192) {
            assert!(read(&cpu, &tree, &file, at, 8192).await == Ok(vec![0; 8192]), "at {at}");
        }
        cpu.sleep(Duration::from_secs(1)).await;
        assert_eq!(read(&cpu, &tree, &file, VOLUME_BYTES_MAX, 8192).await, Err(Errno::INVALID));
    });
}

#[test]
fn what_a_write_adds_to_a_dirty_last_block_is_stored_though_that_is_written_while_the_write_waits_for_memory() {
    served(4, 8, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        let content = vec![7; 2 * 4096 + 100];
        let frames = frames_of(&cpu, 0, &content).await;
        write(&cpu, &tree, &file, 0, &[1; 100], context()).await.expect("cached");
        // In use, so that its frame does not become free when another replaces it.
        let sent = tree.read(&cpu, &file, ByteRange::new(0, 100), context()).await.expect("cached");
        let (timers, mut all) = (cpu.timers(), Frames::new());
        assert!(!cpu.kernel().try_allocate(64 << 10, &mut all), "there are no more");
        let mut late = Box::pin(tree.write(&cpu, &file, ByteRange::new(0, content.len() as u64), frames, context()));
        let is_waiting = poll_fn(|cx| Poll::Ready(late.as_mut().poll(cx).is_pending())).await;
        assert!(is_waiting && cpu.timers() > timers, "for the frame of its last block");
        tree.commit(&cpu, &file, context()).await.expect("stored");
        drop((sent, all));
        late.await.expect("cached");
        tree.commit(&cpu, &file, context()).await.expect("stored");
        let stored = seen.tree_durable_content(id, "/file").expect("it exists");
        assert_eq!(stored.iter().position(|&byte| byte != 7), None, "of {} bytes", stored.len());
        assert_eq!(stored.len(), content.len());
    });
}

/// The host tells the error of writing back to one of both.
#[test]
fn a_flush_while_another_processor_has_a_file_written_back_tells_what_came_of_that() {
    let (world, host, id) = server_of(5, TreeConfig { journal: true, ..TreeConfig::new() });
    let (seen, server) = (world.clone(), host.id);
    let (tree, written, other) = run(&world, &host, async move |cpu| {
        let tree = open(&seen, &cpu, id, 8);
        let ((_, written), (_, other)) = (file(&cpu, &tree, "file").await, file(&cpu, &tree, "other").await);
        write(&cpu, &tree, &written, 0, &[7; 4096], context()).await.expect("cached");
        seen.fail_next_in_tree(id, OpClass::WriteBack, 1, Errno::IO);
        (tree, written, other)
    });
    let commits = {
        let (tree, written) = (tree.clone(), written.clone());
        // Two, so that they share a flush.
        spawn(&host.processors[0], async move |cpu| {
            join(tree.commit(&cpu, &other, context()), tree.commit(&cpu, &written, context())).await
        })
    };
    world.kick(server, ProcessorId(0));
    let seen = world.clone();
    run_on(&world, &host, ProcessorId(1), async move |cpu| {
        while seen.tree_content(id, "/file").as_deref() != Some(&[7; 4096]) {
            cpu.sleep(Duration::from_micros(1)).await;
        }
        seen.pause_processor(server, ProcessorId(0), true);
        cpu.sleep(Duration::from_millis(10)).await;
        let writes = {
            let (tree, file) = (tree.clone(), written.clone());
            spawn(&cpu, async move |cpu| {
                let write = |block: u64| write(&cpu, &tree, &file, block * 4096, &[8; 4096], stable());
                // The first is forced, alone; the second wants a flush.
                join(write(4), write(8)).await
            })
        };
        cpu.sleep(Duration::from_millis(100)).await;
        assert_eq!(writes.borrow().map(|(_, flushed)| flushed), None, "while an error may be on its way");
        seen.pause_processor(server, ProcessorId(0), false);
        assert_eq!(ended(&cpu, &writes).await.1, Err(Errno::IO));
        assert_eq!(ended(&cpu, &commits).await.0, Ok(()), "the other file's");
        tree.commit(&cpu, &written, context()).await.expect("written again");
    });
}

#[test]
fn a_stable_write_is_durable_though_the_file_has_a_size_that_is_not() {
    // As ext4 has it: the old end lies in a block that is allocated.
    let cases = [(20_608, 24_576..48_704, 20_480..21_504), (100, 4096..8192, 100..500), (4096, 8192..8292, 8192..8300)];
    for (old, unstable, forced) in cases {
        served(4, 8, async move |cpu, tree, seen, id| {
            let (_, file) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &file, 0, &vec![1; old], stable()).await.expect("stored");
            let bytes = vec![2; (unstable.end - unstable.start) as usize];
            write(&cpu, &tree, &file, unstable.start, &bytes, context()).await.expect("cached");
            while seen.tree_content(id, "/file").expect("it exists").len() < unstable.end as usize {
                cpu.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(seen.tree_durable_content(id, "/file").expect("it exists").len(), old, "not flushed");
            let bytes = vec![3; (forced.end - forced.start) as usize];
            write(&cpu, &tree, &file, forced.start, &bytes, stable()).await.expect("durable");
            let durable = seen.tree_durable_content(id, "/file").expect("it exists");
            assert!(durable.get(forced.start as usize..forced.end as usize) == Some(&bytes), "{} bytes", durable.len());
        });
    }
}

#[test]
fn a_stable_write_is_durable_though_the_host_has_made_the_file_longer_and_told_nobody() {
    for (unaware, forced) in [(4096, 100..500), (8192, 100..5000)] {
        served(4, 8, async move |cpu, tree, seen, id| {
            let (_, file) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &file, 0, &[1; 100], stable()).await.expect("stored");
            seen.write_mapped_tree(id, "/file", ByteOffset(unaware), &[2; 4096]);
            let bytes = vec![3; (forced.end - forced.start) as usize];
            write(&cpu, &tree, &file, forced.start, &bytes, stable()).await.expect("durable");
            let durable = seen.tree_durable_content(id, "/file").expect("it exists");
            assert!(durable.get(forced.start as usize..forced.end as usize) == Some(&bytes), "{} bytes", durable.len());
        });
    }
}

#[test]
fn a_stable_write_over_what_is_durable_is_one_forced_write() {
    served(4, 8, async move |cpu, tree, seen, id| {
        let (node, first) = file(&cpu, &tree, "file").await;
        let forced_and_flushes = async |file: &Arc<Vnode>, at: u64| {
            let before = seen.tree_counters(id).1;
            write(&cpu, &tree, file, at, &[1; 4096], stable()).await.expect("durable");
            let after = seen.tree_counters(id).1;
            (after.stable_writes - before.stable_writes, after.flushes - before.flushes)
        };
        for at in [0, 4096, 0, 4096] {
            assert_eq!(forced_and_flushes(&first, at).await, (1, 0), "at {at}");
        }
        write(&cpu, &tree, &first, 8192, &[2; 8192], context()).await.expect("cached");
        tree.commit(&cpu, &first, context()).await.expect("durable");
        for at in [8192, 12_288, 16_384] {
            assert_eq!(forced_and_flushes(&first, at).await, (1, 0), "at {at}, after a flush");
        }
        drop(first);
        // Others, so that it is closed.
        for number in 0..20 {
            file(&cpu, &tree, &format!("other{number}")).await;
        }
        let again = tree.file(&cpu, node).await.expect("opened");
        assert_eq!(forced_and_flushes(&again, 0).await, (0, 1), "others may have made it longer");
        // Whoever led the flush has gone.
        cpu.sleep(Duration::from_millis(1)).await;
        assert_eq!(forced_and_flushes(&again, 0).await, (1, 0));
    });
}
