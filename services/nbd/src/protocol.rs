//! What the kernel's connections ask of NBD: the handshake, then the transmission phase.

use std::sync::Arc;

use kernel::connection::{Peer, Protocol, Session, Sessions};

use crate::export::Nbd;
use crate::negotiate::negotiate;
use crate::transmission::Transmission;

impl Protocol for Nbd {
    type Handler = Transmission;

    const NAME: &'static str = "nbd";

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Transmission> {
        let negotiated = negotiate(self, session).await?;
        Some(Transmission::new(session, negotiated))
    }
}
