//! Changes of names that are answered before they are durable, in the simulated machine.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use kernel::tree::{FileTree, Vnode};
use kernel::{Processor, Switches};
use machine::Errno;
use machine::tree::{Creation, SetAttributes, TreeCall, TreeReply};
use policy::unit::{Instant, ProcessorId};
use sim::{DiskConfig, Latency, OpClass, TreeConfig, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::files::{CACHE_BYTES, context, file, open, root, served_of, server_of, stable, write};
use testkit::scene::{Host, drive, run, run_on, small_kernel, spawn};

/// What clients were told.
#[derive(Default)]
struct Told {
    /// The names before each change, and after the last.
    states: Vec<BTreeSet<String>>,
    /// When each change was answered. One more may be in flight.
    answered: Vec<Instant>,
    /// Changes that were answered before something else was told to be durable.
    promised: usize,
}

impl Told {
    fn names(&self) -> &BTreeSet<String> {
        self.states.last().expect("the first")
    }
}

fn journaled(seed: u64) -> TreeConfig {
    TreeConfig { journal: true, ..TreeConfig::drawn(seed) }
}

async fn change(cpu: &Processor, tree: &Arc<FileTree>, name: &str, is_new: bool) -> Result<(), Errno> {
    let dir = root(cpu, tree).await;
    let (name, attributes) = (name.into(), SetAttributes { mode: Some(0o644), ..SetAttributes::default() });
    let nodes = if is_new {
        let call = TreeCall::Create { dir, name, how: Creation::Guarded, attributes };
        let Ok(TreeReply::Node(node, _)) = tree.call(cpu, None, call).await else { panic!("it was not created") };
        vec![dir, node]
    } else {
        tree.call(cpu, None, TreeCall::Remove { dir, name }).await.expect("it is there");
        vec![dir]
    };
    tree.make_durable_in_order(cpu, &nodes).await
}

async fn change_names(cpu: &Processor, tree: &Arc<FileTree>, told: &RefCell<Told>, life: u32, random: &mut Random) {
    for number in 0..100 {
        let mut names = told.borrow().names().clone();
        let old = names.iter().nth(random.below(names.len().max(1) as u64) as usize).cloned();
        let removed = old.filter(|_| random.chance(300));
        let name = removed.clone().unwrap_or_else(|| format!("{life}-{number}"));
        if removed.is_some() {
            names.remove(&name);
        } else {
            names.insert(name.clone());
        }
        told.borrow_mut().states.push(names);
        change(cpu, tree, &name, removed.is_none()).await.expect("answered");
        told.borrow_mut().answered.push(cpu.now());
        cpu.sleep(Duration::from_micros(random.below(60_000))).await;
    }
}

async fn write_files(
    cpu: &Processor,
    (tree, file): (&Arc<FileTree>, &Arc<Vnode>),
    told: &RefCell<Told>,
    random: &mut Random,
) {
    for _ in 0..30 {
        cpu.sleep(Duration::from_micros(random.below(400_000))).await;
        let before = told.borrow().answered.len();
        if random.chance(500) {
            write(cpu, tree, file, random.below(50_000), &[1; 5000], stable()).await.expect("durable");
        } else {
            write(cpu, tree, file, random.below(50_000), &[1; 5000], context()).await.expect("cached");
            tree.commit(cpu, file, context()).await.expect("durable");
        }
        let mut told = told.borrow_mut();
        told.promised = told.promised.max(before);
    }
}

fn crash_test(seed: u64) {
    let mut random = Random(seed);
    let world = World::new(seed);
    let id = world.add_host("server");
    let tree_id = world.add_tree(id, journaled(seed));
    let told = Rc::new(RefCell::new(Told { states: vec![BTreeSet::new()], ..Told::default() }));
    for life in 0..4 {
        let host = Host::boot(&world, id, small_kernel(2, CACHE_BYTES, Switches::default()));
        let seen = world.clone();
        let (tree, file) = run(&world, &host, async move |cpu| {
            let tree = open(&seen, &cpu, tree_id, 100);
            let (_, file) = file(&cpu, &tree, "written").await;
            tree.begin_order();
            (tree, file)
        });
        let (names_tree, names_told, mut own) = (tree.clone(), Rc::clone(&told), Random(random.next()));
        let names = spawn(&host.processors[0], async move |cpu| {
            change_names(&cpu, &names_tree, &names_told, life, &mut own).await;
        });
        let (files_tree, files_told, mut own) = (tree.clone(), Rc::clone(&told), Random(random.next()));
        let files = spawn(&host.processors[1], async move |cpu| {
            write_files(&cpu, (&files_tree, &file), &files_told, &mut own).await;
        });
        for cpu in &host.processors {
            world.kick(id, cpu.id());
        }
        let mut steps = 100 + random.below(3000);
        drive(&world, &[&host], || {
            steps -= 1;
            steps == 0 || names.borrow().is_some() && files.borrow().is_some()
        });
        drop(tree);
        let is_power_cut = random.chance(700);
        world.crash(id, is_power_cut);
        let present = world.tree_names(tree_id, "/").expect("the root");
        check(&mut told.borrow_mut(), present, is_power_cut, world.now());
        host.die();
    }
}

/// The names `present` after a crash are those after some change: after a power cut not before the last that had to be
/// durable.
fn check(told: &mut Told, present: Vec<String>, is_power_cut: bool, now: Instant) {
    let present: BTreeSet<_> = present.into_iter().filter(|name| name != "written").collect();
    let a_second_ago = told.answered.iter().filter(|at| now.since(**at) > Duration::from_secs(1)).count();
    let least = if is_power_cut { told.promised.max(a_second_ago) } else { told.answered.len() };
    let found = (least..told.states.len()).find(|at| told.states[*at] == present);
    let found = found.unwrap_or_else(|| panic!("no prefix from {least} of {}: {present:?}", told.states.len() - 1));
    if is_power_cut {
        *told = Told { states: vec![present], ..Told::default() };
    } else {
        // Answered, if not by the server that was killed; still not durable.
        told.states.truncate(found + 1);
        told.answered.resize(found, now);
    }
}

#[test]
fn a_crash_leaves_a_prefix_of_ordered_names_with_all_that_was_promised() {
    for_seeds("a_crash_leaves_a_prefix_of_ordered_names_with_all_that_was_promised", 100, crash_test);
}

#[test]
fn after_a_failed_sync_names_are_answered_when_they_are_durable() {
    served_of(1, journaled(1), 100, async move |cpu, tree, seen, id| {
        change(&cpu, &tree, "a", true).await.expect("answered at once");
        assert_eq!(seen.tree_durable_names(id, "/"), Some(vec![]), "not durable yet");
        seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
        cpu.sleep(Duration::from_millis(800)).await;
        seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
        assert_eq!(change(&cpu, &tree, "b", true).await, Err(Errno::IO), "its own sync");
        assert_eq!(change(&cpu, &tree, "c", true).await, Err(Errno::IO), "the one that nobody waited for");
        assert_eq!(seen.tree_durable_names(id, "/").map(|names| names.len()), Some(3));
        change(&cpu, &tree, "d", true).await.expect("answered at once");
        assert_eq!(seen.tree_durable_names(id, "/").map(|names| names.len()), Some(3));
        tree.close(&cpu).await.expect("durable");
        assert_eq!(seen.tree_durable_names(id, "/").map(|names| names.len()), Some(4));
    });
}

#[test]
fn a_failed_sync_is_repeated_and_told_once() {
    served_of(2, journaled(2), 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "written").await;
        change(&cpu, &tree, "a", true).await.expect("answered at once");
        seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
        cpu.sleep(Duration::from_secs(2)).await;
        assert_eq!(seen.tree_durable_names(id, "/").map(|names| names.len()), Some(2), "the second attempt");
        assert_eq!(tree.commit(&cpu, &file, context()).await, Err(Errno::IO), "what the first covered may be lost");
        assert_eq!(tree.commit(&cpu, &file, context()).await, Ok(()));
    });
}

