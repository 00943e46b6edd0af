//! A client of NFS that has several changes under way and keeps a ledger of what was acknowledged, so that what a server
//! leaves behind can be held against it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::mpsc::Sender;

use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, NFS_PROGRAM as Nfs, Nfs3Option, Nfs3Result, REMOVE3args,
    REMOVE3res, RENAME3args, RENAME3res, SETATTR3args, SETATTR3res, WRITE3args, WRITE3res, createhow3, nfs_fh3,
    nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;

use crate::nfs::{Answer, Client, entry};
use crate::random::Random;

const BLOCK: usize = 4096;
/// Blocks of each client's file.
const BLOCKS: usize = 512;
/// Names in each client's directory, each there or not.
const NAMES: usize = 24;
/// Calls of each client that are under way at a time.
const UNDER_WAY: usize = 8;

/// A call that may have been done or not when the server is killed under it.
enum Doing {
    Write {
        first: usize,
        count: usize,
        number: u64,
        stable: stable_how,
    },
    /// With the writes that were acknowledged before it was sent.
    Commit {
        acknowledged: Vec<u64>,
    },
    Create {
        name: usize,
        mode: u32,
    },
    Remove {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    SetMode {
        name: usize,
        mode: u32,
    },
}

/// What a name stands for.
#[derive(Clone, Debug)]
struct Object {
    /// Unknown when the answer that had it never came.
    handle: Option<nfs_fh3>,
    mode: u32,
}

/// Names, and what must be there under them.
type Names = Vec<Option<Object>>;

/// What one client knows of its directory.
pub struct Ledger {
    directory: nfs_fh3,
    file: nfs_fh3,
    /// For each block of the file the number of the last write that must be there, of the last that was acknowledged in
    /// whatever way, and of the last that was sent.
    durable: Vec<u64>,
    acknowledged: Vec<u64>,
    sent: Vec<u64>,
    next: u64,
    names: Names,
    /// Handles of files that were removed.
    gone: Vec<nfs_fh3>,
    under_way: HashMap<u32, Doing>,
    /// The verifiers of this server and of the one before.
    verifier: Option<writeverf3>,
    old_verifier: Option<writeverf3>,
}

/// The content of a block after write `number`: the same number all over, so that a torn block shows.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

fn name_of(name: usize) -> String {
    format!("name-{name}")
}

/// What the procedure gave; it must have been done.
fn done<T, E: std::fmt::Debug>(results: Nfs3Result<T, E>) -> T {
    results.expect("nothing stands in the way of what was asked for")
}

impl Doing {
    /// The names that it is about.
    fn names(&self) -> Vec<usize> {
        match *self {
            Doing::Write { .. } | Doing::Commit { .. } => Vec::new(),
            Doing::Create { name, .. } | Doing::Remove { name } | Doing::SetMode { name, .. } => vec![name],
            Doing::Rename { from, to } => vec![from, to],
        }
    }

    fn touches(&self, blocks: Range<usize>) -> bool {
        matches!(*self, Doing::Write { first, count, .. } if first < blocks.end && blocks.start < first + count)
    }

    /// Does it to the names. Gives the handle of what is gone with it.
    fn apply(&self, names: &mut Names) -> Option<nfs_fh3> {
        let replaced = match *self {
            Doing::Write { .. } | Doing::Commit { .. } => None,
            Doing::Create { name, mode } => names[name].replace(Object { handle: None, mode }),
            Doing::Remove { name } => names[name].take(),
            Doing::Rename { from, to } => {
                let moved = names[from].take();
                std::mem::replace(&mut names[to], moved)
            }
            Doing::SetMode { name, mode } => {
                names[name].as_mut().expect("it is there").mode = mode;
                None
            }
        };
        replaced.and_then(|object| object.handle)
    }
}

impl Ledger {
    /// Of a directory that is as it was made.
    pub fn new(port: u16, client: usize) -> io::Result<Ledger> {
        let mut connection = Client::connect(port)?;
        let root = connection.mount("/files")?;
        let mut lookup = |directory: &nfs_fh3, name: &str| {
            connection.lookup(directory, name).map(|found| found.expect("made by the test"))
        };
        let directory = lookup(&root, &format!("client-{client}"))?;
        let file = lookup(&directory, "data")?;
        Ok(Ledger {
            directory,
            file,
            durable: vec![0; BLOCKS],
            acknowledged: vec![0; BLOCKS],
            sent: vec![0; BLOCKS],
            next: 0,
            names: vec![None; NAMES],
            gone: Vec::new(),
            under_way: HashMap::new(),
            verifier: None,
            old_verifier: None,
        })
    }

