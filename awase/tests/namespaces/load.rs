//! Clients and programs at all nodes that read and write the same pages, and what they saw.
//!
//! A page has three registers: its first word, which programs load and store; the rest of its first sector; and the other
//! sectors. Clients read and write its first sector, or all of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm::Mapping;
use testkit::history::{Act, Event, Flush, History, Time};
use testkit::nbd::Client;
use testkit::random::Random;

use crate::cluster::NODES;

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;

/// A few that all want, in several shards.
pub const PAGES: [u64; 8] = [0, 1, 256, 257, 512, 1100, 2000, 5000];

/// Of one node.
#[derive(Default)]
pub struct Place {
    /// Its processes and leases so far: what a client of an earlier one wrote may be lost.
    epoch: AtomicUsize,
    /// Programs do nothing more.
    is_paused: AtomicBool,
    /// What is done there.
    pub done: AtomicU64,
}

impl Place {
    pub fn next_epoch(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }

    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, SeqCst);
    }
}

pub struct Load {
    history: Mutex<History>,
    start: Instant,
    values: AtomicU64,
    is_ending: AtomicBool,
    pub places: [Place; NODES],
    longest: Mutex<Duration>,
}

/// A client or program.
struct Actor {
    load: Arc<Load>,
    node: usize,
    random: Random,
    process: usize,
}

impl Load {
    pub fn new() -> Arc<Load> {
        Arc::new(Load {
            history: Mutex::default(),
            start: Instant::now(),
            values: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            places: Default::default(),
            longest: Mutex::default(),
        })
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }

    /// What was not flushed before may be undone from here on.
    pub fn crash(&self) {
        let mut history = self.history.lock();
        let now = self.now();
        history.crashes.push(now);
    }

    pub fn client(self: &Arc<Self>, node: usize, socket: PathBuf, seed: u64) -> JoinHandle<()> {
        let mut actor = Actor { load: Arc::clone(self), node, random: Random(seed), process: 0 };
        std::thread::spawn(move || actor.converse(&socket))
    }

    pub fn program(self: &Arc<Self>, node: usize, mapping: Arc<Mapping>, seed: u64) -> JoinHandle<()> {
        let mut actor = Actor { load: Arc::clone(self), node, random: Random(seed), process: 0 };
        std::thread::spawn(move || actor.use_memory(&mapping))
    }

    pub fn end(&self) {
        self.is_ending.store(true, SeqCst);
    }

    /// Reads all pages at a node.
    pub fn read_all(self: &Arc<Self>, node: usize, client: &mut Client) {
        let mut actor = Actor { load: Arc::clone(self), node, random: Random(0), process: 0 };
        for page in PAGES {
            actor.read(client, page, PAGE).expect("every node serves every page");
        }
    }

    /// Prints what was done.
    ///
    /// # Panics
    /// When it cannot have been so.
    pub fn check(&self, round: &str) {
        let history = self.history.lock();
        let of = |act| history.events.iter().filter(|event| event.act == act && event.ended.is_some()).count();
        println!(
            "{round}: {} reads, {} writes, {} flushes or stable writes, {} times cut; the longest took {:?}",
            of(Act::Read),
            of(Act::Write),
            history.flushes.len(),
            history.crashes.len(),
            *self.longest.lock(),
        );
        if let Err(what) = history.check() {
            let block = what.split([' ', ':']).nth(1).and_then(|number| number.parse::<u64>().ok());
            history.events.iter().filter(|event| Some(event.block) == block).for_each(|event| eprintln!("{event:?}"));
            history.flushes.iter().for_each(|flush| eprintln!("{flush:?}"));
            panic!("{what}; crashes {:?}", history.crashes);
        }
    }
}

/// The registers of a page of which `len` bytes are accessed.
fn registers(page: u64, len: u64) -> impl Iterator<Item = u64> {
    (0..if len == PAGE { 3 } else { 2 }).map(move |register| 3 * page + register)
}

fn pattern(value: u64, len: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(len as usize / 8)
}

/// The values of the registers.
fn values(bytes: &[u8]) -> Vec<u64> {
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
    let sector = SECTOR as usize / 8;
    let parts = [0..1, 1..sector, sector..words.len()];
    let parts = parts.into_iter().filter(|part| !part.is_empty()).map(|part| &words[part]);
    let value = |part: &[u64]| {
        assert!(part.iter().all(|word| *word == part[0]), "a part of two writes: {part:?}");
        part[0]
    };
    parts.map(value).collect()
}

