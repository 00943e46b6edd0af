//! Pages that many want, again and again.

use std::sync::Arc;
use std::time::Duration;

use kernel::device::Device;
use kernel::request::{Action, Request};
use kernel::{Processor, Volume};
use policy::unit::{BLOCK_BYTES, ByteRange};
use testkit::scene::context;
use testkit::scene::disk::{fill, first_byte};

use crate::acknowledged::moving;
use crate::programs::{Program, State, scene};
use crate::scene::{Scene, Setup};

/// Blocks that all nodes write, and those that one writes, too, around them.
const CONTENDED: u64 = 16;
const WRITTEN: u64 = 64;

/// The device takes 5 ms, so that some block is always being read or stored for others.
#[test]
fn a_write_out_does_not_wait_until_nobody_wants_any_of_its_blocks() {
    for seed in [2, 5, 8] {
        let (mut scene, clients) = moving(seed, 3);
        for (node, number) in [1, 2].into_iter().flat_map(|node| (0..CONTENDED).map(move |number| (node, number))) {
            let own = clients.clone();
            scene.start(node, async move |cpu: Processor, volume: Arc<Volume>| {
                while !own.stopping.get() {
                    let _ = own.write(&cpu, &volume, node, number * 4, (false, false)).await;
                    // Not all at the same time.
                    cpu.sleep(Duration::from_micros(50 + 370 * number)).await;
                }
            });
        }
        scene.pass(Duration::from_millis(100));
        let home = Arc::clone(scene.nodes[0].as_ref().expect("it runs").shared());
        let written = scene.run(0, async move |cpu, volume| {
            let range = ByteRange::new(0, WRITTEN * BLOCK_BYTES);
            fill(&cpu, &volume, range, 7, context()).await?;
            let frames = cpu.kernel().allocate(&cpu, WRITTEN as usize).await;
            home.perform(&cpu, Request { action: Action::Write(range, frames), context: context() }).await.map(drop)
        });
        clients.stopping.set(true);
        assert_eq!(written, Ok(()), "seed {seed}");
    }
}

/// Threads of programs that write a page, as soon as they may.
fn write_on(scene: &Scene, programs: &[Program], waiting: &mut [bool], page: u64) {
    for (program, is_waiting) in programs.iter().zip(waiting) {
        let may_write = program.memory.state(page) == Some(State::Writable);
        if may_write {
            program.memory.access(page, |bytes| bytes.fill(3));
        } else if !*is_waiting {
            program.fault(scene, page, true);
        }
        *is_waiting = !may_write;
    }
}

#[test]
fn clients_get_a_page_that_two_programs_of_their_node_write_all_the_time() {
    for (seed, home) in testkit::rounds::seeds(6).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let page = home * 256;
        let mut scene = scene(Setup { homes: 0b11, ..Setup::new(seed, 2) });
        scene.until_connected();
        let programs = [0, 0].map(|node| Program::start(&scene, node));
        assert!(programs.iter().all(|program| program.store(&mut scene, page, 2)), "seed {seed}");
        let mut waiting = [false; 2];
        let mut run = |scene: &mut Scene, is_over: &dyn Fn() -> bool| {
            let limit = scene.world.now() + Duration::from_millis(10);
            scene.run_until(Some(limit), |scene| {
                write_on(scene, &programs, &mut waiting, page);
                is_over()
            })
        };
        for _ in 0..4 {
            run(&mut scene, &|| false);
            let read = scene.start(0, async move |cpu, volume| first_byte(&cpu, &volume, page).await);
            assert!(run(&mut scene, &|| read.borrow().is_some()), "seed {seed}: it is not read");
            assert_eq!(read.take(), Some(Ok(3)), "seed {seed}");
            let range = ByteRange::new(page * BLOCK_BYTES, BLOCK_BYTES);
            let written =
                scene.start(0, async move |cpu, volume: Arc<Volume>| fill(&cpu, &volume, range, 4, context()).await);
            assert!(run(&mut scene, &|| written.borrow().is_some()), "seed {seed}: it is not written");
            assert_eq!(written.take(), Some(Ok(())), "seed {seed}");
        }
        // The programs go on, too.
        for program in &programs {
            assert!(program.store(&mut scene, page, 5), "seed {seed}");
        }
    }
}