    /// Works until the server is gone.
    pub fn work(&mut self, random: &mut Random, client: &mut Client, stable: &Sender<()>) -> io::Result<()> {
        loop {
            while self.under_way.len() < UNDER_WAY {
                let doing = self.choose(random);
                let xid = self.send(client, &doing)?;
                self.under_way.insert(xid, doing);
            }
            let answer = client.answer()?;
            let doing = self.under_way.remove(&answer.xid).expect("an answer to a call that is under way");
            if self.acknowledge(doing, &answer) {
                let _ = stable.send(());
            }
        }
    }

    /// Something that can be done, and whose outcome does not depend on anything that is under way.
    fn choose(&mut self, random: &mut Random) -> Doing {
        loop {
            let (name, to, mode) = (random.index(NAMES), random.index(NAMES), random.below(0o1000) as u32);
            let is_there = self.names[name].is_some();
            let doing = match random.below(10) {
                0..4 => {
                    let count = 1 + random.index(16);
                    let first = random.index(BLOCKS - count + 1);
                    let stable = [stable_how::FILE_SYNC, stable_how::DATA_SYNC, stable_how::UNSTABLE];
                    Doing::Write { first, count, number: self.next + 1, stable: stable[random.index(3)] }
                }
                4 => Doing::Commit { acknowledged: self.acknowledged.clone() },
                5 | 6 if !is_there => Doing::Create { name, mode },
                7 if is_there => Doing::Remove { name },
                8 if is_there && name != to => Doing::Rename { from: name, to },
                9 if is_there => Doing::SetMode { name, mode },
                _ => continue,
            };
            let mut others = self.under_way.values();
            let is_free = match doing {
                Doing::Write { first, count, .. } => others.all(|other| !other.touches(first..first + count)),
                _ => others.all(|other| doing.names().iter().all(|name| !other.names().contains(name))),
            };
            if is_free {
                return doing;
            }
        }
    }

