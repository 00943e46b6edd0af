//! The disk under a file, as the kernel describes it in `/sys/dev/block` and by system calls.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::super::file_system::FileSystem;
use super::super::syscall;
use super::{ALIGN_MAX, device_of};
use crate::Errno;
use policy::unit::DiskNo;

/// `BLKGETSIZE64` of linux/fs.h, `_IOR(0x12, 114, size_t)`: not in the C library's headers.
#[cfg(not(any(target_arch = "mips64", target_arch = "powerpc64", target_arch = "sparc64")))]
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
/// The same where the direction bits of ioctl numbers differ.
#[cfg(any(target_arch = "mips64", target_arch = "powerpc64", target_arch = "sparc64"))]
const BLKGETSIZE64: libc::Ioctl = 0x4008_1272u32 as libc::Ioctl;

/// Largest transfer worth requesting, in bytes: beyond it io_uring hands requests to a worker thread.
const TRANSFER_BYTES_MAX: u64 = 512 << 10;

/// The same for a disk without a preferred size. In scattered pages 512 KiB have more than a hundred segments, and some
/// disks (a virtual one was measured) take those more slowly.
const TRANSFER_BYTES_USUAL: u64 = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// The number of the whole disk's device.
    pub(super) number: DiskNo,
    pub(super) rotational: bool,
    pub(super) transfer_bytes_max: u32,
    /// Its block size, if it reports one.
    logical_block: Option<u32>,
    /// The device can zero a range itself.
    pub(super) zeroes: bool,
}

impl Disk {
    /// The disk of the file, or that it is. For file systems without a single disk (tmpfs, btrfs, network) the default
    /// of an unknown disk.
    pub(super) fn under(metadata: &Metadata) -> Self {
        Disk::in_sysfs(Path::new("/sys/dev/block"), DiskNo(device_of(metadata)))
    }

    fn in_sysfs(root: &Path, device: DiskNo) -> Self {
        let (major, minor) = (libc::major(device.0), libc::minor(device.0));
        let Ok(mut place) = fs::canonicalize(root.join(format!("{major}:{minor}"))) else {
            return Disk::unknown(device);
        };
        let mut number = device;
        if place.join("partition").exists() {
            place.pop();
            number = whole_disk_number(&place).unwrap_or(device);
        }
        let queue = Queue(place.join("queue"));
        Disk {
            number,
            rotational: queue.number("rotational") == Some(1),
            transfer_bytes_max: transfer_bytes_max(queue.number("max_sectors_kb"), queue.number("optimal_io_size")),
            logical_block: queue.number("logical_block_size").and_then(|bytes| u32::try_from(bytes).ok()),
            zeroes: queue.number("write_zeroes_max_bytes").unwrap_or(0) > 0,
        }
    }

    fn unknown(number: DiskNo) -> Self {
        Disk {
            number,
            rotational: false,
            transfer_bytes_max: TRANSFER_BYTES_USUAL as u32,
            logical_block: None,
            zeroes: false,
        }
    }
}

/// The directory `queue` of a disk.
struct Queue(PathBuf);

impl Queue {
    fn number(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.0.join(name)).ok()?;
        text.trim().parse().ok()
    }
}

