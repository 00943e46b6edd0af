//! What the file systems of the host promise, by their magic numbers (`linux/magic.h`). This is the only place in the
//! product that knows one from another.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{self, StatFs};
use rustix::io::{Result, retry_on_intr};
use rustix::system::uname;

/// A file system, as far as Awase tells one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Ext2 to ext4, which have the same number.
    Ext,
    Xfs,
    Btrfs,
    F2fs,
    Tmpfs,
    Ramfs,
    Overlay,
    Fuse,
    /// FAT in all of its forms, and exFAT.
    Fat,
    Zfs,
    Bcachefs,
    /// Any other, or one that the host does not name.
    Other,
}

impl FileSystem {
    /// That of an open file.
    pub fn of(file: impl AsFd) -> FileSystem {
        let file: BorrowedFd<'_> = file.as_fd();
        Self::found(retry_on_intr(|| fs::fstatfs(file)))
    }

    pub fn at(path: &Path) -> FileSystem {
        Self::found(retry_on_intr(|| fs::statfs(path)))
    }

    fn found(found: Result<StatFs>) -> FileSystem {
        found.as_ref().map_or(FileSystem::Other, Self::with)
    }

    pub(super) fn with(facts: &StatFs) -> FileSystem {
        // The field's type differs between C libraries, and where it has 32 bits it may be negative.
        match facts.f_type as u32 {
            0xef53 => FileSystem::Ext,
            0x5846_5342 => FileSystem::Xfs,
            0x9123_683e => FileSystem::Btrfs,
            0xf2f5_2010 => FileSystem::F2fs,
            0x0102_1994 => FileSystem::Tmpfs,
            0x8584_58f6 => FileSystem::Ramfs,
            0x794c_7630 => FileSystem::Overlay,
            0x6573_5546 => FileSystem::Fuse,
            0x4d44 | 0x2011_bab0 => FileSystem::Fat,
            0x2fc1_2fc1 => FileSystem::Zfs,
            0xca45_1a4e => FileSystem::Bcachefs,
            _ => FileSystem::Other,
        }
    }

    /// Whether forced writes (`RWF_DSYNC`) are durable. Others accept the flag and ignore it: FUSE passes such a write on as a
    /// plain one, with no `fsync` after it.
    pub fn honours_forced_writes(self) -> bool {
        self.honours_forced_writes_in(version())
    }

    fn honours_forced_writes_in(self, version: Version) -> bool {
        match self {
            FileSystem::Ext | FileSystem::Xfs | FileSystem::F2fs => true,
            // Before, it left the `fsync` out where a direct write ends later than its call, as those of io_uring do (8184620ae212).
            FileSystem::Btrfs => version >= Version(6, 1),
            _ => false,
        }
    }

    /// Whether it is all in memory: it accepts `O_DIRECT` (since Linux 6.6) but does not bypass anything.
    pub fn lives_in_memory(self) -> bool {
        matches!(self, FileSystem::Tmpfs | FileSystem::Ramfs)
    }

    /// Whether its file handles, if it has any, are persistent: each leads to its node alone, also when the node is not in memory,
    /// and after the file system was mounted again. Those of FUSE hold the number that the daemon has given the node for the
    /// time that the kernel knows it; most daemons count from 1 whenever they are started, and the kernel gives handles
    /// whether the daemon can find nodes by them (`FUSE_EXPORT_SUPPORT`) or not. FAT's hold a number that the kernel gives.
    pub(super) fn has_persistent_handles(self) -> bool {
        !matches!(self, FileSystem::Fuse | FileSystem::Fat)
    }

    /// Whether a node keeps its inode number for ever. Those of FUSE do with some daemons; with the others a node whose
    /// number has changed is not found by it, nor, with its time of birth, taken for another.
    pub(super) fn has_persistent_numbers(self) -> bool {
        self != FileSystem::Fat
    }

    /// Whether all changes of its files are made by this host's kernel, which then reports them. Others may be changed by
    /// other machines, or below.
    pub(super) fn reports_all_changes(self) -> bool {
        self.has_attributes_at_hand() || matches!(self, FileSystem::F2fs | FileSystem::Zfs | FileSystem::Bcachefs)
    }

    /// Whether a file may be replaced by a copy of it when it is opened for writing.
    pub(super) fn copies_to_write(self) -> bool {
        self == FileSystem::Overlay
    }

    /// Whether all of its directories ignore case in names.
    pub(super) fn ignores_case(self) -> bool {
        self == FileSystem::Fat
    }

    /// Whether it has the attributes of an open node in memory. Others may have to ask somebody (FUSE, network).
    pub(super) fn has_attributes_at_hand(self) -> bool {
        matches!(self, FileSystem::Ext | FileSystem::Xfs | FileSystem::Btrfs | FileSystem::Tmpfs)
    }
}

/// The version of the host's kernel: major, minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

fn version() -> Version {
    parse(&uname().release().to_string_lossy())
}

/// 0.0 if it cannot be read.
fn parse(release: &str) -> Version {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    Version(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_writes_on_btrfs_are_trusted_since_they_are_durable_with_io_uring() {
        for (release, are_trusted) in [
            ("5.15.0-60-generic", false),
            ("6.0.19", false),
            ("6.1.0-13-amd64", true),
            ("6.18.44", true),
            ("6.1-rc1", true),
            ("10.0", true),
            ("unknown", false),
            ("", false),
        ] {
            assert_eq!(FileSystem::Btrfs.honours_forced_writes_in(parse(release)), are_trusted, "{release:?}");
            assert!(FileSystem::Ext.honours_forced_writes_in(parse(release)), "{release:?}");
        }
        assert!(version() > Version(0, 0));
    }

    #[test]
    fn a_file_system_is_known_by_path_and_by_file_and_one_that_is_not_promises_nothing() {
        let other = Path::new("/proc");
        assert_eq!(FileSystem::at(other), FileSystem::Other);
        assert_eq!(FileSystem::of(std::fs::File::open(other).expect("opened")), FileSystem::Other);
        assert_eq!(FileSystem::at(Path::new("/nowhere/at/all")), FileSystem::Other);
        let all =
            [FileSystem::honours_forced_writes, FileSystem::has_attributes_at_hand, FileSystem::reports_all_changes];
        for promises in all {
            assert!(!promises(FileSystem::Other) && !promises(FileSystem::Fuse));
        }
        let Ok(shared) = std::fs::File::open("/dev/shm") else { testkit::skip!("no /dev/shm") };
        assert_eq!(FileSystem::of(&shared), FileSystem::Tmpfs);
    }
}
