//! Attributes that clients set, beside changes by the host and failures: nobody is shown older ones, and none hides a
//! change.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::tree::{FRESH, FileTree};
use machine::Errno;
use machine::tree::{Attributes, Creation, Node, SetAttributes, SetTime, Time, TreeCall, TreeReply};
use policy::unit::ByteOffset;
use sim::{DiskConfig, Latency, OpClass, TreeConfig};
use testkit::rounds::for_seeds;
use testkit::scene::files::{context, file, read, root, served, served_of, set_size, stable, write};
use testkit::scene::{ended, spawn};

const BLOCK: u64 = 4096;

const NONE: SetAttributes =
    SetAttributes { mode: None, uid: None, gid: None, size: None, accessed: None, modified: None, drops_set_id: false };

/// The host reports no changes.
fn silent() -> TreeConfig {
    TreeConfig { watches: false, ..TreeConfig::new() }
}

async fn set(cpu: &Processor, tree: &Arc<FileTree>, node: Node, attributes: SetAttributes) -> Attributes {
    match tree.call(cpu, None, TreeCall::SetAttributes { node, attributes, guard: None }).await {
        Ok(TreeReply::Attributes(after)) => after,
        other => panic!("{attributes:?} was not set: {:?}", other.err()),
    }
}

async fn chmod(cpu: &Processor, tree: &Arc<FileTree>, node: Node, mode: u32) -> Attributes {
    set(cpu, tree, node, SetAttributes { mode: Some(mode), ..NONE }).await
}

async fn attributes(cpu: &Processor, tree: &Arc<FileTree>, node: Node) -> Attributes {
    match tree.call(cpu, None, TreeCall::Attributes { node }).await {
        Ok(TreeReply::Attributes(attributes)) => attributes,
        other => panic!("it has attributes: {:?}", other.err()),
    }
}

#[test]
fn a_size_that_the_host_has_set_before_it_failed_is_seen() {
    served_of(1, silent(), 100, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 3 * BLOCK as usize], stable()).await.expect("durable");
        cpu.sleep(FRESH).await;
        assert_eq!(tree.refresh(&cpu, &file).await.expect("there").size, 3 * BLOCK);
        seen.fail_next_in_tree(id, OpClass::Call, 1, Errno::IO);
        let attributes = SetAttributes { size: Some(100), ..NONE };
        let cut = TreeCall::SetAttributes { node, attributes, guard: None };
        assert!(seen.call_tree(id, None, &cut).is_ok());
        assert_eq!(set_size(&cpu, &tree, node, 100).await, Err(Errno::IO));
        assert_eq!(tree.refresh(&cpu, &file).await.expect("there").size, 100);
        assert_eq!(read(&cpu, &tree, &file, 0, 3 * BLOCK).await.expect("read"), [1; 100]);
        assert_eq!(set_size(&cpu, &tree, node, 1 << 50).await, Err(Errno(libc::EFBIG)));
        let before = seen.tree_counters(id).1.reads;
        assert_eq!(read(&cpu, &tree, &file, 0, 3 * BLOCK).await.expect("read"), [1; 100]);
        assert_eq!(seen.tree_counters(id).1.reads, before, "nothing was dropped for what was refused");
    });
}

#[test]
fn of_two_callers_that_saw_the_same_time_of_change_only_one_sets_attributes() {
    for is_written in [false, true] {
        served(3, 100, async move |cpu, tree, _, _| {
            let (node, file) = file(&cpu, &tree, "file").await;
            if is_written {
                write(&cpu, &tree, &file, 0, &[1; 5000], context()).await.expect("cached");
            }
            let guard = Some(attributes(&cpu, &tree, node).await.changed);
            let guarded = |mode: u32| {
                let (same, attributes) = (Arc::clone(&tree), SetAttributes { mode: Some(mode), ..NONE });
                let call = TreeCall::SetAttributes { node, attributes, guard };
                spawn(&cpu, async move |cpu| same.call(&cpu, None, call).await)
            };
            let (first, second) = (guarded(0o600), guarded(0o640));
            let is_set = |reply| matches!(reply, Ok(TreeReply::Attributes(_)));
            assert!(is_set(ended(&cpu, &first).await), "written: {is_written}");
            let refused = ended(&cpu, &second).await;
            assert!(matches!(refused, Ok(TreeReply::GuardFailed)), "written: {is_written}");
            assert_eq!(attributes(&cpu, &tree, node).await.mode, 0o600);
        });
    }
}

