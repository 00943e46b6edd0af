//! LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use std::sync::atomic::Ordering;

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{
    CREATE3args, LINK3args, LOOKUP3args, MKDIR3args, MKNOD3args, NFS_PROGRAM as Nfs, REMOVE3args, RENAME3args,
    RMDIR3args, SYMLINK3args, createhow3, diropargs3, filename3, mknoddata3, nfspath3, sattr3, symlinkdata3,
};
use nfs3_types::xdr_codec::{Opaque, Pack};

use super::{Refused, Server};
use crate::attributes::{Attributes, Change, Time};
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
        // Repeated or not: an exclusive one is recognised by its verifier, an unchecked one may find what it made.
        Ok(self.ask(cpu, Nfs::NFSPROC3_CREATE, &arguments, made).await?)
    }

    /// Can a file that must not exist be made by [`Server::create_new`]?
    pub(crate) fn keeps_times(&self) -> bool {
        self.keeps_times.load(Ordering::Relaxed)
    }

    /// Makes a file that must not exist, with its attributes. If the call had to be repeated and the name exists, its time of
    /// access says whether the first execution made it: `mark`, the one in `new`, is drawn.
    pub(crate) async fn create_new(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        (new, mark): (sattr3, Time),
    ) -> Result<Made, Errno> {
        let arguments = CREATE3args { where_: place(directory, name), how: createhow3::GUARDED(new) };
        match self.ask(cpu, Nfs::NFSPROC3_CREATE, &arguments, made).await {
            Err(Refused { errno: Errno(libc::EEXIST), was_repeated: true }) => {
                match self.lookup(cpu, directory, name).await {
                    Ok(found) if found.attributes.is_some_and(|found| found.accessed == mark) => Ok(found),
                    Ok(_) | Err(Errno(libc::ENOENT)) => Err(Errno(libc::EEXIST)),
                    Err(errno) => Err(errno),
                }
            }
            result => {
                let made = result?;
                if made.attributes.is_some_and(|made| made.accessed != mark) {
                    self.keeps_times.store(false, Ordering::Relaxed);
                }
                Ok(made)
            }
        }
    }

    pub(crate) async fn make_directory(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        attributes: sattr3,
    ) -> Result<Made, Errno> {
        let arguments = MKDIR3args { where_: place(directory, name), attributes };
        self.make(cpu, Nfs::NFSPROC3_MKDIR, &arguments, directory, name).await
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
        self.make(cpu, Nfs::NFSPROC3_SYMLINK, &arguments, directory, name).await
    }

    pub(crate) async fn make_node(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
        what: mknoddata3,
    ) -> Result<Made, Errno> {
        let arguments = MKNOD3args { where_: place(directory, name), what };
        self.make(cpu, Nfs::NFSPROC3_MKNOD, &arguments, directory, name).await
    }

    /// Makes an object. If the call had to be repeated and the name exists, the first execution made it.
    async fn make(
        &self,
        cpu: &Processor,
        procedure: Nfs,
        arguments: &impl Pack,
        directory: &Handle,
        name: &[u8],
    ) -> Result<Made, Errno> {
        match self.ask(cpu, procedure, arguments, made).await {
            Err(Refused { errno: Errno(libc::EEXIST), was_repeated: true }) => self.lookup(cpu, directory, name).await,
            result => Ok(result?),
        }
    }

    pub(crate) async fn remove(&self, cpu: &Processor, directory: &Handle, name: &[u8]) -> Result<Change, Errno> {
        let arguments = REMOVE3args { object: place(directory, name) };
        or_done_before(self.ask(cpu, Nfs::NFSPROC3_REMOVE, &arguments, |results| results.change()).await, libc::ENOENT)
    }

    pub(crate) async fn remove_directory(
        &self,
        cpu: &Processor,
        directory: &Handle,
        name: &[u8],
    ) -> Result<Change, Errno> {
        let arguments = RMDIR3args { object: place(directory, name) };
        or_done_before(self.ask(cpu, Nfs::NFSPROC3_RMDIR, &arguments, |results| results.change()).await, libc::ENOENT)
    }

    pub(crate) async fn rename(
        &self,
        cpu: &Processor,
        (from, name): (&Handle, &[u8]),
        (to, new_name): (&Handle, &[u8]),
    ) -> Result<Moved, Errno> {
        let arguments = RENAME3args { from: place(from, name), to: place(to, new_name) };
        let moved = self.ask(cpu, Nfs::NFSPROC3_RENAME, &arguments, |results| {
            Some(Moved { from: results.change()?, to: results.change()? })
        });
        match moved.await {
            // It is at its new place, where the first execution moved it.
            Err(Refused { errno: Errno(libc::ENOENT), was_repeated: true })
                if self.lookup(cpu, to, new_name).await.is_ok() =>
            {
                Ok(Moved { from: Change::default(), to: Change::default() })
            }
            result => Ok(result?),
        }
    }

    /// Gives an object another name. Returns its attributes and the directory's.
    pub(crate) async fn link(
        &self,
        cpu: &Processor,
        object: &Handle,
        directory: &Handle,
        name: &[u8],
    ) -> Result<(Option<Attributes>, Change), Errno> {
        let arguments = LINK3args { file: object.wire(), link: place(directory, name) };
        let linked =
            self.ask(cpu, Nfs::NFSPROC3_LINK, &arguments, |results| Some((results.after()?, results.change()?)));
        or_done_before(linked.await, libc::EEXIST)
    }
}

/// A repeated call that is refused with `errno` was done when it came first.
fn or_done_before<T: Default>(result: Result<T, Refused>, errno: i32) -> Result<T, Errno> {
    match result {
        Err(refused) if refused == (Refused { errno: Errno(errno), was_repeated: true }) => Ok(T::default()),
        result => Ok(result?),
    }
}
