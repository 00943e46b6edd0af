//! What the server asks of the host's memory management.
//!
//! A client may be on this host: an NBD device or a mount of our own export. The host then frees memory by writing to
//! this server, which therefore must never wait for that memory. So its threads are I/O flushers, whose allocations do
//! not wait for writes to disks or file systems (`PR_SET_IO_FLUSHER`; nbd-client, tcmu-runner and iscsid do the same),
//! code and heap are not paged out, and the cache never shrinks below the size from which every write can be served.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::config::Config;

/// Makes this thread, and all that it starts from now on, an I/O flusher, and locks the process's present and future
/// memory, as far as the host permits (CAP_SYS_RESOURCE, CAP_IPC_LOCK).
pub fn prepare() {
    // Without CAP_SYS_RESOURCE nothing changes.
    let _ = configure_io_flusher_behavior(true);
    // Without the capability the cache's address space would count towards the limit of locked memory.
    if may_lock_memory() {
        // Pages are locked when they are first touched, so memory use does not grow. On failure nothing has changed.
        let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    }
}

/// A notice where the limit of locked memory is too low to register the whole cache for transfers.
pub fn notice(config: &Config, is_io_uring: bool) -> Option<String> {
    if !is_io_uring || !config.switches.registered_buffers || may_lock_memory() {
        return None;
    }
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let wanted = config.settings.memory.unwrap_or(u64::MAX);
    (limit < wanted).then(|| {
        format!(
            "of the cache only {} can be registered with io_uring, the limit of locked memory; pages of the rest are \
             pinned for each transfer. Raise it (LimitMEMLOCK=infinity, ulimit -l unlimited) for faster transfers",
            crate::config::show_bytes(limit)
        )
    })
}

fn may_lock_memory() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}