#[test]
fn what_was_written_stays_when_the_host_cannot_be_asked_after_a_file_was_renamed() {
    for error in [Errno(libc::EMFILE), Errno(libc::EBUSY), Errno::IO] {
        served(2, 100, async move |cpu, tree, seen, id| {
            let (node, before) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &before, 0, &[1; 5000], context()).await.expect("cached");
            let (dir, same) = (root(&cpu, &tree).await, Arc::clone(&tree));
            let rename =
                TreeCall::Rename { from_dir: dir, from_name: "file".into(), to_dir: dir, to_name: "new".into() };
            let renaming = spawn(&cpu, async move |cpu| same.call(&cpu, None, rename).await.map(drop));
            cpu.sleep(Duration::from_micros(1)).await;
            seen.fail_next_in_tree(id, OpClass::Call, 1, error);
            assert_eq!(ended(&cpu, &renaming).await, Ok(()));
            let after = tree.file(&cpu, node).await.expect("it has a name");
            assert!(Arc::ptr_eq(&before, &after), "{error:?}");
            tree.commit(&cpu, &after, context()).await.expect("durable");
            assert!(seen.tree_content(id, "/new") == Some(vec![1; 5000]), "{error:?}");
        });
    }
}

#[test]
fn a_file_whose_name_another_has_got_is_not_written() {
    served(2, 100, async move |cpu, tree, _, _| {
        let (_, moved) = file(&cpu, &tree, "moved").await;
        let (replaced, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 5000], context()).await.expect("cached");
        drop((file, moved));
        let dir = root(&cpu, &tree).await;
        let rename = TreeCall::Rename { from_dir: dir, from_name: "moved".into(), to_dir: dir, to_name: "file".into() };
        assert!(tree.call(&cpu, None, rename).await.is_ok());
        assert!(matches!(tree.file(&cpu, replaced).await, Err(Errno::STALE)));
        assert_eq!(cpu.kernel().dirty_blocks(), 0);
    });
}

#[test]
fn a_time_that_a_client_sets_counts_also_if_it_is_that_of_before_its_write() {
    for config in [silent(), TreeConfig::new()] {
        served_of(3, config, 100, async move |cpu, tree, _, _| {
            let (node, file) = file(&cpu, &tree, "file").await;
            let time = file.attributes().modified;
            cpu.sleep(Duration::from_millis(10)).await;
            write(&cpu, &tree, &file, 0, &[1; 5000], context()).await.expect("cached");
            tree.commit(&cpu, &file, context()).await.expect("durable");
            assert!(file.attributes().modified > time);
            let after = set(&cpu, &tree, node, SetAttributes { modified: Some(SetTime::To(time)), ..NONE }).await;
            assert_eq!(after.modified, time);
            assert_eq!(attributes(&cpu, &tree, node).await.modified, time);
            cpu.sleep(FRESH).await;
            assert_eq!(attributes(&cpu, &tree, node).await.modified, time);
        });
    }
}

#[test]
fn the_time_of_a_write_stays_when_other_attributes_are_set() {
    served(3, 100, async move |cpu, tree, _, _| {
        let (node, file) = file(&cpu, &tree, "file").await;
        cpu.sleep(Duration::from_millis(10)).await;
        write(&cpu, &tree, &file, 0, &[1; 5000], context()).await.expect("cached");
        let written = file.attributes().modified;
        assert_eq!(chmod(&cpu, &tree, node, 0o640).await.modified, written);
        cpu.sleep(Duration::from_millis(10)).await;
        tree.commit(&cpu, &file, context()).await.expect("durable");
        assert_eq!(chmod(&cpu, &tree, node, 0o600).await.modified, written);
    });
}