/// The task that syncs waits on a processor that is late, while another one leads the syncs.
#[test]
fn a_failed_sync_is_told_before_its_own_task_hears_of_it() {
    let sync = Latency::us(10_000, 10_000);
    let (world, host, id) = server_of(7, TreeConfig { journal: true, sync, ..TreeConfig::new() });
    let seen = world.clone();
    let (tree, file) = run(&world, &host, async move |cpu| {
        let tree = open(&seen, &cpu, id, 100);
        let (_, file) = file(&cpu, &tree, "written").await;
        change(&cpu, &tree, "a", true).await.expect("answered at once");
        (tree, file)
    });
    let (seen, server) = (world.clone(), host.id);
    run_on(&world, &host, ProcessorId(1), async move |cpu| {
        cpu.sleep(Duration::from_millis(495)).await;
        let syncs = || seen.tree_counters(id).0.syncs;
        let before = syncs();
        let until_begun = async |count: u64| {
            while syncs() < before + count {
                cpu.sleep(Duration::from_micros(10)).await;
            }
        };
        let commit = async {
            until_begun(1).await;
            change(&cpu, &tree, "b", true).await.expect("answered at once");
            seen.fail_next_in_tree(id, OpClass::Sync, 1, Errno::IO);
            // That for which nobody called.
            until_begun(2).await;
            seen.pause_processor(server, ProcessorId(0), true);
            tree.commit(&cpu, &file, context()).await
        };
        let led = join(tree.make_durable(&cpu, &[]), commit).await;
        assert_eq!(led, (Ok(()), Err(Errno::IO)), "what the second of three syncs covered may be lost");
        assert_eq!(syncs() - before, 3);
        seen.pause_processor(server, ProcessorId(0), false);
        assert_eq!(tree.commit(&cpu, &file, context()).await, Ok(()));
    });
}

