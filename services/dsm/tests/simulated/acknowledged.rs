//! A flush is acknowledged only when all that was written before, at any node, is stored and durable, and fails when that
//! does not go on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::{Processor, Volume};
use machine::Errno;
use policy::coherence::ShardNo;
use sim::Latency;
use testkit::scene::context;
use testkit::scene::disk::first_byte;

use crate::clients::Clients;
use crate::programs::{Program, State, listen};
use crate::scene::{Backing, Scene, Setup};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Of a disk's flush: longer than anybody waits.
const HANGS: Latency = Latency::us(100_000_000, 100_000_000);

/// Of the first shard.
const BLOCK: u64 = 3;

pub type Flushed = Rc<RefCell<Option<Result<(), Errno>>>>;

/// Nodes that have the first one as the home of all.
pub fn moving(seed: u64, nodes: usize) -> (Scene, Clients) {
    let mut scene = Scene::new(Setup { moves: true, timeout: TIMEOUT, ..Setup::new(seed, nodes) });
    scene.change_map(|_| 0);
    scene.see_all();
    scene.until_connected();
    let clients = Clients::new(&scene);
    (scene, clients)
}

fn fixed(setup: Setup) -> (Scene, Clients) {
    let mut scene = Scene::new(Setup { backing: Backing::Path, homes: 1, timeout: TIMEOUT, ..setup });
    scene.until_connected();
    let clients = Clients::new(&scene);
    (scene, clients)
}

/// Returns the value.
pub fn write(scene: &mut Scene, clients: &Clients, node: usize, number: u64) -> u64 {
    let own = clients.clone();
    let written =
        scene.run(node, async move |cpu, volume| own.write(&cpu, &volume, node, number, (false, false)).await);
    written.expect("written")
}

pub fn begin_flush(scene: &Scene, node: usize) -> Flushed {
    scene.start(node, async |cpu: Processor, volume: Arc<Volume>| volume.flush(&cpu, context()).await)
}

/// Returns how long it takes from now on, too.
pub fn end_flush(scene: &mut Scene, flushed: &Flushed) -> (Result<(), Errno>, Duration) {
    let begin = scene.world.now();
    assert!(scene.run_until(None, |_| flushed.borrow().is_some()));
    (flushed.take().expect("just looked"), scene.world.now().since(begin))
}

/// The power of the device fails, after all nodes have ended. Returns what it has.
pub fn found(scene: &mut Scene, clients: &Clients, numbers: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    for node in 0..scene.nodes.len() {
        scene.kill_member(node);
        scene.deregister(node);
    }
    scene.boot(0);
    scene.pass(Duration::from_millis(1));
    let medium = Arc::clone(scene.medium());
    scene.run(0, async move |cpu, _| medium.lose_unflushed(&cpu).await);
    scene.change_map(|_| 0);
    scene.see_all();
    let read = |number| {
        let own = clients.clone();
        let read = scene.run(0, async move |cpu, volume| own.read(&cpu, &volume, 0, number).await);
        (number, read.expect("read"))
    };
    numbers.map(read).collect()
}

#[test]
fn what_a_home_that_moves_cannot_store_at_first_is_found_after_a_flush_even_if_all_that_had_it_die() {
    for seed in testkit::rounds::seeds(20) {
        let (mut scene, clients) = moving(seed, 3);
        let value = write(&mut scene, &clients, 1, BLOCK);
        scene.fail_writes(1);
        // At the home, or at a node that has nothing to do with it.
        let flushed = begin_flush(&scene, if seed % 4 < 2 { 0 } else { 2 });
        assert_eq!(end_flush(&mut scene, &flushed).0, Ok(()), "seed {seed}");
        for node in [0, 1] {
            scene.kill_member(node);
            scene.deregister(node);
        }
        scene.change_map(|_| 0);
        scene.see_all();
        let read = scene.run(2, async move |cpu, volume| clients.read(&cpu, &volume, 2, BLOCK).await);
        assert_eq!(read, Ok(value), "seed {seed}");
    }
}

#[test]
fn a_flush_does_not_succeed_because_a_home_had_released_a_shard_for_a_moment() {
    // The device takes 5 ms, so that the home may be settled again when it has flushed. When it looks is not known.
    for ms in (0..110).step_by(2) {
        let (mut scene, clients) = moving(2, 3);
        write(&mut scene, &clients, 1, BLOCK);
        scene.cut(0, 1);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(200));
        let home = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let own = Arc::clone(&home);
        scene.start(0, async move |cpu, _| own.release(&cpu, ShardNo(0)).await);
        scene.pass(Duration::from_millis(ms));
        let named = home.home_of(ShardNo(0)).expect("it is named");
        scene.start(0, async move |cpu, _| home.on_homes(&cpu, &[(ShardNo(0), named)]));
        let (flushed, _) = end_flush(&mut scene, &flushed);
        assert!(flushed.is_err(), "{ms} ms: node 1 has written, and the home cannot reach it");
    }
}

