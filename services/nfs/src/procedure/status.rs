//! Host errors on the wire.

use machine::Errno;
use nfs3_types::mount::mountstat3;
use nfs3_types::nfs3::nfsstat3;

/// RFC 1813, 2.6. Errors without an equivalent are `NFS3ERR_IO`: they came from the host's file system.
pub(crate) fn status(error: Errno) -> nfsstat3 {
    match error.0 {
        libc::EPERM => nfsstat3::NFS3ERR_PERM,
        libc::ENOENT => nfsstat3::NFS3ERR_NOENT,
        libc::ENXIO => nfsstat3::NFS3ERR_NXIO,
        // The host is executing the file, for an unlimited time (knfsd: NFS3ERR_IO). With `NFS3ERR_JUKEBOX`, clients
        // would hang until it ends.
        libc::EACCES | libc::ETXTBSY => nfsstat3::NFS3ERR_ACCES,
        libc::EEXIST => nfsstat3::NFS3ERR_EXIST,
        libc::EXDEV => nfsstat3::NFS3ERR_XDEV,
        libc::ENODEV => nfsstat3::NFS3ERR_NODEV,
        libc::ENOTDIR => nfsstat3::NFS3ERR_NOTDIR,
        libc::EISDIR => nfsstat3::NFS3ERR_ISDIR,
        // A symbolic link in place of another kind: clients follow links, the server never does.
        libc::EINVAL | libc::ELOOP | libc::EDOM | libc::ERANGE => nfsstat3::NFS3ERR_INVAL,
        libc::EFBIG | libc::EOVERFLOW => nfsstat3::NFS3ERR_FBIG,
        libc::ENOSPC => nfsstat3::NFS3ERR_NOSPC,
        libc::EROFS => nfsstat3::NFS3ERR_ROFS,
        libc::EMLINK => nfsstat3::NFS3ERR_MLINK,
        libc::ENAMETOOLONG => nfsstat3::NFS3ERR_NAMETOOLONG,
        libc::ENOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
        libc::EDQUOT => nfsstat3::NFS3ERR_DQUOT,
        libc::ESTALE => nfsstat3::NFS3ERR_STALE,
        libc::EREMOTE => nfsstat3::NFS3ERR_REMOTE,
        libc::EOPNOTSUPP | libc::ENOSYS => nfsstat3::NFS3ERR_NOTSUPP,
        libc::ECHRNG => nfsstat3::NFS3ERR_BAD_COOKIE,
        // Temporary: the client retries.
        libc::EAGAIN | libc::EBUSY | libc::ETIMEDOUT | libc::EINTR => nfsstat3::NFS3ERR_JUKEBOX,
        libc::ENOMEM | libc::EMFILE | libc::ENFILE => nfsstat3::NFS3ERR_JUKEBOX,
        libc::EFAULT | libc::EBADF | libc::ECANCELED => nfsstat3::NFS3ERR_SERVERFAULT,
        _ => nfsstat3::NFS3ERR_IO,
    }
}

/// RFC 1813, 5.1.5.
pub(crate) fn mount_status(status: nfsstat3) -> mountstat3 {
    match status {
        nfsstat3::NFS3ERR_PERM => mountstat3::MNT3ERR_PERM,
        nfsstat3::NFS3ERR_NOENT | nfsstat3::NFS3ERR_STALE => mountstat3::MNT3ERR_NOENT,
        nfsstat3::NFS3ERR_IO => mountstat3::MNT3ERR_IO,
        nfsstat3::NFS3ERR_ACCES | nfsstat3::NFS3ERR_XDEV => mountstat3::MNT3ERR_ACCES,
        nfsstat3::NFS3ERR_NOTDIR => mountstat3::MNT3ERR_NOTDIR,
        nfsstat3::NFS3ERR_INVAL => mountstat3::MNT3ERR_INVAL,
        nfsstat3::NFS3ERR_NAMETOOLONG => mountstat3::MNT3ERR_NAMETOOLONG,
        nfsstat3::NFS3ERR_NOTSUPP => mountstat3::MNT3ERR_NOTSUPP,
        _ => mountstat3::MNT3ERR_SERVERFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1813 took most of its numbers from Unix; those with other numbers in Linux are listed below.
    #[test]
    fn errors_keep_their_meaning() {
        for number in [
            libc::EPERM,
            libc::ENOENT,
            libc::EIO,
            libc::ENXIO,
            libc::EACCES,
            libc::EEXIST,
            libc::EXDEV,
            libc::ENODEV,
            libc::ENOTDIR,
            libc::EISDIR,
            libc::EINVAL,
            libc::EFBIG,
            libc::ENOSPC,
            libc::EROFS,
            libc::EMLINK,
        ] {
            assert_eq!(status(Errno(number)) as i32, number);
        }
        assert_eq!(status(Errno(libc::ENAMETOOLONG)) as u32, 63);
        assert_eq!(status(Errno(libc::ENOTEMPTY)) as u32, 66);
        assert_eq!(status(Errno(libc::EDQUOT)) as u32, 69);
        assert_eq!(status(Errno(libc::ESTALE)) as u32, 70);
        assert_eq!(status(Errno(libc::EREMOTE)) as u32, 71);
    }

    #[test]
    fn no_error_looks_like_success() {
        for number in -1..=200 {
            assert_ne!(status(Errno(number)), nfsstat3::NFS3_OK, "errno {number}");
            assert_ne!(mount_status(status(Errno(number))) as u32, 0, "errno {number}");
        }
    }
}
