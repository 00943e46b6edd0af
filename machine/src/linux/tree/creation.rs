//! Making nodes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::HostTree;
use super::attributes::{complete, new_mode};
use super::call;
use super::identity::{Acting, clear_creation_mask};
use super::names::entry_name;
use super::node::{Found, in_directory};
use super::permission::{CHANGE, SEARCH};
use crate::Errno;
use crate::tree::{
    Caller, Creation, DeviceNumber, Kind, LINK_BYTES_MAX, Node, SetAttributes, SetTime, Time, TreeReply,
};

/// Attempts when a name exists at creation and is gone at lookup.
const ATTEMPTS_MAX: usize = 16;

impl HostTree {
    pub(super) fn create(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
        how: Creation,
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        let name = entry_name(name)?;
        let fd = self.directory(dir)?;
        let _names = self.name_locks.of(dir);
        let verifier;
        let attributes = match how {
            Creation::Exclusive { verifier: bytes } => {
                verifier = times_of(bytes);
                &verifier
            }
            Creation::Unchecked | Creation::Guarded => attributes,
        };
        for _ in 0..ATTEMPTS_MAX {
            match self.create_new(caller, fd.as_fd(), &name, attributes) {
                Err(Errno(libc::EEXIST)) if how != Creation::Guarded => {}
                made => return made,
            }
            match self.look(caller, fd.as_fd(), &name) {
                Err(Errno(libc::ENOENT)) => {}
                found => return self.take_existing(caller, found?, how, attributes),
            }
        }
        Err(Errno(libc::EEXIST))
    }

    fn create_new(
        &self,
        caller: Option<&Caller>,
        dir: BorrowedFd,
        name: &CStr,
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        // Only a size takes the permission to write, without which the host may execute what it writes to the file itself.
        let size = attributes.size.filter(|&size| size > 0);
        let access = if size.is_some() { libc::O_RDWR } else { libc::O_RDONLY };
        let flags = libc::O_CREAT | libc::O_EXCL | access | libc::O_NOFOLLOW;
        if let Err(errno) = self.require(caller, dir, CHANGE) {
            let exists = self.look(caller, dir, name).is_ok();
            return Err(if exists { Errno(libc::EEXIST) } else { errno });
        }
        let made = {
            let _acting = self.make_as(caller)?;
            let made = call::open_at(dir, name, flags, new_mode(attributes));
            let made = made.map_err(|errno| in_directory(dir, errno))?;
            // Before the times, which it changes.
            size.map_or(Ok(()), |size| call::truncate_open(made.as_fd(), size))
                .and_then(|()| complete(made.as_fd(), &self.identity, caller, attributes))
                .inspect_err(|_| self.undo_creation(dir, name, made.as_fd()))?;
            made
        };
        let made = self.opened(made)?;
        self.note(dir, name, &made);
        let reply = TreeReply::Node(made.node, made.attributes());
        if size.is_none() && (self.answers_at_once || !self.commits_as_a_whole) {
            self.made.insert(made.node, Arc::new(made.fd.into()));
        }
        Ok(reply)
    }

