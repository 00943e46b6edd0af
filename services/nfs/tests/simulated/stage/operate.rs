//! Random requests, each reply compared with the model.

use nfs3_types::nfs3::{
    CREATE3resok, Nfs3Option, createhow3, createverf3, nfsstat3, nfstime3, sattr3, set_mtime, stable_how,
};

use super::client::{Failed, with_mode};
use super::lane::Lane;
use super::names::{Body, COMMON, Doubt, Id, Key, OWN, Object};
use testkit::scene::content::Content;

pub const SIZE_MAX: u64 = 60_000;

const EXIST: nfsstat3 = nfsstat3::NFS3ERR_EXIST;
const NOENT: nfsstat3 = nfsstat3::NFS3ERR_NOENT;

type Done = Result<(), Failed>;

impl Lane {
    pub async fn operate(&mut self) -> Done {
        match self.random.below(40) {
            0..9 => self.write().await,
            9..12 => self.commit().await,
            12..15 => self.read().await,
            15 => self.resize().await,
            16 => self.set_mode().await,
            17 => self.set_time().await,
            18..22 => self.create().await,
            22 => self.mkdir().await,
            23 => self.symlink().await,
            24 => self.link().await,
            25..27 => self.remove().await,
            27 => self.rmdir().await,
            28..31 => self.rename().await,
            31..33 => self.look_up().await,
            33 => self.list().await,
            34 => self.getattr().await,
            35 => self.look_at_a_grave().await,
            _ => {
                let Lane { stripe, client, random, terms, .. } = self;
                stripe.operate(client, random, terms.faulty).await
            }
        }
    }

    async fn write(&mut self) -> Done {
        let Some(id) = self.some_object(Object::is_file) else { return self.create().await };
        let at = match self.random.below(4) {
            // At the end, as files grow.
            0..2 => self.object(id).content().size(),
            2 => self.random.below(SIZE_MAX),
            _ => self.random.below(SIZE_MAX / 4096) * 4096,
        };
        let longest = if self.random.chance(200) { 30_000 } else { 3000 };
        let len = (1 + self.random.below(longest)).min(SIZE_MAX.saturating_sub(at));
        let bytes: Vec<u8> = (0..len).map(|_| self.random.next() as u8 | 1).collect();
        if bytes.is_empty() {
            return self.resize().await;
        }
        let how = [stable_how::UNSTABLE, stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC];
        let how = how[self.random.below(4) as usize];
        self.write_so(id, at, &bytes, how).await.map(drop)
    }

    /// True if it was done.
    async fn write_so(&mut self, id: Id, at: u64, bytes: &[u8], how: stable_how) -> Result<bool, Failed> {
        let object = self.object(id);
        (object.modified, object.verifier) = (None, None);
        object.content().begin_write(at, bytes);
        let done = self.client.write(&self.handle(id), at, bytes, how).await;
        let Some((done, verifier)) = self.unless_fault(done)? else {
            return self.look_again(id).await.map(|()| false);
        };
        let is_stable = done.committed != stable_how::UNSTABLE;
        self.object(id).content().acknowledge(is_stable, verifier);
        self.see_wcc(id, done.file_wcc);
        Ok(true)
    }

    /// After an error: reads the file's present content into the model.
    async fn look_again(&mut self, id: Id) -> Done {
        self.object(id).told = None;
        loop {
            let done = self.client.read_all(&self.handle(id), SIZE_MAX).await;
            if let Some(found) = self.unless_fault(done)? {
                let looked = self.object(id).content().look(found);
                assert_eq!(looked, Ok(()), "client {}, object {id}, after an error", self.no);
                return Ok(());
            }
        }
    }

    async fn commit(&mut self) -> Done {
        let Some(id) = self.some_object(Object::is_file) else { return Ok(()) };
        let done = self.client.commit(&self.handle(id), 0, 0).await;
        let Some((wcc, verifier)) = self.unless_fault(done)? else { return Ok(()) };
        self.object(id).content().committed(verifier);
        self.see_some(id, wcc.after, false);
        if let Some((at, bytes)) = self.object(id).content().to_rewrite(verifier) {
            assert!(self.terms.faulty, "the verifier changed, and nothing had failed");
            if self.write_so(id, at, &bytes, stable_how::FILE_SYNC).await? {
                self.object(id).content().rewritten(at, bytes.len() as u64);
            }
        }
        Ok(())
    }

