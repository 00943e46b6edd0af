//! One client with its part of the tree, one request after another, and the expected replies.

use std::rc::Rc;

use nfs3_types::nfs3::{Nfs3Option, fattr3, nfs_fh3, nfsstat3, nfstime3, post_op_attr, wcc_data};

use super::client::{Client, Failed, Found};
use super::names::{Body, COMMON, Id, Key, Names, OWN, Object};
use super::stripe::Stripe;
use testkit::random::Random;

/// What the client may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Do syncs, writes and reads fail occasionally?
    pub faulty: bool,
    /// Do the times of a file stay as reported until the client changes it?
    pub times_are_kept: bool,
}

pub struct Lane {
    pub no: usize,
    pub client: Rc<Client>,
    pub random: Random,
    pub terms: Terms,
    pub names: Names,
    /// Its slots in the file that all write.
    pub stripe: Stripe,
    pub answered: u64,
}

impl Lane {
    /// Makes a client's own directory. `common`: the directory of all.
    pub async fn begin(
        no: usize,
        client: Rc<Client>,
        random: Random,
        terms: Terms,
        (root, common): (&nfs_fh3, &nfs_fh3),
        stripe: Stripe,
    ) -> Lane {
        let made = client.mkdir(root, &format!("client {no}"), 0o755).await.expect("a directory");
        let mut names = Names::default();
        let directory = |handle: nfs_fh3| Object { handle: Some(handle), ..Object::new(Body::Directory, 0o755) };
        assert_eq!(names.add(directory(made.obj.unwrap())), OWN);
        assert_eq!(names.add(directory(common.clone())), COMMON);
        Lane { no, client, random, terms, names, stripe, answered: 0 }
    }

    /// `steps` random requests, or until the server is gone.
    pub async fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.operate().await {
                Ok(()) => self.answered += 1,
                Err(Failed::Gone) => return,
                Err(failed) if self.is_fault(failed) => {}
                Err(Failed::Status(status)) => panic!("client {} was told {status:?}", self.no),
            }
        }
    }

    /// Names are few, so that they collide.
    pub fn some_name(&mut self, dir: Id) -> String {
        let letter = char::from(b'a' + self.random.below(6) as u8);
        if dir == COMMON { format!("{letter}{}", self.no) } else { letter.to_string() }
    }

    /// A place whose content is known.
    pub fn some_place(&mut self) -> Option<Key> {
        let directories = self.names.directories();
        let dir = directories[self.random.below(directories.len() as u64) as usize];
        let key = (dir, self.some_name(dir));
        self.names.is_known(&key).then_some(key)
    }

    /// A known object of a kind.
    pub fn some_object(&mut self, is_wanted: impl Fn(&Object) -> bool) -> Option<Id> {
        let known: Vec<Id> = (self.names.names.iter())
            .filter(|(key, id)| self.names.is_known(key) && is_wanted(&self.names.objects[**id]))
            .map(|(_, id)| *id)
            .collect();
        if known.is_empty() { None } else { Some(known[self.random.below(known.len() as u64) as usize]) }
    }

    pub fn object(&mut self, id: Id) -> &mut Object {
        &mut self.names.objects[id]
    }

    pub fn handle(&self, id: Id) -> nfs_fh3 {
        self.names.objects[id].handle().clone()
    }

    /// May the disk have caused this error?
    pub fn is_fault(&self, failed: Failed) -> bool {
        self.terms.faulty && failed == Failed::Status(nfsstat3::NFS3ERR_IO)
    }

    /// Attributes of a reply: they must be those of the model. `is_changed`: the request changed them.
    pub fn see(&mut self, id: Id, attributes: &fattr3, is_changed: bool) {
        let links = self.names.links(id);
        let (terms, no) = (self.terms, self.no);
        let object = &mut self.names.objects[id];
        assert_eq!(attributes.type_, object.kind(), "client {no}, object {id}");
        if let Some(told) = &object.told {
            assert_eq!((attributes.fileid, attributes.fsid), (told.fileid, told.fsid), "client {no}, object {id}");
        }
        if !object.is_doubtful && !matches!(object.body, Body::Link(_)) {
            assert!(object.modes.contains(&attributes.mode), "{}, not {:?}", attributes.mode, object.modes);
        }
        match &object.body {
            Body::File(content) => {
                assert_eq!(attributes.size, content.size(), "client {no}, object {id}");
                if !object.is_doubtful {
                    assert_eq!(attributes.nlink as usize, links, "client {no}, object {id}");
                }
            }
            Body::Link(target) => assert_eq!(attributes.size, target.len() as u64),
            Body::Directory => {}
        }
        if let Some(told) = &object.told
            && terms.times_are_kept
            && id != COMMON
        {
            let (now, then) = (times(attributes), times(told));
            if is_changed {
                assert!(now.1 >= then.1, "client {no}, object {id}: changed {now:?} after {then:?}");
            } else {
                assert_eq!(now, then, "client {no}, object {id}: nobody changed it");
            }
        }
        object.told = Some(attributes.clone());
    }

    pub fn see_some(&mut self, id: Id, attributes: post_op_attr, is_changed: bool) {
        match attributes {
            Nfs3Option::Some(attributes) => self.see(id, &attributes, is_changed),
            Nfs3Option::None => self.object(id).told = None,
        }
    }

    /// Attributes before and after a change. Before: those in the client's cache, as no other client changes them.
    pub fn see_wcc(&mut self, id: Id, wcc: wcc_data) {
        if let (Nfs3Option::Some(before), Some(told)) = (&wcc.before, &self.object(id).told)
            && id != COMMON
        {
            let known = (told.size, key_of(&told.mtime), key_of(&told.ctime));
            assert_eq!((before.size, key_of(&before.mtime), key_of(&before.ctime)), known, "before the change");
        }
        self.see_some(id, wcc.after, true);
    }

    pub fn see_found(&mut self, id: Id, found: &Found) {
        assert_eq!(&found.handle, self.names.objects[id].handle(), "client {}, object {id}", self.no);
        self.see(id, &found.attributes, false);
    }
}

fn key_of(time: &nfstime3) -> (u32, u32) {
    (time.seconds, time.nseconds)
}

fn times(attributes: &fattr3) -> ((u32, u32), (u32, u32)) {
    (key_of(&attributes.mtime), key_of(&attributes.ctime))
}
