//! RENAME, and listings of directories.

use std::collections::{BTreeMap, BTreeSet};

use nfs3_types::nfs3::nfsstat3;

use super::client::Failed;
use super::lane::Lane;
use super::names::{Body, COMMON, Doubt, Id, Key, OWN};

type Done = Result<(), Failed>;

impl Lane {
    pub async fn rename(&mut self) -> Done {
        let (Some(from), Some(to)) = (self.some_place(), self.some_place()) else { return Ok(()) };
        let (from_dir, to_dir) = (self.handle(from.0), self.handle(to.0));
        let (there, replaced) = (self.names.get(&from), self.names.get(&to));
        let places = ((&from_dir, from.1.as_str()), (&to_dir, to.1.as_str()));
        let Some(id) = there else {
            let done = self.client.rename(places.0, places.1).await;
            return self.refused(done, &[nfsstat3::NFS3ERR_NOENT]);
        };
        let is_directory = self.object(id).is_directory();
        if is_directory && to.0 > COMMON && to.0 != id {
            // Directories stay where they do not contain others.
            return Ok(());
        }
        if let Some(allowed) = self.why_not(id, &from, &to, replaced) {
            let done = self.client.rename(places.0, places.1).await;
            return match done {
                Err(failed) if self.is_fault(failed) => Ok(()),
                done if allowed.is_empty() => done.map(drop),
                done => self.refused(done, allowed),
            };
        }
        if replaced.is_some_and(|replaced| self.names.entries(replaced).is_none()) {
            return Ok(());
        }
        let before = vec![(from.clone(), Some(id)), (to.clone(), replaced)];
        let after = vec![(from.clone(), None), (to.clone(), Some(id))];
        self.names.begin(Doubt { before, after });
        let done = self.client.rename(places.0, places.1).await;
        for id in [Some(id), replaced].into_iter().flatten() {
            self.object(id).told = None;
        }
        let Some(done) = self.unless_doubt(done, &[from.0, to.0])? else { return Ok(()) };
        self.names.end(true);
        if from.0 != to.0 {
            self.see_wcc(from.0, done.fromdir_wcc);
        }
        self.see_wcc(to.0, done.todir_wcc);
        Ok(())
    }

    /// The possible errors of a refused rename; an empty list: it succeeds and changes nothing.
    fn why_not(&self, id: Id, from: &Key, to: &Key, replaced: Option<Id>) -> Option<&'static [nfsstat3]> {
        use nfsstat3::{NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_NOTDIR, NFS3ERR_NOTEMPTY};
        let is_directory = |id: Id| self.names.objects[id].is_directory();
        if to.0 == id {
            return Some(&[NFS3ERR_INVAL]);
        }
        let replaced = replaced?;
        if replaced == id {
            return Some(&[]);
        }
        let is_empty = self.names.entries(replaced).is_none_or(|entries| entries.is_empty());
        match (is_directory(id), is_directory(replaced)) {
            // The replaced directory contains it.
            (_, true) if from.0 == replaced => Some(&[NFS3ERR_NOTEMPTY, NFS3ERR_EXIST, NFS3ERR_ISDIR]),
            (true, false) => Some(&[NFS3ERR_NOTDIR, NFS3ERR_EXIST]),
            (false, true) => Some(&[NFS3ERR_ISDIR, NFS3ERR_EXIST]),
            (true, true) if !is_empty => Some(&[NFS3ERR_NOTEMPTY, NFS3ERR_EXIST]),
            _ => None,
        }
    }

    pub async fn look_up(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let found = self.client.lookup(&self.handle(key.0), &key.1).await;
        let Some(id) = self.names.get(&key) else {
            return self.refused(found, &[nfsstat3::NFS3ERR_NOENT]);
        };
        let found = found?;
        self.see_found(id, &found);
        if let Body::Link(target) = self.object(id).body.clone() {
            assert_eq!(self.client.readlink(&found.handle).await?, target);
        }
        Ok(())
    }

    /// Every entry is listed, with its node.
    pub async fn list(&mut self) -> Done {
        let directories = self.names.directories();
        let dir = directories[self.random.below(directories.len() as u64) as usize];
        let (handle, count) = (self.handle(dir), [512, 1024, 8192][self.random.below(3) as usize]);
        let Some(expected) = self.names.entries(dir) else { return Ok(()) };
        let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
        if self.random.chance(500) {
            let found = self.client.readdir(&handle, count).await?;
            let found = self.own(dir, found.into_iter().map(|name| (name, ())));
            assert!(found.keys().eq(&expected), "client {}, directory {dir}: {found:?}, not {expected:?}", self.no);
            return Ok(());
        }
        let found = self.client.readdirplus(&handle, count).await?;
        let found = self.own(dir, found.into_iter());
        assert!(found.keys().eq(&expected), "client {}, directory {dir}: not {expected:?}", self.no);
        for (name, found) in found {
            if let Some(id) = self.names.get(&(dir, name)) {
                self.see_found(id, &found);
            }
        }
        Ok(())
    }

    /// The entries of this client, each of which is listed once. Those that others make and remove meanwhile may be
    /// listed several times.
    pub fn own<T>(&self, dir: Id, entries: impl Iterator<Item = (String, T)>) -> BTreeMap<String, T> {
        let end = self.no.to_string();
        let mut own = BTreeMap::new();
        for (name, entry) in entries.filter(|(name, _)| dir != COMMON || name.ends_with(&end)) {
            assert!(own.insert(name, entry).is_none(), "client {}: an entry comes twice", self.no);
        }
        own
    }

    /// Directories that always exist.
    pub const fn roots() -> [Id; 2] {
        [OWN, COMMON]
    }
}
