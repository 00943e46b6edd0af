//! Programs that have mapped the volume, at simulated nodes, and what clients and other nodes see of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::{FRAME_BYTES, trace};
use machine::Errno;
use machine::mapping::Fault;
use policy::coherence::ShardNo;
use policy::readahead::Mode;
use policy::unit::{BLOCK_BYTES, ByteRange};
use testkit::random::Random;
use testkit::scene::context;
use testkit::scene::disk::{fill, first_byte, read};

use crate::programs::{Memory, Program, State, scene};
use crate::scene::members::SHARDS;
use crate::scene::{Backing, Scene, Setup};

/// Steps of programs and clients, one after the other, so there is one right answer.
fn read_what_was_written_last(mut scene: Scene, seed: u64, before_step: impl Fn(&mut Scene, &mut Random)) {
    let mut random = Random(seed);
    let programs: Vec<Program> = [0, 0, 1, 2].map(|node| Program::start(&scene, node)).into();
    let pages = [0, 1, 2, 256, 257, 600];
    let mut expected = BTreeMap::new();
    for step in 1..=150_u64 {
        before_step(&mut scene, &mut random);
        let page = pages[random.below(pages.len() as u64) as usize];
        let (who, is_write) = (random.below(7) as usize, random.below(2) == 0);
        let value = (step % 250) as u8 + 1;
        let last = expected.get(&page).copied().unwrap_or(0);
        let range = ByteRange::new(page * BLOCK_BYTES, BLOCK_BYTES);
        match (programs.get(who), is_write) {
            (Some(program), true) => assert!(program.store(&mut scene, page, value), "seed {seed} {step}"),
            (Some(program), false) => assert_eq!(program.load(&mut scene, page), Some(last), "seed {seed} {step}"),
            (None, true) => {
                let write =
                    async move |cpu, volume: Arc<kernel::Volume>| fill(&cpu, &volume, range, value, context()).await;
                assert_eq!(scene.run(who - programs.len(), write), Ok(()));
            }
            (None, false) => {
                let read = async move |cpu, volume: Arc<kernel::Volume>| read(&cpu, &volume, range, context()).await;
                let bytes = scene.run(who - programs.len(), read);
                assert_eq!(bytes, Ok(vec![last; FRAME_BYTES]), "seed {seed} step {step}");
            }
        }
        if is_write {
            expected.insert(page, value);
        }
    }
}

#[test]
fn programs_and_clients_at_three_nodes_read_what_was_written_last() {
    for seed in testkit::rounds::seeds(30) {
        read_what_was_written_last(scene(Setup::new(seed, 3)), seed, |_, _| {});
    }
}

#[test]
fn programs_and_clients_read_what_was_written_last_while_homes_move() {
    for seed in testkit::rounds::seeds(20) {
        let mut scene = scene(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| 0);
        scene.see_all();
        read_what_was_written_last(scene, seed, |scene, random| {
            if random.below(4) > 0 {
                return;
            }
            for node in 0..scene.nodes.len() {
                let shard = ShardNo(random.below(u64::from(SHARDS)) as u16);
                scene.give_up(node, shard);
            }
            // Until the map changes, nobody is the home of what was given up.
            assert!(scene.run_until(None, Scene::has_given_up), "seed {seed}: it is never given up");
            scene.change_map(|bound| random.below(bound as u64) as usize);
            scene.see_all();
        });
    }
}

#[test]
fn a_program_that_reads_in_order_is_given_the_next_pages_unless_somebody_writes_them() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { homes: 1, ..Setup::new(seed, 2) });
        scene.until_connected();
        let [writer, reader] = [1, 1].map(|node| Program::start(&scene, node));
        assert!(writer.store(&mut scene, 5, 9));
        let mode = scene.nodes[1].as_ref().expect("it runs").host.kernel.switches().read_ahead;
        let may_read = |page| reader.memory.state(page) == Some(State::ReadOnly);
        assert_eq!([0, 1].map(|page| reader.load(&mut scene, page)), [Some(0); 2], "seed {seed}");
        scene.pass(Duration::from_secs(2));
        let given: Vec<u64> = (2..4096).filter(|page| may_read(*page)).collect();
        match mode {
            Mode::Off => assert_eq!(given, [0; 0], "seed {seed}"),
            Mode::Fixed { blocks } => assert!(given.len() as u64 <= blocks, "seed {seed}: {given:?}"),
            Mode::Adaptive { .. } => {
                assert_eq!(given, [2, 3, 4].into_iter().chain(6..18).collect::<Vec<_>>(), "seed {seed}");
            }
        }
        // It is an ordinary copy: whoever writes takes it away.
        assert!(writer.store(&mut scene, 3, 7));
        assert!(!may_read(3) && reader.load(&mut scene, 3) == Some(7), "seed {seed}");
        assert_eq!(reader.load(&mut scene, 5), Some(9), "seed {seed}");
    }
}

