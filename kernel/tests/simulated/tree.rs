//! A directory tree's guarantees to the services above it, in the simulated machine.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::tree::{FileTree, Vnode};
use kernel::{Processor, Switches};
use machine::Errno;
use machine::tree::{Node, TreeCall, TreeReply};
use policy::unit::{ByteOffset, ProcessorId};
use sim::{OpClass, TreeConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::content::Content;
use testkit::scene::files::{CACHE_BYTES, context, file, open, read, root, served, server, set_size, stable, write};
use testkit::scene::{Host, drive, ended, run, small_kernel, spawn};

#[test]
fn a_file_grows_as_it_is_written_and_says_so_before_the_host_knows() {
    served(1, 100, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        let before = file.attributes();
        cpu.sleep(Duration::from_millis(1)).await;
        write(&cpu, &tree, &file, 5, b"hello", context()).await.expect("cached");
        write(&cpu, &tree, &file, 10_000, b"far", context()).await.expect("cached");
        let Ok(TreeReply::Attributes(after)) = tree.call(&cpu, None, TreeCall::Attributes { node }).await else {
            panic!("it has attributes");
        };
        assert_eq!(after.size, 10_003);
        assert!(after.modified > before.modified && after.changed > before.changed);
        let mut expected = vec![0; 10_003];
        expected[5..10].copy_from_slice(b"hello");
        expected[10_000..].copy_from_slice(b"far");
        assert!(read(&cpu, &tree, &file, 0, 1 << 20).await.expect("read") == expected);
        assert_eq!(read(&cpu, &tree, &file, 20_000, 10).await.expect("read"), b"");
        tree.commit(&cpu, &file, context()).await.expect("durable");
        assert!(seen.tree_durable_content(id, "/file").as_deref() == Some(&expected[..]));
        assert_eq!(tree.refresh(&cpu, &file).await.expect("there").modified, after.modified, "as the writer was told");
    });
}

#[test]
fn what_was_cut_off_reads_as_zeroes_when_the_file_grows_again() {
    served(2, 100, async move |cpu, tree, seen, id| {
        let (node, file) = file(&cpu, &tree, "file").await;
        for is_written in [false, true] {
            write(&cpu, &tree, &file, 0, &[7; 20_000], context()).await.expect("cached");
            if is_written {
                tree.commit(&cpu, &file, context()).await.expect("durable");
            }
            assert_eq!(set_size(&cpu, &tree, node, 5000).await.expect("cut").size, 5000);
            assert_eq!(read(&cpu, &tree, &file, 4000, 9000).await.expect("read"), [7; 1000]);
            assert_eq!(set_size(&cpu, &tree, node, 9000).await.expect("longer").size, 9000);
            write(&cpu, &tree, &file, 9000, &[9; 10], context()).await.expect("cached");
            let mut expected = vec![7; 5000];
            expected.resize(9000, 0);
            expected.resize(9010, 9);
            assert!(read(&cpu, &tree, &file, 0, 20_000).await.expect("read") == expected);
            tree.commit(&cpu, &file, context()).await.expect("durable");
            assert!(seen.tree_durable_content(id, "/file") == Some(expected));
        }
    });
}

#[test]
fn a_change_beside_us_is_seen_within_a_second_and_whole() {
    served(3, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 64 << 10], stable()).await.expect("durable");
        tree.close(&cpu).await.expect("flushed");
        let tree = open(&seen, &cpu, id, 100);
        let (_, file) = self::file(&cpu, &tree, "file").await;
        // Half of it in the cache.
        assert!(read(&cpu, &tree, &file, 0, 32 << 10).await.expect("read") == [1; 32 << 10]);
        seen.write_tree(id, "/file", ByteOffset(0), &[2; 80 << 10]);
        let all = read(&cpu, &tree, &file, 0, 1 << 20).await.expect("read");
        assert!(all.iter().all(|byte| *byte == all[0]), "old and new are not mixed");
        cpu.sleep(Duration::from_secs(1)).await;
        assert!(read(&cpu, &tree, &file, 0, 1 << 20).await.expect("read") == [2; 80 << 10]);
        assert_eq!(file.attributes().size, 80 << 10);
    });
}

