//! Validation of variable-length arguments. Every length is checked against the received bytes before decoding: the
//! decoder allocates by the stated length first.

use kernel::{FRAME_BYTES, Frames};
use nfs3_types::mount::MOUNT_PROGRAM;
use nfs3_types::nfs3::{NFS_PROGRAM, stable_how};
use nfs3_types::xdr_codec::Unpack;
use policy::unit::ByteOffset;

use crate::mount_list::LIST_BYTES_MAX;
use crate::program::{Program, TRANSFER_BYTES_MAX};

/// Longest file handle, in bytes (RFC 1813, section 2.4: `NFS3_FHSIZE`).
pub(crate) const HANDLE_BYTES_MAX: usize = 64;

pub(crate) const GETATTR: u32 = NFS_PROGRAM::NFSPROC3_GETATTR as u32;

pub(crate) const READ: u32 = NFS_PROGRAM::NFSPROC3_READ as u32;

pub(crate) const WRITE: u32 = NFS_PROGRAM::NFSPROC3_WRITE as u32;

#[derive(Clone, Copy)]
enum Part {
    Handle,
    /// A name or a path. The procedure checks its length.
    Name,
    Attributes,
}

/// The parts up to the last opaque, in order.
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

/// Are the variable-length parts within the arguments?
pub(crate) fn fits(program: Program, procedure: u32, arguments: &[u8]) -> bool {
    let mut at = Cursor(arguments);
    parts(program, procedure).iter().all(|part| at.pass(*part).is_some())
}

/// Bytes of data that the results may contain: the count of a READ or READDIR, limited to the maximum; a list of mounts.
pub(crate) fn results_bytes(program: Program, procedure: u32, arguments: &[u8]) -> u64 {
    if program == Program::Mount && procedure == MOUNT_PROGRAM::MOUNTPROC3_DUMP as u32 {
        return LIST_BYTES_MAX as u64;
    }
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

/// The result of parsing a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look<T> {
    Known(T),
    /// At least this many bytes are needed.
    More(usize),
    Malformed,
}

/// The arguments of a WRITE before its data, parsed once; the handle stays in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArguments {
    handle_len: usize,
    pub(crate) offset: ByteOffset,
    pub(crate) count: u32,
    pub(crate) stable: stable_how,
    /// Bytes of data on the wire; may differ from `count`.
    pub(crate) data_len: u32,
}

/// `offset`, `count` and `stable`. Bytes.
const AFTER_HANDLE_BYTES: usize = 16;

impl WriteArguments {
    /// Parses the start of a WRITE's arguments, up to the length of its data.
    pub(crate) fn look(arguments: &[u8]) -> Look<Self> {
        let len = match Cursor(arguments).u32() {
            None => 0,
            Some(len) if len as usize <= HANDLE_BYTES_MAX => len as usize,
            Some(_) => return Look::Malformed,
        };
        let needed = 4 + len.next_multiple_of(4) + AFTER_HANDLE_BYTES + 4;
        if arguments.len() < needed {
            return Look::More(needed);
        }
        Self::read(Cursor(arguments)).map_or(Look::Malformed, Look::Known)
    }

    fn read(mut at: Cursor<'_>) -> Option<Self> {
        let handle_len = at.opaque(HANDLE_BYTES_MAX)?.len();
        let (offset, count) = (ByteOffset(at.u64()?), at.u32()?);
        let stable = stable_how::unpack(&mut at.0).ok()?.0;
        Some(WriteArguments { handle_len, offset, count, stable, data_len: at.u32()? })
    }

    /// Their length in bytes, without the data's length.
    pub(crate) fn wire_len(&self) -> usize {
        4 + self.handle_len.next_multiple_of(4) + AFTER_HANDLE_BYTES
    }

    /// The handle, in the bytes from which this was parsed.
    pub(crate) fn handle<'a>(&self, arguments: &'a [u8]) -> &'a [u8] {
        &arguments[4..4 + self.handle_len]
    }

    /// Offset of the data in the first frame.
    pub(crate) fn start(&self) -> usize {
        self.offset.in_block()
    }
}

/// Data of a WRITE.
#[derive(Debug)]
pub struct Payload {
    pub(crate) write: WriteArguments,
    /// The first byte lies [here](WriteArguments::start) in the first frame.
    pub(crate) frames: Frames,
}

impl Payload {
    /// CRC-32 of the data: a tenth of a microsecond for 4 KiB that were just received (with carry-less multiplication).
    pub(crate) fn checksum(&self) -> u32 {
        let mut checksum = crc32fast::Hasher::new();
        let (mut start, mut left) = (self.write.start(), self.write.data_len as usize);
        for frame in &self.frames {
            let now = left.min(FRAME_BYTES - start);
            checksum.update(&frame.bytes()[start..start + now]);
            (start, left) = (0, left - now);
        }
        checksum.finalize()
    }
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

    /// `sattr3`: mode, uid, gid, size, each optional; then two times, which follow only if set by the client.
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

#[cfg(test)]
mod tests {
    use nfs3_types::nfs3::nfs_fh3;
    use nfs3_types::xdr_codec::Pack;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arguments_of_a_write_are_known_when_all_of_them_have_come(
            handle in prop::collection::vec(any::<u8>(), 0..=HANDLE_BYTES_MAX),
            cut in any::<usize>(),
        ) {
            let mut bytes = Vec::new();
            let file = nfs_fh3 { data: handle.clone().into() };
            file.pack(&mut bytes).and_then(|_| 7_u64.pack(&mut bytes)).and_then(|_| 8_u32.pack(&mut bytes)).expect("fits");
            stable_how::DATA_SYNC.pack(&mut bytes).and_then(|_| 9_u32.pack(&mut bytes)).expect("fits");
            let Look::Known(write) = WriteArguments::look(&bytes) else { panic!("all of them have come") };
            prop_assert_eq!((write.offset, write.count, write.stable), (ByteOffset(7), 8, stable_how::DATA_SYNC));
            prop_assert_eq!((write.data_len, write.wire_len()), (9, bytes.len() - 4));
            prop_assert_eq!(write.handle(&bytes), &handle[..]);
            let cut = cut % bytes.len();
            let Look::More(needed) = WriteArguments::look(&bytes[..cut]) else { panic!("some are missing") };
            prop_assert!(needed > cut && needed <= bytes.len());
            let stable = bytes.len() - 5;
            bytes[stable] = 3;
            prop_assert_eq!(WriteArguments::look(&bytes), Look::Malformed);
        }
    }

    #[test]
    fn results_count_as_what_they_may_hold() {
        let read = [&4_u32.to_be_bytes()[..], &[0; 4], &[0; 8], &70_000_u32.to_be_bytes()].concat();
        assert_eq!(results_bytes(Program::Nfs, READ, &read), 70_000);
        assert_eq!(results_bytes(Program::Nfs, GETATTR, &read[..8]), 0);
        assert_eq!(results_bytes(Program::Mount, MOUNT_PROGRAM::MOUNTPROC3_DUMP as u32, &[]), LIST_BYTES_MAX as u64);
    }

    #[test]
    fn a_handle_that_is_too_long_is_no_argument() {
        assert_eq!(WriteArguments::look(&65_u32.to_be_bytes()), Look::Malformed);
    }
}
