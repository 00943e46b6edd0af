//! READ, WRITE, COMMIT, READLINK.

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{COMMIT3args, NFS_PROGRAM as Nfs, READ3args, READLINK3args, stable_how};
use nfs3_types::xdr_codec::Pack;
use policy::unit::{ByteRange, Stability};

use super::{Server, take};
use crate::attributes::Change;
use crate::handle::Handle;
use crate::rpc::{Payload, packed};

/// Longest target of a symbolic link, in bytes (PATH_MAX).
const TARGET_BYTES_MAX: usize = 4096;

/// What WRITE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub change: Change,
    /// Bytes.
    pub count: u32,
    pub is_stable: bool,
    pub verifier: [u8; 8],
}

/// What READ says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// Bytes that went to the place.
    pub count: usize,
    pub is_end: bool,
}

impl Server {
    /// Reads from `range` into `place`, which has its length: fewer bytes at the end of the file, or as the server likes.
    pub(crate) async fn read(
        &self,
        cpu: &Processor,
        file: &Handle,
        range: ByteRange,
        place: Payload,
    ) -> Result<Read, Errno> {
        let arguments = READ3args { file: file.wire(), offset: range.at.0, count: range.len as u32 };
        let payload = Payload::default();
        let reply = self.reply(cpu, Nfs::NFSPROC3_READ, &packed(&arguments), &payload, Some(&place)).await?;
        let read = take(&reply, |results| {
            let (attributes, count, is_end) = (results.after()?, results.u32()? as usize, results.boolean()?);
            // A server may say so only of what ends there.
            let is_beyond = count == 0 && attributes.is_some_and(|attributes| attributes.size <= range.at.0);
            // What came is what counts.
            (count == reply.data).then_some(Read { count, is_end: is_end || is_beyond })
        });
        Ok(read?)
    }

    /// Writes `data`, which has the range's length; the server may take less.
    pub(crate) async fn write(
        &self,
        cpu: &Processor,
        file: &Handle,
        range: ByteRange,
        data: Payload,
        stability: Stability,
    ) -> Result<Written, Errno> {
        let stable = if stability == Stability::Stable { stable_how::FILE_SYNC } else { stable_how::UNSTABLE };
        let mut arguments = packed(&file.wire());
        arguments.extend_from_slice(&range.at.0.to_be_bytes());
        arguments.extend_from_slice(&(range.len as u32).to_be_bytes());
        // Into memory; see `packed`.
        let _ = stable.pack(&mut arguments);
        arguments.extend_from_slice(&(range.len as u32).to_be_bytes());
        let reply = self.reply(cpu, Nfs::NFSPROC3_WRITE, &arguments, &data, None).await?;
        let written = take(&reply, |results| {
            let (change, count) = (results.change()?, results.u32()?);
            // DATA_SYNC may have left out a new size.
            let is_stable = match results.u32()? {
                level if level == stable_how::FILE_SYNC as u32 => true,
                level if level <= stable_how::DATA_SYNC as u32 => false,
                _ => return None,
            };
            let verifier = results.verifier()?;
            let is_kept = is_stable || stability == Stability::Unstable;
            (u64::from(count) <= range.len && is_kept).then_some(Written { change, count, is_stable, verifier })
        });
        Ok(written?)
    }

    /// Makes all of a file that was written before durable. Returns the verifier.
    pub(crate) async fn commit(&self, cpu: &Processor, file: &Handle) -> Result<(Change, [u8; 8]), Errno> {
        let arguments = COMMIT3args { file: file.wire(), offset: 0, count: 0 };
        let results =
            self.ask(cpu, Nfs::NFSPROC3_COMMIT, &arguments, |results| Some((results.change()?, results.verifier()?)));
        Ok(results.await?)
    }

    pub async fn read_link(&self, cpu: &Processor, link: &Handle) -> Result<Vec<u8>, Errno> {
        let arguments = READLINK3args { symlink: link.wire() };
        let target = self.ask(cpu, Nfs::NFSPROC3_READLINK, &arguments, |results| {
            results.after()?;
            results.opaque(TARGET_BYTES_MAX).map(<[u8]>::to_vec)
        });
        Ok(target.await?)
    }
}
