//! The fast path of the most frequent calls (OLTP-4): GETATTR of an open file and READ of cached data, while the known
//! attributes are valid.
//!
//! It calls nothing on the host, waits for nothing and starts nothing. Everything else, errors included, is left to the
//! general path.

use std::sync::Arc;

use kernel::Processor;
use kernel::connection::{Header, Holds, Outbound, Release, Reply};
use kernel::tree::Vnode;
use machine::tree::Node;
use nfs3_types::nfs3::{Nfs3Option, nfsstat3};
use nfs3_types::rpc::accept_stat;
use nfs3_types::xdr_codec::Pack;
use policy::unit::{ByteOffset, ByteRange};

use crate::attributes::fattr;
use crate::client::ClientAddress;
use crate::export::Export;
use crate::handle::LastHandle;
use crate::nfs::Nfs;
use crate::procedure::{available, may_surely_read, pack_read_head};
use crate::program::{Program, transfer_bytes_max};
use crate::rpc::{CallHead, accepted, append, finish};
use crate::shape::{Cursor, GETATTR, HANDLE_BYTES_MAX, READ};

pub(crate) fn is_hot(head: &CallHead) -> bool {
    head.program == Program::Nfs && matches!(head.procedure, GETATTR | READ)
}

/// The context of a caller.
pub(crate) struct Asker<'a> {
    pub(crate) cpu: &'a Processor,
    pub(crate) nfs: &'a Nfs,
    pub(crate) client: ClientAddress,
    pub(crate) outbound: &'a Outbound,
    pub(crate) last_handle: &'a LastHandle,
}

/// An open file, and the rest of a call on it.
struct Target<'a> {
    export: Arc<Export>,
    node: Node,
    file: Arc<Vnode>,
    /// The arguments after the handle.
    rest: Cursor<'a>,
}

impl Asker<'_> {
    /// The reply to a call, which is admitted; `None`: nothing was done.
    pub(crate) fn answer(&self, head: &CallHead, arguments: &[u8]) -> Option<Reply> {
        let target = self.find(arguments)?;
        match head.procedure {
            GETATTR => self.getattr(head, &target),
            READ => self.read(head, target),
            _ => None,
        }
    }

    fn find<'b>(&self, arguments: &'b [u8]) -> Option<Target<'b>> {
        let mut rest = Cursor(arguments);
        let handle = self.last_handle.open(self.nfs.key(), rest.opaque(HANDLE_BYTES_MAX)?)?;
        let export = self.nfs.find(handle.export)?;
        if export.admit(self.client).is_err() {
            return None;
        }
        let file = export.tree().open_file(handle.node)?;
        Some(Target { export, node: handle.node, file, rest })
    }

    fn getattr(&self, head: &CallHead, target: &Target<'_>) -> Option<Reply> {
        let attributes = target.file.fresh(self.cpu)?.attributes;
        let mut header = accepted(head.xid, accept_stat::SUCCESS);
        append(&mut header, |to| {
            nfsstat3::NFS3_OK.pack(to)?;
            fattr(&attributes, target.export.id()).pack(to).map(drop)
        })?;
        let release = self.admit(0, Holds::Nothing)?;
        Some(Reply { header: finish(header, 0), release, ..Reply::default() })
    }

    fn read(&self, head: &CallHead, mut target: Target<'_>) -> Option<Reply> {
        let (offset, count) = (ByteOffset(target.rest.u64()?), target.rest.u32()?);
        let count = u64::from(count.min(transfer_bytes_max(self.cpu.kernel())));
        let Target { export, node, file, .. } = target;
        let mut fresh = file.fresh(self.cpu)?;
        if !may_surely_read(self.cpu, &export, node, &fresh.attributes, &head.credentials) {
            return None;
        }
        let wanted = ByteRange { at: offset, len: available(fresh.attributes.size, offset, count) };
        if wanted.len == 0 || !self.outbound.admits_at_once(count, self.cpu.kernel().cache_blocks()) {
            return None;
        }
        let frames = fresh.try_read(self.cpu, wanted)?;
        // The end may have moved since.
        let attributes = fresh.attributes;
        let len = available(attributes.size, offset, wanted.len);
        let eof = offset.0.saturating_add(len) >= attributes.size;
        let padding = (len.next_multiple_of(4) - len) as usize;
        let mut header: Header = accepted(head.xid, accept_stat::SUCCESS);
        let attributes = Nfs3Option::Some(fattr(&attributes, export.id()));
        append(&mut header, |to| pack_read_head(to, attributes, len as u32, eof))?;
        if len == 0 {
            return None;
        }
        let header = finish(header, len as usize + padding);
        let release = self.admit(count, Holds::Frames)?;
        Some(Reply { header, frames, offset: offset.in_block(), len: len as usize, padding, release })
    }

    fn admit(&self, bytes: u64, holds: Holds) -> Option<Release> {
        if self.outbound.is_broken() || !self.outbound.admits_at_once(bytes, self.cpu.kernel().cache_blocks()) {
            return None;
        }
        self.cpu.count_request();
        self.outbound.begin(bytes, holds);
        Some(Release { requests: 1, bytes })
    }
}
