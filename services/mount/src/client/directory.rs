//! READDIR and READDIRPLUS.

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{NFS_PROGRAM as Nfs, READDIR3args, READDIRPLUS3args, cookieverf3};

use super::Server;
use crate::attributes::Attributes;
use crate::handle::Handle;
use crate::results::Results;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Asked for at a time: of the directory itself, and of the whole reply. Bytes.
const NAMES_BYTES: u32 = 16 << 10;
const REPLY_BYTES: u32 = 64 << 10;

/// An entry of a directory, with what READDIRPLUS says of it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub file_id: u64,
    pub name: Vec<u8>,
    /// Where the next one is found.
    pub cookie: u64,
    pub attributes: Option<Attributes>,
    pub handle: Option<Handle>,
}

/// A part of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub attributes: Option<Attributes>,
    pub verifier: [u8; 8],
    pub entries: Vec<Entry>,
    pub is_end: bool,
}

impl Server {
    /// The entries after `cookie`, with attributes and handles if `with_attributes`.
    pub(crate) async fn list(
        &self,
        cpu: &Processor,
        directory: &Handle,
        (cookie, verifier): (u64, [u8; 8]),
        with_attributes: bool,
    ) -> Result<Listing, Errno> {
        let (dir, cookieverf) = (directory.wire(), cookieverf3(verifier));
        if !with_attributes {
            let arguments = READDIR3args { dir, cookie, cookieverf, count: REPLY_BYTES };
            return Ok(self.ask(cpu, Nfs::NFSPROC3_READDIR, &arguments, |results| listing(results, false)).await?);
        }
        let arguments = READDIRPLUS3args { dir, cookie, cookieverf, dircount: NAMES_BYTES, maxcount: REPLY_BYTES };
        Ok(self.ask(cpu, Nfs::NFSPROC3_READDIRPLUS, &arguments, |results| listing(results, true)).await?)
    }
}

fn listing(results: &mut Results<'_>, with_attributes: bool) -> Option<Listing> {
    let (attributes, verifier) = (results.after()?, results.verifier()?);
    let mut entries = Vec::new();
    while results.boolean()? {
        let (file_id, name, cookie) = (results.u64()?, results.opaque(NAME_BYTES_MAX)?.to_vec(), results.u64()?);
        let (attributes, handle) =
            if with_attributes { (results.after()?, results.optional(Results::handle)?) } else { (None, None) };
        // Such a name would lead elsewhere.
        if !name.is_empty() && !name.contains(&b'/') && !name.contains(&0) {
            entries.push(Entry { file_id, name, cookie, attributes, handle });
        }
    }
    Some(Listing { attributes, verifier, entries, is_end: results.boolean()? })
}
