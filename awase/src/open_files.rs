//! How many files of directories are kept open: every one costs descriptors, which connections need too.

use kernel::tree::OPEN_FILES_MAX;

use crate::config::Limits;

/// Unless the configuration says otherwise.
const FILES: u64 = OPEN_FILES_MAX as u64;

/// A file is open for reading and, while it is written, twice more: past the host's page cache, and through it for the
/// end.
const DESCRIPTORS_A_FILE: u64 = 3;

/// For rings, media, sockets, and what the host's calls open for a moment.
const OTHERS: u64 = 512;

/// Fewer would be opened and closed all the time.
const FILES_MIN: u64 = 64;

/// Takes as many descriptors as the host allows without asking.
pub fn raise_limit() {
    let mut limit = limit();
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the structure outlives the call. That it fails changes nothing.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// What people should know if there are fewer descriptors than the configured number of connections takes.
pub fn notice(limits: &Limits) -> Option<String> {
    shortage(limits, limit().rlim_cur)
}

fn shortage(limits: &Limits, descriptors: u64) -> Option<String> {
    let needed = u64::from(limits.connections) + OTHERS;
    (descriptors < needed).then(|| {
        let possible = descriptors.saturating_sub(OTHERS);
        format!(
            "limits.connections is {}, but the limit of {descriptors} open files leaves about {possible}; raise it \
             (LimitNOFILE={needed}, ulimit -n {needed})",
            limits.connections
        )
    })
}

/// How many files may be open: what is configured, as far as descriptors go.
pub fn files_max(limits: &Limits) -> usize {
    fitted(limits, limit().rlim_cur) as usize
}

fn fitted(limits: &Limits, descriptors: u64) -> u64 {
    let wanted = limits.open_files.map_or(FILES, u64::from);
    // Beyond those kept open, each connection may have one in use.
    let for_connections = u64::from(limits.connections) * (1 + DESCRIPTORS_A_FILE);
    let left = descriptors.saturating_sub(for_connections + OTHERS);
    wanted.min(left / DESCRIPTORS_A_FILE).max(FILES_MIN)
}

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call; when it fails, no descriptors are counted on.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn too_few_descriptors_for_the_connections_are_noticed() {
        let limits = Limits { connections: 2048, ..Settings::default().limits };
        assert_eq!(shortage(&limits, 1 << 20), None);
        let said = shortage(&limits, 1024).expect("a notice");
        assert!(said.contains("limits.connections is 2048") && said.contains("leaves about 512"), "{said}");
    }

    #[test]
    fn files_leave_descriptors_for_connections() {
        let limits = |open_files| Limits { connections: 1000, open_files, ..Settings::default().limits };
        assert_eq!(fitted(&limits(None), 1 << 20), FILES);
        assert_eq!(fitted(&limits(Some(100)), 1 << 20), 100);
        assert_eq!(fitted(&limits(None), 20_000), (20_000 - 4000 - OTHERS) / 3);
        assert_eq!(fitted(&limits(Some(5000)), 8192), (8192 - 4000 - OTHERS) / 3);
        assert_eq!(fitted(&limits(None), 1024), FILES_MIN);
        assert_eq!(fitted(&limits(None), libc::RLIM_INFINITY), FILES);
    }
}
