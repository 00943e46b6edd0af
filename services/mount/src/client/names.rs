//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use std::sync::atomic::Ordering;

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{
    CREATE3args, LINK3args, LOOKUP3args, MKDIR3args, MKNOD3args, NFS_PROGRAM as Nfs, REMOVE3args, RENAME3args,
    RMDIR3args, SYMLINK3args, createhow3, createverf3, diropargs3, filename3, mknoddata3, nfspath3, sattr3,
    symlinkdata3,
};
use nfs3_types::xdr_codec::{Opaque, Pack};

use super::{Refused, Server};
use crate::attributes::{Attributes, Change, Kind, Time};
use crate::handle::Handle;
use crate::results::Results;

/// An object that was found or made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// A server need not say it of what was made.
    pub handle: Option<Handle>,
    pub attributes: Option<Attributes>,
    /// Of what was found, only what it is now.
    pub directory: Change,
}

/// What RENAME says of both directories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub from: Change,
    pub to: Change,
}

/// An object that is known. A server may have several handles for it.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    pub handle: &'a Handle,
    /// Its number on the server.
    pub file_id: u64,
}

/// What a call gives a name to: a server that has restarted does not know a repeated one again, and refuses it as it does
/// where others have made something of that name.
#[derive(Clone, Copy)]
enum What<'a> {
    /// An object of this kind, with this time of access: the present second, and nanoseconds that are drawn. `None`: the server
    /// does not keep it, and any of this kind is taken for ours.
    New(Kind, Option<Time>),
    /// A symbolic link to this.
    LinkTo(&'a [u8]),
    This(Object<'a>),
}

fn place<'a>(directory: &Handle, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: directory.wire(), name: filename3(Opaque::borrowed(name)) }
}

fn made(results: &mut Results<'_>) -> Option<Made> {
    let (handle, attributes) = (results.optional(Results::handle)?, results.after()?);
    Some(Made { handle, attributes, directory: results.change()? })
}

impl Server {
    pub(crate) async fn lookup(&self, cpu: &Processor, directory: &Handle, name: &[u8]) -> Result<Made, Errno> {
        let arguments = LOOKUP3args { what: place(directory, name) };
        let found = self.ask(cpu, Nfs::NFSPROC3_LOOKUP, &arguments, |results| {
            let handle = results.handle()?;
            let attributes = results.after()?;
            Some(Made { handle: Some(handle), attributes, directory: Change { before: None, after: results.after()? } })
        });
        Ok(found.await?)
    }

    pub(crate) async fn create(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        how: createhow3,
    ) -> Result<Made, Errno> {
        let arguments = CREATE3args { where_: place(directory, name), how };
        // Repeated or not: an exclusive one is recognised by its verifier, an unchecked one may find what it made. A guarded
        // one is refused: others' file must not be taken for ours.
        Ok(self.ask(cpu, Nfs::NFSPROC3_CREATE, &arguments, made).await?)
    }

    /// Makes a file that must not exist, which is known again by `verifier`. A server need not be able to do that (RFC 1813,
    /// section 3.3.8). Also returns whether the file does not have the attributes `new` yet.
    pub(crate) async fn create_exclusive(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        (new, verifier): (sattr3, [u8; 8]),
    ) -> Result<(Made, bool), Errno> {
        if self.has_exclusive.load(Ordering::Relaxed) {
            match self.create(cpu, directory, name, createhow3::EXCLUSIVE(createverf3(verifier))).await {
                Err(Errno::NOT_SUPPORTED) => {}
                made => return Ok((made?, true)),
            }
        }
        let made = self.create(cpu, directory, name, createhow3::GUARDED(new)).await;
        if !matches!(made, Err(Errno::NOT_SUPPORTED)) {
            self.has_exclusive.store(false, Ordering::Relaxed);
        }
        Ok((made?, false))
    }

    /// Does it keep a time of access with which something is made, so that what is made is known again by it?
    pub(crate) fn keeps_times(&self) -> bool {
        self.keeps_times.load(Ordering::Relaxed)
    }

    /// Makes a file that must not exist, with its attributes; `mark`, the time of access among them, is drawn.
    pub(crate) async fn create_new(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        (new, mark): (sattr3, Time),
    ) -> Result<Made, Errno> {
        let arguments = CREATE3args { where_: place(directory, name), how: createhow3::GUARDED(new) };
        let what = What::New(Kind::File, Some(mark));
        self.make(cpu, Nfs::NFSPROC3_CREATE, &arguments, (directory, name), what).await
    }

    /// `mark`: a time of access among the attributes that is drawn.
    pub(crate) async fn make_directory(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        (attributes, mark): (sattr3, Option<Time>),
    ) -> Result<Made, Errno> {
        let arguments = MKDIR3args { where_: place(directory, name), attributes };
        let what = What::New(Kind::Directory, mark);
        self.make(cpu, Nfs::NFSPROC3_MKDIR, &arguments, (directory, name), what).await
    }