#[test]
fn each_fault_is_a_span_in_the_trace_however_many_pages_come_at_a_time_and_also_if_it_fails() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { homes: 1, traced: true, ..Setup::new(seed, 2) });
        scene.until_connected();
        let running = scene.nodes[1].as_ref().expect("it runs");
        let (kernel, shared) = (Arc::clone(&running.host.kernel), Arc::clone(running.shared()));
        let trace = running.trace.expect("traced");
        let cached = ByteRange::new(0, 128 * BLOCK_BYTES);
        let read = async move |cpu, volume: Arc<kernel::Volume>| read(&cpu, &volume, cached, context()).await;
        assert!(scene.run(1, read).is_ok());
        let mut switches = (*kernel.switches()).clone();
        (switches.read_ahead, switches.trace) = (Mode::Adaptive { blocks_max: 256 }, trace::Mode::Direct);
        kernel.set_switches(switches);
        let program = Program::start(&scene, 1);
        // At once: later records may overwrite it.
        let is_traced = |page| {
            let moments = trace::Trace::read(trace).expect("a trace").moments.into_iter().map(|moment| moment.record);
            moments.filter(|record| record.event == trace::Event::SharedFault && record.a == page).count() == 1
        };
        let mut faults = 0;
        for page in 0..128 {
            assert_eq!(program.load(&mut scene, page), Some(0), "seed {seed}");
            let known = std::mem::replace(&mut faults, shared.counters().faults.get());
            assert!(faults == known || is_traced(page), "seed {seed}: page {page}");
        }
        assert!((3..20).contains(&faults), "seed {seed}: {faults}");
        scene.kill(0);
        assert_eq!(program.load(&mut scene, 1000), None, "seed {seed}: its home is away");
        assert!(is_traced(1000), "seed {seed}");
    }
}

#[test]
fn a_fault_that_ends_with_the_lease_is_a_span_in_the_trace() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { moves: true, traced: true, ..Setup::new(seed, 2) });
        scene.change_map(|_| 1);
        scene.see_all();
        scene.until_connected();
        let running = scene.nodes[0].as_ref().expect("it runs");
        let (kernel, memory) = (Arc::clone(&running.host.kernel), running.trace.expect("traced"));
        let mut switches = (*kernel.switches()).clone();
        switches.trace = trace::Mode::Direct;
        kernel.set_switches(switches);
        let program = Program::start(&scene, 0);
        // Its home never answers.
        scene.pause(1, true);
        scene.pass(Duration::from_millis(10));
        program.fault(&scene, 3, false);
        scene.pass(Duration::from_millis(10));
        scene.set_lease(0, false);
        scene.pass(Duration::from_millis(300));
        let records = trace::Trace::read(memory).expect("a trace").moments.into_iter().map(|moment| moment.record);
        let spans = records.filter(|record| record.event == trace::Event::SharedFault && record.a == 3).count();
        assert_eq!(spans, 1, "seed {seed}");
    }
}

fn flush(scene: &mut Scene, node: usize) {
    let flushed = scene.run(node, async move |cpu, volume: Arc<kernel::Volume>| volume.flush(&cpu, context()).await);
    assert_eq!(flushed, Ok(()));
}

#[test]
fn a_program_has_nothing_once_the_lease_of_its_node_is_over() {
    for seed in testkit::rounds::seeds(10) {
        let mut scene = scene(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| 2);
        scene.see_all();
        let first = Program::start(&scene, 0);
        assert!(first.store(&mut scene, 3, 1) && first.load(&mut scene, 4) == Some(0));
        scene.set_lease(0, false);
        assert!(first.memory.held() == 0, "seed {seed}: others may take over");
        let shared = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let cpu = scene.nodes[0].as_ref().expect("it runs").host.processors[0].clone();
        shared.on_faults(&cpu, first.no, &[Fault { page: 3, is_write: false }]);
        scene.pass(Duration::from_secs(1));
        assert_eq!((shared.mappings(), first.memory.state(3)), (0, None), "seed {seed}: its connection ends");
        // Renewed in time: nothing of what was written is lost.
        scene.set_lease(0, true);
        let second = Program::start(&scene, 0);
        assert_eq!(second.load(&mut scene, 3), Some(1), "seed {seed}");
        assert!(second.store(&mut scene, 3, 2));
        flush(&mut scene, 0);
        assert!(second.store(&mut scene, 3, 3) && second.store(&mut scene, 300, 3));
        // Not renewed: what was not flushed is lost, and nothing old is seen.
        scene.deregister(0);
        scene.see_all();
        assert!(second.memory.held() == 0, "seed {seed}: others have taken over");
        let other = Program::start(&scene, 1);
        assert_eq!(other.load(&mut scene, 3), Some(2), "seed {seed}");
        assert!(other.store(&mut scene, 3, 4));
        scene.register(0);
        scene.see_all();
        let third = Program::start(&scene, 0);
        assert_eq!([3, 300].map(|page| third.load(&mut scene, page)), [Some(4), Some(0)], "seed {seed}");
        let is_empty = |program: &Program| program.memory.held() == 0;
        assert!(is_empty(&first) && is_empty(&second) && shared.mappings() == 0, "seed {seed}");
    }
}

