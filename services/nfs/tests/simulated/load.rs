//! Replies while nothing fails: each one is that of a model, with any number of concurrent clients.

use kernel::Switches;
use nfs3_types::nfs3::{Nfs3Option, fattr3, nfstime3, stable_how};

use crate::stage::lane::{Lane, Terms};
use crate::stage::{Setup, Stage};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::spawn;

const LANES: usize = 6;
const STEPS: u64 = 150;

/// Several concurrent clients, each with names, files and attributes of its own, in directories and blocks that others
/// change all the time. Times stay as they were reported, though the cache writes later.
#[test]
fn every_answer_is_that_of_the_model_and_attributes_change_with_content_only() {
    let name = "every_answer_is_that_of_the_model_and_attributes_change_with_content_only";
    for_seeds(name, 60, |seed| {
        let mut random = Random(seed);
        let stage = Stage::new(Setup { files_max: 1000, ..Setup::drawn(seed) });
        let life = stage.begin();
        let terms = Terms { faulty: false, times_are_kept: true };
        let lanes = stage.lanes(&life, LANES, &mut random, terms);
        let done = stage.run(&life, async move |cpu| {
            let start = |mut lane: Lane| {
                spawn(&cpu, async move |_| {
                    lane.client.book.repeats.set(30);
                    lane.run(STEPS).await;
                    lane.verify(true).await;
                    lane.client.book.hang_up();
                    lane.answered
                })
            };
            lanes.into_iter().map(start).collect::<Vec<_>>()
        });
        let ended = testkit::scene::drive(&stage.world, &[&life.host, &stage.clients], || {
            done.iter().all(|task| task.borrow().is_some())
        });
        assert!(ended, "clients wait for ever: {}", stage.world.describe());
        assert!(done.iter().all(|task| *task.borrow() == Some(STEPS)), "every request is answered");
        stage.end(life);
    });
}

/// Replies to READs and GETATTRs of a file that is open and cached, except for the times, which are the world's.
fn told(hottest_first: bool, look_ahead: bool) -> Vec<String> {
    let timeless = |attributes: fattr3| {
        let (atime, mtime, ctime) = Default::default();
        let _: &nfstime3 = &mtime;
        fattr3 { atime, mtime, ctime, ..attributes }
    };
    let drawn = Setup::drawn(7);
    let switches = Switches { hottest_first, look_ahead, ..drawn.switches.clone() };
    let stage = Stage::new(Setup { switches, files_max: 1000, cache: 2 << 20, ..drawn });
    let life = stage.begin();
    let client = stage.client(&life, 0);
    let told = stage.run(&life, async move |_| {
        let root = client.mount().await.expect("the root");
        let file = client.make(&root, "file").await;
        let content: Vec<u8> = (0..10_001_u32).map(|at| (at % 253) as u8).collect();
        client.write(&file, 0, &content, stable_how::FILE_SYNC).await.expect("written");
        let mut told = Vec::new();
        for (offset, count) in [(0, 4096), (1, 4096), (4095, 2), (8192, 4096), (0, 65536), (10_000, 1), (10_001, 1)] {
            let read = client.read(&file, offset, count).await.expect("read");
            let Nfs3Option::Some(attributes) = read.file_attributes else { panic!("attributes come with data") };
            told.push(format!("{offset}+{count}: {} {} {:?}", read.count, read.eof, timeless(attributes)));
            told.push(format!("{:?}", read.data.0));
            let attributes = client.getattr(&file).await.expect("attributes");
            told.push(format!("{:?}", timeless(attributes)));
        }
        client.book.hang_up();
        told
    });
    stage.end(life);
    told
}

#[test]
fn what_is_cached_is_told_alike_however_calls_are_served() {
    let general = told(false, false);
    for (hottest_first, look_ahead) in [(true, true), (true, false), (false, true)] {
        let others = told(hottest_first, look_ahead);
        assert_eq!(others, general, "hottest_first = {hottest_first}, look_ahead = {look_ahead}");
    }
}