#[test]
fn a_change_of_attributes_hides_no_change_by_the_host() {
    let past = Some(SetTime::To(Time { seconds: 5, nanoseconds: 0 }));
    for attributes in [
        SetAttributes { mode: Some(0o600), ..NONE },
        SetAttributes { size: Some(2 * BLOCK), ..NONE },
        SetAttributes { modified: past, ..NONE },
        SetAttributes { size: Some(2 * BLOCK), modified: Some(SetTime::Now), ..NONE },
    ] {
        served_of(4, silent(), 100, async move |cpu, tree, seen, id| {
            let (node, file) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &file, 0, &[1; 2 * BLOCK as usize], stable()).await.expect("durable");
            cpu.sleep(FRESH).await;
            assert!(read(&cpu, &tree, &file, 0, 2 * BLOCK).await.expect("read") == [1; 2 * BLOCK as usize]);
            cpu.sleep(FRESH).await;
            assert!(tree.refresh(&cpu, &file).await.is_ok());
            seen.write_tree(id, "/file", ByteOffset(0), &[9; 100]);
            set(&cpu, &tree, node, attributes).await;
            cpu.sleep(FRESH).await;
            let found = read(&cpu, &tree, &file, 0, BLOCK).await.expect("read");
            assert!(found[..100] == [9; 100] && found[100..].iter().all(|&byte| byte == 1), "{attributes:?}");
        });
    }
    served_of(4, silent(), 100, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 100], stable()).await.expect("durable");
        cpu.sleep(FRESH).await;
        assert_eq!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read").len(), 100);
        seen.write_tree(id, "/file", ByteOffset(100), &[9; 100]);
        assert_eq!(chmod(&cpu, &tree, node, 0o600).await.size, 200, "also what was appended, and at once");
        let found = read(&cpu, &tree, &file, 0, BLOCK).await.expect("read");
        assert!(found == [[1; 100], [9; 100]].concat());
    });
}

#[test]
fn what_is_cached_stays_when_a_client_sets_attributes_while_it_writes() {
    for config in [silent(), TreeConfig::new()] {
        served_of(5, config, 100, async move |cpu, tree, seen, id| {
            let (node, file) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &file, 0, &[1; 8 * BLOCK as usize], stable()).await.expect("durable");
            for round in 0..8 {
                let context = if round % 2 == 0 { context() } else { stable() };
                write(&cpu, &tree, &file, round * BLOCK, &[2; BLOCK as usize], context).await.expect("written");
                chmod(&cpu, &tree, node, 0o600 + round as u32).await;
                assert_eq!(read(&cpu, &tree, &file, 0, 8 * BLOCK).await.expect("read").len(), 8 * BLOCK as usize);
            }
            assert_eq!(seen.tree_counters(id).1.reads, 0);
        });
    }
}

#[test]
fn a_guard_is_compared_with_what_the_host_has_by_now() {
    served_of(6, silent(), 100, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        let guard = Some(file.attributes().changed);
        cpu.sleep(FRESH).await;
        seen.write_tree(id, "/file", ByteOffset(0), &[9; 100]);
        let attributes = SetAttributes { mode: Some(0o600), ..NONE };
        let reply = tree.call(&cpu, None, TreeCall::SetAttributes { node, attributes, guard }).await;
        assert!(matches!(reply, Ok(TreeReply::GuardFailed)));
    });
}

