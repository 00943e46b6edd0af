//! An NFS client with several calls in flight, which records what was acknowledged: content of a file by sectors, and
//! names of a directory.

mod call;

use std::collections::{HashMap, HashSet};
use std::io;

use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, MKDIR3args, MKDIR3res, NFS_PROGRAM as Nfs, Nfs3Option, READ3args,
    READ3res, REMOVE3args, REMOVE3res, RENAME3args, RENAME3res, RMDIR3args, RMDIR3res, SETATTR3args, SETATTR3res,
    WRITE3args, WRITE3res, createhow3, ftype3, nfs_fh3, nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;

use crate::ledger::{Content, Journal, Ledger, Outcome, SECTOR};
use crate::nfs::{Answer, Client, entry, outcome};
use crate::progress::Progress;
use crate::random::Random;
use call::{Call, Names, Object, is_same};

/// Sectors of each client's file.
const SECTORS: usize = 4096;
/// Sectors read at a time for verification.
const VERIFY_BATCH: usize = 256;
/// Names in each client's directory, which may exist or not.
const NAMES: usize = 24;
/// Calls of each client in flight.
const IN_FLIGHT: usize = 8;

/// One client and its expectations of its directory.
pub struct Load {
    directory: nfs_fh3,
    file: nfs_fh3,
    content: Ledger,
    journal: Journal,
    /// Upper bound of the file's size.
    end_max: usize,
    names: Names,
    /// Handles of removed files.
    removed: Vec<nfs_fh3>,
    in_flight: HashMap<u32, Call>,
    /// Failed changes of names, which may have taken effect or not.
    unsure: Vec<Call>,
    /// The write verifier of this server, and those of earlier ones.
    verifier: Option<u64>,
    old_verifiers: HashSet<u64>,
    /// Calls may fail, and unstable writes may be lost if the verifier changes.
    is_tolerant: bool,
}

fn name_of(name: usize) -> String {
    format!("name-{name}")
}