/// A client of node 0 has written the last of these pages, which a program there has written since, as the others. Then the
/// lease of the node ends, and is renewed in time.
fn renew(seed: u64, home: usize, before_end: impl FnOnce(&Scene, &Program)) -> Scene {
    let mut scene = scene(Setup { moves: true, ..Setup::new(seed, 3) });
    scene.change_map(|_| home);
    scene.see_all();
    let program = Program::start(&scene, 0);
    assert_eq!(write(&mut scene, 0, 5), Ok(()), "seed {seed}");
    assert!(WRITTEN.into_iter().all(|page| program.store(&mut scene, page, 6)), "seed {seed}");
    before_end(&scene, &program);
    scene.set_lease(0, false);
    scene.pass(Duration::from_millis(100));
    scene.set_lease(0, true);
    scene
}

const WRITTEN: [u64; 3] = [3, 4, 300];

/// A client writes the last of them.
fn write(scene: &mut Scene, node: usize, value: u8) -> Result<(), Errno> {
    let range = ByteRange::new(WRITTEN[2] * BLOCK_BYTES, BLOCK_BYTES);
    scene.run(node, async move |cpu, volume: Arc<kernel::Volume>| fill(&cpu, &volume, range, value, context()).await)
}

fn read_written(scene: &mut Scene, node: usize) -> [Result<u8, Errno>; 3] {
    WRITTEN.map(|page| {
        scene.run(node, async move |cpu, volume: Arc<kernel::Volume>| first_byte(&cpu, &volume, page).await)
    })
}

#[test]
fn what_clients_have_written_is_retained_at_the_end_of_a_lease_before_what_only_programs_have() {
    for seed in testkit::rounds::seeds(6) {
        for home in [0, 2] {
            let mut scene = renew(seed, home, |scene, _| {
                scene.shared().for_each(|shared| shared.limit_retained(1));
            });
            for node in [0, 1] {
                let lost = Err(Errno::IO);
                assert_eq!(read_written(&mut scene, node), [Ok(6), lost, Ok(6)], "seed {seed}: {node} of {home}");
            }
            flush(&mut scene, 0);
        }
    }
}

#[test]
fn a_flush_fails_once_if_what_clients_have_written_cannot_be_retained_at_the_end_of_a_lease() {
    for seed in testkit::rounds::seeds(6) {
        for home in [0, 2] {
            let mut scene = renew(seed, home, |_, program| program.memory.has_lapsed.store(true, Ordering::Relaxed));
            let flush = async |cpu, volume: Arc<kernel::Volume>| volume.flush(&cpu, context()).await;
            let flushed = [0, 0].map(|node| scene.run(node, flush));
            assert_eq!(flushed, [Err(Errno::IO), Ok(())], "seed {seed}: {home}");
            for node in [1, 0] {
                assert_eq!(read_written(&mut scene, node), [Err(Errno::IO); 3], "seed {seed}: {node} of {home}");
            }
            assert_eq!(write(&mut scene, 1, 7), Ok(()), "seed {seed}");
            assert_eq!([0, 1].map(|node| read_written(&mut scene, node)[2]), [Ok(7); 2], "seed {seed}: {home}");
        }
    }
}

