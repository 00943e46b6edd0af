use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kernel::device::{Device, DeviceFacts, RamDisk, Work};
use kernel::request::{self, Action, Outcome};
use kernel::{Switches, Volume};
use machine::mapping::{self, Mapping};
use machine::{Connection, Errno};
use policy::coherence::{Address, Home, Incarnation, Message, Request, Serial, ShardNo, Version};
use policy::readahead;
use policy::unit::DiskNo;
use sim::World;
use testkit::scene::{Host, boot, small_kernel};

use super::*;
use crate::SHARD_PAGES;
use crate::arrived::tests::{ME, PEER, SIZE, join_storing, open_volume};
use crate::arrived::{Arrived, Payload};
use crate::run::Run;
use crate::wire::{Header, PAGE_BYTES};

const SINCE: Incarnation = Incarnation(5);

/// A program's memory: the pages that it may access.
#[derive(Default)]
struct Memory(Mutex<BTreeSet<u64>>);

impl Memory {
    fn pages(&self) -> Vec<u64> {
        self.0.lock().expect("one thread").iter().copied().collect()
    }
}

impl Mapping for Memory {
    fn faults(&self) -> mapping::Faults {
        mapping::Faults(0)
    }

    fn len(&self) -> u64 {
        SIZE / PAGE_BYTES as u64
    }

    fn decode(&self, _received: &[u8]) -> Vec<mapping::Fault> {
        Vec::new()
    }

    fn fill(&self, page: u64, _bytes: &[u8; PAGE_BYTES], _is_writable: bool) -> Result<(), Errno> {
        self.0.lock().expect("one thread").insert(page);
        Ok(())
    }

