//! Files that nobody asks to be durable: when they are flushed, and how many of them at a time.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::tree::{FileTree, Vnode};
use machine::Errno;
use sim::{DiskConfig, Latency, OpClass, TreeConfig, TreeId, World};
use testkit::scene::files::{context, file, served_of, write};

const FILES: u8 = 16;

/// Both kinds of trees: with one journal for all, and without.
fn trees() -> [TreeConfig; 2] {
    [true, false].map(|journal| TreeConfig { journal, ..TreeConfig::new() })
}

async fn written(cpu: &Processor, tree: &Arc<FileTree>) -> Vec<Arc<Vnode>> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let (_, file) = file(cpu, tree, &format!("file-{number}")).await;
        write(cpu, tree, &file, 0, &[number + 1; 5000], context()).await.expect("cached");
        files.push(file);
    }
    files
}

fn durable(seen: &World, id: TreeId) -> usize {
    let is_durable = |number: &u8| {
        seen.tree_durable_content(id, &format!("/file-{number}")).as_deref() == Some(&[number + 1; 5000][..])
    };
    (0..FILES).filter(is_durable).count()
}

/// Flushes of files, and syncs of the tree.
fn counts(seen: &World, id: TreeId) -> (u64, u64) {
    let (calls, disk) = seen.tree_counters(id);
    (disk.flushes, calls.syncs)
}

#[test]
fn files_that_nobody_commits_are_flushed_together_after_a_second() {
    for config in trees() {
        let has_journal = config.journal;
        served_of(1, config, 100, async move |cpu, tree, seen, id| {
            let _files = written(&cpu, &tree).await;
            let before = counts(&seen, id);
            cpu.sleep(Duration::from_millis(900)).await;
            assert_eq!((durable(&seen, id), counts(&seen, id)), (0, before), "too early for clients that will ask");
            cpu.sleep(Duration::from_millis(1100)).await;
            assert_eq!(durable(&seen, id), usize::from(FILES));
            let (flushes, syncs) = counts(&seen, id);
            let (flushes, syncs) = (flushes - before.0, syncs - before.1);
            if has_journal {
                assert!(flushes <= 4 && syncs <= 4, "{flushes} flushes, {syncs} syncs");
            } else {
                assert_eq!((flushes, syncs), (u64::from(FILES), 0));
            }
        });
    }
}

#[test]
fn a_file_that_is_written_all_the_time_is_flushed_all_the_time() {
    for config in trees() {
        served_of(2, config, 100, async move |cpu, tree, seen, id| {
            let (_, file) = file(&cpu, &tree, "file").await;
            let before = counts(&seen, id).0;
            for part in 0..40 {
                write(&cpu, &tree, &file, part * 4096, &[1; 4096], context()).await.expect("cached");
                cpu.sleep(Duration::from_millis(250)).await;
            }
            let flushes = counts(&seen, id).0 - before;
            assert!((5..=12).contains(&flushes), "{flushes} flushes in ten seconds");
        });
    }
}

/// And those in which either half of a commit takes longer than the other.
fn trees_with_slow_halves() -> impl Iterator<Item = TreeConfig> {
    let slow = Latency::us(20_000, 20_000);
    let disk = DiskConfig { flush: slow, ..TreeConfig::new().disk };
    let [journaled, single] = trees();
    [TreeConfig { sync: slow, ..journaled.clone() }, TreeConfig { disk, ..journaled.clone() }, journaled, single]
        .into_iter()
}

#[test]
fn a_failed_flush_of_files_that_nobody_commits_changes_the_verifier_and_is_repeated() {
    // The second may be the one that many share.
    let classes = [OpClass::Flush, OpClass::Sync, OpClass::WriteBack];
    for (class, failing) in classes.into_iter().flat_map(|class| [(class, 1), (class, 2)]) {
        for config in trees_with_slow_halves() {
            // Nothing is written back, nor synced, where each file is flushed by itself.
            let is_told = class == OpClass::Flush || config.journal;
            served_of(4, config, 100, async move |cpu, tree, seen, id| {
                let files = written(&cpu, &tree).await;
                let verifier = tree.verifier();
                seen.fail_next_in_tree(id, class, failing, Errno::IO);
                cpu.sleep(Duration::from_millis(1900)).await;
                assert_eq!(tree.verifier() != verifier, is_told, "{class:?}");
                // What a failed sync has lost of a file, its next flush tells, through each descriptor.
                cpu.sleep(Duration::from_secs(12)).await;
                assert_eq!(durable(&seen, id), usize::from(FILES), "{class:?}");
                assert_eq!(tree.commit(&cpu, &files[0], context()).await, Ok(()));
            });
        }
    }
}

#[test]
fn a_tree_that_is_closed_flushes_its_files_together() {
    for config in trees() {
        let has_journal = config.journal;
        served_of(5, config, 100, async move |cpu, tree, seen, id| {
            let files = written(&cpu, &tree).await;
            drop(files);
            let before = counts(&seen, id).0;
            tree.close(&cpu).await.expect("flushed");
            assert_eq!(durable(&seen, id), usize::from(FILES));
            let flushes = counts(&seen, id).0 - before;
            assert!(!has_journal || flushes <= 4, "{flushes} flushes");
        });
    }
}