fn is_invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Load {
    /// For a directory `client-N` with an empty file `data`, which the test has created.
    pub fn new(port: u16, client: usize, is_tolerant: bool) -> io::Result<Load> {
        let mut connection = Client::connect(port)?;
        let root = connection.mount("/files")?;
        let mut lookup = |directory: &nfs_fh3, name: &str| {
            connection.lookup(directory, name).map(|found| found.expect("made by the test"))
        };
        let directory = lookup(&root, &format!("client-{client}"))?;
        let file = lookup(&directory, "data")?;
        Ok(Load {
            directory,
            file,
            content: Ledger::new(client, 0, SECTORS),
            journal: Journal::default(),
            end_max: 0,
            names: vec![None; NAMES],
            removed: Vec::new(),
            in_flight: HashMap::new(),
            unsure: Vec::new(),
            verifier: None,
            old_verifiers: HashSet::new(),
            is_tolerant,
        })
    }

    /// Works until the connection ends or `progress` is stopped. An error of the kind `InvalidData` means a wrong answer.
    pub fn work(&mut self, port: u16, seed: u64, progress: &Progress) -> io::Result<()> {
        let mut random = Random(seed << 8 | self.content.client() as u64);
        let mut client = Client::connect(port)?;
        loop {
            while !progress.is_stopped() && self.in_flight.len() < IN_FLIGHT {
                let call = self.choose(&mut random);
                let xid = self.send(&mut client, &call)?;
                self.in_flight.insert(xid, call);
            }
            if self.in_flight.is_empty() {
                return Ok(());
            }
            let answer = client.answer()?;
            let call = self.in_flight.remove(&answer.xid).expect("an answer to a call that is in flight");
            match self.note(call, &answer)? {
                Ok(is_durable) => progress.note(is_durable),
                Err(_) if self.is_tolerant => progress.note_failure(),
                Err(status) => return Err(is_invalid(format!("a call failed: {status}"))),
            }
        }
    }

    /// Chooses a call whose result does not depend on any call in flight.
    fn choose(&mut self, random: &mut Random) -> Call {
        loop {
            let (name, to, mode) = (random.index(NAMES), random.index(NAMES), random.below(0o1000) as u32);
            let is_directory = random.chance(300);
            let kind = |name: usize| self.names[name].as_ref().map(|object: &Object| object.is_directory);
            let call = match random.below(24) {
                0..11 => return self.choose_content(random),
                11 | 12 => return Call::Commit { sent: self.journal.stamp() },
                13..16 if kind(name).is_none() => Call::Create { name, mode, is_directory },
                16 | 17 if kind(name).is_some() => Call::Remove { name, is_directory: kind(name) == Some(true) },
                18 | 19 if kind(name).is_some() && name != to && [None, kind(name)].contains(&kind(to)) => {
                    Call::Rename { from: name, to }
                }
                20 if kind(name).is_some() => Call::SetMode { name, mode },
                21.. => {
                    let sectors = self.content.choose(random);
                    if self.in_flight.values().any(|other| other.touches(&sectors)) {
                        continue;
                    }
                    return Call::Read { sectors };
                }
                _ => continue,
            };
            let about = call.names();
            let mut others = self.in_flight.values().chain(&self.unsure);
            // After a failure its handle may be unknown.
            let is_known = !matches!(call, Call::SetMode { .. })
                || self.names[name].as_ref().is_some_and(|object| object.handle.is_some());
            if is_known && others.all(|other| about.iter().all(|name| !other.names().contains(name))) {
                return call;
            }
        }
    }

    fn choose_content(&mut self, random: &mut Random) -> Call {
        let content_is_idle = !self.in_flight.values().any(|other| other.touches(&(0..SECTORS)));
        if content_is_idle && random.chance(100) {
            let sectors = random.index(SECTORS)..SECTORS;
            let id = self.content.send(sectors.clone(), Content::Zero, &self.journal);
            return Call::SetSize { id, sectors };
        }
        loop {
            let sectors = self.content.choose(random);
            let size_is_set = self.in_flight.values().any(|other| matches!(other, Call::SetSize { .. }));
            if size_is_set {
                return Call::Commit { sent: self.journal.stamp() };
            }
            if self.in_flight.values().any(|other| other.touches(&sectors)) {
                continue;
            }
            let number = self.content.number();
            let id = self.content.send(sectors.clone(), Content::Number(number), &self.journal);
            let stable = [stable_how::FILE_SYNC, stable_how::DATA_SYNC, stable_how::UNSTABLE, stable_how::UNSTABLE];
            return Call::Write { id, sectors, stable: *random.pick(&stable) };
        }
    }

    fn send(&mut self, client: &mut Client, call: &Call) -> io::Result<u32> {
        let (file, directory) = (self.file.clone(), &self.directory);
        match *call {
            Call::Write { id, ref sectors, stable } => {
                self.end_max = self.end_max.max(sectors.end * SECTOR);
                let bytes = self.content.bytes_of(id, sectors.clone());
                let (offset, count) = (self.content.offset(sectors.start), bytes.len() as u32);
                let data = Opaque::borrowed(&bytes);
                client.send(Nfs::NFSPROC3_WRITE, &WRITE3args { file, offset, count, stable, data })
            }
            Call::SetSize { ref sectors, .. } => {
                self.end_max = self.end_max.max(sectors.start * SECTOR);
                let size = Nfs3Option::Some(self.content.offset(sectors.start));
                let new_attributes = sattr3 { size, ..sattr3::default() };
                let arguments = SETATTR3args { object: file, new_attributes, guard: Nfs3Option::None };
                client.send(Nfs::NFSPROC3_SETATTR, &arguments)
            }
            Call::Commit { .. } => client.send(Nfs::NFSPROC3_COMMIT, &COMMIT3args { file, offset: 0, count: 0 }),
            Call::Read { ref sectors } => {
                let (offset, count) = (self.content.offset(sectors.start), (sectors.len() * SECTOR) as u32);
                client.send(Nfs::NFSPROC3_READ, &READ3args { file, offset, count })
            }
            Call::Create { name, mode, is_directory } => {
                let (name, attributes) = (name_of(name), sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() });
                let where_ = entry(directory, &name);
                if is_directory {
                    return client.send(Nfs::NFSPROC3_MKDIR, &MKDIR3args { where_, attributes });
                }
                client.send(Nfs::NFSPROC3_CREATE, &CREATE3args { where_, how: createhow3::GUARDED(attributes) })
            }
            Call::Remove { name, is_directory: true } => {
                client.send(Nfs::NFSPROC3_RMDIR, &RMDIR3args { object: entry(directory, &name_of(name)) })
            }
            Call::Remove { name, is_directory: false } => {
                client.send(Nfs::NFSPROC3_REMOVE, &REMOVE3args { object: entry(directory, &name_of(name)) })
            }
            Call::Rename { from, to } => {
                let (from, to) = (name_of(from), name_of(to));
                let arguments = RENAME3args { from: entry(directory, &from), to: entry(directory, &to) };
                client.send(Nfs::NFSPROC3_RENAME, &arguments)
            }
            Call::SetMode { name, mode } => {
                let object = self.names[name].as_ref().and_then(|object| object.handle.clone()).expect("known");
                let new_attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
                let arguments = SETATTR3args { object, new_attributes, guard: Nfs3Option::None };
                client.send(Nfs::NFSPROC3_SETATTR, &arguments)
            }
        }
    }

    /// Records an answer. Returns whether the call is now durable, or its error.
    fn note(&mut self, call: Call, answer: &Answer) -> io::Result<Result<bool, nfsstat3>> {
        match call {
            Call::Write { id, sectors, stable } => {
                let result = outcome(answer.results::<WRITE3res>());
                let recorded = match &result {
                    Err(status) => Outcome::Failed(*status as u32),
                    Ok(ok) if ok.count as usize != sectors.len() * SECTOR => {
                        return Err(is_invalid(format!("a short write: {} of {sectors:?}", ok.count)));
                    }
                    Ok(ok) if (ok.committed as u32) < stable as u32 => {
                        return Err(is_invalid(format!("{:?} where {stable:?} was asked for", ok.committed)));
                    }
                    Ok(ok) if ok.committed == stable_how::UNSTABLE => Outcome::Unstable(number(ok.verf)),
                    Ok(_) => Outcome::Stable,
                };
                self.content.answer(id, recorded, &self.journal);
                let Ok(ok) = result else { return Ok(result.map(|_| false)) };
                self.note_verifier(ok.verf)?;
                Ok(Ok(recorded == Outcome::Stable))
            }
            Call::SetSize { id, .. } => {
                let result = outcome(answer.results::<SETATTR3res>());
                let recorded =
                    result.as_ref().map_or_else(|status| Outcome::Failed(*status as u32), |_| Outcome::Stable);
                self.content.answer(id, recorded, &self.journal);
                Ok(result.map(|_| true))
            }
            Call::Commit { sent } => {
                let result = outcome(answer.results::<COMMIT3res>());
                let recorded = result.as_ref().map(|ok| number(ok.verf)).map_err(|status| *status as u32);
                self.journal.note_flush(self.content.client(), sent, recorded);
                let Ok(ok) = result else { return Ok(result.map(|_| false)) };
                self.note_verifier(ok.verf)?;
                Ok(Ok(true))
            }
            Call::Read { sectors } => match outcome(answer.results::<READ3res<'static>>()) {
                Ok(ok) => {
                    let mut bytes = ok.data.to_vec();
                    bytes.resize(sectors.len() * SECTOR, 0);
                    self.content.check_live(sectors.start, &bytes, &self.journal).map_err(is_invalid)?;
                    Ok(Ok(false))
                }
                Err(status) => Ok(Err(status)),
            },
            call => Ok(self.note_names(call, answer)),
        }
    }

    fn note_names(&mut self, call: Call, answer: &Answer) -> Result<bool, nfsstat3> {
        let made = match call {
            Call::Create { is_directory: true, .. } => outcome(answer.results::<MKDIR3res>()).map(|ok| ok.obj),
            Call::Create { .. } => outcome(answer.results::<CREATE3res>()).map(|ok| ok.obj),
            Call::Remove { is_directory: true, .. } => outcome(answer.results::<RMDIR3res>()).map(|_| Nfs3Option::None),
            Call::Remove { .. } => outcome(answer.results::<REMOVE3res>()).map(|_| Nfs3Option::None),
            Call::Rename { .. } => outcome(answer.results::<RENAME3res>()).map(|_| Nfs3Option::None),
            _ => outcome(answer.results::<SETATTR3res>()).map(|_| Nfs3Option::None),
        };
        match made {
            Ok(made) => {
                self.removed.extend(call.apply(&mut self.names));
                if let (Call::Create { name, .. }, Nfs3Option::Some(handle)) = (&call, made) {
                    self.names[*name].as_mut().expect("the name exists").handle = Some(handle);
                }
                Ok(true)
            }
            Err(status) => {
                self.unsure.push(call);
                Err(status)
            }
        }
    }

    /// While a server runs and loses nothing, its verifier must not change.
    fn note_verifier(&mut self, verifier: writeverf3) -> io::Result<()> {
        let verifier = number(verifier);
        if self.old_verifiers.contains(&verifier) {
            return Err(is_invalid("two servers have the same verifier".into()));
        }
        let known = self.verifier.replace(verifier);
        if known.is_some_and(|known| known != verifier) && !self.is_tolerant {
            return Err(is_invalid("the verifier has changed, and nothing was lost".into()));
        }
        Ok(())
    }

    pub fn note_orderly_end(&self) {
        self.journal.note_orderly_end();
    }

    /// Verifies content, names and handles after a restart; what is found becomes the new expectation.
    pub fn verify(&mut self, port: u16) -> Result<(), String> {
        let mut client = Client::connect(port).map_err(|error| error.to_string())?;
        self.verify_content(&mut client)?;
        self.verify_names(&mut client)?;
        for removed in &self.removed {
            let found = client.attributes(removed).map_err(|error| error.to_string())?;
            if !matches!(found, Err(nfsstat3::NFS3ERR_STALE)) {
                return Err(format!("a removed file exists again: {found:?}"));
            }
        }
        self.in_flight.clear();
        self.unsure.clear();
        self.old_verifiers.extend(self.verifier.take());
        Ok(())
    }

    fn verify_content(&mut self, client: &mut Client) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let attributes = client.attributes(&self.file).map_err(text)?.map_err(|status| status.to_string())?;
        if attributes.size as usize > self.end_max {
            return Err(format!("the file has {} bytes but never had more than {}", attributes.size, self.end_max));
        }
        self.end_max = attributes.size as usize;
        let mut lost = Vec::new();
        for first in (0..SECTORS).step_by(VERIFY_BATCH) {
            let (offset, count) = (self.content.offset(first), VERIFY_BATCH * SECTOR);
            let mut bytes = client.read(&self.file, offset, count as u32).map_err(text)?;
            let expected = attributes.size.saturating_sub(offset).min(count as u64);
            if bytes.len() as u64 != expected {
                return Err(format!("at {offset} {} bytes are read, of {}", bytes.len(), attributes.size));
            }
            bytes.resize(count, 0);
            let sectors = (first..).zip(bytes.chunks(SECTOR));
            lost.extend(sectors.filter_map(|(at, bytes)| self.content.verify(at, bytes, &self.journal).err()));
        }
        if let Some(first) = lost.first() {
            return Err(format!("{} sectors have wrong content; the first: {first}", lost.len()));
        }
        self.content.clear();
        self.journal.clear();
        Ok(())
    }

    fn verify_names(&mut self, client: &mut Client) -> Result<(), String> {
        let mut found = Names::new();
        for name in 0..NAMES {
            found.push(find(client, &self.directory, name).map_err(|error| error.to_string())?);
        }
        let expects = |names: &Names, about: &[usize]| about.iter().all(|&name| is_same(&found[name], &names[name]));
        let mut free: Vec<usize> = (0..NAMES).collect();
        for call in self.in_flight.values().chain(&self.unsure) {
            let about = call.names();
            let mut after = self.names.clone();
            call.apply(&mut after);
            // A change is atomic.
            if !expects(&self.names, &about) && !expects(&after, &about) {
                return Err(format!("a change of {about:?} is partly done: {found:?} after {:?}", self.names));
            }
            free.retain(|name| !about.contains(name));
        }
        match free.into_iter().find(|&name| !expects(&self.names, &[name])) {
            Some(name) => Err(format!("name {name} is {:?} and should be {:?}", found[name], self.names[name])),
            None => {
                self.names = found;
                Ok(())
            }
        }
    }
}

fn find(client: &mut Client, directory: &nfs_fh3, name: usize) -> io::Result<Option<Object>> {
    match client.lookup(directory, &name_of(name))? {
        Ok(handle) => {
            let attributes = client.attributes(&handle)?.map_err(|status| io::Error::other(status.to_string()))?;
            let is_directory = attributes.type_ == ftype3::NF3DIR;
            Ok(Some(Object { handle: Some(handle), mode: attributes.mode & 0o777, is_directory }))
        }
        Err(nfsstat3::NFS3ERR_NOENT) => Ok(None),
        Err(status) => Err(io::Error::other(status.to_string())),
    }
}

fn number(verifier: writeverf3) -> u64 {
    u64::from_be_bytes(verifier.0)
}