#[test]
fn what_a_client_has_written_stays_if_a_program_wants_to_write_on_it_in_memory_that_was_emptied() {
    for (seed, home) in testkit::rounds::seeds(6).flat_map(|seed| [(seed, 0), (seed, 2)]) {
        let mut scene = scene(Setup { moves: true, ..Setup::new(seed, 3) });
        scene.change_map(|_| home);
        scene.see_all();
        let program = Program::start(&scene, 0);
        assert_eq!(write(&mut scene, 0, 5), Ok(()), "seed {seed}");
        assert_eq!(program.load(&mut scene, WRITTEN[2]), Some(5), "seed {seed}");
        program.memory.has_lapsed.store(true, Ordering::Relaxed);
        assert!(!program.store(&mut scene, WRITTEN[2], 6), "seed {seed}");
        scene.set_lease(0, false);
        scene.pass(Duration::from_millis(100));
        scene.set_lease(0, true);
        let read = [1, 0].map(|node| read_written(&mut scene, node)[2]);
        assert_eq!(read, [Ok(5); 2], "seed {seed}: {home}");
        flush(&mut scene, 0);
    }
}

#[test]
fn a_flush_at_one_node_makes_durable_what_a_program_of_another_has_written() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { backing: Backing::Path, ..Setup::new(seed, 2) });
        scene.until_connected();
        let programs = [0, 1].map(|node| Program::start(&scene, node));
        for (page, program) in [0, 1, 256, 257].into_iter().zip(programs.iter().cycle()) {
            assert!(program.store(&mut scene, page, page as u8 + 1));
        }
        flush(&mut scene, 0);
        drop(programs);
        (0..2).for_each(|node| scene.power_cut(node));
        (0..2).for_each(|node| scene.boot(node));
        scene.until_connected();
        for page in [0, 1, 256, 257_u64] {
            let range = ByteRange::new(page * BLOCK_BYTES, BLOCK_BYTES);
            let read = async move |cpu, volume: Arc<kernel::Volume>| read(&cpu, &volume, range, context()).await;
            assert_eq!(scene.run(1, read), Ok(vec![page as u8 + 1; FRAME_BYTES]), "seed {seed}, page {page}");
        }
    }
}

#[test]
fn what_a_program_has_written_is_not_cached_and_one_alone_may_write() {
    let mut scene = scene(Setup { backing: Backing::Memory, ..Setup::new(2, 2) });
    let programs: Vec<Program> = [0, 0, 1].map(|node| Program::start(&scene, node)).into();
    let gauges = |scene: &Scene, node: usize| scene.nodes[node].as_ref().expect("it runs").shared().gauges();
    for writer in [0, 1, 2, 0] {
        for program in &programs {
            program.load(&mut scene, 3);
        }
        assert!(programs.iter().all(|program| program.memory.state(3) == Some(State::ReadOnly)));
        assert!(programs[writer].store(&mut scene, 3, writer as u8 + 1));
        for (number, program) in programs.iter().enumerate() {
            let state = if number == writer { Some(State::Writable) } else { None };
            assert_eq!(program.memory.state(3), state, "{number} while {writer} writes");
        }
        let node = programs[writer].node;
        let volume = scene.nodes[node].as_ref().and_then(|node| node.volume.clone()).expect("a member");
        assert!(volume.cached(policy::unit::BlockNo(3)).is_none(), "a reader would find old data");
        assert_eq!((gauges(&scene, node).mapped_read, gauges(&scene, node).mapped_written), (0, 1));
    }
}

#[test]
fn a_mapping_that_is_full_gives_up_what_it_was_given_first() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup::new(seed, 2));
        let limited = scene.nodes.iter().flatten();
        limited.for_each(|node| node.shared().limit_mappings(4));
        let programs = [Program::start(&scene, 0), Program::start(&scene, 1)];
        let pages: Vec<u64> = (0..24).map(|number| number % 2 * 256 + number).collect();
        for (number, page) in pages.iter().enumerate() {
            assert!(programs[0].store(&mut scene, *page, number as u8 + 1));
            let held = programs[0].memory.held();
            // One may be on its way out.
            assert!(held <= 5, "{held} pages");
        }
        for (number, page) in pages.iter().enumerate() {
            let reader = &programs[(number / 3) % 2];
            assert_eq!(reader.load(&mut scene, *page), Some(number as u8 + 1), "seed {seed}, page {page}");
        }
    }
}

