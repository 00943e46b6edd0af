//! File handles: what the server calls a file. Opaque, of at most 64 bytes.

use std::fmt;
use std::sync::Arc;

use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::Opaque;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(Arc<[u8]>);

impl Handle {
    pub fn new(bytes: &[u8]) -> Self {
        Handle(bytes.into())
    }

    /// As arguments have it.
    pub(crate) fn wire(&self) -> nfs_fh3 {
        nfs_fh3 { data: Opaque::owned(self.0.to_vec()) }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