    fn send(&mut self, client: &mut Client, doing: &Doing) -> io::Result<u32> {
        let (file, directory) = (self.file.clone(), &self.directory);
        match *doing {
            Doing::Write { first, count, number, stable } => {
                self.next = number;
                // Noted before: it may be there even when the answer never comes.
                self.sent[first..first + count].fill(number);
                let bytes = content(number).repeat(count);
                let (offset, count) = ((first * BLOCK) as u64, bytes.len() as u32);
                let data = Opaque::borrowed(&bytes);
                client.send(Nfs::NFSPROC3_WRITE, &WRITE3args { file, offset, count, stable, data })
            }
            Doing::Commit { .. } => client.send(Nfs::NFSPROC3_COMMIT, &COMMIT3args { file, offset: 0, count: 0 }),
            Doing::Create { name, mode } => {
                let how = createhow3::GUARDED(sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() });
                client.send(Nfs::NFSPROC3_CREATE, &CREATE3args { where_: entry(directory, &name_of(name)), how })
            }
            Doing::Remove { name } => {
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

    /// Notes what was acknowledged. Is it stable?
    fn acknowledge(&mut self, doing: Doing, answer: &Answer) -> bool {
        self.gone.extend(doing.apply(&mut self.names));
        match doing {
            Doing::Write { first, count, number, stable } => {
                let ok = done(answer.results::<WRITE3res>());
                assert_eq!(ok.count as usize, count * BLOCK, "a short write");
                assert!(ok.committed as u32 >= stable as u32, "less stable than asked for");
                self.acknowledged[first..first + count].fill(number);
                if ok.committed != stable_how::UNSTABLE {
                    self.durable[first..first + count].fill(number);
                }
                self.note_verifier(ok.verf);
                ok.committed != stable_how::UNSTABLE
            }
            Doing::Commit { acknowledged } => {
                let ok = done(answer.results::<COMMIT3res>());
                for (durable, acknowledged) in self.durable.iter_mut().zip(acknowledged) {
                    *durable = acknowledged.max(*durable);
                }
                self.note_verifier(ok.verf);
                true
            }
            Doing::Create { name, .. } => {
                let ok = done(answer.results::<CREATE3res>());
                let Nfs3Option::Some(handle) = ok.obj else { panic!("CREATE gave no handle") };
                self.names[name].as_mut().expect("it is there").handle = Some(handle);
                true
            }
            Doing::Remove { .. } => {
                done(answer.results::<REMOVE3res>());
                true
            }
            Doing::Rename { .. } => {
                done(answer.results::<RENAME3res>());
                true
            }
            Doing::SetMode { .. } => {
                done(answer.results::<SETATTR3res>());
                true
            }
        }
    }

    /// As long as a server lives and loses nothing, its verifier stays.
    fn note_verifier(&mut self, verifier: writeverf3) {
        let known = *self.verifier.get_or_insert(verifier);
        assert_eq!(known, verifier, "the verifier has changed, and nothing was lost");
        assert_ne!(self.old_verifier, Some(verifier), "two servers have the same verifier");
    }

    /// Is everything there that must be, under the handles of before? What is there now is what goes on from here.
    pub fn verify(&mut self, client: &mut Client) -> Result<(), String> {
        self.verify_blocks(client)?;
        self.verify_names(client)?;
        for gone in &self.gone {
            let found = client.attributes(gone).map_err(|error| error.to_string())?;
            if !matches!(found, Err(nfsstat3::NFS3ERR_STALE)) {
                return Err(format!("a file that was removed is there again: {found:?}"));
            }
        }
        self.under_way.clear();
        self.old_verifier = self.verifier.take();
        Ok(())
    }

    fn verify_blocks(&mut self, client: &mut Client) -> Result<(), String> {
        let io = |error: io::Error| error.to_string();
        let attributes = client.attributes(&self.file).map_err(io)?.map_err(|status| status.to_string())?;
        let end = |numbers: &[u64]| numbers.iter().rposition(|number| *number > 0).map_or(0, |last| (last + 1) * BLOCK);
        let (least, most, size) = (end(&self.durable), end(&self.sent), attributes.size as usize);
        if !(least..=most).contains(&size) {
            return Err(format!("the file has {size} bytes, not {least} to {most}"));
        }
        for block in 0..BLOCKS {
            let mut bytes = client.read(&self.file, (block * BLOCK) as u64, BLOCK as u32).map_err(io)?;
            if bytes.len() != size.saturating_sub(block * BLOCK).min(BLOCK) {
                return Err(format!("block {block} of {size} bytes is read as {} bytes", bytes.len()));
            }
            bytes.resize(BLOCK, 0);
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            if bytes != content(number) {
                return Err(format!("block {block} is torn"));
            }
            let (least, most) = (self.durable[block], self.sent[block]);
            if !(least..=most).contains(&number) {
                return Err(format!("block {block} holds write {number}, not {least} to {most}"));
            }
            (self.durable[block], self.acknowledged[block], self.sent[block]) = (number, number, number);
        }
        Ok(())
    }

    fn verify_names(&mut self, client: &mut Client) -> Result<(), String> {
        let mut found = Names::new();
        for name in 0..NAMES {
            found.push(find(client, &self.directory, name).map_err(|error| error.to_string())?);
        }
        let expects = |names: &Names, about: &[usize]| about.iter().all(|&name| is_same(&found[name], &names[name]));
        let mut free: Vec<usize> = (0..NAMES).collect();
        for doing in self.under_way.values() {
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
            Ok(Some(Object { handle: Some(handle), mode: attributes.mode & 0o777 }))
        }
        Err(nfsstat3::NFS3ERR_NOENT) => Ok(None),
        Err(status) => Err(io::Error::other(status.to_string())),
    }
}

/// Is what was found what is known? A handle that is known must be the same: clients keep theirs.
fn is_same(found: &Option<Object>, known: &Option<Object>) -> bool {
    match (found, known) {
        (None, None) => true,
        (Some(found), Some(known)) => {
            found.mode == known.mode && (known.handle.is_none() || found.handle == known.handle)
        }
        _ => false,
    }
}
