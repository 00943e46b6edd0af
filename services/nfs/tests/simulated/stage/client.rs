//! The procedures, as a client calls them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use nfs3_types::mount::{self, MOUNT_PROGRAM, dirpath, mountres3};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};

use super::rpc::{Book, Gone};
use super::{EXPORT, note_verifier};

/// Why a call has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Gone,
    Status(nfsstat3),
}

impl From<Gone> for Failed {
    fn from(_: Gone) -> Self {
        Failed::Gone
    }
}

pub type Verifier = [u8; 8];

#[derive(Clone, Debug)]
pub struct Found {
    pub handle: nfs_fh3,
    pub attributes: fattr3,
}

pub struct Client {
    pub book: Rc<Book>,
    present: Rc<RefCell<BTreeSet<Verifier>>>,
    past: Rc<RefCell<BTreeSet<Verifier>>>,
}

impl Client {
    pub fn new(
        book: Rc<Book>,
        present: Rc<RefCell<BTreeSet<Verifier>>>,
        past: Rc<RefCell<BTreeSet<Verifier>>>,
    ) -> Client {
        Client { book, present, past }
    }

    async fn call<T, E>(&self, procedure: NFS_PROGRAM, args: &impl Pack) -> Result<T, Failed>
    where
        Nfs3Result<T, E>: Unpack,
    {
        let once = matches!(
            procedure,
            NFS_PROGRAM::NFSPROC3_SETATTR
                | NFS_PROGRAM::NFSPROC3_CREATE
                | NFS_PROGRAM::NFSPROC3_MKDIR
                | NFS_PROGRAM::NFSPROC3_SYMLINK
                | NFS_PROGRAM::NFSPROC3_REMOVE
                | NFS_PROGRAM::NFSPROC3_RMDIR
                | NFS_PROGRAM::NFSPROC3_RENAME
                | NFS_PROGRAM::NFSPROC3_LINK
        );
        let bytes = self.book.call(&head(PROGRAM, procedure as u32, args), once).await?;
        let (result, len) = Nfs3Result::<T, E>::unpack(&mut &bytes[..]).expect("decodes");
        assert_eq!(len, bytes.len(), "something is left over");
        match result {
            Nfs3Result::Ok(value) => Ok(value),
            Nfs3Result::Err((status, _)) => Err(Failed::Status(status)),
        }
    }

    /// The root's handle, by MOUNT.
    pub async fn mount(&self) -> Result<nfs_fh3, Failed> {
        let path = dirpath(Opaque::owned(EXPORT.as_bytes().to_vec()));
        let message = head(mount::PROGRAM, MOUNT_PROGRAM::MOUNTPROC3_MNT as u32, &path);
        let bytes = self.book.call(&message, false).await?;
        match mountres3::unpack(&mut &bytes[..]).expect("decodes").0 {
            mountres3::Ok(mounted) => Ok(nfs_fh3 { data: Opaque::owned(mounted.fhandle.0.into_owned()) }),
            mountres3::Err(status) => panic!("{status:?}"),
        }
    }

    pub async fn getattr(&self, object: &nfs_fh3) -> Result<fattr3, Failed> {
        let args = GETATTR3args { object: object.clone() };
        let answer = self.call::<GETATTR3resok, Void>(NFS_PROGRAM::NFSPROC3_GETATTR, &args).await?;
        Ok(answer.obj_attributes)
    }

    pub async fn setattr(
        &self,
        object: &nfs_fh3,
        new_attributes: sattr3,
        guard: Option<nfstime3>,
    ) -> Result<wcc_data, Failed> {
        let guard = guard.map_or(Nfs3Option::None, Nfs3Option::Some);
        let args = SETATTR3args { object: object.clone(), new_attributes, guard };
        let answer = self.call::<SETATTR3resok, SETATTR3resfail>(NFS_PROGRAM::NFSPROC3_SETATTR, &args).await?;
        Ok(answer.obj_wcc)
    }

    pub async fn lookup(&self, dir: &nfs_fh3, name: &str) -> Result<Found, Failed> {
        let args = LOOKUP3args { what: place(dir, name) };
        let found = self.call::<LOOKUP3resok, LOOKUP3resfail>(NFS_PROGRAM::NFSPROC3_LOOKUP, &args).await?;
        Ok(Found { handle: found.object, attributes: found.obj_attributes.unwrap() })
    }