fn whole_disk_number(place: &Path) -> Option<DiskNo> {
    let text = fs::read_to_string(place.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(DiskNo(libc::makedev(major.parse().ok()?, minor.parse().ok()?)))
}

/// The largest transfer worth requesting and not split; whole stripes where the disk prefers a size (RAID).
fn transfer_bytes_max(max_sectors_kb: Option<u64>, optimal: Option<u64>) -> u32 {
    let max =
        max_sectors_kb.filter(|kb| *kb > 0).map_or(u64::MAX, |kb| kb.saturating_mul(1024)).min(TRANSFER_BYTES_MAX);
    let bytes = match optimal {
        Some(optimal) if optimal > 0 && optimal <= max => max / optimal * optimal,
        _ => max.min(TRANSFER_BYTES_USUAL),
    };
    bytes as u32
}

/// Size of a block device in bytes.
pub(super) fn size(device: &File) -> Result<u64, Errno> {
    let mut bytes = 0u64;
    // SAFETY: the call writes eight bytes to `bytes`.
    syscall::check(unsafe { libc::ioctl(device.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

/// The alignment of direct I/O on the file; `None` when its file system is known to have none.
pub(super) fn direct_align(file: &File, disk: &Disk) -> Option<u32> {
    if is_in_memory(file) {
        return None;
    }
    align_of(file, disk, Status::of(file).ok().and_then(|status| status.align))
}

/// As [`direct_align`], of a file that does not live in memory. `reported`: by its status.
pub(super) fn align_of(file: &File, disk: &Disk, reported: Option<u32>) -> Option<u32> {
    let align = match reported {
        Some(0) => return None,
        Some(align) => align,
        None => sector_size(file).or(disk.logical_block).unwrap_or(ALIGN_MAX),
    };
    (align.is_power_of_two() && align <= ALIGN_MAX).then_some(align)
}

fn is_block_device(file: &File) -> bool {
    let metadata = file.metadata();
    metadata.is_ok_and(|found| found.file_type().is_block_device())
}

/// The nodes of block devices lie in memory, which says nothing about the devices.
pub(super) fn is_in_memory(file: &File) -> bool {
    !is_block_device(file) && FileSystem::of(file).lives_in_memory()
}

/// What an open file needs to know of itself, in one call.
pub(super) struct Status {
    /// Bytes.
    pub(super) size: u64,
    /// `STATX_DIOALIGN` (Linux 6.1): 0 where direct I/O is impossible on this file, `None` where it is not reported.
    pub(super) align: Option<u32>,
}

impl Status {
    pub(super) fn of(file: &File) -> io::Result<Status> {
        // SAFETY: all zeroes is a valid value of the structure, which has integers only.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let (fd, mask) = (file.as_raw_fd(), libc::STATX_SIZE | libc::STATX_DIOALIGN);
        // SAFETY: the path is a C string, empty to mean the descriptor itself; the call fills `found`.
        if unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &raw mut found) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let align = (found.stx_mask & libc::STATX_DIOALIGN != 0).then_some(found.stx_dio_offset_align);
        Ok(Status { size: found.stx_size, align })
    }
}

/// `BLKSSZGET`: the logical block size of a block device.
fn sector_size(file: &File) -> Option<u32> {
    if !is_block_device(file) {
        return None;
    }
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes an integer to `bytes`.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) };
    u32::try_from(bytes).ok().filter(|&b| status == 0 && b > 0)
}

/// Reads the first block by direct I/O. Some file systems (FUSE, network) accept the flag and refuse the I/O.
pub(super) fn try_direct_read(file: &File, align: u32) -> Result<(), Errno> {
    let layout = Layout::from_size_align(align as usize, ALIGN_MAX as usize).map_err(|_| Errno::INVALID)?;
    // SAFETY: the layout's size is not 0, since an alignment is at least 1.
    let buffer = unsafe { alloc_zeroed(layout) };
    if buffer.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: the buffer has as many bytes as are requested.
    let count = unsafe { libc::pread(file.as_raw_fd(), buffer.cast(), align as usize, 0) };
    let result = if count < 0 { Err(syscall::errno(&io::Error::last_os_error())) } else { Ok(()) };
    // SAFETY: it was allocated above with this layout and has no other owner.
    unsafe { dealloc(buffer, layout) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_direct_read_that_fails_says_why() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let unreadable = File::open(root.path()).expect("opened");
        assert_eq!(try_direct_read(&unreadable, ALIGN_MAX), Err(Errno(libc::EISDIR)));
    }

    #[test]
    fn a_partition_has_the_number_and_properties_of_its_disk() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let disk = root.path().join("devices/sda");
        let partition = disk.join("sda1");
        fs::create_dir_all(disk.join("queue")).expect("created");
        fs::create_dir_all(&partition).expect("created");
        for (name, value) in [
            ("queue/rotational", "1\n"),
            ("queue/max_sectors_kb", "1280\n"),
            ("queue/optimal_io_size", "0\n"),
            ("queue/logical_block_size", "512\n"),
            ("queue/write_zeroes_max_bytes", "0\n"),
            ("dev", "8:0\n"),
            ("sda1/partition", "1\n"),
        ] {
            fs::write(disk.join(name), value).expect("written");
        }
        symlink(&partition, root.path().join("8:1")).expect("linked");
        let found = Disk::in_sysfs(root.path(), DiskNo(libc::makedev(8, 1)));
        let expected = Disk {
            number: DiskNo(libc::makedev(8, 0)),
            rotational: true,
            transfer_bytes_max: 256 << 10,
            logical_block: Some(512),
            zeroes: false,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn an_undescribed_device_gets_conservative_values() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let device = DiskNo(libc::makedev(0, 42));
        assert_eq!(Disk::in_sysfs(root.path(), device), Disk::unknown(device));
    }

    #[test]
    fn transfers_are_whole_stripes_within_the_maximum() {
        assert_eq!(transfer_bytes_max(Some(1280), Some(0)), 256 << 10);
        assert_eq!(transfer_bytes_max(Some(1280), Some(192 << 10)), 384 << 10);
        assert_eq!(transfer_bytes_max(Some(1280), Some(512 << 10)), 512 << 10);
        assert_eq!(transfer_bytes_max(Some(128), Some(512 << 10)), 128 << 10);
        assert_eq!(transfer_bytes_max(Some(u64::MAX), None), 256 << 10);
        assert_eq!(transfer_bytes_max(None, None), 256 << 10);
    }
}
