//! Permissions by mode bits: POSIX.1-2017 4.5 (access permissions) and 4.2 (directory protection), with a superuser.

use libc::{EACCES, EPERM};

use super::inode::{Inode, Stat};
use machine::Errno;
use machine::tree::{Caller, Kind, Time};

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;

/// The user for whom a call is made, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credentials<'a> {
    pub(super) caller: Option<&'a Caller>,
    pub(super) time: Time,
}

impl Credentials<'_> {
    pub(super) fn uid(self) -> u32 {
        self.caller.map_or(0, |caller| caller.uid)
    }

    pub(super) fn gid(self) -> u32 {
        self.caller.map_or(0, |caller| caller.gid)
    }

    pub(super) fn is_root(self) -> bool {
        self.uid() == 0
    }

    pub(super) fn is_in(self, gid: u32) -> bool {
        self.caller.is_some_and(|caller| caller.gid == gid || caller.groups.contains(&gid))
    }

    pub(super) fn owns(self, stat: &Stat) -> bool {
        self.is_root() || self.uid() == stat.uid
    }

    /// The granted ones of the bits `wanted`.
    pub(super) fn allowed(self, inode: &Inode, wanted: u32) -> u32 {
        let stat = &inode.stat;
        if self.is_root() {
            let executable = inode.kind == Kind::Directory || stat.mode & 0o111 != 0;
            return wanted & if executable { READ | WRITE | SEARCH } else { READ | WRITE };
        }
        let shift = match () {
            () if self.uid() == stat.uid => 6,
            () if self.is_in(stat.gid) => 3,
            () => 0,
        };
        wanted & (stat.mode >> shift) & 0o7
    }

    pub(super) fn check(self, inode: &Inode, wanted: u32) -> Result<(), Errno> {
        if self.allowed(inode, wanted) == wanted { Ok(()) } else { Err(Errno(EACCES)) }
    }

    /// Whether an entry for `inode` of the directory `dir` may be removed or replaced.
    pub(super) fn check_removal(self, dir: &Inode, inode: &Inode) -> Result<(), Errno> {
        self.check(dir, WRITE | SEARCH)?;
        if dir.stat.mode & STICKY != 0 && !self.owns(&dir.stat) && !self.owns(&inode.stat) {
            return Err(Errno(EPERM));
        }
        Ok(())
    }

    /// The mode of a node that is new or whose mode is set: only members of its group may make it set-group-ID.
    pub(super) fn granted_mode(self, mode: u32, gid: u32) -> u32 {
        let may_set = self.is_root() || self.is_in(gid);
        mode & 0o7777 & if may_set { !0 } else { !SET_GID }
    }
}
