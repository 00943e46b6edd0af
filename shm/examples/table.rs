//! A table that many machines read and few change: reads are of this machine's memory, and ask nobody, until somebody
//! changes the row.
//!
//! `cargo run -p awase-shm --example table -- awase-data/shm s set 17 4711`, and elsewhere `… get 17`
//!
//! Each row has a number of its version, which is odd while the row is changed: a reader that finds it odd, or another
//! one after it has read, reads again (a sequence lock, one for each row).

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use awase_shm::Mapping;

/// After the counter and the queue of the other examples.
pub const AT: usize = 64 << 10;

const ROWS: usize = 4096;

/// Of a row: its version, and three words.
const WORDS: usize = 4;

pub struct Table<'a>(&'a [AtomicU64]);

impl<'a> Table<'a> {
    pub fn at(memory: &'a Mapping, at: usize) -> Option<Table<'a>> {
        memory.atomics_u64(at, ROWS * WORDS).map(Table)
    }

    fn row(&self, number: usize) -> Option<(&AtomicU64, &[AtomicU64])> {
        let row = self.0.chunks_exact(WORDS).nth(number)?;
        row.split_first()
    }

    pub fn get(&self, number: usize) -> Option<Vec<u64>> {
        let (version, words) = self.row(number)?;
        loop {
            let before = version.load(Ordering::SeqCst);
            let read: Vec<u64> = words.iter().map(|word| word.load(Ordering::SeqCst)).collect();
            if before.is_multiple_of(2) && version.load(Ordering::SeqCst) == before {
                return Some(read);
            }
            std::hint::spin_loop();
        }
    }

    pub fn set(&self, number: usize, values: &[u64]) -> Option<()> {
        let (version, words) = self.row(number)?;
        let claim = |now: u64| now.is_multiple_of(2).then_some(now + 1);
        // Others that change the row are waited for.
        while version.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_err() {
            std::hint::spin_loop();
        }
        words.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::SeqCst));
        version.fetch_add(1, Ordering::SeqCst);
        Some(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(&std::env::args().skip(1).collect::<Vec<_>>(), &mut std::io::stdout())
}

pub fn run(arguments: &[String], out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let [socket, volume, what, row, values @ ..] = arguments else {
        return Err("usage: table SOCKET VOLUME get ROW | set ROW VALUE…".into());
    };
    let memory = awase_shm::Options::at(socket).open(volume)?;
    let table = Table::at(&memory, AT).ok_or("the volume is too small")?;
    let row: usize = row.parse()?;
    let done = match what.as_str() {
        "get" => table.get(row).map(|values| writeln!(out, "{values:?}")).transpose()?,
        "set" => {
            let values = values.iter().map(|value| value.parse()).collect::<Result<Vec<u64>, _>>()?;
            table.set(row, &values)
        }
        _ => return Err("get or set is wanted".into()),
    };
    done.ok_or_else(|| format!("there are {ROWS} rows").into())
}
