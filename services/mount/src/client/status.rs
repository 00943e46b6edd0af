//! What the numbers of the wire mean here.

use std::ops::BitOr;

use machine::Errno;
use nfs3_types::nfs3::nfsstat3;

use crate::results::Results;

/// Of the host's numbers none means this.
pub(crate) const NOT_SYNC: Errno = Errno(libc::EAGAIN);

/// Nothing else of what a server says of a directory is this.
pub(crate) const BAD_COOKIE: Errno = Errno(libc::ESPIPE);

/// Rights, as ACCESS asks for them (RFC 1813, section 3.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    pub const READ: Access = Access(1);
    pub const LOOKUP: Access = Access(2);
    pub const MODIFY: Access = Access(4);
    pub const EXTEND: Access = Access(8);
    pub const DELETE: Access = Access(16);
    pub const EXECUTE: Access = Access(32);
    pub const ALL: Access = Access(63);

    pub fn includes(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

pub(super) fn is_jukebox(mut results: Results<'_>) -> bool {
    results.u32() == Some(nfsstat3::NFS3ERR_JUKEBOX as u32)
}

/// The host's number of a status that is not OK. Those below 100 are the host's numbers but for a few.
pub(super) fn errno(status: u32) -> Errno {
    const NAMETOOLONG: u32 = nfsstat3::NFS3ERR_NAMETOOLONG as u32;
    const NOTEMPTY: u32 = nfsstat3::NFS3ERR_NOTEMPTY as u32;
    const DQUOT: u32 = nfsstat3::NFS3ERR_DQUOT as u32;
    const STALE: u32 = nfsstat3::NFS3ERR_STALE as u32;
    const BADHANDLE: u32 = nfsstat3::NFS3ERR_BADHANDLE as u32;
    const NOTSUPP: u32 = nfsstat3::NFS3ERR_NOTSUPP as u32;
    const BADTYPE: u32 = nfsstat3::NFS3ERR_BADTYPE as u32;
    const TOOSMALL: u32 = nfsstat3::NFS3ERR_TOOSMALL as u32;
    const NOT_SYNC_STATUS: u32 = nfsstat3::NFS3ERR_NOT_SYNC as u32;
    const BAD_COOKIE_STATUS: u32 = nfsstat3::NFS3ERR_BAD_COOKIE as u32;
    Errno(match status {
        status @ 1..=31 => status as i32,
        NAMETOOLONG => libc::ENAMETOOLONG,
        NOTEMPTY => libc::ENOTEMPTY,
        DQUOT => libc::EDQUOT,
        STALE | BADHANDLE => libc::ESTALE,
        NOTSUPP | BADTYPE => libc::EOPNOTSUPP,
        TOOSMALL => libc::EINVAL,
        NOT_SYNC_STATUS => return NOT_SYNC,
        BAD_COOKIE_STATUS => return BAD_COOKIE,
        _ => libc::EIO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_the_hosts_numbers() {
        for (status, expected) in [
            (nfsstat3::NFS3ERR_NOENT, libc::ENOENT),
            (nfsstat3::NFS3ERR_MLINK, libc::EMLINK),
            (nfsstat3::NFS3ERR_NOTEMPTY, libc::ENOTEMPTY),
            (nfsstat3::NFS3ERR_STALE, libc::ESTALE),
            (nfsstat3::NFS3ERR_NOT_SYNC, NOT_SYNC.0),
            (nfsstat3::NFS3ERR_SERVERFAULT, libc::EIO),
            (nfsstat3::NFS3ERR_NOTSUPP, libc::EOPNOTSUPP),
        ] {
            assert_eq!(errno(status as u32), Errno(expected), "{status}");
        }
        assert_eq!(errno(99_999), Errno::IO);
    }
}
