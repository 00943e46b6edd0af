//! A client of NBD with several requests under way, which enters into its ledger what was acknowledged.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use crate::ledger::{ChangeId, Content, Journal, Ledger, Outcome, SECTOR, Stamp};
use crate::nbd::{Client, Command, FLAG_FUA};
use crate::progress::Progress;
use crate::random::Random;

/// Requests under way on a connection.
const UNDER_WAY: usize = 8;

/// What is read at a time to verify.
const VERIFIED_AT_ONCE: usize = 2048;

/// How often each kind of request is made, in parts of all of them.
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

    /// Nothing that is only zeroes.
    pub const DATA: Mix = Mix { trim: 0, zero: 0, ..Mix::ALL };
}

/// What several clients of one volume share.
#[derive(Default)]
pub struct Load {
    /// The flushes of the volume.
    pub journal: Journal,
    pub progress: Progress,
}

enum Doing {
    Change { id: ChangeId, sectors: Range<usize>, is_stable: bool },
    Flush { sent: Stamp },
    Read { sectors: Range<usize> },
}

impl Doing {
    fn touches(&self, other: &Range<usize>) -> bool {
        match self {
            Doing::Change { sectors, .. } | Doing::Read { sectors } => {
                sectors.start < other.end && other.start < sectors.end
            }
            Doing::Flush { .. } => false,
        }
    }
}

impl Load {
    /// Starts a thread for each ledger, which works until the server is gone or [`Progress::stop`]. `Err` of the kind
    /// `InvalidData` says that something was read that may not be there.
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
        let mut under_way: HashMap<u64, Doing> = HashMap::new();
        loop {
            while !self.progress.is_stopped() && under_way.len() < UNDER_WAY {
                let (cookie, doing) = self.send(client, ledger, random, mix, &under_way)?;
                under_way.insert(cookie, doing);
            }
            if under_way.is_empty() {
                return Ok(());
            }
            let (cookie, error) = client.answer()?;
            let doing = under_way.remove(&cookie).expect("an answer to a request that is under way");
            self.note(client, ledger, doing, error)?;
        }
    }

    fn send(
        &self,
        client: &mut Client,
        ledger: &mut Ledger,
        random: &mut Random,
        mix: Mix,
        under_way: &HashMap<u64, Doing>,
    ) -> io::Result<(u64, Doing)> {
        let sectors = loop {
            let sectors = ledger.choose(random);
            if !under_way.values().any(|doing| doing.touches(&sectors)) {
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
            return Ok((client.send(Command::Flush, 0, 0, 0, &[])?, Doing::Flush { sent }));
        }
        if is(read) {
            return Ok((client.send(Command::Read, 0, at, len, &[])?, Doing::Read { sectors }));
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
        Ok((client.send(command, flags, at, len, &bytes)?, Doing::Change { id, sectors, is_stable }))
    }

    fn note(&self, client: &mut Client, ledger: &mut Ledger, doing: Doing, error: u32) -> io::Result<()> {
        if error != 0 {
            self.progress.note_failure();
        }
        match doing {
            Doing::Change { id, is_stable, .. } => {
                let outcome = match error {
                    0 if is_stable => Outcome::Stable,
                    0 => Outcome::Unstable(0),
                    error => Outcome::Failed(error),
                };
                ledger.answer(id, outcome, &self.journal);
                self.progress.note(outcome == Outcome::Stable);
            }
            Doing::Flush { sent } => {
                self.journal.note_flush(ledger.client(), sent, if error == 0 { Ok(0) } else { Err(error) });
                self.progress.note(error == 0);
            }
            Doing::Read { sectors } if error == 0 => {
                let bytes = client.payload(sectors.len() * SECTOR)?;
                let checked = ledger.check_live(sectors.start, &bytes, &self.journal);
                checked.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            }
            Doing::Read { .. } => {}
        }
        Ok(())
    }
}

/// Holds what a new server has against the ledgers of clients whose server has crashed.
pub fn verify(socket: &Path, ledgers: &mut [Ledger], journal: &Journal) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let mut client = Client::connect(socket, "disk").map_err(text)?;
    let mut lost = Vec::new();
    for ledger in ledgers.iter_mut() {
        for first in (0..ledger.count()).step_by(VERIFIED_AT_ONCE) {
            let count = VERIFIED_AT_ONCE.min(ledger.count() - first);
            let bytes = client.read(ledger.offset(first), (count * SECTOR) as u32).map_err(text)?;
            let sectors = (first..).zip(bytes.chunks(SECTOR));
            lost.extend(sectors.filter_map(|(sector, bytes)| ledger.verify(sector, bytes, journal).err()));
        }
    }
    if let Some(first) = lost.first() {
        return Err(format!("{} sectors hold what they must not; the first: {first}", lost.len()));
    }
    ledgers.iter_mut().for_each(Ledger::clear);
    journal.clear();
    Ok(())
}
