//! A client of NFS that has several calls under way and enters into its ledger what was acknowledged: content of a file
//! by sectors, and names of a directory.

mod doing;

use std::collections::{HashMap, HashSet};
use std::io;

use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, MKDIR3args, MKDIR3res, NFS_PROGRAM as Nfs, Nfs3Option,
    Nfs3Result, READ3args, READ3res, REMOVE3args, REMOVE3res, RENAME3args, RENAME3res, RMDIR3args, RMDIR3res,
    SETATTR3args, SETATTR3res, WRITE3args, WRITE3res, createhow3, ftype3, nfs_fh3, nfsstat3, sattr3, stable_how,
    writeverf3,
};
use nfs3_types::xdr_codec::Opaque;

use crate::ledger::{Content, Journal, Ledger, Outcome, SECTOR};
use crate::nfs::{Answer, Client, entry};
use crate::progress::Progress;
use crate::random::Random;
use doing::{Doing, Names, Object, is_same};

/// Sectors of each client's file.
const SECTORS: usize = 4096;
/// What is read at a time to verify.
const VERIFIED_AT_ONCE: usize = 256;
/// Names in each client's directory, each there or not.
const NAMES: usize = 24;
/// Calls of each client that are under way at a time.
const UNDER_WAY: usize = 8;

/// What one client knows of its directory.
pub struct Load {
    directory: nfs_fh3,
    file: nfs_fh3,
    content: Ledger,
    journal: Journal,
    /// The file can't be longer.
    end_max: usize,
    names: Names,
    /// Handles of files that were removed.
    gone: Vec<nfs_fh3>,
    under_way: HashMap<u32, Doing>,
    /// Changes of names that failed: they may have been done or not.
    unsure: Vec<Doing>,
    /// The verifier of this server, and those of the ones before.
    verifier: Option<u64>,
    old_verifiers: HashSet<u64>,
    /// Calls may fail, and what was written may be lost if the server says so by another verifier.
    is_tolerant: bool,
}

fn name_of(name: usize) -> String {
    format!("name-{name}")
}

