//! One client's part of the tree: its names and what they name.

use std::collections::{BTreeMap, BTreeSet};

use nfs3_types::nfs3::{fattr3, ftype3, nfs_fh3, nfstime3};

use testkit::scene::content::Content;

pub type Id = usize;

pub type Key = (Id, String);

pub const OWN: Id = 0;
/// The directory in which all clients have entries.
pub const COMMON: Id = 1;

#[derive(Clone, Debug)]
pub enum Body {
    File(Content),
    Directory,
    Link(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Object {
    /// `None` as long as it is unknown whether the object was created.
    pub handle: Option<nfs_fh3>,
    pub body: Body,
    /// One of these: several when setting it failed.
    pub modes: Vec<u32>,
    /// Set explicitly, and not changed since.
    pub modified: Option<nfstime3>,
    /// Of an EXCLUSIVE creation after which the times were not changed.
    pub verifier: Option<[u8; 8]>,
    /// The attributes in the client's cache.
    pub told: Option<fattr3>,
    /// Is the link count unknown to the client?
    pub is_doubtful: bool,
}

impl Object {
    pub fn new(body: Body, mode: u32) -> Self {
        Object { handle: None, body, modes: vec![mode], modified: None, verifier: None, told: None, is_doubtful: false }
    }

    pub fn handle(&self) -> &nfs_fh3 {
        self.handle.as_ref().expect("who uses it knows it")
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory)
    }

    pub fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    pub fn content(&mut self) -> &mut Content {
        match &mut self.body {
            Body::File(content) => content,
            _ => panic!("it is no file"),
        }
    }

    pub fn kind(&self) -> ftype3 {
        match self.body {
            Body::File(_) => ftype3::NF3REG,
            Body::Directory => ftype3::NF3DIR,
            Body::Link(_) => ftype3::NF3LNK,
        }
    }
}

/// A change of names that may or may not have been done: as a whole.
#[derive(Clone, Debug)]
pub struct Doubt {
    pub before: Vec<(Key, Option<Id>)>,
    pub after: Vec<(Key, Option<Id>)>,
}

#[derive(Default)]
pub struct Names {
    pub objects: Vec<Object>,
    pub names: BTreeMap<Key, Id>,
    pub doubts: Vec<Doubt>,
    /// Handles of permanently removed objects.
    pub graves: Vec<nfs_fh3>,
}

impl Names {
    pub fn add(&mut self, object: Object) -> Id {
        self.objects.push(object);
        self.objects.len() - 1
    }

    pub fn get(&self, key: &Key) -> Option<Id> {
        self.names.get(key).copied()
    }

    pub fn links(&self, id: Id) -> usize {
        self.names.values().filter(|other| **other == id).count()
    }

    /// Is it known what this name refers to?
    pub fn is_known(&self, key: &Key) -> bool {
        let object = self.get(key).is_none_or(|id| !self.objects[id].is_doubtful);
        object && !self.objects[key.0].is_doubtful && !self.doubts.iter().any(|doubt| doubt.mentions(key))
    }

    pub fn entries(&self, dir: Id) -> Option<BTreeSet<&str>> {
        let is_known = !self.doubts.iter().any(|doubt| doubt.keys().any(|key| key.0 == dir));
        is_known.then(|| self.names.keys().filter(|key| key.0 == dir).map(|key| key.1.as_str()).collect())
    }

    /// Directories that surely exist.
    pub fn directories(&self) -> Vec<Id> {
        let below = self.names.iter().filter(|(key, id)| self.objects[**id].is_directory() && self.is_known(key));
        [OWN, COMMON].into_iter().chain(below.map(|(_, id)| *id)).collect()
    }

    /// From now on it is unknown whether this was done.
    pub fn begin(&mut self, doubt: Doubt) {
        for id in doubt.before.iter().chain(&doubt.after).filter_map(|(_, id)| *id) {
            self.objects[id].is_doubtful = true;
        }
        self.doubts.push(doubt);
    }

    /// The last change of names was done, or was not.
    pub fn end(&mut self, is_done: bool) {
        let Some(doubt) = self.doubts.pop() else { return };
        for id in doubt.before.iter().chain(&doubt.after).filter_map(|(_, id)| *id) {
            self.objects[id].is_doubtful = false;
        }
        if is_done {
            self.put(&doubt.after);
        }
    }

    fn put(&mut self, entries: &[(Key, Option<Id>)]) {
        let mut lost = Vec::new();
        for (key, id) in entries {
            lost.extend(match id {
                Some(id) => self.names.insert(key.clone(), *id),
                None => self.names.remove(key),
            });
        }
        for id in lost {
            if self.links(id) == 0 {
                self.graves.extend(self.objects[id].handle.clone());
            }
        }
    }

    /// After a crash: resolves each doubt by what exists. `found`: the handle of each name.
    pub fn resolve(&mut self, found: &BTreeMap<Key, nfs_fh3>) {
        for doubt in std::mem::take(&mut self.doubts) {
            let is = |entries: &[(Key, Option<Id>)]| {
                entries.iter().all(|(key, id)| match (found.get(key), id.map(|id| &self.objects[id].handle)) {
                    (None, None) => true,
                    (Some(_), Some(None)) => true,
                    (Some(there), Some(Some(handle))) => there == handle,
                    _ => false,
                })
            };
            let side = match (is(&doubt.before), is(&doubt.after)) {
                (_, true) => &doubt.after,
                (true, false) => &doubt.before,
                (false, false) => panic!("neither before nor after: {doubt:?}\nin {found:?}"),
            };
            for (key, id) in side {
                if let (Some(id), Some(handle)) = (id, found.get(key)) {
                    self.objects[*id].handle = Some(handle.clone());
                    // A verifier that was never reported may be missing.
                    self.objects[*id].verifier = None;
                }
            }
            self.put(&side.clone());
        }
        for object in &mut self.objects {
            object.is_doubtful = false;
        }
    }
}

impl Doubt {
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.before.iter().map(|(key, _)| key)
    }

    fn mentions(&self, key: &Key) -> bool {
        self.keys().any(|other| other == key)
    }
}
