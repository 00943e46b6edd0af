//! The user as whom content is written.
//!
//! A thread of root's may exceed quotas (`CAP_SYS_RESOURCE`) and take the blocks that a file system reserves for root
//! (ext4 gives them to a thread with that capability, or whose file system user is root): clients could fill the host's
//! disk to the last block. So threads that do I/O drop the capability, and content is written as the user nobody. Space
//! is charged to the owner of the file, whoever writes, and a descriptor that is open for writing stays so.
//!
//! Rejected: writing as the owner of each file. Writers to root's files would get the reserve, which exists so that the
//! host can still be repaired.

use crate::Errno;

/// The capability that lets a thread exceed quotas and take reserved blocks: capability.h.
const SYS_RESOURCE: u32 = 24;

const VERSION: u32 = 0x2008_0522;

/// The overflow user, who owns nothing.
const NOBODY: u32 = 65534;

/// Attempts at restoring the own user: only a host out of memory refuses one.
const RETURNS_MAX: u32 = 1000;

/// Subjects the calling thread to quotas. Does nothing where that is forbidden or the capability is missing.
pub(super) fn drop_resource_capability() {
    let mut header = [VERSION, 0];
    // The low and the high word of each: effective, permitted, inheritable.
    let mut sets = [0u32; 6];
    // SAFETY: the calls read the header, the first fills two sets of three words, which the second reads.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) != 0 {
            return;
        }
        if sets[0] & 1 << SYS_RESOURCE != 0 {
            // Not the permitted set: programs that this thread starts get it again.
            sets[0] &= !(1 << SYS_RESOURCE);
            libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr());
        }
    }
}

/// While this lives, the calling thread accesses files as nobody.
#[must_use = "the thread acts as nobody only as long as this lives"]
pub(super) struct AsNobody(());

impl AsNobody {
    /// `None` where the thread is not root's, or may not act for others.
    pub(super) fn begin() -> Option<Self> {
        // SAFETY: no pointer is passed.
        let is_root = unsafe { libc::geteuid() } == 0;
        if is_root && set_user(NOBODY).is_ok() { Some(AsNobody(())) } else { None }
    }
}

impl Drop for AsNobody {
    fn drop(&mut self) {
        if !(0..RETURNS_MAX).any(|_| set_user(0).inspect_err(|_| std::thread::yield_now()).is_ok()) {
            // The thread would do everything else as nobody.
            std::process::abort();
        }
    }
}

/// Sets this thread's file system user. The call reports no errors; the user then in force does.
pub(super) fn set_user(uid: u32) -> Result<(), Errno> {
    // SAFETY: no pointer is passed; -1 changes nothing. The C libraries leave both to the calling thread.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX) as u32
    };
    if now == uid { Ok(()) } else { Err(Errno(libc::EPERM)) }
}