fn outcome<T, E>(results: Nfs3Result<T, E>) -> Result<T, nfsstat3> {
    match results {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

fn is_invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Load {
    /// Of a directory `client-N` with an empty file `data`, as the test has made them.
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
            gone: Vec::new(),
            under_way: HashMap::new(),
            unsure: Vec::new(),
            verifier: None,
            old_verifiers: HashSet::new(),
            is_tolerant,
        })
    }

    /// Works until the server is gone or all shall stop. `Err` of the kind `InvalidData` says that something was answered
    /// that may not be.
    pub fn work(&mut self, port: u16, seed: u64, progress: &Progress) -> io::Result<()> {
        let mut random = Random(seed << 8 | self.content.client() as u64);
        let mut client = Client::connect(port)?;
        loop {
            while !progress.is_stopped() && self.under_way.len() < UNDER_WAY {
                let doing = self.choose(&mut random);
                let xid = self.send(&mut client, &doing)?;
                self.under_way.insert(xid, doing);
            }
            if self.under_way.is_empty() {
                return Ok(());
            }
            let answer = client.answer()?;
            let doing = self.under_way.remove(&answer.xid).expect("an answer to a call that is under way");
            match self.note(doing, &answer)? {
                Ok(is_durable) => progress.note(is_durable),
                Err(_) if self.is_tolerant => progress.note_failure(),
                Err(status) => return Err(is_invalid(format!("a call failed: {status}"))),
            }
        }
    }

    /// Something that can be done, and whose outcome does not depend on anything that is under way.
    fn choose(&mut self, random: &mut Random) -> Doing {
        loop {
            let (name, to, mode) = (random.index(NAMES), random.index(NAMES), random.below(0o1000) as u32);
            let is_directory = random.chance(300);
            let kind = |name: usize| self.names[name].as_ref().map(|object: &Object| object.is_directory);
            let doing = match random.below(24) {
                0..11 => return self.choose_content(random),
                11 | 12 => return Doing::Commit { sent: self.journal.stamp() },
                13..16 if kind(name).is_none() => Doing::Create { name, mode, is_directory },
                16 | 17 if kind(name).is_some() => Doing::Remove { name, is_directory: kind(name) == Some(true) },
                18 | 19 if kind(name).is_some() && name != to && [None, kind(name)].contains(&kind(to)) => {
                    Doing::Rename { from: name, to }
                }
                20 if kind(name).is_some() => Doing::SetMode { name, mode },
                21.. => {
                    let sectors = self.content.choose(random);
                    if self.under_way.values().any(|other| other.touches(&sectors)) {
                        continue;
                    }
                    return Doing::Read { sectors };
                }
                _ => continue,
            };
            let about = doing.names();
            let mut others = self.under_way.values().chain(&self.unsure);
            // After a failure its handle may be unknown for long.
            let is_known = !matches!(doing, Doing::SetMode { .. })
                || self.names[name].as_ref().is_some_and(|object| object.handle.is_some());
            if is_known && others.all(|other| about.iter().all(|name| !other.names().contains(name))) {
                return doing;
            }
        }
    }

    fn choose_content(&mut self, random: &mut Random) -> Doing {
        let content_is_idle = !self.under_way.values().any(|other| other.touches(&(0..SECTORS)));
        if content_is_idle && random.chance(100) {
            let sectors = random.index(SECTORS)..SECTORS;
            let id = self.content.send(sectors.clone(), Content::Zero, &self.journal);
            return Doing::SetSize { id, sectors };
        }
        loop {
            let sectors = self.content.choose(random);
            let size_is_set = self.under_way.values().any(|other| matches!(other, Doing::SetSize { .. }));
            if size_is_set {
                return Doing::Commit { sent: self.journal.stamp() };
            }
            if self.under_way.values().any(|other| other.touches(&sectors)) {
                continue;
            }
            let number = self.content.number();
            let id = self.content.send(sectors.clone(), Content::Number(number), &self.journal);
            let stable = [stable_how::FILE_SYNC, stable_how::DATA_SYNC, stable_how::UNSTABLE, stable_how::UNSTABLE];
            return Doing::Write { id, sectors, stable: *random.pick(&stable) };
        }
    }

    fn send(&mut self, client: &mut Client, doing: &Doing) -> io::Result<u32> {
        let (file, directory) = (self.file.clone(), &self.directory);
        match *doing {
            Doing::Write { id, ref sectors, stable } => {
                self.end_max = self.end_max.max(sectors.end * SECTOR);
                let bytes = self.content.bytes_of(id, sectors.clone());
                let (offset, count) = (self.content.offset(sectors.start), bytes.len() as u32);
                let data = Opaque::borrowed(&bytes);
                client.send(Nfs::NFSPROC3_WRITE, &WRITE3args { file, offset, count, stable, data })
            }
            Doing::SetSize { ref sectors, .. } => {
                self.end_max = self.end_max.max(sectors.start * SECTOR);
                let size = Nfs3Option::Some(self.content.offset(sectors.start));
                let new_attributes = sattr3 { size, ..sattr3::default() };
                let arguments = SETATTR3args { object: file, new_attributes, guard: Nfs3Option::None };
                client.send(Nfs::NFSPROC3_SETATTR, &arguments)
            }
            Doing::Commit { .. } => client.send(Nfs::NFSPROC3_COMMIT, &COMMIT3args { file, offset: 0, count: 0 }),
            Doing::Read { ref sectors } => {
                let (offset, count) = (self.content.offset(sectors.start), (sectors.len() * SECTOR) as u32);
                client.send(Nfs::NFSPROC3_READ, &READ3args { file, offset, count })
            }
            Doing::Create { name, mode, is_directory } => {
                let (name, attributes) = (name_of(name), sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() });
                let where_ = entry(directory, &name);
                if is_directory {
                    return client.send(Nfs::NFSPROC3_MKDIR, &MKDIR3args { where_, attributes });
                }
                client.send(Nfs::NFSPROC3_CREATE, &CREATE3args { where_, how: createhow3::GUARDED(attributes) })
            }
            Doing::Remove { name, is_directory: true } => {
                client.send(Nfs::NFSPROC3_RMDIR, &RMDIR3args { object: entry(directory, &name_of(name)) })
            }
            Doing::Remove { name, is_directory: false } => {
                client.send(Nfs::NFSPROC3_REMOVE, &REMOVE3args { object: entry(directory, &name_of(name)) })
            }
            Doing::Rename { from, to } => {
                let (from, to) = (name_of(from), name_of(to));
                let arguments = RENAME3args { from: entry(directory, &from), to: entry(directory, &to) };
                client.send(Nfs::NFSPROC3_RENAME, &arguments)
            }
            Doing::SetMode { name, mode } => {
                let object = self.names[name].as_ref().and_then(|object| object.handle.clone()).expect("known");
                let new_attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
                let arguments = SETATTR3args { object, new_attributes, guard: Nfs3Option::None };
                client.send(Nfs::NFSPROC3_SETATTR, &arguments)
            }
        }
    }

    /// Notes what was answered: is something durable now, or did it fail?
    fn note(&mut self, doing: Doing, answer: &Answer) -> io::Result<Result<bool, nfsstat3>> {
        match doing {
            Doing::Write { id, sectors, stable } => {
                let result = outcome(answer.results::<WRITE3res>());
                let noted = match &result {
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
                self.content.answer(id, noted, &self.journal);
                let Ok(ok) = result else { return Ok(result.map(|_| false)) };
                self.note_verifier(ok.verf)?;
                Ok(Ok(noted == Outcome::Stable))
            }
            Doing::SetSize { id, .. } => {
                let result = outcome(answer.results::<SETATTR3res>());
                let noted = result.as_ref().map_or_else(|status| Outcome::Failed(*status as u32), |_| Outcome::Stable);
                self.content.answer(id, noted, &self.journal);
                Ok(result.map(|_| true))
            }
            Doing::Commit { sent } => {
                let result = outcome(answer.results::<COMMIT3res>());
                let noted = result.as_ref().map(|ok| number(ok.verf)).map_err(|status| *status as u32);
                self.journal.note_flush(self.content.client(), sent, noted);
                let Ok(ok) = result else { return Ok(result.map(|_| false)) };
                self.note_verifier(ok.verf)?;
                Ok(Ok(true))
            }
            Doing::Read { sectors } => match outcome(answer.results::<READ3res<'static>>()) {
                Ok(ok) => {
                    let mut bytes = ok.data.to_vec();
                    bytes.resize(sectors.len() * SECTOR, 0);
                    self.content.check_live(sectors.start, &bytes, &self.journal).map_err(is_invalid)?;
                    Ok(Ok(false))
                }
                Err(status) => Ok(Err(status)),
            },
            doing => Ok(self.note_names(doing, answer)),
        }
    }

    fn note_names(&mut self, doing: Doing, answer: &Answer) -> Result<bool, nfsstat3> {
        let made = match doing {
            Doing::Create { is_directory: true, .. } => outcome(answer.results::<MKDIR3res>()).map(|ok| ok.obj),
            Doing::Create { .. } => outcome(answer.results::<CREATE3res>()).map(|ok| ok.obj),
            Doing::Remove { is_directory: true, .. } => {
                outcome(answer.results::<RMDIR3res>()).map(|_| Nfs3Option::None)
            }
            Doing::Remove { .. } => outcome(answer.results::<REMOVE3res>()).map(|_| Nfs3Option::None),
            Doing::Rename { .. } => outcome(answer.results::<RENAME3res>()).map(|_| Nfs3Option::None),
            _ => outcome(answer.results::<SETATTR3res>()).map(|_| Nfs3Option::None),
        };
        match made {
            Ok(made) => {
                self.gone.extend(doing.apply(&mut self.names));
                if let (Doing::Create { name, .. }, Nfs3Option::Some(handle)) = (&doing, made) {
                    self.names[*name].as_mut().expect("it is there").handle = Some(handle);
                }
                Ok(true)
            }
            Err(status) => {
                self.unsure.push(doing);
                Err(status)
            }
        }
    }

    /// As long as a server lives and loses nothing, its verifier stays.
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

    /// The server has ended in order.
    pub fn note_orderly_end(&self) {
        self.journal.note_orderly_end();
    }

    /// Is everything there that must be, under the handles of before? What is there now is what goes on from here.
    pub fn verify(&mut self, port: u16) -> Result<(), String> {
        let mut client = Client::connect(port).map_err(|error| error.to_string())?;
        self.verify_content(&mut client)?;
        self.verify_names(&mut client)?;
        for gone in &self.gone {
            let found = client.attributes(gone).map_err(|error| error.to_string())?;
            if !matches!(found, Err(nfsstat3::NFS3ERR_STALE)) {
                return Err(format!("a file that was removed is there again: {found:?}"));
            }
        }
        self.under_way.clear();
        self.unsure.clear();
        self.old_verifiers.extend(self.verifier.take());
        Ok(())
    }

    fn verify_content(&mut self, client: &mut Client) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let attributes = client.attributes(&self.file).map_err(text)?.map_err(|status| status.to_string())?;
        if attributes.size as usize > self.end_max {
            return Err(format!("the file has {} bytes and was never longer than {}", attributes.size, self.end_max));
        }
        self.end_max = attributes.size as usize;
        let mut lost = Vec::new();
        for first in (0..SECTORS).step_by(VERIFIED_AT_ONCE) {
            let (offset, count) = (self.content.offset(first), VERIFIED_AT_ONCE * SECTOR);
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
            return Err(format!("{} sectors hold what they must not; the first: {first}", lost.len()));
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
        for doing in self.under_way.values().chain(&self.unsure) {
            let about = doing.names();
            let mut after = self.names.clone();
            doing.apply(&mut after);
            // All of it or nothing.
            if !expects(&self.names, &about) && !expects(&after, &about) {
                return Err(format!("half of a change of {about:?} is there: {found:?} after {:?}", self.names));
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
