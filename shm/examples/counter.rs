//! A counter that programs on several machines increment at once: no number is given twice, and none is missing.
//!
//! `cargo run -p awase-shm --example counter -- awase-data/shm s 100000`

use std::sync::atomic::Ordering;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(volume), Some(times)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: counter SOCKET VOLUME TIMES".into());
    };
    let memory = awase_shm::Options::at(socket).open(&volume)?;
    let counter = memory.atomic_u64(0).ok_or("the volume is empty")?;
    let times: u64 = times.parse()?;
    let began = std::time::Instant::now();
    let mut last = counter.load(Ordering::SeqCst);
    for _ in 0..times {
        last = counter.fetch_add(1, Ordering::SeqCst) + 1;
    }
    memory.flush()?;
    println!("counter: {last}, after {times} increments of this program in {:?}", began.elapsed());
    Ok(())
}
