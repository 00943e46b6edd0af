//! What a node's status (`statx(2)`) says of it.

use crate::tree::{Attributes, DeviceNumber, InodeNo, Kind, Time};

/// The settable bits of a mode.
pub(super) const MODE: u32 = 0o7777;

pub(super) fn attributes(status: &libc::statx) -> Attributes {
    let time = |at: libc::statx_timestamp| Time { seconds: at.tv_sec, nanoseconds: at.tv_nsec };
    Attributes {
        kind: kind_of(status),
        mode: u32::from(status.stx_mode) & MODE,
        links: status.stx_nlink,
        uid: status.stx_uid,
        gid: status.stx_gid,
        size: status.stx_size,
        used: status.stx_blocks * 512,
        file_system: libc::makedev(status.stx_dev_major, status.stx_dev_minor),
        number: InodeNo(status.stx_ino),
        accessed: time(status.stx_atime),
        modified: time(status.stx_mtime),
        changed: time(status.stx_ctime),
    }
}

pub(super) fn kind_of(status: &libc::statx) -> Kind {
    let device = DeviceNumber { major: status.stx_rdev_major, minor: status.stx_rdev_minor };
    match u32::from(status.stx_mode) & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::SymbolicLink,
        libc::S_IFBLK => Kind::BlockDevice(device),
        libc::S_IFCHR => Kind::CharacterDevice(device),
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFIFO => Kind::Fifo,
        _ => Kind::File,
    }
}
