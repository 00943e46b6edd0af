//! The user as whom a thread acts on files.
//!
//! Linux decides about files by the file system user, group and supplementary groups of the *thread*. With a file
//! system user other than root a thread also loses root's privileges over files (capabilities(7)). So the host itself
//! decides what a caller may do, at the time of the access, by whatever rules it has (modes, access control lists,
//! security modules).

use std::cell::Cell;

use crate::Errno;
use crate::linux::credentials::set_user;
use crate::linux::syscall::check;
use crate::tree::Caller;

/// Attempts at restoring the own identity: only a host out of memory refuses one.
const RETURNS_MAX: u32 = 1000;

/// The user of the server.
#[derive(Debug)]
pub(super) struct Identity {
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
    /// The user outside, where this is a user namespace without other users (`unshare --map-root-user`): root is an
    /// ordinary user then (user_namespaces(7)), the same as that user's programs outside.
    outside: Option<u32>,
}

impl Identity {
    /// The identity of the process; tests whether its threads can act for others, if it is root.
    ///
    /// # Errors
    /// `EPERM` when it is root and they cannot, as in restricted containers.
    pub(super) fn of_process() -> Result<Self, Errno> {
        // SAFETY: no pointer is passed.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        // Kernels without user namespaces have no such file.
        let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let identity = Identity { uid, gid, groups: groups_of_process()?, outside: only_user(&users) };
        const NOBODY: u32 = 65534;
        let nobody = Caller { uid: NOBODY, gid: NOBODY, groups: [NOBODY].into() };
        identity.act_as(Some(&nobody)).map(drop)?;
        Ok(identity)
    }

    /// Acts for the caller until the result is dropped; for the server itself without a caller. A server that is not
    /// root does everything as its own user; [`super::permission`] decides what callers may do.
    ///
    /// # Errors
    /// `EPERM` when the host has no such user or group.
    pub(super) fn act_as(&self, caller: Option<&Caller>) -> Result<Acting<'_>, Errno> {
        // Root as caller is the same user: saves ten system calls.
        let Some(caller) = caller.filter(|caller| self.acts_for_others() && !self.is_same(caller)) else {
            return Ok(Acting { restores: None });
        };
        set_groups(&caller.groups)?;
        // From now on the identity is restored on return, also after a failure; and groups can be set.
        let acting = Acting { restores: Some(self) };
        set_group(caller.gid)?;
        set_user(caller.uid)?;
        Ok(acting)
    }

    /// Whether the host applies the caller's permissions.
    pub(super) fn acts_for_others(&self) -> bool {
        self.uid == 0 && self.outside.is_none()
    }

    /// The user as whom a thread acts that acts as `caller`.
    pub(super) fn acting_uid(&self, caller: Option<&Caller>) -> u32 {
        caller.filter(|_| self.acts_for_others()).map_or(self.uid, |caller| caller.uid)
    }

    /// Does a thread that acts for the caller have root's rights over all files?
    pub(super) fn acts_as_root(&self, caller: Option<&Caller>) -> bool {
        self.acts_for_others() && self.acting_uid(caller) == 0
    }

    /// Is the user as whom a thread acts for the caller in this group?
    pub(super) fn is_acting_in(&self, caller: Option<&Caller>, gid: u32) -> bool {
        match caller.filter(|_| self.acts_for_others()) {
            Some(caller) => caller.gid == gid || caller.groups.contains(&gid),
            None => self.gid == gid || self.groups.contains(&gid),
        }
    }

    fn is_same(&self, caller: &Caller) -> bool {
        (self.uid, self.gid, &*self.groups) == (caller.uid, caller.gid, &*caller.groups)
    }

    /// Whether this is the server's own user.
    pub(super) fn is(&self, uid: u32) -> bool {
        self.uid == uid || self.outside == Some(uid)
    }

    fn restore(&self) -> Result<(), Errno> {
        set_user(self.uid)?;
        set_group(self.gid)?;
        set_groups(&self.groups)
    }
}

/// While this lives the thread acts for a caller.
#[must_use = "the thread acts for the caller only as long as this lives"]
pub(super) struct Acting<'a> {
    restores: Option<&'a Identity>,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(identity) = self.restores else { return };
        for _ in 0..RETURNS_MAX {
            if identity.restore().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        // The thread would act for the next caller as this one.
        std::process::abort();
    }
}

/// The user outside of a namespace that has only one; `None` if it has several. Each line of `map` is first user
/// inside, first user outside, count.
fn only_user(map: &str) -> Option<u32> {
    let mut lines = map.lines();
    let mut words = lines.next()?.split_whitespace().skip(1);
    let outside = words.next()?.parse().ok()?;
    (words.next() == Some("1") && lines.next().is_none()).then_some(outside)
}

fn groups_of_process() -> Result<Box<[u32]>, Errno> {
    // SAFETY: nothing is written to a buffer of size 0.
    let count = check(unsafe { libc::getgroups(0, std::ptr::null_mut()) })?;
    let mut groups = vec![0; count as usize];
    // SAFETY: the buffer has room for `count` groups; for more the call fails.
    let count = check(unsafe { libc::getgroups(count, groups.as_mut_ptr()) })?;
    groups.truncate(count as usize);
    Ok(groups.into())
}

/// As [`set_user`], for the group.
fn set_group(gid: u32) -> Result<(), Errno> {
    // SAFETY: as above.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX) as u32
    };
    if now == gid { Ok(()) } else { Err(Errno(libc::EPERM)) }
}

/// Sets this thread's supplementary groups. Not with the C library's function, which changes all threads.
fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    #[cfg(any(target_arch = "x86", target_arch = "arm", target_arch = "m68k", target_arch = "sparc"))]
    const NUMBER: libc::c_long = libc::SYS_setgroups32;
    #[cfg(not(any(target_arch = "x86", target_arch = "arm", target_arch = "m68k", target_arch = "sparc")))]
    const NUMBER: libc::c_long = libc::SYS_setgroups;
    // SAFETY: the call reads as many groups as there are.
    let set = check(unsafe { libc::syscall(NUMBER, groups.len(), groups.as_ptr()) as libc::c_int });
    set.map(drop).map_err(|errno| if errno == Errno::INVALID { Errno(libc::EPERM) } else { errno })
}

/// Lets new nodes have exactly the requested permissions. The mask is part of what all threads of a process usually
/// share: this thread gets its own copy first, since the server makes files of its own, too. Where that is forbidden
/// the mask of the whole process is cleared.
pub(super) fn clear_creation_mask() {
    thread_local! {
        static CLEARED: Cell<bool> = const { Cell::new(false) };
    }
    if !CLEARED.replace(true) {
        // SAFETY: no pointers are passed.
        unsafe {
            libc::unshare(libc::CLONE_FS);
            libc::umask(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_user_of_a_namespace_is_known() {
        assert_eq!(only_user("         0       1000          1\n"), Some(1000));
        assert_eq!(only_user("         0          0 4294967295\n"), None);
        assert_eq!(only_user("0 1000 1\n1 100000 65536\n"), None);
        assert_eq!(only_user("nonsense\n"), None);
        assert_eq!(only_user(""), None);
    }
}
