//! What a fault costs, beside the least that userfaultfd and loopback cost on this machine, in µs:
//!
//! `taskset -c 0 target/release/examples/faults a/shm s b/shm c/shm`, with the sockets of all nodes, in order, that share
//! the volume `s` in memory (all but the first may be left out). The volume must be at least 256 MiB large, and nobody else
//! may use it.
//!
//! The minimum is a thread of this program that polls, reads the fault, and copies a page in. Pinned to one core, as here,
//! it is what a server on that core could reach at best. Over loopback it is a thread on the second core that answers 64
//! bytes with a page, or sends as fast as it can.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use awase_shm::{Error, Mapping, Memory, Options};
use linux_raw_sys::general as raw;
use rustix::event::{PollFd, PollFlags};
use rustix::ioctl::{Opcode, Updater, opcode};

const PAGE: usize = 4096;
const COUNT: usize = 2000;

/// Bytes of a message between nodes.
const MESSAGE: usize = 64;

/// Pages that are read in order.
const IN_ORDER: usize = 64 * SHARD;

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

/// This program's end of a connection to a thread on the second core.
fn connected(there: impl FnOnce(TcpStream) + Send + 'static) -> std::io::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    other.set_nodelay(true)?;
    std::thread::spawn(move || {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(1);
        // Where there is none, it shares this one.
        let _ = rustix::thread::sched_setaffinity(None, &cores);
        there(other);
    });
    Ok(stream)
}

/// A page for a message, by the shortest program.
fn round_trips() -> std::io::Result<Vec<Duration>> {
    let mut stream = connected(|mut stream| {
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).is_ok() && stream.write_all(&[1; MESSAGE + PAGE]).is_ok() {}
    })?;
    let mut page = [0; MESSAGE + PAGE];
    let mut once = || -> std::io::Result<Duration> {
        let began = Instant::now();
        stream.write_all(&[0; MESSAGE])?;
        stream.read_exact(&mut page)?;
        Ok(began.elapsed())
    };
    (0..COUNT).map(|_| once()).collect()
}

/// Everything that is read in order, by the shortest program.
fn plain_loopback() -> std::io::Result<Duration> {
    let mut stream = connected(|mut stream| while stream.write_all(&[1; SHARD * PAGE / 4]).is_ok() {})?;
    let mut bytes = vec![0; SHARD * PAGE];
    let began = Instant::now();
    for _ in 0..IN_ORDER / SHARD {
        stream.read_exact(&mut bytes)?;
    }
    Ok(began.elapsed())
}

fn show_rate(what: &str, time: Duration) {
    println!("{what:<58} {:8.0} MiB/s", ((IN_ORDER * PAGE) >> 20) as f64 / time.as_secs_f64());
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

/// The first of them, backwards, and each second one first.
fn scattered(pages: impl Iterator<Item = usize>) -> Vec<usize> {
    let pages: Vec<usize> = pages.take(COUNT).collect();
    let halves = [0, 1].map(|first| pages.iter().skip(first).step_by(2).rev().copied());
    halves.into_iter().flatten().collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, volume, others @ ..] = &arguments[..] else {
        return Err("usage: faults SOCKET VOLUME [SOCKET]".into());
    };
    let nodes = 1 + others.len();
    show("the least: a thread that polls, reads and copies", minimum()?);
    show("the least: a message over loopback, and a page back", round_trips()?);
    let memory = Options::at(socket).open(volume)?;
    // In no order, so that nothing is read ahead.
    let own = scattered(pages_of(0, nodes));
    show("a page of this node, read", own.iter().map(|page| read(&memory, *page)).collect());
    show("… written after that", own.iter().map(|page| add(&memory, *page)).collect());
    let second = Options::at(socket).open(volume)?;
    show("… read by another program, which takes it", own.iter().map(|page| read(&second, *page)).collect());
    if let [other, ..] = others {
        let theirs = scattered(pages_of(1, nodes));
        show("a page of the other node, read", theirs.iter().map(|page| read(&memory, *page)).collect());
        show("… written after that", theirs.iter().map(|page| add(&memory, *page)).collect());
        let there = Options::at(other).open(volume)?;
        show("… written by a program there, which takes it", theirs.iter().map(|page| add(&there, *page)).collect());
        let to_and_fro = (0..COUNT).map(|_| add(&memory, theirs[0]) + add(&there, theirs[0]));
        show("to this node and back, both write", to_and_fro.collect());
        show_rate("plain loopback", plain_loopback()?);
        let in_order = pages_of(1, nodes).skip(COUNT).take(IN_ORDER);
        show_rate("pages of the other node, in order", in_order.map(|page| read(&memory, page)).sum());
    }
    let shared: Vec<Mapping> = others.iter().map(|other| Options::at(other).open(volume)).collect::<Result<_, _>>()?;
    for readers in 1..=shared.len() {
        let some = scattered(pages_of(0, nodes).skip(COUNT * readers));
        shared.iter().take(readers).for_each(|reader| some.iter().for_each(|page| _ = read(reader, *page)));
        let times = some.iter().map(|page| add(&memory, *page)).collect();
        show(&format!("a page of this node that {readers} others have, written"), times);
    }
    let hits = 10_000_000;
    let word = memory.atomic_u64(own[0] * PAGE).ok_or("the volume is empty")?;
    word.fetch_add(1, SeqCst);
    let time = timed(|| (0..hits).for_each(|_| _ = std::hint::black_box(word.load(SeqCst))));
    println!("a hit: {:.2} ns", time.as_secs_f64() * 1e9 / f64::from(hits));
    Ok(())
}
