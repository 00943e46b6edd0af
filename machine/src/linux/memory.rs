//! Memory of the host, from `/proc/meminfo`, and of this process's control groups (v1 and v2).
//!
//! Read often, so the files stay open, and each read is one `pread` into a buffer on the stack.

mod group;

use std::fs::File;
use std::os::unix::fs::FileExt;

use group::Group;
use policy::sizing::{GroupMemory, MemoryFacts};

/// Bytes read of a file; the rest is not needed.
const TEXT_BYTES_MAX: usize = 8192;

pub(super) struct MemoryWatch {
    meminfo: Option<File>,
    groups: Vec<Group>,
}

impl MemoryWatch {
    /// A process that is moved to another control group later is still measured by this one.
    pub(super) fn new() -> Self {
        MemoryWatch { meminfo: File::open("/proc/meminfo").ok(), groups: group::above_this_process() }
    }

    pub(super) fn read(&self) -> MemoryFacts {
        let text = self.meminfo.as_ref().and_then(|file| read(file, parse_meminfo));
        let (total, available) = text.flatten().unwrap_or_else(ask_the_kernel);
        let groups = self.groups.iter().filter_map(|group| group.read(total));
        MemoryFacts { total, available, group: tightest(groups) }
    }
}

/// The group with least memory left.
fn tightest(groups: impl Iterator<Item = GroupMemory>) -> Option<GroupMemory> {
    groups.min_by_key(|group| (group.limit.saturating_sub(group.used), group.limit))
}

/// Parses the beginning of the file.
fn read<T>(file: &File, parse: impl FnOnce(&str) -> T) -> Option<T> {
    let mut buffer = [0; TEXT_BYTES_MAX];
    let count = file.read_at(&mut buffer, 0).ok()?;
    Some(parse(std::str::from_utf8(&buffer[..count]).ok()?))
}

/// `MemTotal`, and `MemAvailable` without the pages that must be written first, in bytes: on a host that is its own
/// client, they are written to this server, and its cache must not take their memory. Kernels before 3.14 lack
/// `MemAvailable`: then what is free or reclaimable.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.strip_prefix(':')?.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let available = field("MemAvailable").or_else(|| {
        let free = field("MemFree")?;
        Some(free + field("Buffers").unwrap_or(0) + field("Cached").unwrap_or(0))
    });
    let unwritten = field("Dirty").unwrap_or(0) + field("Writeback").unwrap_or(0);
    Some((field("MemTotal")?, available?.saturating_sub(unwritten)))
}

/// Without `/proc`: total and free memory from sysinfo(2), in bytes.
fn ask_the_kernel() -> (u64, u64) {
    // SAFETY: all zeroes is a valid value of the structure, which has integers only.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills `info`.
    unsafe { libc::sysinfo(&raw mut info) };
    let unit = u64::from(info.mem_unit);
    (info.totalram * unit, (info.freeram + info.bufferram) * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_gives_total_and_available_in_bytes() {
        let text = "MemTotal:       24684084 kB\nMemFree:          100000 kB\n\
                    MemAvailable:   20000000 kB\nBuffers:            1000 kB\nCached:           5000 kB\n";
        assert_eq!(parse_meminfo(text), Some((24684084 << 10, 20000000 << 10)));
    }

    #[test]
    fn old_kernels_count_free_and_cached_memory_as_available() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 10 kB\nCached: 50 kB\n";
        assert_eq!(parse_meminfo(text), Some((1000 << 10, 160 << 10)));
    }

    #[test]
    fn pages_that_must_be_written_first_are_not_available() {
        let text = "MemTotal: 1000 kB\nMemAvailable: 500 kB\nDirty: 100 kB\nWriteback: 40 kB\nWritebackTmp: 9 kB\n";
        assert_eq!(parse_meminfo(text), Some((1000 << 10, 360 << 10)));
        let text = "MemTotal: 1000 kB\nMemAvailable: 50 kB\nDirty: 100 kB\n";
        assert_eq!(parse_meminfo(text), Some((1000 << 10, 0)));
    }

    #[test]
    fn invalid_meminfo_gives_nothing() {
        assert_eq!(parse_meminfo(""), None);
        assert_eq!(parse_meminfo("MemTotal: many kB\nMemAvailable: 1 kB\n"), None);
        let text = "MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n";
        assert_eq!(parse_meminfo(text), None);
    }

    #[test]
    fn the_group_with_least_memory_left_counts() {
        let group = |limit, used| GroupMemory { limit, used };
        let groups = [group(1000, 100), group(5000, 4900), group(2000, 0)];
        assert_eq!(tightest(groups.into_iter()), Some(group(5000, 4900)));
        assert_eq!(tightest([].into_iter()), None);
    }

    #[test]
    fn available_memory_of_this_host_is_at_most_its_total() {
        let facts = MemoryWatch::new().read();
        assert!(facts.total > 0);
        assert!(facts.available <= facts.total);
    }
}
