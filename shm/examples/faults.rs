//! What a fault costs, beside the least that userfaultfd costs on this machine, in µs:
//!
//! `taskset -c 0 target/release/examples/faults a/shm s b/shm`, with the sockets of two nodes that share the volume `s`
//! in memory (the second may be left out). The volume must be at least 64 MiB large, and nobody else may use it.
//!
//! The minimum is a thread of this program that polls, reads the fault, and copies a page in. Pinned to one core, as here,
//! it is what a server on that core could reach at best.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use awase_shm::{Error, Mapping, Memory, Options};
use linux_raw_sys::general as raw;
use rustix::event::{PollFd, PollFlags};
use rustix::ioctl::{Opcode, Updater, opcode};

const PAGE: usize = 4096;
const COUNT: usize = 2000;

/// Adjacent pages with one home, in turn of each node.
const SHARD: usize = 256;

const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(raw::UFFDIO as u8, raw::_UFFDIO_COPY as u8);

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    format!("median {:8.1}   99 of 100 {:8.1}", at(0.5), at(0.99))
}

fn show(what: &str, times: Vec<Duration>) {
    println!("{what:<58} {}", percentiles(times));
}

fn timed(act: impl FnOnce()) -> Duration {
    let began = Instant::now();
    act();
    began.elapsed()
}

/// Answers every fault with a page, until one that is the last.
fn answer(userfault: BorrowedFd<'_>, base: u64, last: u64) {
    let page = [1_u8; PAGE];
    loop {
        let mut message = [0_u8; size_of::<raw::uffd_msg>()];
        let mut watched = [PollFd::from_borrowed_fd(userfault, PollFlags::IN)];
        if rustix::event::poll(&mut watched, None).is_err() || rustix::io::read(userfault, &mut message).is_err() {
            continue;
        }
        // A fault's address is behind its flags: see uffd_msg in userfaultfd(2).
        let address = message[16..24].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let dst = address / PAGE as u64 * PAGE as u64;
        let src = page.as_ptr().expose_provenance() as u64;
        let mut argument = raw::uffdio_copy { dst, src, len: PAGE as u64, mode: 0, copy: 0 };
        // SAFETY: the code's own argument, from a page of this program to one of the mapping.
        let copied = unsafe { rustix::ioctl::ioctl(userfault, Updater::<COPY, _>::new(&mut argument)) };
        if copied.is_err() || dst == base + last * PAGE as u64 {
            return;
        }
    }
}

fn minimum() -> Result<Vec<Duration>, Error> {
    let memory = Memory::new(COUNT * PAGE)?;
    let base = memory.base().as_ptr();
    Ok(std::thread::scope(|scope| {
        let [userfault, _] = memory.descriptors();
        let address = base.expose_provenance() as u64;
        scope.spawn(move || answer(userfault, address, COUNT as u64 - 1));
        // SAFETY: each is inside the mapping, which lives until after the scope.
        let read = |page: usize| timed(|| _ = std::hint::black_box(unsafe { base.add(page * PAGE).read_volatile() }));
        (0..COUNT).map(read).collect()
    }))
}

fn read(memory: &Mapping, page: usize) -> Duration {
    timed(|| _ = memory.atomic_u64(page * PAGE).map(|word| word.load(SeqCst)))
}

fn add(memory: &Mapping, page: usize) -> Duration {
    timed(|| _ = memory.atomic_u64(page * PAGE).map(|word| word.fetch_add(1, SeqCst)))
}

/// Pages whose home is the node of this number, of so many.
fn pages_of(node: usize, nodes: usize) -> impl Iterator<Item = usize> {
    (0..).filter(move |page| page / SHARD % nodes == node)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, volume, others @ ..] = &arguments[..] else {
        return Err("usage: faults SOCKET VOLUME [SOCKET]".into());
    };
    let nodes = 1 + others.len();
    show("the least: a thread that polls, reads and copies", minimum()?);
    let memory = Options::at(socket).open(volume)?;
    let own: Vec<usize> = pages_of(0, nodes).take(COUNT).collect();
    show("a page of this node, read", own.iter().map(|page| read(&memory, *page)).collect());
    show("… written after that", own.iter().map(|page| add(&memory, *page)).collect());
    let second = Options::at(socket).open(volume)?;
    show("… read by another program, which takes it", own.iter().map(|page| read(&second, *page)).collect());
    if let [other] = others {
        let theirs: Vec<usize> = pages_of(1, nodes).take(COUNT).collect();
        show("a page of the other node, read", theirs.iter().map(|page| read(&memory, *page)).collect());
        show("… written after that", theirs.iter().map(|page| add(&memory, *page)).collect());
        let there = Options::at(other).open(volume)?;
        show("… written by a program there, which takes it", theirs.iter().map(|page| add(&there, *page)).collect());
        let to_and_fro = (0..COUNT).map(|_| add(&memory, theirs[0]) + add(&there, theirs[0]));
        show("to this node and back, both write", to_and_fro.collect());
    }
    let hits = 10_000_000;
    let word = memory.atomic_u64(own[0] * PAGE).ok_or("the volume is empty")?;
    word.fetch_add(1, SeqCst);
    let time = timed(|| (0..hits).for_each(|_| _ = std::hint::black_box(word.load(SeqCst))));
    println!("a hit: {:.2} ns", time.as_secs_f64() * 1e9 / f64::from(hits));
    Ok(())
}