/// Files of 5,000 bytes that are not durable, and as many names answered in order.
async fn written_files(cpu: &Processor, tree: &Arc<FileTree>, count: usize) -> Vec<Arc<Vnode>> {
    let mut files = Vec::new();
    for number in 0..count {
        let (_, file) = file(cpu, tree, &format!("file-{number}")).await;
        write(cpu, tree, &file, 0, &[number as u8; 5000], context()).await.expect("cached");
        change(cpu, tree, &format!("name-{number}"), true).await.expect("answered at once");
        files.push(file);
    }
    files
}

#[test]
fn files_that_are_committed_at_the_same_time_share_a_sync_of_the_names_answered_before() {
    served_of(3, journaled(3), 100, async move |cpu, tree, seen, id| {
        let files = written_files(&cpu, &tree, 16).await;
        let before = seen.tree_counters(id).0.syncs;
        let commits = files.iter().map(|file| tree.commit(&cpu, file, context()));
        assert_eq!(join_all(commits).await, vec![Ok(()); 16]);
        let syncs = seen.tree_counters(id).0.syncs - before;
        assert!((1..=3).contains(&syncs), "{syncs} syncs: the first one's, and the others'");
        assert_eq!(seen.tree_durable_names(id, "/").map(|names| names.len()), Some(32));
        for number in 0..16 {
            assert_eq!(seen.tree_durable_content(id, &format!("/file-{number}")), Some(vec![number; 5000]));
        }
    });
}

#[test]
fn files_that_are_committed_again_and_again_share_one_flush_and_the_sync_that_is_made_meanwhile() {
    let [short, long] = [8, 10].map(|ms| Latency::us(1000 * ms, 1000 * ms));
    commit_again_and_again(short, long);
    commit_again_and_again(long, short);
}

