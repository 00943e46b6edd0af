//! Between the host's words and the client's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use machine::Errno;
use mount::{Attributes, Found, Kind, NewTime, Special, Time};

/// Unit of `st_blocks`. Bytes.
const SECTOR_BYTES: u64 = 512;

/// What programs are told to transfer at a time. Bytes.
const TRANSFER_BYTES: u32 = 128 << 10;

pub fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Block => FileType::BlockDevice,
        Kind::Character => FileType::CharDevice,
        Kind::Socket => FileType::Socket,
        Kind::Fifo => FileType::NamedPipe,
    }
}

/// Of an object to which the host refers from then on: the crate takes its number from here.
pub fn referred(found: &Found) -> FileAttr {
    FileAttr { ino: INodeNo(found.id.0), ..attributes(&found.attributes) }
}

pub fn attributes(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.file_id),
        size: from.size,
        blocks: from.used.div_ceil(SECTOR_BYTES),
        atime: system_time(from.accessed),
        mtime: system_time(from.modified),
        ctime: system_time(from.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(from.kind),
        perm: from.mode as u16,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: encode_device(from.device),
        blksize: TRANSFER_BYTES,
        flags: 0,
    }
}

/// An entry of which only number and kind are known.
pub fn bare(file_id: u64, kind: Kind) -> FileAttr {
    attributes(&Attributes::bare(file_id, kind))
}

fn system_time(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::new(time.seconds.into(), time.nanoseconds.min(999_999_999))
}

/// NFSv3 has times from 1970 to 2106; others become the nearest.
pub fn new_time(time: TimeOrNow) -> NewTime {
    match time {
        TimeOrNow::Now => NewTime::Now,
        TimeOrNow::SpecificTime(time) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
            NewTime::Given(Time { seconds, nanoseconds: since.subsec_nanos() })
        }
    }
}

/// As the host encodes major and minor number in 32 bits (`new_encode_dev`).
fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn decode_device(device: u32) -> (u32, u32) {
    ((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// What `mknod` makes. `None`: a regular file, or nothing that can be made.
pub fn special(mode: u32, device: u32) -> Option<Special> {
    let (major, minor) = decode_device(device);
    match mode & libc::S_IFMT {
        libc::S_IFBLK => Some(Special::Block(major, minor)),
        libc::S_IFCHR => Some(Special::Character(major, minor)),
        libc::S_IFSOCK => Some(Special::Socket),
        libc::S_IFIFO => Some(Special::Fifo),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for device in [(0, 0), (8, 1), (259, 70_000), (4095, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }

    #[test]
    fn times_beyond_the_wires_become_the_nearest() {
        let before = TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::from_secs(5));
        assert_eq!(new_time(before), NewTime::Given(Time::default()));
        let after = TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(1 << 33));
        assert_eq!(new_time(after), NewTime::Given(Time { seconds: u32::MAX, nanoseconds: 0 }));
    }
}
