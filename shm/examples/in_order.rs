//! Pages read in order, in MiB/s, and plain loopback after them:
//!
//! `taskset -c 0 target/release/examples/in_order b/shm s 160`, with the socket of a node, a volume whose home is another one,
//! and how many MiB to read at a time. Each pass maps it anew and reads other pages, until the volume ends. Over loopback, a
//! thread on the second core sends as fast as it can.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use awase_shm::Options;

const PAGE: usize = 4096;

const MIB: usize = 1 << 20;

/// Everything that is read in a pass, by the shortest program.
fn plain_loopback(bytes: usize) -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    std::thread::spawn(move || {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(1);
        // Where there is none, it shares this one.
        let _ = rustix::thread::sched_setaffinity(None, &cores);
        while other.write_all(&[1; MIB / 4]).is_ok() {}
    });
    let mut into = vec![0; MIB];
    let began = Instant::now();
    for _ in 0..bytes / MIB {
        stream.read_exact(&mut into)?;
    }
    Ok((bytes / MIB) as f64 / began.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, volume, size] = &arguments[..] else {
        return Err("usage: in_order SOCKET VOLUME MIB".into());
    };
    let len = Options::at(socket).open(volume)?.len();
    let bytes = size.parse::<usize>()?.saturating_mul(MIB);
    if bytes == 0 || bytes > len {
        return Err(format!("MIB must be 1 to {}, as much as the volume has", len / MIB).into());
    }
    for first in (0..=len - bytes).step_by(bytes) {
        let memory = Options::at(socket).open(volume)?;
        let began = Instant::now();
        for at in (first..first + bytes).step_by(PAGE) {
            std::hint::black_box(memory.atomic_u64(at).map(|word| word.load(SeqCst)));
        }
        // Before the pages are taken away again, which takes time of the node.
        let took = began.elapsed();
        let plain = plain_loopback(bytes)?;
        drop(memory);
        let rate = (bytes / MIB) as f64 / took.as_secs_f64();
        println!("{rate:8.0} MiB/s, plain loopback {plain:8.0}: {:.2}", rate / plain);
    }
    Ok(())
}
