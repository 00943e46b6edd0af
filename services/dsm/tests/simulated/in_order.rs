//! Pages that programs and clients read in order, while others write some of them: what is taken in runs is the same as page
//! by page.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kernel::{FRAME_BYTES, Volume};
use machine::Errno;
use policy::readahead::Mode;
use policy::unit::{BLOCK_BYTES, ByteRange};
use testkit::random::Random;
use testkit::scene::context;
use testkit::scene::disk::{fill, read};

use crate::programs::{Program, scene};
use crate::scene::{Backing, Scene, Setup};

/// Node 0 is the home of all pages. Node 1 reads ahead.
fn begin(setup: Setup) -> Scene {
    let mut scene = scene(Setup { homes: 1, ..setup });
    scene.switch(|switches| {
        (switches.look_ahead, switches.read_ahead) = (true, Mode::Adaptive { blocks_max: 256 });
    });
    scene.until_connected();
    scene
}

/// Pages that node 1 has taken in runs.
fn taken_in_runs(scene: &Scene) -> u64 {
    scene.nodes[1].as_ref().expect("it runs").shared().counters().fetches_in_runs.get()
}

fn bytes(pages: &Range<u64>) -> ByteRange {
    ByteRange::new(pages.start * BLOCK_BYTES, (pages.end - pages.start) * BLOCK_BYTES)
}

fn write(scene: &mut Scene, node: usize, pages: &Range<u64>, value: u8) {
    let bytes = bytes(pages);
    let write = async move |cpu, volume: Arc<Volume>| fill(&cpu, &volume, bytes, value, context()).await;
    assert_eq!(scene.run(node, write), Ok(()));
}

fn read_at(scene: &mut Scene, node: usize, pages: &Range<u64>) -> Result<Vec<u8>, Errno> {
    let bytes = bytes(pages);
    scene.run(node, async move |cpu, volume: Arc<Volume>| read(&cpu, &volume, bytes, context()).await)
}

/// The first byte of each page.
fn firsts(content: Result<Vec<u8>, Errno>) -> Vec<u8> {
    content.expect("read").iter().step_by(FRAME_BYTES).copied().collect()
}

#[test]
fn what_is_read_in_order_was_written_last_whatever_states_the_pages_are_in() {
    const PAGES: u64 = 300;
    for seed in testkit::rounds::seeds(20) {
        let mut scene = begin(Setup::new(seed, 3));
        let (mut random, mut expected) = (Random(seed), BTreeMap::new());
        let programs = [1, 1, 2].map(|node| Program::start(&scene, node));
        for page in (0..PAGES).chain(0..PAGES) {
            let start = page + random.below(80);
            let some = start..start + 1 + random.below(20);
            let value = 1 + random.below(250) as u8;
            let last = |page: u64, expected: &BTreeMap<u64, u8>| expected.get(&page).copied().unwrap_or(0);
            match random.below(16) {
                0 => {
                    write(&mut scene, 2 * random.index(2), &some, value);
                    expected.extend(some.map(|page| (page, value)));
                }
                1 => {
                    assert!(programs[random.index(3)].store(&mut scene, start, value), "seed {seed}");
                    expected.insert(start, value);
                }
                2 => {
                    let right: Vec<u8> = some.clone().map(|page| last(page, &expected)).collect();
                    assert_eq!(firsts(read_at(&mut scene, 1, &some)), right, "seed {seed}: {some:?}");
                }
                3 => {
                    let read = programs[1].load(&mut scene, start);
                    assert_eq!(read, Some(last(start, &expected)), "seed {seed}: page {start}");
                }
                _ => {}
            }
            let read = programs[0].load(&mut scene, page);
            assert_eq!(read, Some(last(page, &expected)), "seed {seed}: page {page}");
        }
        assert!(taken_in_runs(&scene) > PAGES / 4, "seed {seed}: {}", taken_in_runs(&scene));
    }
}

#[test]
fn what_the_cache_has_evicted_is_read_in_order_again_as_others_have_written_it_since() {
    const PAGES: u64 = 1600;
    for seed in testkit::rounds::seeds(6) {
        let mut scene = begin(Setup { size: 8 << 20, memory: 2 << 20, ..Setup::new(seed, 2) });
        for pass in 0..3_u8 {
            let before = taken_in_runs(&scene);
            for first in (0..PAGES).step_by(64) {
                let read = firsts(read_at(&mut scene, 1, &(first..first + 64)));
                let right = (first..first + 64).map(|page| if page % 7 == 0 { pass } else { 0 });
                assert_eq!(read, right.collect::<Vec<_>>(), "seed {seed}: from page {first}");
            }
            let taken = taken_in_runs(&scene) - before;
            assert!(taken > PAGES / 2, "seed {seed}: {taken} in pass {pass}");
            for page in (0..PAGES).step_by(7) {
                write(&mut scene, 0, &(page..page + 1), pass + 1);
            }
        }
    }
}

/// Its threads wait for nothing that was given ahead, so nothing is left when it has ended.
#[test]
fn what_a_program_was_to_be_given_ahead_is_forgotten_when_it_ends_or_its_home_is_away() {
    for seed in testkit::rounds::seeds(8) {
        let mut scene = begin(Setup { backing: Backing::Path, ..Setup::new(seed, 2) });
        let gauges = |scene: &Scene| scene.nodes[1].as_ref().expect("it runs").shared().gauges();
        let [first, second] = [1, 1].map(|node| Program::start(&scene, node));
        assert_eq!([0, 1].map(|page| first.load(&mut scene, page)), [Some(0); 2], "seed {seed}");
        scene.pass(Duration::from_secs(1));
        scene.kill(0);
        first.fault(&scene, 18, false);
        second.fault(&scene, 600, false);
        second.fault(&scene, 601, false);
        scene.pass(Duration::from_millis(100));
        // Those pages, and after them 64 and 16.
        assert_eq!(gauges(&scene).awaited, 1 + 64 + 2 + 16, "seed {seed}");
        first.end(&scene);
        scene.pass(Duration::from_secs(1));
        assert_eq!(gauges(&scene).awaited, 2 + 16, "seed {seed}");
        scene.pass(Duration::from_secs(20));
        // Those that threads waited for are asked for again and again.
        assert!(gauges(&scene).awaited <= 2, "seed {seed}: {:?}", gauges(&scene));
        scene.boot(0);
        scene.until_connected();
        assert_eq!((602..640).map(|page| second.load(&mut scene, page)).max(), Some(Some(0)), "seed {seed}");
    }
}
