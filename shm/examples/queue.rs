//! A queue between machines: any number of programs put words into it, any number take them; each is taken once.
//!
//! `cargo run -p awase-shm --example queue -- awase-data/shm s put 1 2 3`, and elsewhere `… take 3`
//!
//! A ring of words that each have a number beside them, which says whose turn it is there (the bounded queue of Dmitry
//! Vyukov). Where to put and where to take are counted in different pages, and the words lie in others, so that who puts
//! and who takes disturb each other little.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use awase_shm::Mapping;

const PAGE: usize = 4096;

/// Words in the ring: a page's.
const PLACES: u64 = 256;

/// Between looks while the queue is full, or empty.
const PAUSE: Duration = Duration::from_millis(1);

struct Queue<'a> {
    put: &'a AtomicU64,
    taken: &'a AtomicU64,
    /// For each place the turn, less its number, and the word. Memory that is all zeroes is an empty queue.
    places: &'a [AtomicU64],
}

impl<'a> Queue<'a> {
    /// In the three pages from `at` on.
    fn at(memory: &'a Mapping, at: usize) -> Option<Queue<'a>> {
        Some(Queue {
            put: memory.atomic_u64(at)?,
            taken: memory.atomic_u64(at + PAGE)?,
            places: memory.atomics_u64(at + 2 * PAGE, 2 * PLACES as usize)?,
        })
    }

    /// Moves `counter` on when the place at which it is has that turn; returns the ticket and the place's turn and word.
    fn claim(&self, counter: &AtomicU64, ahead: u64) -> (u64, &AtomicU64, &AtomicU64) {
        loop {
            let ticket = counter.load(Ordering::SeqCst);
            let (number, round) = (ticket % PLACES, ticket / PLACES);
            let [turn, word] = [0, 1].map(|which| &self.places[(2 * number + which) as usize]);
            if turn.load(Ordering::SeqCst) != 2 * round + ahead {
                std::thread::sleep(PAUSE);
                continue;
            }
            if counter.compare_exchange(ticket, ticket + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return (2 * round + ahead + 1, turn, word);
            }
        }
    }

    fn put(&self, value: u64) {
        let (next, turn, word) = self.claim(self.put, 0);
        word.store(value, Ordering::SeqCst);
        turn.store(next, Ordering::SeqCst);
    }

    fn take(&self) -> u64 {
        let (next, turn, word) = self.claim(self.taken, 1);
        let value = word.load(Ordering::SeqCst);
        turn.store(next, Ordering::SeqCst);
        value
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(&std::env::args().skip(1).collect::<Vec<_>>(), &mut std::io::stdout())
}

pub fn run(arguments: &[String], out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let [socket, volume, what, words @ ..] = arguments else {
        return Err("usage: queue SOCKET VOLUME put WORD… | take COUNT".into());
    };
    let memory = awase_shm::Options::at(socket).open(volume)?;
    let queue = Queue::at(&memory, PAGE).ok_or("the volume is too small")?;
    match (what.as_str(), words) {
        ("put", words) => words.iter().try_for_each(|word| word.parse().map(|word| queue.put(word)))?,
        ("take", [count]) => (0..count.parse()?).try_for_each(|_: u64| writeln!(out, "{}", queue.take()))?,
        _ => return Err("put WORD… or take COUNT is wanted".into()),
    }
    Ok(())
}