#[test]
fn a_failed_flush_fails_who_waited_for_it_and_changes_the_verifier() {
    served(4, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        let before = tree.verifier();
        write(&cpu, &tree, &file, 0, &[1; 8192], context()).await.expect("cached");
        seen.fail_next_in_tree(id, OpClass::Flush, 1, Errno::IO);
        assert_eq!(tree.commit(&cpu, &file, context()).await, Err(Errno::IO));
        assert_ne!(tree.verifier(), before);
        tree.commit(&cpu, &file, context()).await.expect("the next one writes again");
        assert!(seen.tree_durable_content(id, "/file").as_deref() == Some(&[1; 8192][..]));
    });
}

#[test]
fn stable_writes_that_make_a_file_longer_are_durable_without_a_flush() {
    const WRITERS: u64 = 5;
    const BYTES: u64 = 8192;
    served(6, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        seen.fail_next_in_tree(id, OpClass::Flush, 1, Errno::IO);
        // The first goes alone; the others meet meanwhile.
        let written = (0..WRITERS).map(|number| {
            let (tree, file) = (Arc::clone(&tree), Arc::clone(&file));
            spawn(&cpu, async move |cpu| {
                write(&cpu, &tree, &file, number * BYTES, &[number as u8; BYTES as usize], stable()).await
            })
        });
        let written: Vec<_> = written.collect();
        cpu.sleep(Duration::from_millis(100)).await;
        for result in written {
            assert_eq!(result.borrow_mut().take(), Some(Ok(())));
        }
        let expected: Vec<u8> = (0..WRITERS).flat_map(|number| [number as u8; BYTES as usize]).collect();
        assert!(seen.tree_durable_content(id, "/file") == Some(expected));
        assert_eq!(tree.commit(&cpu, &file, context()).await, Err(Errno::IO), "this is the first flush");
    });
}

#[test]
fn a_file_is_open_once_however_many_open_it_and_closed_when_there_are_too_many() {
    served(5, 8, async move |cpu, tree, _, _| {
        let (node, first) = file(&cpu, &tree, "file").await;
        drop(first);
        let opened = [spawn_open(&cpu, &tree, node), spawn_open(&cpu, &tree, node)];
        cpu.sleep(Duration::from_millis(100)).await;
        let opened: Vec<_> = opened.iter().map(|slot| slot.borrow_mut().take().expect("opened")).collect();
        assert!(Arc::ptr_eq(&opened[0], &opened[1]));
        let open_before = Arc::downgrade(&opened[0]);
        drop(opened);
        for number in 0..50 {
            let (_, file) = file(&cpu, &tree, &format!("file{number}")).await;
            write(&cpu, &tree, &file, 0, &[number; 5000], stable()).await.expect("durable");
        }
        assert!(open_before.upgrade().is_none(), "closed for others");
        for number in 0..50 {
            let (_, file) = file(&cpu, &tree, &format!("file{number}")).await;
            assert!(read(&cpu, &tree, &file, 0, 10_000).await.expect("read") == [number; 5000]);
        }
    });
}

#[test]
fn all_who_open_what_cannot_be_opened_learn_that() {
    served(7, 100, async move |cpu, tree, _, _| {
        let dir = root(&cpu, &tree).await;
        let refusals: Vec<_> = (0..40)
            .map(|_| {
                let tree = Arc::clone(&tree);
                spawn(&cpu, async move |cpu| tree.file(&cpu, dir).await.err())
            })
            .collect();
        cpu.sleep(Duration::from_secs(10)).await;
        for refusal in refusals {
            assert_eq!(*refusal.borrow(), Some(Some(Errno(libc::EISDIR))));
        }
    });
}