#[test]
fn a_flush_at_a_home_that_moves_ends_after_a_timeout_although_other_things_are_stored_all_the_time() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = moving(seed, 4);
        write(&mut scene, &clients, 1, BLOCK);
        scene.cut(0, 1);
        for node in [2, 3] {
            let own = clients.clone();
            scene.start(node, async move |cpu: Processor, volume: Arc<Volume>| {
                while !own.stopping.get() {
                    let _ = own.write(&cpu, &volume, node, BLOCK + 1, (true, false)).await;
                    cpu.sleep(Duration::from_millis(50)).await;
                }
            });
        }
        let stores = |scene: &Scene| scene.shared().next().expect("it runs").counters().stores.get();
        let before = stores(&scene);
        let flushed = begin_flush(&scene, 2);
        scene.run_until(Some(scene.world.now() + 10 * TIMEOUT), |_| flushed.borrow().is_some());
        let flushed = flushed.take();
        clients.stopping.set(true);
        assert!(stores(&scene) > before + 10, "seed {seed}: no test");
        assert!(flushed.is_some_and(|flushed| flushed.is_err()), "seed {seed}: {flushed:?}");
    }
}

#[test]
fn the_answer_to_a_flush_of_an_earlier_process_is_not_taken_for_that_to_a_later_one() {
    for seed in testkit::rounds::seeds(10) {
        let (mut scene, clients) = fixed(Setup::new(seed, 4));
        write(&mut scene, &clients, 1, BLOCK);
        scene.cut(0, 1);
        // Node 2 asks for it as the first of its process.
        let _earlier = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(300));
        write(&mut scene, &clients, 3, BLOCK + 1);
        scene.cut(0, 3);
        scene.kill(2);
        scene.boot(2);
        let is_connected = |scene: &Scene| scene.shared().nth(2).is_some_and(|shared| shared.connected() == 3);
        assert!(scene.run_until(None, is_connected));
        let later = begin_flush(&scene, 2);
        scene.pass(Duration::from_millis(50));
        // The home hears of node 1, and answers the earlier one.
        scene.heal();
        scene.cut(0, 3);
        let (flushed, _) = end_flush(&mut scene, &later);
        assert!(flushed.is_err(), "seed {seed}: node 3 has written, and the home cannot reach it");
    }
}

