//! Decoding the arguments of every procedure, without executing it.

use nfs3_types::mount::{MOUNT_PROGRAM, dirpath};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Unpack;

use super::arguments;
use crate::program::Program;

/// Decodes the arguments of a call as its procedure would; returns whether they are well-formed. For fuzzing.
pub(crate) fn decode_arguments(program: Program, procedure: u32, bytes: &[u8]) -> bool {
    match program {
        Program::Mount => match MOUNT_PROGRAM::try_from(procedure) {
            Ok(MOUNT_PROGRAM::MOUNTPROC3_MNT | MOUNT_PROGRAM::MOUNTPROC3_UMNT) => is::<dirpath<'_>>(bytes),
            procedure => procedure.is_ok(),
        },
        Program::Nfs => NFS_PROGRAM::try_from(procedure).is_ok_and(|procedure| of_nfs(procedure, bytes)),
    }
}

fn of_nfs(procedure: NFS_PROGRAM, bytes: &[u8]) -> bool {
    match procedure {
        NFS_PROGRAM::NFSPROC3_NULL => true,
        NFS_PROGRAM::NFSPROC3_GETATTR => is::<GETATTR3args>(bytes),
        NFS_PROGRAM::NFSPROC3_SETATTR => is::<SETATTR3args>(bytes),
        NFS_PROGRAM::NFSPROC3_LOOKUP => is::<LOOKUP3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_ACCESS => is::<ACCESS3args>(bytes),
        NFS_PROGRAM::NFSPROC3_READLINK => is::<READLINK3args>(bytes),
        NFS_PROGRAM::NFSPROC3_READ => is::<READ3args>(bytes),
        // Decoded on arrival.
        NFS_PROGRAM::NFSPROC3_WRITE => true,
        NFS_PROGRAM::NFSPROC3_CREATE => is::<CREATE3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_MKDIR => is::<MKDIR3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_SYMLINK => is::<SYMLINK3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_MKNOD => is::<MKNOD3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_REMOVE => is::<REMOVE3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_RMDIR => is::<RMDIR3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_RENAME => is::<RENAME3args<'_, '_>>(bytes),
        NFS_PROGRAM::NFSPROC3_LINK => is::<LINK3args<'_>>(bytes),
        NFS_PROGRAM::NFSPROC3_READDIR => is::<READDIR3args>(bytes),
        NFS_PROGRAM::NFSPROC3_READDIRPLUS => is::<READDIRPLUS3args>(bytes),
        NFS_PROGRAM::NFSPROC3_FSSTAT => is::<FSSTAT3args>(bytes),
        NFS_PROGRAM::NFSPROC3_FSINFO => is::<FSINFO3args>(bytes),
        NFS_PROGRAM::NFSPROC3_PATHCONF => is::<PATHCONF3args>(bytes),
        NFS_PROGRAM::NFSPROC3_COMMIT => is::<COMMIT3args>(bytes),
    }
}

fn is<T: Unpack>(bytes: &[u8]) -> bool {
    arguments::<T>(bytes).is_ok()
}