#[test]
fn all_mappings_together_have_no_more_than_their_limit_and_the_largest_gives_up_pages_for_others() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup::new(seed, 2));
        scene.nodes.iter().flatten().for_each(|node| node.shared().limit_mapped(8));
        let [writer, reader, other] = [0, 0, 1].map(|node| Program::start(&scene, node));
        let held = |program: &Program| program.memory.held();
        let pages: Vec<u64> = (0..16).map(|number| number % 2 * 256 + number * 16).collect();
        for (number, page) in pages.iter().enumerate() {
            assert!(writer.store(&mut scene, *page, number as u8 + 1));
            // One may be on its way out.
            assert!(held(&writer) <= 9, "seed {seed}: {} pages", held(&writer));
        }
        for (number, page) in pages.iter().enumerate() {
            assert_eq!(reader.load(&mut scene, *page), Some(number as u8 + 1), "seed {seed}, page {page}");
            let [wrote, read] = [&writer, &reader].map(held);
            assert!(wrote + read <= 9, "seed {seed}: {wrote} and {read} pages");
        }
        assert!(held(&reader) >= 3, "seed {seed}: it has only {}", held(&reader));
        for (number, page) in pages.iter().enumerate() {
            assert_eq!(other.load(&mut scene, *page), Some(number as u8 + 1), "seed {seed}, page {page}");
        }
    }
}

#[test]
fn what_a_program_writes_is_not_lost_where_another_ended_before_it_got_the_page() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup::new(seed, 2));
        let programs = [0, 0, 1].map(|node| Program::start(&scene, node));
        let [gone, writer, reader] = &programs;
        gone.memory.is_gone.store(true, Ordering::Relaxed);
        let running = scene.nodes[0].as_ref().expect("it runs");
        let (cpu, shared) = (running.host.processors[0].clone(), Arc::clone(running.shared()));
        for page in [0, 256] {
            shared.on_faults(&cpu, gone.no, &[Fault { page, is_write: true }]);
            scene.world.kick(scene.nodes[0].as_ref().expect("it runs").host.id, cpu.id());
            assert!(scene.run_until(None, |_| shared.gauges().awaited == 0), "it is not served");
            assert!(writer.store(&mut scene, page, 7));
            assert_eq!(reader.load(&mut scene, page), Some(7), "seed {seed}, page {page}");
        }
    }
}

#[test]
fn a_page_that_nobody_has_is_poisoned_until_somebody_has_written_it() {
    let mut scene = scene(Setup { backing: Backing::Memory, ..Setup::new(4, 2) });
    let program = Program::start(&scene, 0);
    scene.until_connected();
    scene.kill(1);
    assert_eq!(program.load(&mut scene, 256), None, "its home is away");
    scene.boot(1);
    scene.until_connected();
    let write = async |cpu, volume: Arc<kernel::Volume>| {
        fill(&cpu, &volume, ByteRange::new(256 * BLOCK_BYTES, BLOCK_BYTES), 9, context()).await
    };
    assert_eq!(scene.run(1, write), Ok(()));
    let memory = Arc::clone(&program.memory);
    assert!(scene.run_until(None, |_| memory.state(256) == Some(State::ReadOnly)), "it is asked for again");
    assert_eq!(program.load(&mut scene, 256), Some(9));
}

#[test]
fn a_page_for_which_the_host_has_no_memory_is_poisoned_until_it_has() {
    for seed in testkit::rounds::seeds(6) {
        let mut scene = scene(Setup { homes: 1, ..Setup::new(seed, 2) });
        scene.until_connected();
        let [program, other] = [1, 1].map(|node| Program::start(&scene, node));
        assert_eq!(program.load(&mut scene, 700), Some(0));
        let is_short = |program: &Program, is| program.memory.is_short.store(is, Ordering::Relaxed);
        is_short(&program, true);
        assert_eq!(program.load(&mut scene, 0), None, "seed {seed}");
        for page in [300, 700] {
            assert!(!program.store(&mut scene, page, 7), "seed {seed}: page {page}");
            // Of another thread, that has waited since before.
            let before = program.memory.wakes(page);
            program.fault(&scene, page, true);
            let memory = Arc::clone(&program.memory);
            assert!(scene.run_until(None, |_| memory.wakes(page) > before), "seed {seed}: page {page}");
        }
        let read_ahead = (1..20).filter(|page| program.memory.state(*page).is_some()).count();
        assert_eq!(read_ahead, 0, "seed {seed}: nobody waits for it");
        assert!(other.store(&mut scene, 300, 8), "seed {seed}");
        // Again and again.
        scene.pass(Duration::from_secs(3));
        assert_eq!(program.memory.state(0), Some(State::Poisoned), "seed {seed}");
        is_short(&program, false);
        let memory = Arc::clone(&program.memory);
        let are_there = |memory: &Memory| [0, 300, 700].map(|page| memory.state(page)) == [Some(State::ReadOnly); 3];
        assert!(scene.run_until(None, |_| are_there(&memory)), "seed {seed}: they are asked for again");
        assert_eq!([0, 300, 700].map(|page| program.load(&mut scene, page)), [Some(0), Some(8), Some(0)]);
        assert!(program.store(&mut scene, 300, 9), "seed {seed}");
    }
}
