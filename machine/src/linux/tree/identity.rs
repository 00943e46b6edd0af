//! As whom a thread acts on files.
//!
//! Linux decides about files by the file system user, group and supplementary groups of the *thread*. With a file system
//! user other than root a thread also loses root's privileges over files (capabilities(7)). So what a caller may do is
//! decided by the host itself, at the moment when it is done, by whatever rules it has (modes, lists, security modules).

use std::cell::Cell;

use crate::Errno;
use crate::linux::credentials::set_user;
use crate::linux::syscall::check;
use crate::tree::Caller;

/// Attempts at becoming oneself again: only a host out of memory refuses one.
const RETURNS_MAX: u32 = 1000;

/// As whom the server runs.
#[derive(Debug)]
pub(super) struct Identity {
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
    /// As whom the host knows root, where this is a user namespace that has no other user (`unshare --map-root-user`):
    /// root is an ordinary user then (user_namespaces(7)), and its programs outside are the same user's.
    outside: Option<u32>,
}

impl Identity {
    /// The identity of the process; tries out whether its threads can act for others, if it is root.
    ///
    /// # Errors
    /// `EPERM` when it is root and they can't, as in containers that take that away.
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

    /// Acts for the caller until the result is dropped; for the server itself when there is none. A server that is not
    /// root does everything as its own user, whoever calls; [`super::permission`] says what callers may.
    ///
    /// # Errors
    /// `EPERM` when the host has no such user or group.
    pub(super) fn act_as(&self, caller: Option<&Caller>) -> Result<Acting<'_>, Errno> {
        // Root, who maintains a tree from afar, is nobody else: ten system calls less for each call.
        let Some(caller) = caller.filter(|caller| self.acts_for_others() && !self.is_same(caller)) else {
            return Ok(Acting { back_to: None });
        };
        set_groups(&caller.groups)?;
        // From here on there is something to take back, on the way out of a failure, too; and groups can be set.
        let acting = Acting { back_to: Some(self) };
        set_group(caller.gid)?;
        set_user(caller.uid)?;
        Ok(acting)
    }

    /// Does the host see for whom something is done?
    pub(super) fn acts_for_others(&self) -> bool {
        self.uid == 0 && self.outside.is_none()
    }

    fn is_same(&self, caller: &Caller) -> bool {
        (self.uid, self.gid, &*self.groups) == (caller.uid, caller.gid, &*caller.groups)
    }

    /// Is this the server's own user?
    pub(super) fn is(&self, uid: u32) -> bool {
        self.uid == uid || self.outside == Some(uid)
    }

    fn become_again(&self) -> Result<(), Errno> {
        set_user(self.uid)?;
        set_group(self.gid)?;
        set_groups(&self.groups)
    }
}

/// While this lives the thread acts for somebody.
#[must_use = "the thread acts for the caller only as long as this lives"]
pub(super) struct Acting<'a> {
    back_to: Option<&'a Identity>,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(identity) = self.back_to else { return };
        for _ in 0..RETURNS_MAX {
            if identity.become_again().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        // The thread would do the next caller's work as this one.
        std::process::abort();
    }
}

/// Who the only user of a namespace is outside of it; none where there are several. Each line of `map` is first user
/// inside, first user outside, count.
fn only_user(map: &str) -> Option<u32> {
    let mut lines = map.lines();
    let mut words = lines.next()?.split_whitespace().skip(1);
    let outside = words.next()?.parse().ok()?;
    (words.next() == Some("1") && lines.next().is_none()).then_some(outside)
}

fn groups_of_process() -> Result<Box<[u32]>, Errno> {
    // SAFETY: nothing is written when there is room for nothing.
    let count = check(unsafe { libc::getgroups(0, std::ptr::null_mut()) })?;
    let mut groups = vec![0; count as usize];
    // SAFETY: there is room for as many as are said to be there; for more the call fails.
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

/// Sets this thread's supplementary groups. Past the C library, whose function changes all threads.
fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    #[cfg(any(target_arch = "x86", target_arch = "arm", target_arch = "m68k", target_arch = "sparc"))]
    const NUMBER: libc::c_long = libc::SYS_setgroups32;
    #[cfg(not(any(target_arch = "x86", target_arch = "arm", target_arch = "m68k", target_arch = "sparc")))]
    const NUMBER: libc::c_long = libc::SYS_setgroups;
    // SAFETY: the call reads as many groups as there are.
    let set = check(unsafe { libc::syscall(NUMBER, groups.len(), groups.as_ptr()) as libc::c_int });
    set.map(drop).map_err(|errno| if errno == Errno::INVALID { Errno(libc::EPERM) } else { errno })
}

/// Lets what is made get just the permissions that were asked for. The mask is part of what all threads of a process
/// usually share: first this thread gets a copy of its own, for the server makes files of its own, too. Where that is
/// forbidden the mask of the whole process is cleared.
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
