//! What was acknowledged as durable survives `kill -9` under load, with a real process and a real file.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use testkit::nbd::Client;
use testkit::random::Random;
use testkit::server::Place;

const BLOCK: usize = 4096;
/// Blocks that each writer has for itself.
const BLOCKS: usize = 2048;
const WRITERS: usize = 4;
/// Durable acknowledgements after which the server is killed.
const ACKNOWLEDGEMENTS: usize = 150;
const ROUNDS: u64 = 3;

/// What one writer knows: for each block the number of the last write that must be there, and of the last that may be.
#[derive(Clone)]
struct Ledger {
    durable: Vec<u64>,
    written: Vec<u64>,
    next: u64,
}

/// The content of a block after write `number`: the same number all over, so that a torn block shows.
fn content(writer: usize, number: u64) -> Vec<u8> {
    let word = number << 8 | writer as u64;
    word.to_le_bytes().repeat(BLOCK / 8)
}

fn offset(writer: usize, block: usize) -> u64 {
    ((writer * BLOCKS + block) * BLOCK) as u64
}

/// Writes until the server is gone.
fn write(writer: usize, seed: u64, ledger: &mut Ledger, socket: PathBuf, durable: &Sender<()>) -> io::Result<()> {
    let mut random = Random(seed.wrapping_mul(1000) + writer as u64);
    let mut client = Client::connect(&socket, "disk")?;
    loop {
        let count = 1 + random.below(16) as usize;
        let first = random.below((BLOCKS - count) as u64 + 1) as usize;
        ledger.next += 1;
        let number = ledger.next;
        let bytes = content(writer, number).repeat(count);
        // Noted before: it may be there even when the answer never comes.
        ledger.written[first..first + count].fill(number);
        match random.below(8) {
            0 => {
                client.write_stable(offset(writer, first), &bytes)?;
                ledger.durable[first..first + count].fill(number);
                let _ = durable.send(());
            }
            1 => {
                client.write(offset(writer, first), &bytes)?;
                client.flush()?;
                ledger.durable.clone_from(&ledger.written);
                let _ = durable.send(());
            }
            _ => client.write(offset(writer, first), &bytes)?,
        }
    }
}

/// Every block holds a write that may be there, whole; and none older than what was acknowledged as durable.
fn verify(writer: usize, ledger: &mut Ledger, socket: PathBuf) -> Result<(), String> {
    let mut client = Client::connect(&socket, "disk").map_err(|error| error.to_string())?;
    for block in 0..BLOCKS {
        let bytes = client.read(offset(writer, block), BLOCK as u32).map_err(|error| error.to_string())?;
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let number = word >> 8;
        let (least, most) = (ledger.durable[block], ledger.written[block]);
        let whole = if number == 0 { bytes.iter().all(|byte| *byte == 0) } else { bytes == content(writer, number) };
        if !whole {
            return Err(format!("block {block} of writer {writer} is torn or foreign"));
        }
        if !(least..=most).contains(&number) {
            return Err(format!("block {block} of writer {writer} holds write {number}, not {least} to {most}"));
        }
        // What is there now is what later rounds start from.
        (ledger.durable[block], ledger.written[block]) = (number, number);
    }
    Ok(())
}

fn survives_kill(arguments: &[&str], seed: u64) {
    let place = Place::new();
    let new = Ledger { durable: vec![0; BLOCKS], written: vec![0; BLOCKS], next: 0 };
    let mut ledgers = vec![new; WRITERS];
    for round in 0..ROUNDS {
        let server = place.serve(arguments);
        let (durable, acknowledged) = channel();
        let writers: Vec<_> = ledgers
            .drain(..)
            .enumerate()
            .map(|(writer, mut ledger)| {
                let (socket, durable) = (server.socket(), durable.clone());
                thread::spawn(move || {
                    let end = write(writer, seed + round, &mut ledger, socket, &durable);
                    (ledger, end)
                })
            })
            .collect();
        drop(durable);
        let count = acknowledged.iter().take(ACKNOWLEDGEMENTS).count();
        server.crash();
        for writer in writers {
            let (ledger, end) = writer.join().expect("no panic");
            let error = end.expect_err("the server is gone");
            assert_eq!(count, ACKNOWLEDGEMENTS, "seed {seed}: a writer stopped early: {error}");
            ledgers.push(ledger);
        }
        let server = place.serve(arguments);
        for (writer, ledger) in ledgers.iter_mut().enumerate() {
            verify(writer, ledger, server.socket())
                .unwrap_or_else(|what| panic!("{arguments:?} seed {seed} round {round}: {what}"));
        }
        // Half of the rounds begin with what is only in the cache of a server that was killed again.
        server.crash();
    }
}

#[test]
fn acknowledged_writes_survive_kill_with_io_uring() {
    survives_kill(&["--engine", "auto"], 1);
}

#[test]
fn acknowledged_writes_survive_kill_with_threads() {
    survives_kill(&["--engine", "threads"], 2);
}

#[test]
fn acknowledged_writes_survive_kill_with_every_technique_off() {
    survives_kill(
        &[
            "--switch",
            "flush_gathering=off",
            "--switch",
            "smooth_write_back=off",
            "--switch",
            "block_merge=off",
            "--switch",
            "priority=off",
            "--switch",
            "unmapped_io=off",
            "--memory",
            "16MiB",
        ],
        3,
    );
}
