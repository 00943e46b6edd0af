//! What the kernel's connections ask of NFS.

use std::sync::Arc;

use kernel::connection::{Peer, Protocol, Session, Sessions};

use crate::nfs::Nfs;
use crate::transmission::{Calls, Procedures};

impl Protocol for Nfs {
    type Handler = Calls<Procedures>;

    const NAME: &'static str = "nfs";

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, peer: &Peer) -> Option<Calls<Procedures>> {
        Calls::new(self, session, peer, Procedures)
    }
}