    pub(crate) async fn make_symlink(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        target: &[u8],
    ) -> Result<Made, Errno> {
        let symlink_data = nfspath3(Opaque::borrowed(target));
        let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data };
        let arguments = SYMLINK3args { where_: place(directory, name), symlink };
        self.make(cpu, Nfs::NFSPROC3_SYMLINK, &arguments, (directory, name), What::LinkTo(target)).await
    }

    /// `mark`: as with [`Server::make_directory`].
    pub(crate) async fn make_node(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        (what, mark): (mknoddata3, Option<Time>),
    ) -> Result<Made, Errno> {
        let kind = match &what {
            mknoddata3::NF3CHR(_) => Kind::Character,
            mknoddata3::NF3BLK(_) => Kind::Block,
            mknoddata3::NF3SOCK(_) => Kind::Socket,
            _ => Kind::Fifo,
        };
        let arguments = MKNOD3args { where_: place(directory, name), what };
        self.make(cpu, Nfs::NFSPROC3_MKNOD, &arguments, (directory, name), What::New(kind, mark)).await
    }

    /// Makes an object whose name must not exist.
    async fn make(
        &self,
        cpu: &Processor,
        procedure: Nfs,
        arguments: &impl Pack,
        (directory, name): (&Handle, &[u8]),
        what: What<'_>,
    ) -> Result<Made, Errno> {
        match self.ask(cpu, procedure, arguments, made).await {
            Err(Refused { errno: Errno(libc::EEXIST), was_repeated: true }) => {
                self.find_done(cpu, (directory, name), what).await?.ok_or(Errno(libc::EEXIST))
            }
            result => {
                let made = result?;
                if let (What::New(_, Some(mark)), Some(attributes)) = (what, made.attributes)
                    && attributes.accessed != mark
                {
                    self.keeps_times.store(false, Ordering::Relaxed);
                }
                Ok(made)
            }
        }
    }

    /// Of a call that had to be repeated and is refused: what has the name, if the first execution has done that.
    async fn find_done(
        &self,
        cpu: &Processor,
        (directory, name): (&Handle, &[u8]),
        what: What<'_>,
    ) -> Result<Option<Made>, Errno> {
        let mut found = match self.lookup(cpu, directory, name).await {
            Err(Errno(libc::ENOENT)) => return Ok(None),
            found => found?,
        };
        let Some(handle) = &found.handle else { return Ok(None) };
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.attributes(cpu, handle).await?,
        };
        let is_ours = match what {
            What::New(kind, mark) => attributes.kind == kind && mark.is_none_or(|mark| attributes.accessed == mark),
            What::LinkTo(target) => attributes.kind == Kind::Symlink && self.read_link(cpu, handle).await? == target,
            What::This(object) => *handle == *object.handle || attributes.file_id == object.file_id,
        };
        found.attributes = Some(attributes);
        Ok(is_ours.then_some(found))
    }

    pub(crate) async fn remove(&self, cpu: &Processor, directory: &Handle, name: &[u8]) -> Result<Change, Errno> {
        let arguments = REMOVE3args { object: place(directory, name) };
        or_removed_before(self.ask(cpu, Nfs::NFSPROC3_REMOVE, &arguments, |results| results.change()).await)
    }

    pub(crate) async fn remove_directory(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
    ) -> Result<Change, Errno> {
        let arguments = RMDIR3args { object: place(directory, name) };
        or_removed_before(self.ask(cpu, Nfs::NFSPROC3_RMDIR, &arguments, |results| results.change()).await)
    }

    /// `moved`: what has the name, if that is known.
    pub(crate) async fn rename(
        &self,
        cpu: &Processor,
        moved: Option<Object<'_>>,
        (from, name): (&Handle, &[u8]),
        (to, new_name): (&Handle, &[u8]),
    ) -> Result<Moved, Errno> {
        let arguments = RENAME3args { from: place(from, name), to: place(to, new_name) };
        let result = self.ask(cpu, Nfs::NFSPROC3_RENAME, &arguments, |results| {
            Some(Moved { from: results.change()?, to: results.change()? })
        });
        match result.await {
            Err(Refused { errno: Errno(libc::ENOENT), was_repeated: true }) => {
                let is_done = match moved {
                    Some(moved) => self.find_done(cpu, (to, new_name), What::This(moved)).await?.is_some(),
                    None => self.lookup(cpu, to, new_name).await.is_ok(),
                };
                let moved = Moved { from: Change::default(), to: Change::default() };
                is_done.then_some(moved).ok_or(Errno(libc::ENOENT))
            }
            result => Ok(result?),
        }
    }

    /// Gives an object another name. Returns its attributes and the directory's.
    pub(crate) async fn link(
        &self,
        cpu: &Processor,
        object: Object<'_>,
        directory: &Handle,
        name: &[u8],
    ) -> Result<(Option<Attributes>, Change), Errno> {
        let arguments = LINK3args { file: object.handle.wire(), link: place(directory, name) };
        let linked =
            self.ask(cpu, Nfs::NFSPROC3_LINK, &arguments, |results| Some((results.after()?, results.change()?)));
        match linked.await {
            Err(Refused { errno: Errno(libc::EEXIST), was_repeated: true }) => {
                let found = self.find_done(cpu, (directory, name), What::This(object)).await?;
                found.map(|found| (found.attributes, found.directory)).ok_or(Errno(libc::EEXIST))
            }
            result => Ok(result?),
        }
    }
}

/// A repeated call that finds nothing has removed it when it came first.
fn or_removed_before(result: Result<Change, Refused>) -> Result<Change, Errno> {
    match result {
        Err(Refused { errno: Errno(libc::ENOENT), was_repeated: true }) => Ok(Change::default()),
        result => Ok(result?),
    }
}