/// Replies come in another order than the host made the calls.
fn side_by_side(seed: u64) {
    let disk = DiskConfig { late_permille: 500, late: Latency::us(1, 60), ..DiskConfig::new(64 << 20) };
    served_of(seed, TreeConfig { disk, ..TreeConfig::new() }, 100, async move |cpu, tree, _, _| {
        let (node, file) = file(&cpu, &tree, "file").await;
        let dir = root(&cpu, &tree).await;
        for round in 0..10 {
            cpu.sleep(FRESH).await;
            let beside = |call: TreeCall| {
                let tree = Arc::clone(&tree);
                spawn(&cpu, async move |cpu| tree.call(&cpu, None, call).await)
            };
            let listing = beside(TreeCall::ReadDirectory { dir, cookie: 0, entries_max: 100, with_nodes: true });
            let asking = beside(TreeCall::Attributes { node });
            let linking = beside(TreeCall::Link { node, dir, name: format!("{round}").into() });
            let mode = 0o600 + round;
            assert_eq!(chmod(&cpu, &tree, node, mode).await.mode, mode);
            for _ in 0..150 {
                assert_eq!(attributes(&cpu, &tree, node).await.mode, mode, "round {round}");
                assert_eq!(file.attributes().mode, mode, "round {round}");
                cpu.sleep(Duration::from_micros(1)).await;
            }
            assert!(ended(&cpu, &listing).await.is_ok() && ended(&cpu, &asking).await.is_ok());
            let Ok(TreeReply::Attributes(linked)) = ended(&cpu, &linking).await else { panic!("not linked") };
            assert_eq!(linked.links, round + 2);
            assert_eq!(attributes(&cpu, &tree, node).await.links, round + 2);
        }
    });
}

#[test]
fn an_older_reply_of_the_host_takes_back_nothing_that_a_client_was_told() {
    for_seeds("an_older_reply_of_the_host_takes_back_nothing_that_a_client_was_told", 30, side_by_side);
}

/// A file is opened while its attributes are set.
fn opened_beside(seed: u64) {
    let disk = DiskConfig { late_permille: 500, late: Latency::us(1, 60), ..DiskConfig::new(64 << 20) };
    served_of(seed, TreeConfig { disk, ..TreeConfig::new() }, 100, async move |cpu, tree, _, _| {
        for round in 0..10 {
            let dir = root(&cpu, &tree).await;
            let call = TreeCall::Create {
                dir,
                name: format!("{round}").into(),
                how: Creation::Guarded,
                attributes: SetAttributes { mode: Some(0o644), ..NONE },
            };
            let Ok(TreeReply::Node(node, _)) = tree.call(&cpu, None, call).await else { panic!("not made") };
            let same = Arc::clone(&tree);
            let opening = spawn(&cpu, async move |cpu| same.file(&cpu, node).await.map(drop));
            assert_eq!(chmod(&cpu, &tree, node, 0o600).await.mode, 0o600);
            for _ in 0..150 {
                assert_eq!(attributes(&cpu, &tree, node).await.mode, 0o600, "round {round}");
                cpu.sleep(Duration::from_micros(1)).await;
            }
            assert_eq!(ended(&cpu, &opening).await, Ok(()));
        }
    });
}

#[test]
fn what_was_set_while_a_file_was_opened_is_seen() {
    for_seeds("what_was_set_while_a_file_was_opened_is_seen", 30, opened_beside);
}

/// Two clients set attributes of one file.
fn two_changes(seed: u64) {
    let disk = DiskConfig { late_permille: 500, late: Latency::us(1, 60), ..DiskConfig::new(64 << 20) };
    served_of(seed, TreeConfig { disk, ..TreeConfig::new() }, 100, async move |cpu, tree, seen, id| {
        let (node, _file) = file(&cpu, &tree, "file").await;
        for round in 0..20 {
            let changes = [0o600, 0o644].map(|mode| {
                let (tree, past) = (Arc::clone(&tree), Time { seconds: i64::from(mode + round), nanoseconds: 0 });
                let modified = Some(SetTime::To(past));
                spawn(&cpu, async move |cpu| {
                    set(&cpu, &tree, node, SetAttributes { mode: Some(mode), modified, ..NONE }).await
                })
            });
            for change in changes {
                ended(&cpu, &change).await;
            }
            let (found, expected) = (attributes(&cpu, &tree, node).await, seen.tree_attributes(id, "/file"));
            let expected = expected.expect("there");
            assert_eq!((found.mode, found.modified), (expected.mode, expected.modified), "round {round}");
        }
    });
}

#[test]
fn of_two_changes_at_the_same_time_that_is_seen_which_the_host_made_last() {
    for_seeds("of_two_changes_at_the_same_time_that_is_seen_which_the_host_made_last", 30, two_changes);
}