#[test]
fn a_flush_fails_when_the_disk_of_a_home_does_not_end_one() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = fixed(Setup { flush: Some(HANGS), ..Setup::new(seed, 3) });
        write(&mut scene, &clients, 1, BLOCK);
        let flushed = begin_flush(&scene, 2);
        let (flushed, took) = end_flush(&mut scene, &flushed);
        assert!(flushed.is_err(), "seed {seed}");
        assert!(took >= TIMEOUT && took < 3 * TIMEOUT, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_flush_that_has_failed_does_not_wait_for_the_disk_as_well() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, clients) = fixed(Setup { flush: Some(HANGS), ..Setup::new(seed, 2) });
        write(&mut scene, &clients, 1, BLOCK);
        scene.cut(0, 1);
        let flushed = begin_flush(&scene, 0);
        let (flushed, took) = end_flush(&mut scene, &flushed);
        assert!(flushed.is_err(), "seed {seed}: node 1 has written, and the home cannot reach it");
        assert!(took >= TIMEOUT && took < 2 * TIMEOUT, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_failed_flush_of_a_fixed_home_is_no_success_when_its_answer_is_lost_and_it_is_asked_for_again() {
    for seed in testkit::rounds::seeds(150) {
        let flush = Some(Latency::us(100, 2000));
        let (mut scene, clients) = fixed(Setup { flush, ..Setup::new(seed, 3) });
        write(&mut scene, &clients, 1, BLOCK);
        scene.fail_disk_flush(0);
        let flushed = begin_flush(&scene, 2);
        scene.pass(Duration::from_micros(seed * 100));
        scene.cut(0, 2);
        scene.heal();
        assert!(end_flush(&mut scene, &flushed).0.is_err(), "seed {seed}");
        let flushed = begin_flush(&scene, 2);
        assert_eq!(end_flush(&mut scene, &flushed).0, Ok(()), "seed {seed}: it is told twice");
    }
}

/// Node 1 retains what it had given to the home that died, and gives it to the next one, which stores it slowly.
#[test]
fn a_flush_after_homes_have_moved_covers_what_nodes_give_to_the_new_home() {
    // The device takes 5 ms.
    for ms in 0..40 {
        let (mut scene, clients) = moving(2, 4);
        let values = [0, 1, 2, 3].map(|number| write(&mut scene, &clients, 1, number));
        let reads = [0, 1, 2].map(|number| {
            let own = clients.clone();
            scene.start(2, async move |cpu, volume| own.read(&cpu, &volume, 2, number).await)
        });
        scene.pass(Duration::from_micros(ms * 500));
        scene.kill_member(0);
        scene.deregister(0);
        scene.change_map(|bound| bound - 1);
        for node in [3, 2, 1] {
            while scene.see(node) {}
            scene.pass(Duration::from_millis(ms % 7));
        }
        let flushed = begin_flush(&scene, 2);
        assert_eq!(end_flush(&mut scene, &flushed).0, Ok(()), "{ms} ms");
        drop(reads);
        let found = found(&mut scene, &clients, 0..4);
        assert!(found.into_values().eq(values), "{ms} ms");
    }
}

/// The device takes 5 ms, and each message of the home 10 ms: node 1 has flushed before the home hears that it is to.
#[test]
fn a_stable_write_is_durable_although_the_home_that_has_stored_it_dies_before_it_has_flushed() {
    let mut late = 0;
    for ms in (0..80).step_by(2) {
        let (mut scene, clients) = moving(2, 3);
        scene.slow_down(0, Duration::from_millis(10));
        let own = clients.clone();
        let written = scene.start(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, true)).await);
        scene.pass(Duration::from_millis(ms));
        late += u64::from(
            written.borrow().is_none() && scene.shared().next().expect("it runs").counters().stores.get() > 0,
        );
        scene.kill_member(0);
        scene.deregister(0);
        scene.change_map(|bound| bound - 1);
        scene.see_all();
        assert!(scene.run_until(None, |_| written.borrow().is_some()));
        let value = written.take().expect("just looked").expect("written");
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "{ms} ms");
    }
    assert!(late > 5, "the home hardly ever died between: {late}");
}

/// The program takes it over before it is written back, and changes nothing.
#[test]
fn a_stable_write_is_durable_although_a_program_of_its_node_takes_over_the_block_before_it_is_stored() {
    let mut taken = 0;
    for us in (0..400).step_by(4) {
        let (mut scene, clients) = moving(us, 3);
        listen(&scene, 1);
        let program = Program::start(&scene, 1);
        // It has the page to read.
        assert_eq!(program.load(&mut scene, BLOCK), Some(0));
        let own = clients.clone();
        let written = scene.start(1, async move |cpu, volume| own.write(&cpu, &volume, 1, BLOCK, (false, true)).await);
        scene.pass(Duration::from_micros(us));
        program.fault(&scene, BLOCK, true);
        assert!(scene.run_until(None, |_| program.memory.state(BLOCK) == Some(State::Writable)));
        taken += u64::from(written.borrow().is_none());
        assert!(scene.run_until(None, |_| written.borrow().is_some()));
        let value = written.take().expect("just looked").expect("written");
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], value, "{us} us");
    }
    assert!(taken > 5, "hardly ever was it taken over: {taken}");
}

#[test]
fn who_waits_for_a_flush_with_which_the_device_hangs_does_so_until_the_incarnation_ends() {
    for seed in testkit::rounds::seeds(6) {
        let (mut scene, _clients) = moving(seed, 2);
        scene.medium().hang(0);
        let _hangs = begin_flush(&scene, 0);
        scene.pass(Duration::from_millis(20));
        let home = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let released = scene.start(0, async move |cpu, _| home.release(&cpu, ShardNo(0)).await);
        scene.pass(TIMEOUT);
        assert!(released.borrow().is_none(), "seed {seed}: nothing hangs");
        scene.register(0);
        scene.pass(TIMEOUT);
        assert!(released.borrow().is_some(), "seed {seed}");
    }
}

/// A program's memory that the host cannot read for a while.
fn lapse(program: &Program, has_lapsed: bool) {
    program.memory.has_lapsed.store(has_lapsed, Ordering::Relaxed);
}

