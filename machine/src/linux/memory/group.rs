//! The control groups that limit this process's memory: their mount points, limits and usage.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::read;
use policy::sizing::GroupMemory;

/// The open files of one group.
pub(super) struct Group {
    limits: Vec<File>,
    usage: File,
    stat: Option<File>,
    /// The field of `stat` that counts page cache that can be reclaimed at once.
    reclaimable: &'static str,
}

/// The two generations of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    V1,
    V2,
}

impl Generation {
    /// Names of limits, usage and the reclaimable field of `memory.stat`, which includes groups below.
    fn files(self) -> (&'static [&'static str], &'static str, &'static str) {
        match self {
            Generation::V1 => (&["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file"),
            Generation::V2 => (&["memory.max", "memory.high"], "memory.current", "inactive_file"),
        }
    }
}

/// The group of this process and its visible ancestors.
pub(super) fn above_this_process() -> Vec<Group> {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let paths = directories(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    paths.iter().filter_map(|(generation, path)| Group::open(*generation, path)).collect()
}

impl Group {
    /// Opens the files of the group in `path`; `None` without limits (the root).
    fn open(generation: Generation, path: &Path) -> Option<Self> {
        let (limits, usage, reclaimable) = generation.files();
        let open = |name: &str| File::open(path.join(name)).ok();
        let limits: Vec<File> = limits.iter().filter_map(|name| open(name)).collect();
        if limits.is_empty() {
            return None;
        }
        Some(Group { limits, usage: open(usage)?, stat: open("memory.stat"), reclaimable })
    }

    /// Limit and use now; `None` when it is not limited to less than the host's `total`.
    pub(super) fn read(&self, total: u64) -> Option<GroupMemory> {
        let limits = self.limits.iter();
        let limit = limits.filter_map(|file| read(file, parse_limit)?).min().filter(|&limit| limit < total)?;
        let usage = read(&self.usage, parse_limit)??;
        let stat = self.stat.as_ref();
        let reclaimable = stat.and_then(|file| read(file, |text| parse_stat(text, self.reclaimable))?).unwrap_or(0);
        Some(GroupMemory { limit, used: usage.saturating_sub(reclaimable) })
    }
}

/// A number of bytes; `None` for `max`, which means no limit.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn parse_stat(text: &str, field: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == field)?.1.trim().parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The group that is mounted.
    root: PathBuf,
    point: PathBuf,
}

/// The directories of the process's group and its ancestors, from `/proc/self/cgroup` and `/proc/self/mountinfo`
/// (proc(5), cgroups(7)).
fn directories(cgroup: &str, mountinfo: &str) -> Vec<(Generation, PathBuf)> {
    let mut found = Vec::new();
    for (generation, group) in cgroup.lines().filter_map(membership) {
        let mut mounts = mountinfo.lines().filter_map(|line| mount(line, generation));
        let Some(mount) = mounts.next() else {
            continue;
        };
        let directory = mount.directory(Path::new(group));
        let above = directory.ancestors();
        let seen = above.take_while(|path| path.starts_with(&mount.point));
        found.extend(seen.map(|path| (generation, path.to_owned())));
    }
    found
}

/// `hierarchy:controllers:path`, if it is about memory.
fn membership(line: &str) -> Option<(Generation, &str)> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if hierarchy == "0" && controllers.is_empty() {
        Some((Generation::V2, path))
    } else if controllers.split(',').any(|name| name == "memory") {
        Some((Generation::V1, path))
    } else {
        None
    }
}

/// The mount of a line, if it is of the memory controller.
fn mount(line: &str, generation: Generation) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let matches = match generation {
        Generation::V1 => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
        Generation::V2 => kind == "cgroup2",
    };
    if !matches {
        return None;
    }
    let mut place = place.split(' ').skip(3);
    Some(Mount { root: unescape(place.next()?).into(), point: unescape(place.next()?).into() })
}