fn spawn_open(cpu: &Processor, tree: &Arc<FileTree>, node: Node) -> Rc<RefCell<Option<Arc<Vnode>>>> {
    let tree = Arc::clone(tree);
    spawn(cpu, async move |cpu| tree.file(&cpu, node).await.expect("opens"))
}

#[test]
fn a_file_without_a_name_is_stale_and_its_content_is_not_written() {
    served(6, 100, async move |cpu, tree, _, _| {
        let (node, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 4096], context()).await.expect("cached");
        drop(file);
        let dir = root(&cpu, &tree).await;
        let removed = tree.call(&cpu, None, TreeCall::Remove { dir, name: "file".into() }).await;
        assert!(matches!(removed, Ok(TreeReply::Node(gone, _)) if gone == node));
        assert!(matches!(tree.file(&cpu, node).await, Err(Errno::STALE)));
        assert_eq!(cpu.kernel().dirty_blocks(), 0);
    });
}

async fn operate(
    cpu: &Processor,
    tree: &Arc<FileTree>,
    file: &(Node, Arc<Vnode>),
    model: &RefCell<Content>,
    random: &mut Random,
) {
    let at = random.below(100_000);
    let longest = if random.chance(300) { 30_000 } else { 3000 };
    let len = 1 + random.below(longest);
    match random.below(10) {
        0..6 => {
            let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8 | 1).collect();
            let is_stable = random.chance(400);
            model.borrow_mut().begin_write(at, &bytes);
            let result = write(cpu, tree, &file.1, at, &bytes, if is_stable { stable() } else { context() }).await;
            assert_eq!(result, Ok(()));
            model.borrow_mut().acknowledge(is_stable, tree.verifier().to_ne_bytes());
        }
        6 => {
            model.borrow_mut().begin_resize(at);
            set_size(cpu, tree, file.0, at).await.expect("cut");
            tree.make_durable(cpu, &[file.0]).await.expect("synced");
            model.borrow_mut().resized(at);
        }
        7 => {
            tree.commit(cpu, &file.1, context()).await.expect("durable");
            model.borrow_mut().committed(tree.verifier().to_ne_bytes());
        }
        _ => {
            let found = read(cpu, tree, &file.1, at, len).await.expect("read");
            assert!(found == model.borrow().expected(at, len), "{at}, {len}");
        }
    }
}

fn crash_test(seed: u64, journal: bool) {
    let mut random = Random(seed);
    let world = World::new(seed);
    let id = world.add_host("server");
    let tree_id = world.add_tree(id, TreeConfig { journal, ..TreeConfig::drawn(seed) });
    let models: Vec<_> = (0..3).map(|_| Rc::new(RefCell::new(Content::default()))).collect();
    for life in 0..4 {
        let host = Host::boot(&world, id, small_kernel(2, CACHE_BYTES, Switches::default()));
        let seen = world.clone();
        let for_check = models.clone();
        let (tree, files) = run(&world, &host, async move |cpu| {
            let tree = open(&seen, &cpu, tree_id, 100);
            let mut files = Vec::new();
            for (number, model) in for_check.iter().enumerate() {
                let file = file(&cpu, &tree, &number.to_string()).await;
                let found = read(&cpu, &tree, &file.1, 0, 1 << 20).await.expect("read");
                assert_eq!(model.borrow().check(&found), Ok(()), "file {number}");
                // The present content counts.
                tree.commit(&cpu, &file.1, context()).await.expect("durable");
                *model.borrow_mut() = Content::durable(found);
                files.push(file);
            }
            (tree, files)
        });
        if life == 3 {
            host.die();
            return;
        }
        let tasks: Vec<_> = (models.iter().zip(files).enumerate())
            .map(|(number, (model, file))| {
                let (tree, model, mut own) = (Arc::clone(&tree), Rc::clone(model), Random(random.next()));
                spawn(&host.processors[number % 2], async move |cpu| {
                    for _ in 0..40 {
                        operate(&cpu, &tree, &file, &model, &mut own).await;
                    }
                })
            })
            .collect();
        for cpu in &host.processors {
            world.kick(id, cpu.id());
        }
        let mut steps = 100 + random.below(1500);
        drive(&world, &[&host], || {
            steps -= 1;
            steps == 0 || tasks.iter().all(|task| task.borrow().is_some())
        });
        drop(tree);
        world.crash(id, random.chance(700));
        host.die();
    }
}

