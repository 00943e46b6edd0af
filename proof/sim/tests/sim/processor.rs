//! When a processor is due, and dead processors.

use std::time::Duration;

use machine::{Op, Park, Region, RegionId, Segment, Token};
use policy::unit::{ByteOffset, Instant, ProcessorId, Stability};
use sim::{DiskConfig, HostId, Step, World};
use smallvec::smallvec;

use crate::rig::{Rig, Side, stamped};

fn alone() -> (World, HostId, Side) {
    let world = World::new(1);
    let host = world.add_host("host");
    let side = Side::new(&world, host, 3);
    (world, host, side)
}

/// A processor that ran once and parked without deadline.
fn parked() -> (World, HostId, Side) {
    let (world, host, mut side) = alone();
    assert_eq!(world.step(), Step::Processor(host, side.id));
    side.run_slice();
    assert_eq!(world.step(), Step::Nothing);
    (world, host, side)
}

#[test]
fn a_new_processor_is_due_at_once() {
    let (world, host, side) = alone();
    assert_eq!(world.step(), Step::Processor(host, ProcessorId(3)));
    assert_eq!(side.machine.processor(), ProcessorId(3));
}

#[test]
fn a_ring_wakes_a_parked_processor() {
    let (world, host, mut side) = parked();
    let bell = side.machine.doorbell();
    std::thread::spawn(move || bell.ring()).join().unwrap();
    assert_eq!(world.step(), Step::Processor(host, side.id));
    side.run_slice();
    assert_eq!(world.step(), Step::Processor(host, side.id), "a real enter would have returned and been called again");
    side.run_slice();
    assert_eq!(world.step(), Step::Nothing);
}

#[test]
fn a_ring_before_parking_is_not_lost() {
    let (world, host, mut side) = alone();
    world.step();
    side.machine.doorbell().ring();
    side.run_slice();
    assert_eq!(world.step(), Step::Processor(host, side.id));
}

#[test]
fn a_processor_that_would_not_park_is_due_again_at_once() {
    let (world, host, mut side) = parked();
    world.kick(host, side.id);
    for _ in 0..3 {
        assert_eq!(world.step(), Step::Processor(host, side.id));
        side.enter(Park::No);
    }
    assert_eq!(world.now(), Instant::ZERO);
    world.set_slice_ns(100);
    side.enter(Park::No);
    assert_eq!(world.step(), Step::Processor(host, side.id));
    assert_eq!(world.now(), Instant::from_ns(100), "a time slice takes the time that was set");
}

#[test]
fn a_processor_that_parks_until_a_deadline_is_due_then() {
    let (world, host, mut side) = alone();
    world.step();
    let deadline = Instant::from_ns(5_000_000);
    side.enter(Park::Until { deadline: Some(deadline), requests: 0 });
    assert_eq!(world.step_until(Instant::from_ns(1_000)), Step::Nothing);
    assert_eq!(world.now(), Instant::from_ns(1_000));
    assert_eq!(world.step(), Step::Processor(host, side.id));
    assert_eq!((world.now(), side.machine.now()), (deadline, deadline));
    side.run_slice();
    assert_eq!(world.step(), Step::Nothing, "the deadline has passed");
}

#[test]
fn a_started_operation_makes_its_processor_due() {
    let mut rig = Rig::new(1, DiskConfig::new(1 << 20));
    rig.run();
    let file = rig.file();
    rig.side.read(file, 0, 4096);
    assert_eq!(rig.world.step(), Step::Processor(rig.host, ProcessorId(0)));
    assert_eq!(rig.world.now(), Instant::ZERO);
    assert_eq!(rig.side.enter(Park::Until { deadline: None, requests: 0 }), 0, "a disk takes time");
    assert_eq!(rig.world.step(), Step::Processor(rig.host, ProcessorId(0)));
    assert!(rig.world.now() > Instant::ZERO + Duration::from_micros(59));
    assert_eq!(rig.side.enter(Park::Until { deadline: None, requests: 0 }), 1);
}

