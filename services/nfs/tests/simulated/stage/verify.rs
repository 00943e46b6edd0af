//! What exists after a crash, seen through the old handles, is what was reported to the client.

use std::collections::BTreeMap;

use nfs3_types::nfs3::{fattr3, ftype3, nfs_fh3, nfsstat3};

use super::client::Failed;
use super::lane::Lane;
use super::names::{Body, Id, Key};
use super::operate::SIZE_MAX;
use testkit::scene::content::Content;

impl Lane {
    /// Compares, and continues from what exists. `is_settled`: that is durable; otherwise some of the content may be
    /// what a failed flush has left only in the host's memory.
    pub async fn verify(&mut self, is_settled: bool) {
        let found = self.found().await;
        self.names.resolve(&found);
        for (key, id) in &self.names.names {
            let there = found.get(key);
            assert_eq!(there, self.names.objects[*id].handle.as_ref(), "client {}: {key:?} ({id})", self.no);
        }
        for key in found.keys() {
            assert!(self.names.get(key).is_some(), "client {}: {key:?} is back", self.no);
        }
        let alive: Vec<Id> = (0..self.names.objects.len()).filter(|id| self.names.links(*id) > 0).collect();
        for id in alive {
            self.verify_object(id, is_settled).await;
        }
        for grave in self.names.graves.clone() {
            let answer = self.client.getattr(&grave).await.map(|attributes| attributes.fileid);
            assert_eq!(answer, Err(Failed::Status(nfsstat3::NFS3ERR_STALE)), "client {}: it was removed", self.no);
        }
        for object in &mut self.names.objects {
            object.told = None;
        }
    }

    async fn found(&mut self) -> BTreeMap<Key, nfs_fh3> {
        let mut found = BTreeMap::new();
        let mut unvisited: Vec<Id> = Lane::roots().to_vec();
        while let Some(dir) = unvisited.pop() {
            let entries = self.client.readdirplus(&self.handle(dir), 4096).await.expect("a directory");
            for (name, entry) in self.own(dir, entries.into_iter()) {
                let key = (dir, name);
                if entry.attributes.type_ == ftype3::NF3DIR {
                    match self.names.objects.iter().position(|object| object.handle.as_ref() == Some(&entry.handle)) {
                        Some(id) => unvisited.push(id),
                        // It was being made.
                        None => {
                            let inside = self.client.readdirplus(&entry.handle, 4096).await.expect("a directory");
                            assert!(inside.is_empty(), "client {}: {key:?} holds {inside:?}", self.no);
                        }
                    }
                }
                found.insert(key, entry.handle.clone());
            }
        }
        found
    }

    async fn verify_object(&mut self, id: Id, is_settled: bool) {
        let handle = self.handle(id);
        let attributes = self.client.getattr(&handle).await.expect("handles outlive crashes");
        self.verify_attributes(id, &attributes);
        match self.object(id).body.clone() {
            Body::File(content) => {
                let found = self.client.read_all(&handle, SIZE_MAX).await.expect("a file");
                assert_eq!(attributes.size, found.len() as u64);
                let mut content = content;
                if let Err(wrong) = content.look(found.clone()) {
                    panic!("client {}, object {id}: {wrong}", self.no);
                }
                self.object(id).body = Body::File(if is_settled { Content::durable(found) } else { content });
            }
            Body::Link(target) => assert_eq!(self.client.readlink(&handle).await, Ok(target)),
            Body::Directory => {}
        }
    }

    fn verify_attributes(&mut self, id: Id, attributes: &fattr3) {
        let (links, no) = (self.names.links(id), self.no);
        let object = self.object(id);
        assert_eq!(attributes.type_, object.kind(), "client {no}, object {id}");
        if !object.is_directory() {
            assert_eq!(attributes.nlink as usize, links, "client {no}, object {id}");
        }
        if !matches!(object.body, Body::Link(_)) {
            assert!(object.modes.contains(&attributes.mode), "client {no}, object {id}: {:o}", attributes.mode);
            object.modes = vec![attributes.mode];
        }
        if let Some(modified) = &object.modified {
            assert_eq!((attributes.mtime.seconds, attributes.mtime.nseconds), (modified.seconds, modified.nseconds));
        }
    }
}
