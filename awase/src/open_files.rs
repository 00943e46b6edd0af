//! The number of files of directories that stay open: each costs descriptors, which connections need, too.

use kernel::tree::OPEN_FILES_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Limits;

const FILES_DEFAULT: u64 = OPEN_FILES_MAX as u64;

/// A file is open for reading and, while it is written, twice more: with direct I/O, and buffered for its end.
const DESCRIPTORS_PER_FILE: u64 = 3;

/// For rings, media, sockets, and what library calls open for a moment.
const OTHERS: u64 = 512;

/// With fewer, files would be opened and closed all the time.
const FILES_MIN: u64 = 64;

/// Raises the soft limit of descriptors to the hard limit.
pub fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // On failure nothing has changed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// A notice where there are fewer descriptors than the configured number of connections needs.
pub fn notice(limits: &Limits) -> Option<String> {
    shortage(limits, descriptors())
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

/// The number of files that may be open: as configured, within the descriptor limit.
pub fn files_max(limits: &Limits) -> usize {
    fitted(limits, descriptors()) as usize
}

fn fitted(limits: &Limits, descriptors: u64) -> u64 {
    let wanted = limits.open_files.map_or(FILES_DEFAULT, u64::from);
    // Each connection may have one more file in use.
    let for_connections = u64::from(limits.connections) * (1 + DESCRIPTORS_PER_FILE);
    let left = descriptors.saturating_sub(for_connections + OTHERS);
    wanted.min(left / DESCRIPTORS_PER_FILE).max(FILES_MIN)
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn too_few_descriptors_for_the_connections_are_reported() {
        let limits = Limits { connections: 2048, ..Settings::default().limits };
        assert_eq!(shortage(&limits, 1 << 20), None);
        let notice = shortage(&limits, 1024).expect("a notice");
        assert!(notice.contains("limits.connections is 2048") && notice.contains("leaves about 512"), "{notice}");
    }

    #[test]
    fn open_files_leave_descriptors_for_connections() {
        let limits = |open_files| Limits { connections: 1000, open_files, ..Settings::default().limits };
        assert_eq!(fitted(&limits(None), 1 << 20), FILES_DEFAULT);
        assert_eq!(fitted(&limits(Some(100)), 1 << 20), 100);
        assert_eq!(fitted(&limits(None), 20_000), (20_000 - 4000 - OTHERS) / 3);
        assert_eq!(fitted(&limits(Some(5000)), 8192), (8192 - 4000 - OTHERS) / 3);
        assert_eq!(fitted(&limits(None), 1024), FILES_MIN);
        assert_eq!(fitted(&limits(None), u64::MAX), FILES_DEFAULT);
    }
}