/// A program of node 1 has written, and cannot be read while `until_lost` runs.
fn lose(seed: u64, moves: bool, until_lost: impl FnOnce(&mut Scene)) -> Scene {
    let setup = Setup::new(seed, 3);
    let (mut scene, _) = if moves { moving(seed, 3) } else { fixed(setup) };
    listen(&scene, 1);
    let program = Program::start(&scene, 1);
    assert!(program.store(&mut scene, BLOCK, 7));
    lapse(&program, true);
    until_lost(&mut scene);
    lapse(&program, false);
    scene
}

fn flush(scene: &mut Scene, node: usize) -> Result<(), Errno> {
    let flushed = begin_flush(scene, node);
    end_flush(scene, &flushed).0
}

#[test]
fn a_flush_fails_once_if_what_a_program_of_its_node_has_written_cannot_be_read() {
    for (seed, moves) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        // By the flush itself, by a client of the node, or by another node.
        for by in 0..3 {
            let mut scene = lose(seed, moves, |scene| match by {
                0 => assert_eq!(flush(scene, 1), Err(Errno::IO), "seed {seed}, {moves}"),
                _ => {
                    let read = async |cpu, volume: Arc<Volume>| first_byte(&cpu, &volume, BLOCK).await;
                    assert_eq!(scene.run(by, read), Err(Errno::IO), "seed {seed}, {moves}: nobody has it");
                }
            });
            let expected = if by == 0 { Ok(()) } else { Err(Errno::IO) };
            assert_eq!(flush(&mut scene, 1), expected, "seed {seed}, {moves}: by {by}");
            assert_eq!(flush(&mut scene, 1), Ok(()), "seed {seed}, {moves}: by {by}");
        }
    }
}

#[test]
fn a_flush_fails_once_if_what_a_program_of_another_node_has_written_cannot_be_read() {
    for (seed, moves) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        // The home is node 0.
        for node in [0, 2] {
            let mut scene = lose(seed, moves, |scene| {
                assert_eq!(flush(scene, node), Err(Errno::IO), "seed {seed}, {moves}: {node}");
            });
            // The device has not failed.
            assert_eq!(flush(&mut scene, 2 - node), Ok(()), "seed {seed}, {moves}: {node}");
            let own = Clients::new(&scene);
            let stable = async move |cpu, volume: Arc<Volume>| {
                own.write(&cpu, &volume, 2 - node, BLOCK + 1, (false, true)).await.map(drop)
            };
            assert_eq!(scene.run(2 - node, stable), Ok(()), "seed {seed}, {moves}: {node}");
            assert_eq!(flush(&mut scene, node), Ok(()), "seed {seed}, {moves}: {node}");
        }
    }
}

/// Between, node 2 has asked for the flush, which waits for node 1, and does not get the answer.
#[test]
fn a_flush_for_which_something_was_lost_is_no_success_when_its_answer_is_lost_and_it_is_asked_for_again() {
    for (us, moves) in (0..40).flat_map(|us| [(us * 100, false), (us * 100, true)]) {
        let flushed = Flushed::default();
        let begun = Rc::clone(&flushed);
        let mut scene = lose(1, moves, |scene| {
            let slot = begin_flush(scene, 2);
            scene.pass(Duration::from_micros(us));
            scene.cut(0, 2);
            scene.pass(Duration::from_millis(200));
            scene.heal();
            let (result, _) = end_flush(scene, &slot);
            *begun.borrow_mut() = Some(result);
        });
        assert!(flushed.take().is_some_and(|flushed| flushed.is_err()), "{us} us, {moves}");
        assert_eq!(flush(&mut scene, 2), Ok(()), "{us} us, {moves}");
    }
}

/// The volume has written what is dirty in the cache when a client of the node reads what a program has written: then that is
/// dirty there.
#[test]
fn a_flush_covers_what_goes_from_a_program_into_the_cache_while_it_runs() {
    for us in (0..12_000).step_by(100) {
        // The device takes 5 ms.
        let (mut scene, clients) = moving(2, 3);
        listen(&scene, 1);
        let program = Program::start(&scene, 1);
        assert!(program.store(&mut scene, BLOCK, 7));
        write(&mut scene, &clients, 1, BLOCK + 1);
        let flushed = begin_flush(&scene, 1);
        scene.pass(Duration::from_micros(us));
        let read = scene.run(1, async |cpu, volume: Arc<Volume>| first_byte(&cpu, &volume, BLOCK).await);
        assert_eq!(read, Ok(7), "{us} us");
        assert_eq!(end_flush(&mut scene, &flushed).0, Ok(()), "{us} us");
        assert_eq!(found(&mut scene, &clients, BLOCK..BLOCK + 1)[&BLOCK], u64::from_ne_bytes([7; 8]), "{us} us");
    }
}
