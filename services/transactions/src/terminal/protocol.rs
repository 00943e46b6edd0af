//! What the kernel's connections ask of terminals: the start of a session, then its messages.

use std::sync::Arc;

use kernel::Processor;
use kernel::connection::{Peer, Protocol, Session, Sessions};
use kernel::counters::Activity;
use machine::Connection;

use super::session::Conversation;
use super::startup::{Line, start, turn_away};
use super::terminals::Terminals;

impl Protocol for Terminals {
    type Handler = Conversation;

    const NAME: &'static str = "postgres";
    const ACTIVITY: Activity = Activity::Monitor;

    fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    async fn open(self: &Arc<Self>, session: &Session, _peer: &Peer) -> Option<Conversation> {
        let started = start(self, session).await?;
        Some(Conversation::new(session, started, &self.budgets))
    }

    async fn turn_away(self: Arc<Self>, cpu: Processor, connection: Connection) {
        turn_away(&self, Line(&cpu, connection)).await;
    }
}