impl Mount {
    /// The directory of `group`. A container may see only its own group, mounted in place of the host's root, with a
    /// path that is the host's (no group namespace) or starts with `/..` (started outside the namespace): then what is
    /// mounted is the closest visible one.
    fn directory(&self, group: &Path) -> PathBuf {
        let climbs = group.components().any(|part| part.as_os_str() == "..");
        match group.strip_prefix(&self.root) {
            Ok(below) if !climbs => {
                let directory = self.point.join(below);
                if below == Path::new("") { self.point.clone() } else { directory }
            }
            _ => self.point.clone(),
        }
    }
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                text.push(code.into());
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Generation::{V1, V2};
    use super::*;

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn paths(cgroup: &str, mountinfo: &str) -> Vec<(Generation, String)> {
        let found = directories(cgroup, mountinfo).into_iter();
        found.map(|(generation, path)| (generation, path.display().to_string())).collect()
    }

    #[test]
    fn all_groups_above_a_service_count() {
        let found = paths("0::/system.slice/awase.service\n", V2_MOUNT);
        let expected = ["/sys/fs/cgroup/system.slice/awase.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup"];
        assert_eq!(found, expected.map(|path| (V2, path.to_string())));
    }

    #[test]
    fn in_a_container_with_its_own_namespace_the_mounted_group_is_the_limit() {
        let found = paths("0::/\n", V2_MOUNT);
        assert_eq!(found, [(V2, "/sys/fs/cgroup".to_string())]);
    }

    #[test]
    fn in_a_container_without_a_namespace_the_host_path_is_cut_to_the_mount() {
        let mountinfo = "740 735 0:30 /docker/4a5b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = paths("5:memory:/docker/4a5b/below\n", mountinfo);
        let expected = ["/sys/fs/cgroup/memory/below", "/sys/fs/cgroup/memory"];
        assert_eq!(found, expected.map(|path| (V1, path.to_string())));
    }

    #[test]
    fn an_invisible_group_is_measured_by_the_mounted_one() {
        let found = paths("0::/../../other\n", V2_MOUNT);
        assert_eq!(found, [(V2, "/sys/fs/cgroup".to_string())]);
        let mountinfo = "740 735 0:30 /docker/4a5b /cg rw - cgroup cgroup rw,memory\n";
        assert_eq!(paths("5:memory:/elsewhere\n", mountinfo), [(V1, "/cg".to_string())]);
    }

    #[test]
    fn both_generations_at_once_are_found() {
        let cgroup = "9:name=systemd:/\n4:cpu,memory:/a\n1:cpuset:/x\n0::/b\n";
        let mountinfo = "\
            32 31 0:29 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n\
            35 31 0:32 / /cg/memory rw - cgroup cgroup rw,cpu,memory\n\
            41 31 0:38 / /cg/uni\\040fied rw master:1 propagate_from:2 - cgroup2 cgroup2 rw\n";
        let found = paths(cgroup, mountinfo);
        let expected = [(V1, "/cg/memory/a"), (V1, "/cg/memory"), (V2, "/cg/uni fied/b"), (V2, "/cg/uni fied")];
        assert_eq!(found, expected.map(|(generation, path)| (generation, path.to_string())));
    }

    #[test]
    fn the_lowest_limit_counts_and_reclaimable_cache_is_not_used() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("memory.max", "2000000\n"),
            ("memory.high", "1000000\n"),
            ("memory.current", "700000\n"),
            ("memory.stat", "anon 400000\nfile 300000\ninactive_file 250000\n"),
        ] {
            fs::write(directory.path().join(name), text).expect("written");
        }
        let group = Group::open(V2, directory.path()).expect("a group");
        let expected = GroupMemory { limit: 1_000_000, used: 450_000 };
        assert_eq!(group.read(1 << 40), Some(expected));
        // A limit above the host's memory is none.
        assert_eq!(group.read(900_000), None);
    }

    #[test]
    fn unlimited_groups_do_not_count() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("memory.max", "max\n"),
            ("memory.high", "max\n"),
            ("memory.current", "700000\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "700000\n"),
        ] {
            fs::write(directory.path().join(name), text).expect("written");
        }
        for generation in [V1, V2] {
            let group = Group::open(generation, directory.path()).expect("a group");
            assert_eq!(group.read(1 << 40), None, "{generation:?}");
        }
    }
}
