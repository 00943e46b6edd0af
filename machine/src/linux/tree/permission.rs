//! What callers may do where the server cannot act for them, because it is not root.
//!
//! Everything is then done as the server's own user, with that user's permissions. Before, it is checked that the
//! caller has the permission, too, as far as owner, group, mode and the sticky bit of a directory tell: access control
//! lists and security modules apply to the server's user only. Nodes made for a caller belong to the server's user.
//! That user itself, and root where it is not squashed, may do all that the server may.

use std::os::fd::BorrowedFd;

use super::HostTree;
use super::call;
use super::node::Found;
use super::status::MODE;
use crate::Errno;
use crate::tree::{Attributes, Caller, SetAttributes, SetTime};

pub(super) const SEARCH: u32 = libc::X_OK as u32;
pub(super) const WRITE: u32 = libc::W_OK as u32;
pub(super) const READ: u32 = libc::R_OK as u32;
pub(super) const CHANGE: u32 = WRITE | SEARCH;

/// The owner's permissions to read and write.
const OWN_READ_WRITE: u32 = 0o600;

/// The permissions of the caller by the mode: bits of `R_OK`, `W_OK`, `X_OK`.
fn granted(caller: &Caller, status: &libc::statx) -> u32 {
    let mode = u32::from(status.stx_mode);
    let bits = if caller.uid == status.stx_uid {
        mode >> 6
    } else if caller.gid == status.stx_gid || caller.groups.contains(&status.stx_gid) {
        mode >> 3
    } else {
        mode
    };
    bits & 0o7
}

impl HostTree {
    /// The caller, if the host does not check its permissions.
    fn to_check<'a>(&self, caller: Option<&'a Caller>) -> Option<&'a Caller> {
        caller.filter(|caller| !self.identity.acts_for_others() && caller.uid != 0 && !self.identity.is(caller.uid))
    }

    /// The wanted rights that the caller has, as far as the server has to check.
    pub(super) fn rights(&self, caller: Option<&Caller>, status: &libc::statx, wanted: u32) -> u32 {
        self.to_check(caller).map_or(wanted, |caller| wanted & granted(caller, status))
    }

    /// Checks that the caller has all wanted rights.
    ///
    /// # Errors
    /// `EACCES` otherwise.
    pub(super) fn require(&self, caller: Option<&Caller>, fd: BorrowedFd, wanted: u32) -> Result<(), Errno> {
        if self.to_check(caller).is_none() || self.rights(caller, &call::status(fd)?, wanted) == wanted {
            return Ok(());
        }
        Err(Errno(libc::EACCES))
    }

    /// Checks that the caller may remove the name of this node from the directory.
    ///
    /// # Errors
    /// `EACCES` without permission to change names, `EPERM` when only owners may.
    pub(super) fn require_removal(&self, caller: Option<&Caller>, dir: BorrowedFd, found: &Found) -> Result<(), Errno> {
        let Some(caller) = self.to_check(caller) else { return Ok(()) };
        self.require(Some(caller), dir, CHANGE)?;
        let dir = call::status(dir)?;
        let is_sticky = u32::from(dir.stx_mode) & libc::S_ISVTX != 0;
        if is_sticky && caller.uid != dir.stx_uid && caller.uid != found.status.stx_uid {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }

    /// Checks that the caller may set these attributes, other than the size.
    ///
    /// # Errors
    /// `EPERM` when only the owner may, `EACCES` without permission to write.
    pub(super) fn require_setting(
        &self,
        caller: Option<&Caller>,
        found: &Found,
        attributes: &SetAttributes,
    ) -> Result<(), Errno> {
        let Some(checked) = self.to_check(caller).filter(|caller| caller.uid != found.status.stx_uid) else {
            return Ok(());
        };
        let to_now = |time: Option<SetTime>| time.is_none_or(|time| time == SetTime::Now);
        let SetAttributes { mode, uid, gid, size: _, accessed, modified, drops_set_id } = *attributes;
        if drops_set_id || mode.is_some() || uid.is_some() || gid.is_some() || !to_now(accessed) || !to_now(modified) {
            return Err(Errno(libc::EPERM));
        }
        let times = accessed.is_some() || modified.is_some();
        if times { self.require(Some(checked), found.fd(), WRITE) } else { Ok(()) }
    }

    /// Is the user as whom the thread acts for the caller the owner?
    pub(super) fn is_owner(&self, caller: Option<&Caller>, found: &Found) -> bool {
        self.identity.acting_uid(caller) == found.status.stx_uid
    }

    /// Checks what the host demands for setting these attributes of a regular file, other than the size and times to the
    /// present, for which it suffices to be allowed to write.
    ///
    /// # Errors
    /// As the host's: `EPERM`, and [`Errno::INVALID`] for what nobody may set.
    pub(super) fn require_owner(
        &self,
        caller: Option<&Caller>,
        found: &Found,
        attributes: &SetAttributes,
    ) -> Result<(), Errno> {
        let SetAttributes { mode, uid, gid, size: _, accessed, modified, drops_set_id } = *attributes;
        let is_valid = |time| !matches!(time, Some(SetTime::To(time)) if time.nanoseconds >= 1_000_000_000);
        if [uid, gid].contains(&Some(u32::MAX)) || !is_valid(accessed) || !is_valid(modified) {
            return Err(Errno::INVALID);
        }
        if self.identity.acts_as_root(caller) {
            return Ok(());
        }
        let Attributes { uid: owner, gid: group, .. } = found.attributes();
        let is_chosen = |time| matches!(time, Some(SetTime::To(_)));
        let takes_owner = drops_set_id
            || mode.is_some()
            || uid.is_some()
            || gid.is_some()
            || is_chosen(accessed)
            || is_chosen(modified);
        let gives_away = uid.is_some_and(|uid| uid != owner)
            || gid.is_some_and(|gid| gid != group && !self.identity.is_acting_in(caller, gid));
        if gives_away || takes_owner && !self.is_owner(caller, found) { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }

    /// Does something with a regular file that its mode may deny even to its owner. If the server is the owner, it
    /// gives itself the permission for the moment: a process that made a file read-only and still writes to it has it
    /// open, and a file made with such a mode is to be written.
    pub(super) fn as_owner<T>(&self, found: &Found, mut what: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        let result = what();
        let is_own = found.kind() == libc::S_IFREG && self.identity.is(found.status.stx_uid);
        if !is_own || !matches!(result, Err(Errno(libc::EACCES))) {
            return result;
        }
        let _modes = self.modes.lock();
        let mode = u32::from(call::status(found.fd())?.stx_mode) & MODE;
        call::chmod(found.fd(), mode | OWN_READ_WRITE)?;
        let result = what();
        call::chmod(found.fd(), mode)?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_matching_class_counts() {
        // SAFETY: the structure has integers only, for which zeroes are valid.
        let mut status: libc::statx = unsafe { std::mem::zeroed() };
        (status.stx_uid, status.stx_gid, status.stx_mode) = (10, 20, 0o100_425);
        let who = |uid, gid, groups: &[u32]| granted(&Caller { uid, gid, groups: groups.into() }, &status);
        assert_eq!(who(10, 20, &[20]), 4);
        assert_eq!(who(11, 20, &[]), 2);
        assert_eq!(who(11, 21, &[22, 20]), 2);
        assert_eq!(who(11, 21, &[22]), 5);
    }
}
