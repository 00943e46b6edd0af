//! What the server asks of the host's memory management.
//!
//! A client may be on this host: an NBD device or a mount of our own export. The host then frees memory by writing to
//! this server, which therefore must never wait for that memory. So its threads are I/O flushers, whose allocations do
//! not wait for writes to disks or file systems (`PR_SET_IO_FLUSHER`; nbd-client, tcmu-runner and iscsid do the same),
//! code and heap are not paged out, and the cache never shrinks below the size from which every write can be served.

use std::fs;

use crate::config::Config;

/// From linux/prctl.h; since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

const CAP_IPC_LOCK: u32 = 14;

/// Makes this thread, and all that it starts from now on, an I/O flusher, and locks the process's present and future
/// memory, as far as the host permits (CAP_SYS_RESOURCE, CAP_IPC_LOCK).
pub fn prepare() {
    const ON: libc::c_ulong = 1;
    // SAFETY: neither call takes a pointer. Without CAP_SYS_RESOURCE the first changes nothing.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, ON, 0, 0, 0) };
    // Without the capability the cache's address space would count towards the limit of locked memory.
    if has_capability(CAP_IPC_LOCK) {
        // Pages are locked when they are first touched, so memory use does not grow.
        // SAFETY: as above. On failure nothing has changed.
        unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    }
}

/// A notice where the limit of locked memory is too low to register the whole cache for transfers.
pub fn notice(config: &Config, is_io_uring: bool) -> Option<String> {
    if !is_io_uring || !config.switches.registered_buffers || has_capability(CAP_IPC_LOCK) {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call; on failure the limit stays 0.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let wanted = config.settings.memory.unwrap_or(u64::MAX);
    (limit.rlim_cur < wanted).then(|| {
        format!(
            "of the cache only {} can be registered with io_uring, the limit of locked memory; pages of the rest are \
             pinned for each transfer. Raise it (LimitMEMLOCK=infinity, ulimit -l unlimited) for faster transfers",
            crate::config::show_bytes(limit.rlim_cur)
        )
    })
}

fn has_capability(number: u32) -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| effective(&status) >> number & 1 == 1)
}

/// The effective capabilities in a process's status (proc(5)).
fn effective(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_capabilities_are_read() {
        let status = "Name:\tawase\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000004000\n";
        assert_eq!(effective(status), 1 << CAP_IPC_LOCK);
        assert_eq!(effective("Name:\tawase\n"), 0);
    }
}