    async fn read(&mut self) -> Done {
        let Some(id) = self.some_object(Object::is_file) else { return Ok(()) };
        let at = self.random.below(SIZE_MAX);
        let len = 1 + self.random.below(20_000);
        let done = self.client.read(&self.handle(id), at, len as u32).await;
        let Some(read) = self.unless_fault(done)? else { return Ok(()) };
        let content = self.object(id).content();
        let expected = content.expected(at, len);
        assert!(expected == &read.data[..], "client {}, object {id}, {len} bytes at {at}", self.no);
        let content = self.object(id).content();
        assert_eq!(read.eof, at + read.data.len() as u64 >= content.size(), "the end of the file");
        self.see_some(id, read.file_attributes, false);
        Ok(())
    }

    async fn resize(&mut self) -> Done {
        let Some(id) = self.some_object(Object::is_file) else { return Ok(()) };
        let size = self.random.below(SIZE_MAX);
        self.object(id).content().begin_resize(size);
        let attributes = sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
        let object = self.object(id);
        (object.modified, object.verifier) = (None, None);
        let done = self.client.setattr(&self.handle(id), attributes, None).await;
        let Some(wcc) = self.unless_fault(done)? else { return self.look_again(id).await };
        self.object(id).content().resized(size);
        self.see_wcc(id, wcc);
        Ok(())
    }

    /// Sometimes guarded by the attributes that the client has.
    async fn set_mode(&mut self) -> Done {
        let Some(id) = self.some_object(|object| !matches!(object.body, Body::Link(_))) else { return Ok(()) };
        let told = self.object(id).told.clone().filter(|_| self.terms.times_are_kept);
        let (guard, holds) = match (self.random.below(3), told) {
            (0, Some(told)) => (Some(told.ctime), true),
            (1, _) => (Some(nfstime3 { seconds: 1, nseconds: 1 }), false),
            _ => (None, true),
        };
        let mode = 0o700 | self.random.below(0o100) as u32;
        if holds {
            self.object(id).modes.push(mode);
        }
        let done = self.client.setattr(&self.handle(id), with_mode(mode), guard).await;
        if matches!(done, Err(Failed::Status(nfsstat3::NFS3ERR_NOT_SYNC))) && !holds {
            return Ok(());
        }
        let Some(wcc) = self.unless_doubt(done, &[id])? else { return Ok(()) };
        assert!(holds, "the guard was of another time");
        self.object(id).modes = vec![mode];
        self.see_wcc(id, wcc);
        Ok(())
    }

