//! An NBD client with several requests in flight, which records in its ledger what was acknowledged.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use crate::ledger::{ChangeId, Content, Journal, Ledger, Outcome, SECTOR, Stamp};
use crate::nbd::{Client, Command, FLAG_FUA};
use crate::progress::Progress;
use crate::random::Random;

/// Requests in flight on a connection.
const IN_FLIGHT: usize = 8;

/// Sectors read at a time for verification.
const VERIFY_BATCH: usize = 2048;

/// Relative frequency of each kind of request.
#[derive(Clone, Copy)]
pub struct Mix {
    pub write: u64,
    /// Writes with forced unit access.
    pub forced: u64,
    pub flush: u64,
    pub trim: u64,
    pub zero: u64,
    /// Reads, whose content is checked.
    pub read: u64,
}

impl Mix {
    pub const ALL: Mix = Mix { write: 45, forced: 12, flush: 8, trim: 8, zero: 10, read: 17 };

    pub const FEW_ZEROES: Mix = Mix { write: 100, forced: 20, flush: 20, trim: 1, zero: 2, read: 10 };

    /// Without requests that zero.
    pub const DATA: Mix = Mix { trim: 0, zero: 0, ..Mix::ALL };
}

/// Shared by the clients of one volume.
#[derive(Default)]
pub struct Load {
    /// The flushes of the volume.
    pub journal: Journal,
    pub progress: Progress,
}

enum Pending {
    Change { id: ChangeId, sectors: Range<usize>, is_stable: bool },
    Flush { sent: Stamp },
    Read { sectors: Range<usize> },
}

impl Pending {
    fn touches(&self, other: &Range<usize>) -> bool {
        match self {
            Pending::Change { sectors, .. } | Pending::Read { sectors } => {
                sectors.start < other.end && other.start < sectors.end
            }
            Pending::Flush { .. } => false,
        }
    }
}

impl Load {
    /// Starts a thread for each ledger, which works until the connection ends or [`Progress::stop`]. An error of the kind
    /// `InvalidData` means that a read returned wrong content.
    pub fn start<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        ledgers: &'env mut [Ledger],
        socket: &'env Path,
        mix: Mix,
        seed: u64,
    ) -> Vec<ScopedJoinHandle<'scope, io::Result<()>>> {
        let start = |ledger: &'env mut Ledger| {
            scope.spawn(move || {
                let mut random = Random(seed << 8 | ledger.client() as u64);
                let mut client = Client::connect(socket, "disk")?;
                self.work(&mut client, ledger, &mut random, mix)
            })
        };
        ledgers.iter_mut().map(start).collect()
    }

    fn work(&self, client: &mut Client, ledger: &mut Ledger, random: &mut Random, mix: Mix) -> io::Result<()> {
        let mut in_flight: HashMap<u64, Pending> = HashMap::new();
        loop {
            while !self.progress.is_stopped() && in_flight.len() < IN_FLIGHT {
                let (cookie, pending) = self.send(client, ledger, random, mix, &in_flight)?;
                in_flight.insert(cookie, pending);
            }
            if in_flight.is_empty() {
                return Ok(());
            }
            let (cookie, error) = client.answer()?;
            let pending = in_flight.remove(&cookie).expect("an answer to a request that is in flight");
            self.note(client, ledger, pending, error)?;
        }
    }

    fn send(
        &self,
        client: &mut Client,
        ledger: &mut Ledger,
        random: &mut Random,
        mix: Mix,
        in_flight: &HashMap<u64, Pending>,
    ) -> io::Result<(u64, Pending)> {
        let sectors = loop {
            let sectors = ledger.choose(random);
            if !in_flight.values().any(|pending| pending.touches(&sectors)) {
                break sectors;
            }
        };
        let (at, len) = (ledger.offset(sectors.start), (sectors.len() * SECTOR) as u32);
        let Mix { write, forced, flush, trim, zero, read } = mix;
        let mut drawn = random.below(write + forced + flush + trim + zero + read);
        let mut is = |share: u64| {
            let is = drawn < share;
            drawn = drawn.wrapping_sub(share);
            is
        };
        if is(flush) {
            let sent = self.journal.stamp();
            return Ok((client.send(Command::Flush, 0, 0, 0, &[])?, Pending::Flush { sent }));
        }
        if is(read) {
            return Ok((client.send(Command::Read, 0, at, len, &[])?, Pending::Read { sectors }));
        }
        let (command, content, is_stable) = if is(trim) {
            (Command::Trim, Content::Trimmed, random.chance(300))
        } else if is(zero) {
            (Command::WriteZeroes, Content::Zero, random.chance(300))
        } else {
            (Command::Write, Content::Number(ledger.number()), is(forced))
        };
        let id = ledger.send(sectors.clone(), content, &self.journal);
        let bytes = ledger.bytes_of(id, sectors.clone());
        let flags = if is_stable { FLAG_FUA } else { 0 };
        Ok((client.send(command, flags, at, len, &bytes)?, Pending::Change { id, sectors, is_stable }))
    }

    fn note(&self, client: &mut Client, ledger: &mut Ledger, pending: Pending, error: u32) -> io::Result<()> {
        if error != 0 {
            self.progress.note_failure();
        }
        match pending {
            Pending::Change { id, is_stable, .. } => {
                let outcome = match error {
                    0 if is_stable => Outcome::Stable,
                    0 => Outcome::Unstable(0),
                    error => Outcome::Failed(error),
                };
                ledger.answer(id, outcome, &self.journal);
                self.progress.note(outcome == Outcome::Stable);
            }
            Pending::Flush { sent } => {
                self.journal.note_flush(ledger.client(), sent, if error == 0 { Ok(0) } else { Err(error) });
                self.progress.note(error == 0);
            }
            Pending::Read { sectors } if error == 0 => {
                let bytes = client.payload(sectors.len() * SECTOR)?;
                let checked = ledger.check_live(sectors.start, &bytes, &self.journal);
                checked.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            }
            Pending::Read { .. } => {}
        }
        Ok(())
    }
}

/// Compares what a new server returns with the ledgers of clients whose server has crashed.
pub fn verify(socket: &Path, ledgers: &mut [Ledger], journal: &Journal) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let mut client = Client::connect(socket, "disk").map_err(text)?;
    let mut lost = Vec::new();
    for ledger in ledgers.iter_mut() {
        for first in (0..ledger.count()).step_by(VERIFY_BATCH) {
            let count = VERIFY_BATCH.min(ledger.count() - first);
            let bytes = client.read(ledger.offset(first), (count * SECTOR) as u32).map_err(text)?;
            let sectors = (first..).zip(bytes.chunks(SECTOR));
            lost.extend(sectors.filter_map(|(sector, bytes)| ledger.verify(sector, bytes, journal).err()));
        }
    }
    if let Some(first) = lost.first() {
        return Err(format!("{} sectors have wrong content; the first: {first}", lost.len()));
    }
    ledgers.iter_mut().for_each(Ledger::clear);
    journal.clear();
    Ok(())
}