/// The first that returns after a commit finds no other, but they are expected.
fn commit_again_and_again(flush: Latency, sync: Latency) {
    /// Until the policy has tried its waits, and those that count.
    const ROUNDS: (u8, u8) = (60, 40);
    let disk = DiskConfig { flush, ..DiskConfig::new(64 << 20) };
    let config = TreeConfig { journal: true, sync, disk, ..TreeConfig::new() };
    served_of(6, config, 100, async move |cpu, tree, seen, id| {
        let files = written_files(&cpu, &tree, 16).await;
        let counts = || {
            let (calls, disk) = seen.tree_counters(id);
            (disk.flushes, calls.syncs, cpu.now())
        };
        let before = Cell::new(counts());
        let rounds = files.iter().enumerate().map(async |(number, file)| {
            for round in 1..=ROUNDS.0 + ROUNDS.1 {
                write(&cpu, &tree, file, 0, &[round; 5000], context()).await.expect("cached");
                change(&cpu, &tree, &format!("name-{number}-{round}"), true).await.expect("answered at once");
                tree.commit(&cpu, file, context()).await.expect("durable");
                assert_eq!(seen.tree_durable_content(id, &format!("/file-{number}")), Some(vec![round; 5000]));
                if (number, round) == (0, ROUNDS.0) {
                    before.set(counts());
                }
            }
        });
        join_all(rounds).await;
        let ((flushes, syncs, end), before) = (counts(), before.get());
        let (flushes, syncs, took) = (flushes - before.0, syncs - before.1, end.since(before.2) / ROUNDS.1.into());
        let most = u64::from(ROUNDS.1) * 5 / 4;
        assert!(
            flushes <= most && syncs <= most,
            "{flushes} flushes, {syncs} syncs: other waits are tried now and then"
        );
        assert!(took < Duration::from_millis(15), "{took:?} a round");
    });
}

/// Commits eight files together when so many of these operations fail, after so many flushes: so many commits fail, and the
/// next ones cover all.
fn commits_with_failures(seed: u64, failing: OpClass, count: u32, after: u64) {
    served_of(seed, journaled(seed), 100, async move |cpu, tree, seen, id| {
        let files = written_files(&cpu, &tree, 8).await;
        let flushes = || seen.tree_counters(id).1.flushes;
        let before = flushes();
        let fail = async {
            while flushes() < before + after {
                cpu.sleep(Duration::from_micros(1)).await;
            }
            seen.fail_next_in_tree(id, failing, count, Errno::IO);
        };
        let commits = files.iter().map(|file| tree.commit(&cpu, file, context()));
        let ((), results) = join(fail, join_all(commits)).await;
        assert_eq!(results.iter().filter(|result| **result == Err(Errno::IO)).count(), count as usize, "{results:?}");
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 8 - count as usize);
        for (number, _) in results.iter().enumerate().filter(|(_, result)| result.is_ok()) {
            let content = seen.tree_durable_content(id, &format!("/file-{number}"));
            assert!(content == Some(vec![number as u8; 5000]), "file {number} was told to be durable");
        }
        let again = files.iter().map(|file| tree.commit(&cpu, file, context()));
        assert_eq!(join_all(again).await, vec![Ok(()); 8]);
        for number in 0..8 {
            assert_eq!(seen.tree_durable_content(id, &format!("/file-{number}")), Some(vec![number; 5000]));
        }
    });
}

#[test]
fn of_files_that_are_committed_at_the_same_time_only_the_one_whose_flush_fails_is_reported() {
    // The first is flushed by itself, the second leads before others have come, and these share a flush.
    for after in 0..3 {
        commits_with_failures(4, OpClass::Flush, 1, after);
    }
}

/// The host tells an error of writing back once, to the descriptor that asked: the flush succeeds.
#[test]
fn of_files_that_are_committed_at_the_same_time_each_that_was_not_written_back_is_reported() {
    for count in [1, 3] {
        commits_with_failures(4, OpClass::WriteBack, count, 0);
    }
}

#[test]
fn a_sync_of_names_that_fails_is_reported_to_all_that_are_committed_with_it() {
    served_of(5, journaled(5), 100, async move |cpu, tree, seen, id| {
        let files = written_files(&cpu, &tree, 8).await;
        seen.fail_next_in_tree(id, OpClass::Sync, 1000, Errno::IO);
        let commits = files.iter().map(|file| tree.commit(&cpu, file, context()));
        assert_eq!(join_all(commits).await, vec![Err(Errno::IO); 8]);
        seen.heal_tree(id);
    });
}
