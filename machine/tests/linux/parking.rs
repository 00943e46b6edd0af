//! Parking and waking on both engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::rig::{Memory, Rig, build, on_both_engines};
use machine::linux::{Config, Engine, Error, Processors, machines, net};
use machine::{Doorbell, Op, Park};

on_both_engines!(
    a_park_ends_at_its_deadline_and_not_before,
    without_parking_enter_returns_at_once,
    a_ring_before_the_park_makes_it_return,
    a_ring_is_taken_by_one_enter,
    a_ring_from_another_thread_wakes_a_parked_processor,
    a_completion_wakes_a_parked_processor,
    memory_facts_are_plausible,
);

fn a_park_ends_at_its_deadline_and_not_before(mut rig: Rig) {
    let deadline = rig.machine.now() + Duration::from_millis(20);
    rig.machine.enter(Park::Until { deadline: Some(deadline), requests: 0 }, &mut rig.done);
    assert!(rig.machine.now() >= deadline);
    assert!(rig.done.is_empty());
    // A deadline in the past is no park.
    rig.machine.enter(Park::Until { deadline: Some(deadline), requests: 0 }, &mut rig.done);
}

fn without_parking_enter_returns_at_once(mut rig: Rig) {
    let (a, _b) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let connection = net::adopt_connection(a.into()).expect("adopted");
    let memory = Memory::new(4096);
    let into = memory.all();
    rig.start(Op::Receive { connection, into });
    for _ in 0..100 {
        rig.machine.enter(Park::No, &mut rig.done);
    }
    assert!(rig.done.is_empty());
}

fn a_ring_before_the_park_makes_it_return(mut rig: Rig) {
    for _ in 0..100 {
        rig.machine.doorbell().ring();
        rig.machine.enter(Park::Until { deadline: None, requests: 0 }, &mut rig.done);
    }
}

fn a_ring_is_taken_by_one_enter(mut rig: Rig) {
    let bell = rig.machine.doorbell();
    for _ in 0..3 {
        bell.ring();
        bell.ring();
        rig.machine.enter(Park::Until { deadline: None, requests: 0 }, &mut rig.done);
        let deadline = rig.machine.now() + Duration::from_millis(5);
        rig.machine.enter(Park::Until { deadline: Some(deadline), requests: 0 }, &mut rig.done);
        assert!(rig.machine.now() >= deadline);
    }
}

/// Two threads pass a ball: each parks without limit until it has it. One lost ring and the test never ends.
fn a_ring_from_another_thread_wakes_a_parked_processor(mut rig: Rig) {
    const ROUNDS: u32 = 5000;
    let engine = if rig.machine.describe().starts_with("io_uring") { Engine::IoUring } else { Engine::Threads };
    let builder = build(engine, 1).expect("another machine").remove(0);
    let ball = Arc::new(AtomicU32::new(0));
    let mine = rig.machine.doorbell();
    let (give, take) = mpsc::channel();
    let theirs_ball = Arc::clone(&ball);
    let other = thread::spawn(move || {
        let mut rig = Rig::new(builder().expect("a machine"));
        give.send(rig.machine.doorbell()).expect("taken");
        play(&mut rig, &theirs_ball, &*mine, 1, ROUNDS);
    });
    let theirs = take.recv().expect("given");
    play(&mut rig, &ball, &*theirs, 0, ROUNDS);
    other.join().expect("the other thread passed");
}

fn play(rig: &mut Rig, ball: &AtomicU32, other: &dyn Doorbell, me: u32, rounds: u32) {
    for step in (me..rounds).step_by(2) {
        while ball.load(Ordering::Acquire) != step {
            rig.machine.enter(Park::Until { deadline: None, requests: 0 }, &mut rig.done);
        }
        ball.store(step + 1, Ordering::Release);
        other.ring();
    }
}

fn a_completion_wakes_a_parked_processor(mut rig: Rig) {
    let (a, b) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let connection = net::adopt_connection(a.into()).expect("adopted");
    let memory = Memory::new(4096);
    let into = memory.all();
    let token = rig.start(Op::Receive { connection, into });
    let peer = thread::spawn(move || std::io::Write::write_all(&mut &b, b"x"));
    rig.machine.enter(Park::Until { deadline: None, requests: 0 }, &mut rig.done);
    assert_eq!(rig.done.len(), 1);
    assert_eq!(rig.wait(token), Ok(1));
    peer.join().expect("written").expect("written");
    rig.machine.close(connection);
}

fn memory_facts_are_plausible(rig: Rig) {
    let facts = rig.machine.memory();
    assert!(facts.total > 0 && facts.available <= facts.total);
}

#[test]
fn invalid_numbers_of_processors_are_refused() {
    for count in [0, 100_000] {
        let config = Config { processors: Processors::Count(count), ..Config::default() };
        let error = machines(&config).map(drop).expect_err("impossible");
        assert_eq!(error, Error::Processors(count));
    }
}

#[test]
fn the_configured_engine_runs() {
    let config = Config { processors: Processors::Count(2), engine: Engine::Threads, pin: false, ..Config::default() };
    let (builders, chosen) = machines(&config).expect("threads always work");
    assert_eq!((chosen.engine, chosen.cores.count()), (Engine::Threads, 2));
    for (k, builder) in builders.into_iter().enumerate() {
        let machine = builder().expect("a machine");
        assert_eq!(usize::from(machine.processor().0), k);
        assert!(machine.describe().starts_with("thread pool"));
    }
}

#[test]
fn pinned_processors_run_on_one_core_each() {
    let config = Config { processors: Processors::Auto, engine: Engine::Auto, pin: true, ..Config::default() };
    let (builders, chosen) = machines(&config).expect("a machine");
    assert_eq!(builders.len(), chosen.cores.count());
    let threads = builders.into_iter().map(|builder| {
        thread::spawn(move || {
            let _machine = builder().expect("a machine");
            machine::linux::Cores::allowed()
        })
    });
    let cores: Vec<_> = threads.map(|t| t.join().expect("built")).collect();
    for (k, core) in cores.iter().enumerate() {
        assert_eq!(core.count(), 1);
        assert!(!cores[..k].contains(core), "core {core:?} is used twice");
    }
}
