//! What the kernel's connections ask of terminals: the start of a session, then its messages.

use std::sync::Arc;

use kernel::connection::{Peer, Protocol, Session, Sessions};

use super::session::Conversation;
use super::startup::start;
use super::terminals::Terminals;

impl Protocol for Terminals {
    type Handler = Conversation;

    const NAME: &'static str = "postgres";

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Conversation> {
        let started = start(self, session).await?;
        Some(Conversation::new(session, started))
    }
}