    async fn set_time(&mut self) -> Done {
        let Some(id) = self.some_object(Object::is_file) else { return Ok(()) };
        let time = nfstime3 { seconds: self.random.below(2_000_000_000) as u32, nseconds: 0 };
        let attributes = sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(time), ..sattr3::default() };
        let object = self.object(id);
        (object.modified, object.verifier) = (None, None);
        let done = self.client.setattr(&self.handle(id), attributes, None).await;
        let Some(wcc) = self.unless_doubt(done, &[id])? else { return Ok(()) };
        if let Nfs3Option::Some(after) = &wcc.after {
            assert_eq!((after.mtime.seconds, after.mtime.nseconds), (time.seconds, 0), "as it was set");
        }
        self.object(id).modified = Some(time);
        self.see_wcc(id, wcc);
        Ok(())
    }

    async fn create(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let there = self.names.get(&key);
        let mode = 0o600 | self.random.below(0o100) as u32;
        match self.random.below(3) {
            0 => {
                let cut = there.is_some_and(|id| self.object(id).is_file()) && self.random.chance(300);
                let size = if cut { Nfs3Option::Some(0) } else { Nfs3Option::None };
                let how = createhow3::UNCHECKED(sattr3 { size, ..with_mode(mode) });
                self.create_unchecked(key, there, how, cut, mode).await
            }
            1 => {
                let expected = if there.is_some() { Err(&[EXIST][..]) } else { Ok(()) };
                self.make(
                    key,
                    Object::new(Body::File(Content::default()), mode),
                    expected,
                    createhow3::GUARDED(with_mode(mode)),
                )
                .await
            }
            _ => self.create_exclusive(key, there).await,
        }
    }

    async fn create_unchecked(&mut self, key: Key, there: Option<Id>, how: createhow3, cut: bool, mode: u32) -> Done {
        let Some(id) = there else {
            return self.make(key, Object::new(Body::File(Content::default()), mode), Ok(()), how).await;
        };
        if !self.object(id).is_file() {
            let made = self.client.create(&self.handle(key.0), &key.1, how).await;
            return self.refused(made, &[EXIST, nfsstat3::NFS3ERR_ISDIR]);
        }
        if cut {
            self.object(id).content().begin_resize(0);
            let object = self.object(id);
            (object.modified, object.verifier) = (None, None);
        }
        let done = self.client.create(&self.handle(key.0), &key.1, how).await;
        let Some(made) = self.unless_fault(done)? else { return self.look_again(id).await };
        assert_eq!(&made.obj.unwrap(), self.names.objects[id].handle());
        if cut {
            self.object(id).content().resized(0);
        }
        self.see_some(id, made.obj_attributes, cut);
        self.see_some(key.0, made.dir_wcc.after, false);
        Ok(())
    }

    async fn create_exclusive(&mut self, key: Key, there: Option<Id>) -> Done {
        let of_the_one_there = there.and_then(|id| self.object(id).verifier);
        let repeated = of_the_one_there.filter(|_| self.random.chance(500));
        let verifier = repeated.unwrap_or_else(|| (self.random.next() & 0x7fff_ffff_7fff_ffff).to_be_bytes());
        let how = createhow3::EXCLUSIVE(createverf3(verifier));
        let Some(id) = there else {
            let object = Object { verifier: Some(verifier), ..Object::new(Body::File(Content::default()), 0) };
            return self.make(key, object, Ok(()), how).await;
        };
        let made = self.client.create(&self.handle(key.0), &key.1, how).await;
        if repeated.is_none() {
            return self.refused(made, &[EXIST]);
        }
        let Some(made) = self.unless_fault(made)? else { return Ok(()) };
        assert_eq!(&made.obj.unwrap(), self.names.objects[id].handle(), "the same file, made once");
        self.see_some(id, made.obj_attributes, false);
        Ok(())
    }

    /// What must be refused, and how, unless the disk fails first.
    pub fn refused<T>(&self, result: Result<T, Failed>, allowed: &[nfsstat3]) -> Done {
        match result {
            Err(Failed::Status(status)) if allowed.contains(&status) => Ok(()),
            Err(Failed::Gone) => Err(Failed::Gone),
            Err(failed) if self.is_fault(failed) => Ok(()),
            Err(other) => panic!("client {}: {other:?}, not {allowed:?}", self.no),
            Ok(_) => panic!("client {}: done, not {allowed:?}", self.no),
        }
    }

    /// Creates an object with a new name.
    async fn make(&mut self, key: Key, object: Object, expected: Result<(), &[nfsstat3]>, how: createhow3) -> Done {
        let dir = self.handle(key.0);
        if let Err(allowed) = expected {
            let made = self.client.create(&dir, &key.1, how).await;
            return self.refused(made, allowed);
        }
        let id = self.begin_making(&key, object);
        let made = self.client.create(&dir, &key.1, how).await;
        self.made(key.0, id, made)
    }

    fn begin_making(&mut self, key: &Key, object: Object) -> Id {
        let id = self.names.add(object);
        self.names.begin(Doubt { before: vec![(key.clone(), None)], after: vec![(key.clone(), Some(id))] });
        id
    }

    fn made(&mut self, dir: Id, id: Id, made: Result<CREATE3resok, Failed>) -> Done {
        let Some(made) = self.unless_doubt(made, &[dir])? else { return Ok(()) };
        self.names.end(true);
        let handle = made.obj.unwrap();
        let is_new = !self.names.objects.iter().any(|other| other.handle.as_ref() == Some(&handle));
        assert!(is_new, "client {}: the handle of another", self.no);
        self.object(id).handle = Some(handle);
        self.see_some(id, made.obj_attributes, true);
        self.see_some(dir, made.dir_wcc.after, true);
        Ok(())
    }

    async fn mkdir(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let mode = 0o700 | self.random.below(0o100) as u32;
        let dir = self.handle(key.0);
        if self.names.get(&key).is_some() {
            let made = self.client.mkdir(&dir, &key.1, mode).await;
            return self.refused(made, &[EXIST]);
        }
        if key.0 > COMMON {
            // Not deeper: directories move, and never into themselves.
            return Ok(());
        }
        let id = self.begin_making(&key, Object::new(Body::Directory, mode));
        let made = self.client.mkdir(&dir, &key.1, mode).await;
        self.made(key.0, id, made)
    }

    async fn symlink(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let target = format!("../{:x}", self.random.next()).into_bytes();
        let dir = self.handle(key.0);
        if self.names.get(&key).is_some() {
            let made = self.client.symlink(&dir, &key.1, &target).await;
            return self.refused(made, &[EXIST]);
        }
        let id = self.begin_making(&key, Object::new(Body::Link(target.clone()), 0o777));
        let made = self.client.symlink(&dir, &key.1, &target).await;
        self.made(key.0, id, made)
    }

    async fn link(&mut self) -> Done {
        let (Some(key), Some(id)) = (self.some_place(), self.some_object(|object| !object.is_directory())) else {
            return Ok(());
        };
        let (file, dir) = (self.handle(id), self.handle(key.0));
        if self.names.get(&key).is_some() {
            let done = self.client.link(&file, &dir, &key.1).await;
            return self.refused(done, &[EXIST]);
        }
        let doubt = Doubt { before: vec![(key.clone(), None)], after: vec![(key.clone(), Some(id))] };
        self.names.begin(doubt);
        let done = self.client.link(&file, &dir, &key.1).await;
        let Some(done) = self.unless_doubt(done, &[key.0, id])? else { return Ok(()) };
        self.names.end(true);
        self.object(id).verifier = None;
        self.see_some(id, done.file_attributes, true);
        self.see_some(key.0, done.linkdir_wcc.after, true);
        Ok(())
    }

    /// `None`: it failed as the disk did.
    fn unless_fault<T>(&self, result: Result<T, Failed>) -> Result<Option<T>, Failed> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(failed) if self.is_fault(failed) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// The same of a change: when it failed, it is unknown whether the attributes of these have changed.
    pub fn unless_doubt<T>(&mut self, result: Result<T, Failed>, touched: &[Id]) -> Result<Option<T>, Failed> {
        if result.is_err() {
            touched.iter().for_each(|id| self.object(*id).told = None);
        }
        self.unless_fault(result)
    }

    async fn remove(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let dir = self.handle(key.0);
        let Some(id) = self.names.get(&key).filter(|id| !self.names.objects[*id].is_directory()) else {
            let allowed = if self.names.get(&key).is_some() { nfsstat3::NFS3ERR_ISDIR } else { NOENT };
            let done = self.client.remove(&dir, &key.1).await;
            return self.refused(done, &[allowed]);
        };
        let doubt = Doubt { before: vec![(key.clone(), Some(id))], after: vec![(key.clone(), None)] };
        self.names.begin(doubt);
        let done = self.client.remove(&dir, &key.1).await;
        let Some(wcc) = self.unless_doubt(done, &[key.0, id])? else { return Ok(()) };
        self.names.end(true);
        self.object(id).told = None;
        self.see_wcc(key.0, wcc);
        Ok(())
    }

    async fn rmdir(&mut self) -> Done {
        let Some(key) = self.some_place() else { return Ok(()) };
        let dir = self.handle(key.0);
        let Some(id) = self.names.get(&key).filter(|id| self.names.objects[*id].is_directory()) else {
            let allowed = if self.names.get(&key).is_some() { nfsstat3::NFS3ERR_NOTDIR } else { NOENT };
            let done = self.client.rmdir(&dir, &key.1).await;
            return self.refused(done, &[allowed]);
        };
        match self.names.entries(id).map(|entries| entries.is_empty()) {
            None => return Ok(()),
            Some(false) => {
                let done = self.client.rmdir(&dir, &key.1).await;
                return self.refused(done, &[nfsstat3::NFS3ERR_NOTEMPTY]);
            }
            Some(true) => {}
        }
        let doubt = Doubt { before: vec![(key.clone(), Some(id))], after: vec![(key.clone(), None)] };
        self.names.begin(doubt);
        let done = self.client.rmdir(&dir, &key.1).await;
        let Some(wcc) = self.unless_doubt(done, &[key.0, id])? else { return Ok(()) };
        self.names.end(true);
        self.see_wcc(key.0, wcc);
        Ok(())
    }

    async fn look_at_a_grave(&mut self) -> Done {
        if self.names.graves.is_empty() {
            return Ok(());
        }
        let which = self.random.below(self.names.graves.len() as u64) as usize;
        let grave = self.names.graves[which].clone();
        let answer = self.client.getattr(&grave).await;
        self.refused(answer, &[nfsstat3::NFS3ERR_STALE])
    }

    async fn getattr(&mut self) -> Done {
        let Some(id) = self.some_object(|_| true) else { return Ok(()) };
        let id = if self.random.chance(200) { OWN } else { id };
        let attributes = self.client.getattr(&self.handle(id)).await?;
        self.see(id, &attributes, false);
        Ok(())
    }
}
