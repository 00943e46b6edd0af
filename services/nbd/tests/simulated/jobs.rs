//! A light client next to a heavy one, over the whole path: connection, job, task, disk queue.

use crate::scene::{Scene, Setup};
use futures_util::future::join_all;
use kernel::Switches;
use kernel::device::{FixedLatency, RamDisk};
use kernel::job::Client;
use kernel::queue::{DiskQueue, Queued};
use policy::unit::DiskNo;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LATENCY: Duration = Duration::from_millis(1);
const DISK_BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 8;
const REQUESTS: u64 = 64;

fn user_of(turn: u16) -> Option<u32> {
    Some(if turn == 0 { 1 } else { 2 })
}

/// One client reads block for block, each once; another has 8 connections with 64 small reads in flight on each.
/// Returns the longest read of the first, and how many answers the second got.
fn longest_read(seed: u64, usage: bool) -> (Duration, usize) {
    let config = policy::queue::Config { fair: usage, depth: 4, merge: false, ..Default::default() };
    let slow = Arc::new(FixedLatency::new(Arc::new(RamDisk::new(DISK_BYTES, DiskNo(0))), LATENCY));
    let setup = Setup {
        device: Arc::new(Queued::new(Arc::new(DiskQueue::new(config)), slow)),
        switches: Switches {
            usage,
            read_ahead: policy::readahead::Mode::Off,
            huge_pages: policy::pages::Mode::Small,
            ..Switches::default()
        },
        user_of,
        ..Setup::new(seed, DISK_BYTES)
    };
    let scene = Scene::new(setup);
    let (result, _connected) = scene.run(async move |cpu, route| {
        let light = route.client(&cpu, "disk", false).await;
        let answers = Rc::new(Cell::new(0));
        let (mut clients, mut heavy) = (vec![Rc::clone(&light)], Vec::new());
        for connection in 0..CONNECTIONS {
            let client = route.client(&cpu, "disk", false).await;
            for number in 0..REQUESTS {
                let (client, answers) = (Rc::clone(&client), Rc::clone(&answers));
                heavy.push(async move {
                    let block = 3 * (connection * REQUESTS + number);
                    client.read(block * 4096, 512).await.expect("an answer");
                    answers.set(answers.get() + 1);
                });
            }
            clients.push(client);
        }
        let waits: Rc<RefCell<Vec<Duration>>> = Rc::default();
        let (here, told, first) = (cpu.clone(), Rc::clone(&waits), Rc::clone(&light));
        cpu.spawn(async move {
            here.sleep(4 * LATENCY).await;
            for number in 0..8 {
                let began = here.now();
                first.read(DISK_BYTES / 2 + number * 8192, 4096).await.expect("an answer");
                told.borrow_mut().push(here.now().since(began));
            }
        });
        join_all(heavy).await;
        while waits.borrow().len() < 8 {
            cpu.sleep(LATENCY).await;
        }
        let longest = waits.borrow().iter().max().copied().expect("eight reads");
        ((longest, answers.get()), clients)
    });
    let facts = scene.disk.kernel.jobs().list();
    let of = |client| facts.iter().find(|facts| facts.client == client).map(|facts| facts.connections);
    assert_eq!(of(Client::User(1)), Some(1), "{facts:?}");
    assert_eq!(of(Client::User(2)), Some(CONNECTIONS as u32), "all connections of a client are one job: {facts:?}");
    result
}

#[test]
fn the_reads_of_a_light_client_pass_those_of_a_heavy_one() {
    for seed in testkit::rounds::seeds(3) {
        let ((on, all_on), (off, all_off)) = (longest_read(seed, true), longest_read(seed, false));
        assert_eq!((all_on, all_off), (512, 512), "seed {seed}");
        assert!(off > on * 5, "seed {seed}: {on:?} with usage, {off:?} without");
    }
}