    pub async fn readlink(&self, link: &nfs_fh3) -> Result<Vec<u8>, Failed> {
        let args = READLINK3args { symlink: link.clone() };
        let answer = self.call::<READLINK3resok<'_>, READLINK3resfail>(NFS_PROGRAM::NFSPROC3_READLINK, &args).await?;
        Ok(answer.data.0.into_owned())
    }

    pub async fn read(&self, file: &nfs_fh3, offset: u64, count: u32) -> Result<READ3resok<'static>, Failed> {
        let args = READ3args { file: file.clone(), offset, count };
        let read: READ3resok<'static> = self.call::<_, READ3resfail>(NFS_PROGRAM::NFSPROC3_READ, &args).await?;
        assert_eq!(read.count as usize, read.data.len());
        Ok(read)
    }

    /// A whole file, whose length is at most `max`.
    pub async fn read_all(&self, file: &nfs_fh3, max: u64) -> Result<Vec<u8>, Failed> {
        let mut all = Vec::new();
        loop {
            let read = self.read(file, all.len() as u64, 32 << 10).await?;
            all.extend_from_slice(&read.data);
            if read.eof {
                return Ok(all);
            }
            assert!(!read.data.is_empty() && all.len() as u64 <= max, "no end of file after {} bytes", all.len());
        }
    }

    pub async fn write(
        &self,
        file: &nfs_fh3,
        offset: u64,
        bytes: &[u8],
        stable: stable_how,
    ) -> Result<(WRITE3resok, Verifier), Failed> {
        let count = bytes.len() as u32;
        let args = WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(bytes) };
        let done = self.call::<WRITE3resok, WRITE3resfail>(NFS_PROGRAM::NFSPROC3_WRITE, &args).await?;
        assert_eq!(done.count, count, "the server takes all");
        assert!(done.committed as u32 >= stable as u32, "less stable than asked for");
        let verifier = note_verifier(done.verf, &self.present, &self.past);
        Ok((done, verifier))
    }

    pub async fn commit(&self, file: &nfs_fh3, offset: u64, count: u32) -> Result<(wcc_data, Verifier), Failed> {
        let args = COMMIT3args { file: file.clone(), offset, count };
        let done = self.call::<COMMIT3resok, COMMIT3resfail>(NFS_PROGRAM::NFSPROC3_COMMIT, &args).await?;
        let verifier = note_verifier(done.verf, &self.present, &self.past);
        Ok((done.file_wcc, verifier))
    }

    pub async fn create(&self, dir: &nfs_fh3, name: &str, how: createhow3) -> Result<CREATE3resok, Failed> {
        let args = CREATE3args { where_: place(dir, name), how };
        self.call::<CREATE3resok, CREATE3resfail>(NFS_PROGRAM::NFSPROC3_CREATE, &args).await
    }

    /// The handle of a new file with mode 0644.
    pub async fn make(&self, dir: &nfs_fh3, name: &str) -> nfs_fh3 {
        let how = createhow3::GUARDED(with_mode(0o644));
        self.create(dir, name, how).await.expect("made").obj.unwrap()
    }

    pub async fn mkdir(&self, dir: &nfs_fh3, name: &str, mode: u32) -> Result<CREATE3resok, Failed> {
        let args = MKDIR3args { where_: place(dir, name), attributes: with_mode(mode) };
        let made = self.call::<MKDIR3resok, MKDIR3resfail>(NFS_PROGRAM::NFSPROC3_MKDIR, &args).await?;
        Ok(CREATE3resok { obj: made.obj, obj_attributes: made.obj_attributes, dir_wcc: made.dir_wcc })
    }

    pub async fn symlink(&self, dir: &nfs_fh3, name: &str, target: &[u8]) -> Result<CREATE3resok, Failed> {
        let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: nfspath3::from(target) };
        let args = SYMLINK3args { where_: place(dir, name), symlink };
        let made = self.call::<SYMLINK3resok, SYMLINK3resfail>(NFS_PROGRAM::NFSPROC3_SYMLINK, &args).await?;
        Ok(CREATE3resok { obj: made.obj, obj_attributes: made.obj_attributes, dir_wcc: made.dir_wcc })
    }

    pub async fn remove(&self, dir: &nfs_fh3, name: &str) -> Result<wcc_data, Failed> {
        let args = REMOVE3args { object: place(dir, name) };
        let done = self.call::<REMOVE3resok, REMOVE3resfail>(NFS_PROGRAM::NFSPROC3_REMOVE, &args).await?;
        Ok(done.dir_wcc)
    }

    pub async fn rmdir(&self, dir: &nfs_fh3, name: &str) -> Result<wcc_data, Failed> {
        let args = RMDIR3args { object: place(dir, name) };
        let done = self.call::<RMDIR3resok, RMDIR3resfail>(NFS_PROGRAM::NFSPROC3_RMDIR, &args).await?;
        Ok(done.dir_wcc)
    }

    pub async fn rename(&self, from: (&nfs_fh3, &str), to: (&nfs_fh3, &str)) -> Result<RENAME3resok, Failed> {
        let args = RENAME3args { from: place(from.0, from.1), to: place(to.0, to.1) };
        self.call::<RENAME3resok, RENAME3resfail>(NFS_PROGRAM::NFSPROC3_RENAME, &args).await
    }

    pub async fn link(&self, file: &nfs_fh3, dir: &nfs_fh3, name: &str) -> Result<LINK3resok, Failed> {
        let args = LINK3args { file: file.clone(), link: place(dir, name) };
        self.call::<LINK3resok, LINK3resfail>(NFS_PROGRAM::NFSPROC3_LINK, &args).await
    }

    /// The names of a directory without the dots, in replies of `count` bytes.
    pub async fn readdir(&self, dir: &nfs_fh3, count: u32) -> Result<Vec<String>, Failed> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let args = READDIR3args { dir: dir.clone(), cookie, cookieverf: cookieverf3([0; 8]), count };
            let answer: READDIR3resok<'static> =
                self.call::<_, READDIR3resfail>(NFS_PROGRAM::NFSPROC3_READDIR, &args).await?;
            for entry in answer.reply.entries.0 {
                cookie = entry.cookie;
                let name = text(&entry.name);
                if name != "." && name != ".." {
                    names.push(name);
                }
            }
            if answer.reply.eof {
                return Ok(names);
            }
        }
    }

    /// The entries of a directory without the dots, in replies of `maxcount` bytes.
    pub async fn readdirplus(&self, dir: &nfs_fh3, maxcount: u32) -> Result<Vec<(String, Found)>, Failed> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let cookieverf = cookieverf3([0; 8]);
            let args = READDIRPLUS3args { dir: dir.clone(), cookie, cookieverf, dircount: maxcount, maxcount };
            let answer: READDIRPLUS3resok<'static> =
                self.call::<_, READDIRPLUS3resfail>(NFS_PROGRAM::NFSPROC3_READDIRPLUS, &args).await?;
            for entry in answer.reply.entries.0 {
                cookie = entry.cookie;
                let name = text(&entry.name);
                let (Nfs3Option::Some(handle), Nfs3Option::Some(attributes)) =
                    (entry.name_handle, entry.name_attributes)
                else {
                    // It was removed meanwhile.
                    continue;
                };
                assert_eq!(attributes.fileid, entry.fileid);
                if name != "." && name != ".." {
                    all.push((name, Found { handle, attributes }));
                }
            }
            if answer.reply.eof {
                return Ok(all);
            }
        }
    }
}

/// A call from its program to its arguments, without its number.
pub fn head(program: u32, procedure: u32, args: &impl Pack) -> Vec<u8> {
    let words = [0, 2, program, 3, procedure, 1, 20, 0, 0, 1000, 1000, 0, 0, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    args.pack(&mut bytes).expect("fits");
    bytes
}

pub fn with_mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

fn place<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: filename3::from(name.as_bytes()) }
}

fn text(name: &filename3<'_>) -> String {
    String::from_utf8(name.0.to_vec()).expect("names are text")
}