    /// Handles a name that exists already.
    fn take_existing(
        &self,
        caller: Option<&Caller>,
        mut found: Found,
        how: Creation,
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        match found.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR if how == Creation::Unchecked => return Err(Errno(libc::EISDIR)),
            _ => return Err(Errno(libc::EEXIST)),
        }
        let known = found.attributes();
        match how {
            Creation::Exclusive { .. } => {
                let same = attributes.accessed == Some(SetTime::To(known.accessed))
                    && attributes.modified == Some(SetTime::To(known.modified));
                if !same {
                    return Err(Errno(libc::EEXIST));
                }
            }
            Creation::Unchecked | Creation::Guarded => {
                if let Some(size) = attributes.size {
                    self.set_size(caller, &found, size)?;
                    found.refresh()?;
                }
            }
        }
        Ok(TreeReply::Node(found.node, found.attributes()))
    }

    pub(super) fn make_directory(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        let mode = new_mode(attributes);
        self.make(caller, dir, name, attributes, |dir, name| call::make_directory(dir, name, mode))
    }

    pub(super) fn make_symbolic_link(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
        target: &[u8],
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        if target.len() > LINK_BYTES_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let target = CString::new(target).map_err(|_| Errno::INVALID)?;
        let attributes = &SetAttributes { mode: None, ..*attributes };
        self.make(caller, dir, name, attributes, |dir, name| call::make_symbolic_link(dir, name, &target))
    }

    pub(super) fn make_special(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
        kind: Kind,
        attributes: &SetAttributes,
    ) -> Result<TreeReply, Errno> {
        let number = |DeviceNumber { major, minor }| libc::makedev(major, minor);
        let (kind, device) = match kind {
            Kind::BlockDevice(device) => (libc::S_IFBLK, number(device)),
            Kind::CharacterDevice(device) => (libc::S_IFCHR, number(device)),
            Kind::Socket => (libc::S_IFSOCK, 0),
            Kind::Fifo => (libc::S_IFIFO, 0),
            Kind::File | Kind::Directory | Kind::SymbolicLink => return Err(Errno::INVALID),
        };
        let mode = kind | new_mode(attributes);
        self.make(caller, dir, name, attributes, |dir, name| call::make_special(dir, name, mode, device))
    }

    fn make(
        &self,
        caller: Option<&Caller>,
        dir: &Node,
        name: &[u8],
        attributes: &SetAttributes,
        make: impl FnOnce(BorrowedFd, &CStr) -> Result<(), Errno>,
    ) -> Result<TreeReply, Errno> {
        let name = entry_name(name)?;
        if attributes.size.is_some() {
            return Err(Errno::INVALID);
        }
        let fd = self.directory(dir)?;
        let _names = self.name_locks.of(dir);
        let made = {
            self.require(caller, fd.as_fd(), CHANGE)?;
            let _acting = self.make_as(caller)?;
            make(fd.as_fd(), &name).map_err(|errno| in_directory(fd.as_fd(), errno))?;
            let made = self.child(fd.as_fd(), &name)?;
            complete(made.fd(), &self.identity, caller, attributes)
                .inspect_err(|_| self.undo_creation(fd.as_fd(), &name, made.fd()))?;
            made
        };
        let mut made = made;
        made.refresh()?;
        Ok(TreeReply::Node(made.node, made.attributes()))
    }

    fn look(&self, caller: Option<&Caller>, dir: BorrowedFd, name: &CStr) -> Result<Found, Errno> {
        self.require(caller, dir, SEARCH)?;
        let _acting = self.identity.act_as(caller)?;
        self.child(dir, name)
    }

    fn make_as(&self, caller: Option<&Caller>) -> Result<Acting<'_>, Errno> {
        clear_creation_mask();
        self.identity.act_as(caller)
    }

    /// Removes a node that did not get all of its attributes, or a second attempt would fail; if it can be removed, and
    /// the name is still its own.
    fn undo_creation(&self, dir: BorrowedFd, name: &CStr, made: BorrowedFd) {
        let (Ok(made), Ok(found)) = (call::status(made), self.child(dir, name)) else { return };
        // While it is open its number is not reused.
        if made.stx_ino == found.status.stx_ino {
            let _ = call::unlink(dir, name, found.is_directory());
        }
    }
}

/// The verifier of an exclusive creation as times that any file system can store: half of it in the seconds of each,
/// without the top bit, as knfsd does.
fn times_of(verifier: [u8; 8]) -> SetAttributes {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| {
        let seconds = u32::from_be_bytes(bytes) & (u32::MAX >> 1);
        Some(SetTime::To(Time { seconds: seconds.into(), nanoseconds: 0 }))
    };
    SetAttributes { modified: half([a, b, c, d]), accessed: half([e, f, g, h]), ..SetAttributes::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers_that_differ_in_either_half_give_different_times() {
        let times = times_of([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(times.modified, Some(SetTime::To(Time { seconds: 0x0102_0304, nanoseconds: 0 })));
        assert_eq!(times.accessed, Some(SetTime::To(Time { seconds: 0x0506_0708, nanoseconds: 0 })));
        let greatest = times_of([0xff; 8]);
        assert_eq!(greatest.accessed, Some(SetTime::To(Time { seconds: i32::MAX.into(), nanoseconds: 0 })));
        assert_eq!(greatest.mode, None);
    }
}