impl Actor {
    fn begin(&self, registers: impl Iterator<Item = u64>, act: Act, value: u64) -> Vec<usize> {
        let mut history = self.load.history.lock();
        let begun = self.load.now();
        let event = |block| Event { block, node: self.process, act, value, begun, ended: None };
        let first = history.events.len();
        history.events.extend(registers.map(event));
        (first..history.events.len()).collect()
    }

    fn end(&self, events: &[usize], values: &[u64]) {
        let ended = self.load.now();
        let mut history = self.load.history.lock();
        for (event, value) in events.iter().zip(values) {
            let event = &mut history.events[*event];
            (event.value, event.ended) = (*value, Some(ended));
        }
        drop(history);
        self.load.places[self.node].done.fetch_add(1, SeqCst);
    }

    fn next_value(&self) -> u64 {
        self.load.values.fetch_add(1, SeqCst) + 1
    }

    fn set_process(&mut self) {
        self.process = self.node + 1000 * self.load.places[self.node].epoch.load(SeqCst);
    }

    fn converse(&mut self, socket: &std::path::Path) {
        while !self.load.is_ending.load(SeqCst) {
            self.set_process();
            let Ok(mut client) = Client::connect(socket, "s") else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            // After an error the disk of this connection may have ended for good.
            while !self.load.is_ending.load(SeqCst) && self.step(&mut client).is_ok() {
                std::thread::sleep(Duration::from_micros(self.random.below(4000)));
            }
        }
    }

    fn step(&mut self, client: &mut Client) -> std::io::Result<()> {
        let page = PAGES[self.random.below(PAGES.len() as u64) as usize];
        let len = if self.random.chance(500) { PAGE } else { SECTOR };
        let began = Instant::now();
        let result = match self.random.below(100) {
            0..48 => self.read(client, page, len),
            48..95 => self.write(client, page, len),
            _ => {
                let begun = self.load.now();
                client.flush().map(|()| {
                    let flush = Flush { node: self.process, begun, ended: self.load.now(), only: None };
                    self.load.history.lock().flushes.push(flush);
                })
            }
        };
        let mut longest = self.load.longest.lock();
        *longest = longest.max(began.elapsed());
        result
    }

    fn read(&mut self, client: &mut Client, page: u64, len: u64) -> std::io::Result<()> {
        let events = self.begin(registers(page, len), Act::Read, 0);
        let bytes = client.read(page * PAGE, len as u32)?;
        self.end(&events, &values(&bytes));
        Ok(())
    }

    fn write(&mut self, client: &mut Client, page: u64, len: u64) -> std::io::Result<()> {
        let (value, is_stable) = (self.next_value(), self.random.chance(100));
        let events = self.begin(registers(page, len), Act::Write, value);
        let bytes = pattern(value, len);
        if is_stable {
            client.write_stable(page * PAGE, &bytes)?
        } else {
            client.write(page * PAGE, &bytes)?
        }
        self.end(&events, &vec![value; events.len()]);
        if is_stable {
            self.note_stable(value);
        }
        Ok(())
    }

    /// A write that has ended is durable.
    fn note_stable(&self, value: u64) {
        let now = self.load.now();
        let flush = Flush { node: self.process, begun: now, ended: now, only: Some(value) };
        self.load.history.lock().flushes.push(flush);
    }

    fn use_memory(&mut self, mapping: &Mapping) {
        while !self.load.is_ending.load(SeqCst) {
            if self.load.places[self.node].is_paused.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.set_process();
            let page = PAGES[self.random.below(PAGES.len() as u64) as usize];
            let word = mapping.atomic_u64((page * PAGE) as usize).expect("inside");
            if self.random.chance(500) {
                let event = self.begin(registers(page, SECTOR).take(1), Act::Read, 0);
                let value = word.load(SeqCst);
                self.end(&event, &[value]);
            } else {
                let losses = mapping.losses();
                let value = self.next_value();
                let event = self.begin(registers(page, SECTOR).take(1), Act::Write, value);
                word.store(value, SeqCst);
                self.end(&event, &[value]);
                if self.random.chance(100) && mapping.flush().is_ok() && mapping.losses() == losses {
                    self.note_stable(value);
                }
            }
            std::thread::sleep(Duration::from_micros(self.random.below(4000)));
        }
    }
}