#[test]
fn what_files_were_told_is_stable_survives_every_crash() {
    for_seeds("what_files_were_told_is_stable_survives_every_crash", 100, |seed| crash_test(seed, false));
}

#[test]
fn so_it_does_where_files_share_commits_of_one_journal() {
    for_seeds("so_it_does_where_files_share_commits_of_one_journal", 200, |seed| crash_test(seed, true));
}

#[test]
fn what_is_read_while_it_is_cut_off_is_gone_when_the_file_grows_again() {
    const BLOCKS: u64 = 256;
    for_seeds("what_is_read_while_it_is_cut_off_is_gone_when_the_file_grows_again", 100, |seed| {
        served(seed, 100, async move |cpu, tree, seen, id| {
            let (node, file) = file(&cpu, &tree, "file").await;
            let mut random = Random(seed);
            for _ in 0..10 {
                // By the host, so that nothing of it is cached yet.
                seen.write_tree(id, "/file", ByteOffset(0), &[7; BLOCKS as usize * 4096]);
                cpu.sleep(Duration::from_secs(1)).await;
                tree.refresh(&cpu, &file).await.expect("there");
                // Ahead of all that was read before, but not in order.
                let mut steps = random.clone();
                let reader = {
                    let (tree, file) = (Arc::clone(&tree), Arc::clone(&file));
                    spawn(&cpu, async move |cpu| {
                        let mut block = 0;
                        while block < BLOCKS {
                            let _ = read(&cpu, &tree, &file, block * 4096, 4096).await;
                            block += 2 + steps.below(6);
                        }
                    })
                };
                cpu.sleep(Duration::from_micros(random.below(5000))).await;
                set_size(&cpu, &tree, node, 0).await.expect("cut off");
                set_size(&cpu, &tree, node, BLOCKS * 4096).await.expect("longer");
                ended(&cpu, &reader).await;
                for block in 0..BLOCKS {
                    let content = read(&cpu, &tree, &file, block * 4096, 4096).await.expect("read");
                    assert!(content == [0; 4096], "seed {seed}: block {block}");
                }
                set_size(&cpu, &tree, node, 0).await.expect("cut off");
            }
        });
    });
}

/// Of what ended before it was among those who are told of changes it is not told.
#[test]
fn a_file_that_is_being_opened_in_another_tree_is_not_older_than_what_was_written_meanwhile() {
    let (world, host, id) = server(6);
    let (seen, server, other) = (world.clone(), host.id, host.processors[1].clone());
    run(&world, &host, async move |cpu| {
        let [one, two] = [(); 2].map(|()| open(&seen, &cpu, id, 8));
        let (node, file) = file(&cpu, &one, "file").await;
        write(&cpu, &one, &file, 0, &[7; 100], stable()).await.expect("durable");
        let calls = || seen.tree_counters(id).0.calls;
        let before = calls();
        let opened = {
            let two = Arc::clone(&two);
            spawn(&other, async move |cpu| two.file(&cpu, node).await.map(|file| (two.clone(), file)))
        };
        seen.kick(server, other.id());
        while calls() == before {
            cpu.sleep(Duration::from_micros(1)).await;
        }
        seen.pause_processor(server, ProcessorId(1), true);
        cpu.sleep(Duration::from_millis(1)).await;
        write(&cpu, &one, &file, 100, &[8; 9000], stable()).await.expect("durable");
        seen.pause_processor(server, ProcessorId(1), false);
        let (two, alias) = ended(&cpu, &opened).await.expect("opened");
        assert_eq!(two.refresh(&cpu, &alias).await.map(|attributes| attributes.size), Ok(9100));
    });
}