#[test]
fn of_two_due_processors_the_seed_chooses() {
    let first = |seed| {
        let world = World::new(seed);
        let host = world.add_host("host");
        let _sides = [Side::new(&world, host, 0), Side::new(&world, host, 1)];
        world.step()
    };
    let firsts: Vec<Step> = (0..64).map(first).collect();
    assert_eq!(firsts, (0..64).map(first).collect::<Vec<_>>());
    assert!(firsts.iter().any(|step| *step != firsts[0]));
}

#[test]
fn a_dead_machine_does_nothing() {
    let mut rig = Rig::new(1, DiskConfig::new(1 << 20));
    let file = rig.file();
    let (bell, host) = (rig.side.machine.doorbell(), rig.host);
    rig.side.write(file, 0, stamped(8, 7), Stability::Stable);
    rig.world.kill(host);
    rig.side.flush(file);
    bell.ring();
    assert_eq!(rig.side.enter(Park::No), 0);
    assert_eq!(rig.world.step(), Step::Nothing);
    let mut restarted = Side::new(&rig.world, host, 0);
    drop(rig.side);
    let token = restarted.read(file, 0, 4096);
    crate::rig::run(&rig.world, &mut [&mut restarted]);
    assert_eq!(restarted.take(token).1, vec![0; 4096], "the write was never submitted");
}

#[test]
fn a_machine_may_be_made_again_after_it_was_dropped() {
    let (world, host, side) = alone();
    drop(side);
    assert_eq!(world.step(), Step::Nothing);
    let again = Side::new(&world, host, 3);
    assert_eq!(world.step(), Step::Processor(host, again.id));
}

#[test]
#[should_panic(expected = "has a machine")]
fn a_processor_has_one_machine() {
    let (world, host, _side) = alone();
    Side::new(&world, host, 3);
}

#[test]
#[should_panic(expected = "seed 1")]
fn endless_spinning_panics_with_the_seed() {
    let (world, _, mut side) = alone();
    while world.step() != Step::Nothing {
        side.enter(Park::No);
    }
}

const REGION: RegionId = RegionId(9);

/// Starts a read of one block at the end of a region that is `len` bytes long.
fn read_into_region(rig: &mut Rig, memory: &mut [u8], len: usize) {
    rig.side.machine.offer_region(Region { id: REGION, base: memory.as_mut_ptr(), len }).expect("accepted");
    let ptr = memory[4096..].as_mut_ptr();
    let into = smallvec![Segment { ptr, len: 4096, region: Some(REGION) }];
    // SAFETY: the memory outlives the test's rig, which is dropped or runs to the end before.
    unsafe { rig.side.machine.start(Token(77), Op::Read { file: rig.open.file, at: ByteOffset(0), into }) };
}

#[test]
fn an_unused_region_may_be_withdrawn() {
    let mut memory = vec![0; 8192];
    let mut rig = Rig::new(1, DiskConfig::new(1 << 20));
    read_into_region(&mut rig, &mut memory, 8192);
    rig.run();
    assert_eq!(rig.side.outcomes[&77], Ok(4096));
    rig.side.machine.withdraw_region(REGION);
    rig.side.machine.offer_region(Region { id: REGION, base: memory.as_mut_ptr(), len: 4096 }).expect("accepted");
}

#[test]
#[should_panic(expected = "withdrawn while used")]
fn a_region_in_use_must_not_be_withdrawn() {
    let mut memory = vec![0; 8192];
    let mut rig = Rig::new(1, DiskConfig::new(1 << 20));
    read_into_region(&mut rig, &mut memory, 8192);
    rig.side.run_slice();
    rig.side.machine.withdraw_region(REGION);
}

#[test]
#[should_panic(expected = "outside its region")]
fn a_segment_must_lie_in_its_region() {
    let mut memory = vec![0; 8192];
    let mut rig = Rig::new(1, DiskConfig::new(1 << 20));
    read_into_region(&mut rig, &mut memory, 4096);
}

#[test]
fn the_description_contains_the_seed_and_the_drawn_values() {
    let rig = Rig::new(4711, DiskConfig::drawn(1 << 20, 4711));
    let text = format!("{:?}", rig.world);
    assert!(text.contains("seed 4711") && text.contains("flush: Latency") && text.contains("NetworkConfig"), "{text}");
    assert!(rig.side.machine.describe().contains("4711"));
}
