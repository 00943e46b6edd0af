//! The calls that come most often, answered before the general path where the caches have it all (OLTP-4): GETATTR of an
//! open file and READ of what is cached, both while what the host said is fresh.
//!
//! Nothing is asked for, waited for or started here. Whatever is not plainly in order is left to the general path, which
//! finds out what to say of it.

use std::sync::Arc;

use kernel::Processor;
use kernel::connection::{Header, Keeps, Outbound, Release, Reply};
use kernel::tree::Vnode;
use machine::tree::Node;
use nfs3_types::nfs3::{Nfs3Option, nfsstat3};
use nfs3_types::rpc::accept_stat;
use nfs3_types::xdr_codec::Pack;
use policy::unit::ByteRange;

use crate::attributes::fattr;
use crate::call::{ClientAddress, Program, transfer_bytes_max};
use crate::export::Export;
use crate::handle::Handle;
use crate::procedure::{available, may_surely_read, pack_read_head};
use crate::rpc::{CallHead, accepted, finish};
use crate::server::Server;
use crate::shape::{Cursor, GETATTR, HANDLE_BYTES_MAX, READ};

/// Is it one of these calls?
pub(crate) fn is_hot(head: &CallHead) -> bool {
    head.program == Program::Nfs && matches!(head.procedure, GETATTR | READ)
}

/// For whom calls are answered.
pub(crate) struct Asker<'a> {
    pub(crate) cpu: &'a Processor,
    pub(crate) server: &'a Server,
    pub(crate) client: ClientAddress,
    pub(crate) outbound: &'a Outbound,
}

/// An open file, and what was asked of it.
struct Target<'a> {
    export: Arc<Export>,
    node: Node,
    file: Arc<Vnode>,
    /// The arguments after the handle.
    rest: Cursor<'a>,
}

impl Asker<'_> {
    /// The reply to a call, which counts as under way from now on; `None`: nothing was done.
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
        let handle = Handle::open(self.server.key(), rest.opaque(HANDLE_BYTES_MAX)?)?;
        let export = self.server.find(handle.export)?;
        if export.admit(self.client).is_err() {
            return None;
        }
        let file = export.tree().open_file(handle.node)?;
        Some(Target { export, node: handle.node, file, rest })
    }

    fn getattr(&self, head: &CallHead, target: &Target<'_>) -> Option<Reply> {
        let attributes = target.file.fresh_attributes(self.cpu)?;
        let mut header = accepted(head.xid, accept_stat::SUCCESS);
        nfsstat3::NFS3_OK.pack(&mut header).ok()?;
        fattr(&attributes, target.export.id()).pack(&mut header).ok()?;
        let release = self.admit(0, Keeps::Nothing)?;
        Some(Reply { header: finish(header, 0), release, ..Reply::default() })
    }

    fn read(&self, head: &CallHead, mut target: Target<'_>) -> Option<Reply> {
        let (offset, count) = (target.rest.u64()?, target.rest.u32()?);
        let count = u64::from(count.min(transfer_bytes_max(self.cpu.kernel())));
        let Target { export, node, file, .. } = target;
        let attributes = file.fresh_attributes(self.cpu)?;
        if !may_surely_read(self.cpu, &export, node, &attributes, &head.credentials) {
            return None;
        }
        let wanted = ByteRange::new(offset, available(attributes.size, offset, count));
        if wanted.len == 0 || !self.outbound.admits_at_once(count, self.cpu.kernel().cache_blocks()) {
            return None;
        }
        let frames = file.try_read(self.cpu, wanted)?;
        // The end may have moved since.
        let attributes = file.attributes();
        let len = available(attributes.size, offset, wanted.len);
        let eof = offset.saturating_add(len) >= attributes.size;
        let padding = (len.next_multiple_of(4) - len) as usize;
        let mut header: Header = accepted(head.xid, accept_stat::SUCCESS);
        let attributes = Nfs3Option::Some(fattr(&attributes, export.id()));
        pack_read_head(&mut header, attributes, len as u32, eof).ok()?;
        if len == 0 {
            return None;
        }
        let header = finish(header, len as usize + padding);
        let offset = (offset % kernel::FRAME_BYTES as u64) as usize;
        let release = self.admit(count, Keeps::Frames)?;
        Some(Reply { header, frames, offset, len: len as usize, padding, release })
    }

    fn admit(&self, bytes: u64, keeps: Keeps) -> Option<Release> {
        if self.outbound.is_broken() || !self.outbound.admits_at_once(bytes, self.cpu.kernel().cache_blocks()) {
            return None;
        }
        self.cpu.count_request();
        self.outbound.begin(bytes, keeps);
        Some(Release { requests: 1, bytes })
    }
}