    fn allow_writes(&self, _page: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn forbid_writes(&self, _page: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn copy_out(&self, _page: u64, _into: &mut [u8; PAGE_BYTES]) -> Result<(), Errno> {
        Ok(())
    }

    fn remove(&self, page: u64) -> Result<(), Errno> {
        self.0.lock().expect("one thread").remove(&page);
        Ok(())
    }

    fn clear(&self) -> Result<(), Errno> {
        self.0.lock().expect("one thread").clear();
        Ok(())
    }

    fn poison(&self, _page: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn wake(&self, _page: u64) -> Result<(), Errno> {
        Ok(())
    }
}

const TRANSFER_PAGES: u64 = 4;

/// Storage in memory that takes few pages at a time.
struct Storage {
    memory: RamDisk,
    /// Of the longest read. Bytes.
    longest: AtomicU64,
    /// No page can be read.
    fails: AtomicBool,
}

impl Device for Storage {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { transfer_bytes_max: (TRANSFER_PAGES as usize * PAGE_BYTES) as u32, ..self.memory.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: request::Request) -> Work<'a, Outcome> {
        if let Action::Read(range, _) = &request.action {
            self.longest.fetch_max(range.len, Ordering::Relaxed);
            if self.fails.load(Ordering::Relaxed) {
                return Box::pin(async { Err(Errno::IO) });
            }
        }
        self.memory.perform(cpu, request)
    }
}

const AHEAD: readahead::Mode = readahead::Mode::Adaptive { blocks_max: 256 };

/// This node, the home of the second shard, to which the home of the first is connected.
struct Scene {
    _world: World,
    host: Host,
    shared: Arc<Shared>,
    _volume: Arc<Volume>,
    storage: Arc<Storage>,
}

impl Scene {
    fn new(read_ahead: readahead::Mode) -> Scene {
        let switches = Switches { look_ahead: true, read_ahead, ..Switches::default() };
        let (world, host) = boot(1, small_kernel(1, 2 * SIZE, switches));
        let homes = [PEER, ME].into_iter().zip(0..).map(|(at, shard)| (ShardNo(shard), Home { at, since: SINCE }));
        let memory = RamDisk::new(SIZE, DiskNo(0));
        let storage = Arc::new(Storage { memory, longest: AtomicU64::new(0), fails: AtomicBool::new(false) });
        let shared = join_storing(homes.collect(), storage.clone(), Box::new(|_| ()));
        shared.links[usize::from(PEER.node.0)].connect();
        let volume = open_volume(&host.kernel, &shared);
        let scene = Scene { _world: world, host, shared, _volume: volume, storage };
        scene.deliver([scene.run([Message::Surveyed { since: SINCE, seen: SINCE }])]);
        scene
    }

    fn cpu(&self) -> &Processor {
        &self.host.processors[0]
    }

    fn map(&self) -> (MappingNo, Arc<Memory>) {
        let memory = Arc::new(Memory::default());
        let processor = self.cpu().id();
        (self.shared.core.lock().mapped.add(memory.clone(), Connection(0), processor), memory)
    }

    /// Threads wait for pages, all of them reported at once.
    fn fault(&self, no: MappingNo, pages: impl IntoIterator<Item = u64>, is_write: bool) {
        let faults: Vec<_> = pages.into_iter().map(|page| mapping::Fault { page, is_write }).collect();
        self.shared.on_faults(self.cpu(), no, &faults);
    }

    /// Requests to read that have been sent, in order.
    fn asked(&self) -> Vec<(u64, Request)> {
        let words = self.shared.links[usize::from(PEER.node.0)].take_words();
        let asked = words.into_iter().filter_map(|word| match word {
            Word::Page { message: Message::Ask { page, request, mode: Mode::Read, .. }, .. } => Some((page.0, request)),
            _ => None,
        });
        asked.collect()
    }

    /// Messages of the home, as one run.
    fn run(&self, messages: impl IntoIterator<Item = Message>) -> Arrived {
        let (from, to): (Address, Address) = (PEER, ME);
        let headers = messages.into_iter().map(|message| {
            let word = Word::page(message, false);
            Header { from: from.incarnation, to: to.incarnation, word }
        });
        let run = headers.fold(None, |run: Option<Run>, header| {
            let Some(mut run) = run else { return Some(Run::of(header)) };
            assert!(run.extend(&header), "not one run");
            Some(run)
        });
        let run = run.expect("a message");
        let mut frames = Frames::new();
        self.cpu().kernel().try_allocate(run.page_bytes() / PAGE_BYTES, &mut frames);
        Arrived { from, to, run, pages: Payload::Frames(frames) }
    }

    fn deliver(&self, arrived: impl IntoIterator<Item = Arrived>) {
        self.shared.on_messages(self.cpu(), arrived.into_iter());
    }
}

fn serial(page: u64) -> Serial {
    Serial { incarnation: SINCE, count: 100 + page }
}

fn grant((page, request): (u64, Request)) -> Message {
    let data = Some(Version { serial: serial(page), writes: 1 });
    Message::Grant { page: PageNo(page), mode: Mode::Read, request, serial: serial(page), data }
}

#[test]
fn threads_that_wait_get_the_pages_of_a_run_before_a_recall_that_came_with_it() {
    let scene = Scene::new(readahead::Mode::Off);
    let (no, memory) = scene.map();
    scene.fault(no, [8, 9], false);
    let asked = scene.asked();
    assert_eq!(asked, [(8, Request(1)), (9, Request(2))]);
    let request = asked[0].1;
    let recall = Message::Recall { page: PageNo(8), serial: serial(8), request, retain: false, forward: None };
    scene.deliver([scene.run(asked.into_iter().map(grant)), scene.run([recall])]);
    assert_eq!(memory.pages(), [8, 9]);
    assert!(scene.shared.core.lock().is_leaving(PageNo(8)), "it stays for a while");
}

#[test]
fn the_page_that_a_thread_waits_for_is_asked_for_before_those_that_are_given_ahead() {
    let scene = Scene::new(AHEAD);
    let (no, _) = scene.map();
    scene.fault(no, [8], false);
    scene.fault(no, [9], false);
    assert_eq!(scene.asked().into_iter().map(|(page, _)| page).collect::<Vec<_>>(), (8..26).collect::<Vec<_>>());
}

#[test]
fn what_another_mapping_waits_to_write_is_given_to_none_ahead() {
    let scene = Scene::new(AHEAD);
    let [(first, memory), (second, _)] = [scene.map(), scene.map()];
    scene.fault(first, [8, 9], false);
    let asked = scene.asked();
    scene.fault(second, [12], true);
    scene.deliver(asked.into_iter().filter(|(page, _)| *page != 9).map(|asked| scene.run([grant(asked)])));
    let core = scene.shared.core.lock();
    let faults = core.pages.get(PageNo(12)).map(|entry| entry.faults.iter().map(|fault| fault.no).collect::<Vec<_>>());
    assert_eq!(faults, Some(vec![second]));
    assert_eq!(memory.pages(), (8..26).filter(|page| ![9, 12].contains(page)).collect::<Vec<_>>());
}

fn ask(page: u64) -> Message {
    let request = Request(1 + page);
    Message::Ask { page: PageNo(page), mode: Mode::Read, request, have: None, blank: false }
}

#[test]
fn no_more_is_read_for_others_at_a_time_than_the_storage_takes() {
    let scene = Scene::new(readahead::Mode::Off);
    let runs = (0..3).map(|run| scene.run((0..10).map(|page| ask(SHARD_PAGES + 10 * run + page))));
    scene.deliver(runs);
    assert_eq!(scene.shared.counters.grants.get(), 30);
    assert_eq!(scene.storage.longest.load(Ordering::Relaxed), TRANSFER_PAGES * PAGE_BYTES as u64);
}

#[test]
fn a_request_whose_page_cannot_be_read_ends_at_once() {
    let scene = Scene::new(readahead::Mode::Off);
    scene.storage.fails.store(true, Ordering::Relaxed);
    // Of the last piece there is one page.
    let last = SHARD_PAGES + TRANSFER_PAGES;
    scene.deliver([scene.run((SHARD_PAGES..=last).map(ask))]);
    let core = &mut *scene.shared.core.lock();
    assert_eq!(core.watch.end(Part::Home, PageNo(last), PEER.node, scene.cpu().now()), None);
}

#[test]
fn a_page_that_is_expected_and_waited_for_counts_once() {
    let scene = Scene::new(AHEAD);
    let (no, _) = scene.map();
    scene.fault(no, [8, 9], false);
    scene.fault(no, [12], false);
    assert_eq!(scene.shared.gauges().awaited, 18);
}

#[test]
fn what_a_mapping_expects_of_another_home_it_is_given_by_this_one_when_the_shard_has_moved_here() {
    let scene = Scene::new(readahead::Mode::Off);
    let [(first, memory), (second, _)] = [scene.map(), scene.map()];
    let page = PageNo(SHARD_PAGES);
    scene.shared.core.lock().mapped.expected.add(page..PageNo(page.0 + 1), first, Instant::from_ns(u64::MAX));
    scene.fault(second, [page.0], false);
    assert_eq!(memory.pages(), [page.0]);
    assert_eq!(scene.shared.gauges().awaited, 0);
}
