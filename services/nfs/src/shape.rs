//! Where in the arguments the parts of variable length are.
//!
//! Every length is compared with what is there before the arguments are decoded: the decoder takes memory for as much as a
//! length says before it looks whether so much has come.

use nfs3_types::mount::MOUNT_PROGRAM;
use nfs3_types::nfs3::NFS_PROGRAM;

use crate::call::{Program, TRANSFER_BYTES_MAX};

/// Longest file handle, in bytes (RFC 1813, section 2.4: `NFS3_FHSIZE`).
pub(crate) const HANDLE_BYTES_MAX: usize = 64;

pub(crate) const GETATTR: u32 = NFS_PROGRAM::NFSPROC3_GETATTR as u32;

pub(crate) const READ: u32 = NFS_PROGRAM::NFSPROC3_READ as u32;

pub(crate) const WRITE: u32 = NFS_PROGRAM::NFSPROC3_WRITE as u32;

/// A part of the arguments.
#[derive(Clone, Copy)]
enum Part {
    Handle,
    /// A name or a path. How long it may be is for the procedure to say.
    Name,
    Attributes,
}

/// The parts up to the last opaque, in their order.
fn parts(program: Program, procedure: u32) -> &'static [Part] {
    use Part::{Attributes, Handle, Name};
    if program == Program::Mount {
        return match MOUNT_PROGRAM::try_from(procedure) {
            Ok(MOUNT_PROGRAM::MOUNTPROC3_MNT | MOUNT_PROGRAM::MOUNTPROC3_UMNT) => &[Name],
            _ => &[],
        };
    }
    let Ok(procedure) = NFS_PROGRAM::try_from(procedure) else { return &[] };
    match procedure {
        NFS_PROGRAM::NFSPROC3_NULL => &[],
        NFS_PROGRAM::NFSPROC3_LOOKUP
        | NFS_PROGRAM::NFSPROC3_CREATE
        | NFS_PROGRAM::NFSPROC3_MKDIR
        | NFS_PROGRAM::NFSPROC3_MKNOD
        | NFS_PROGRAM::NFSPROC3_REMOVE
        | NFS_PROGRAM::NFSPROC3_RMDIR => &[Handle, Name],
        NFS_PROGRAM::NFSPROC3_SYMLINK => &[Handle, Name, Attributes, Name],
        NFS_PROGRAM::NFSPROC3_RENAME => &[Handle, Name, Handle, Name],
        NFS_PROGRAM::NFSPROC3_LINK => &[Handle, Handle, Name],
        _ => &[Handle],
    }
}

/// Do the parts of variable length lie within the arguments?
pub(crate) fn fits(program: Program, procedure: u32, arguments: &[u8]) -> bool {
    let mut at = Cursor(arguments);
    parts(program, procedure).iter().all(|part| at.pass(*part).is_some())
}

/// Bytes of data that the results of a call may hold: of what a READ or READDIR asks for, what it can get.
pub(crate) fn results_bytes(program: Program, procedure: u32, arguments: &[u8]) -> u64 {
    let before_count = match (program, NFS_PROGRAM::try_from(procedure)) {
        (Program::Nfs, Ok(NFS_PROGRAM::NFSPROC3_READ)) => 8,
        (Program::Nfs, Ok(NFS_PROGRAM::NFSPROC3_READDIR)) => 16,
        (Program::Nfs, Ok(NFS_PROGRAM::NFSPROC3_READDIRPLUS)) => 20,
        _ => return 0,
    };
    let mut at = Cursor(arguments);
    let count = at.pass(Part::Handle).and_then(|()| at.skip(before_count)).and_then(|()| at.u32());
    u64::from(count.unwrap_or(0).min(TRANSFER_BYTES_MAX))
}

/// What is known of a WRITE before its data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteShape {
    /// Where in the file the data goes.
    pub(crate) offset: u64,
    /// Bytes of data.
    pub(crate) data_len: u32,
    /// Bytes of the arguments up to `stable`.
    pub(crate) arguments: usize,
}

/// The first bytes of a WRITE's arguments: what is known from them, or how many are needed at least. `None` if these are no
/// arguments of a WRITE.
pub(crate) fn write(arguments: &[u8]) -> Option<Result<WriteShape, usize>> {
    let mut at = Cursor(arguments);
    let Some(handle_len) = at.u32() else { return Some(Err(4)) };
    if handle_len as usize > HANDLE_BYTES_MAX {
        return None;
    }
    // offset, count, stable; then the data's length.
    let arguments_len = 4 + (handle_len as usize).next_multiple_of(4) + 8 + 4 + 4;
    if arguments.len() < arguments_len + 4 {
        return Some(Err(arguments_len + 4));
    }
    at.skip((handle_len as usize).next_multiple_of(4))?;
    let offset = at.u64()?;
    at.skip(8)?;
    Some(Ok(WriteShape { offset, data_len: at.u32()?, arguments: arguments_len }))
}

#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*first))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    pub(crate) fn skip(&mut self, len: usize) -> Option<()> {
        self.0 = self.0.get(len..)?;
        Some(())
    }

    /// An opaque of at most `max` bytes.
    pub(crate) fn opaque(&mut self, max: usize) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let bytes = self.0.get(..len)?;
        self.skip(len.next_multiple_of(4))?;
        (len <= max).then_some(bytes)
    }

    fn pass(&mut self, part: Part) -> Option<()> {
        match part {
            Part::Handle => self.opaque(HANDLE_BYTES_MAX).map(drop),
            Part::Name => self.opaque(usize::MAX).map(drop),
            Part::Attributes => self.pass_attributes(),
        }
    }

    /// `sattr3`: mode, uid, gid, size, each if it is to be set; then two times, which follow only if they are the client's.
    fn pass_attributes(&mut self) -> Option<()> {
        for len in [4, 4, 4, 8] {
            match self.u32()? {
                0 => {}
                1 => self.skip(len)?,
                _ => return None,
            }
        }
        for _ in 0..2 {
            match self.u32()? {
                0 | 1 => {}
                2 => self.skip(8)?,
                _ => return None,
            }
        }
        Some(())
    }
}
