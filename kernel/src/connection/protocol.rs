//! What a service implements: sessions, and executing the calls of its clients.

use std::convert::Infallible;
use std::sync::Arc;

use machine::Connection;

use super::{Decoder, Inbound, Peer, Session, Sessions, Step};
use crate::Processor;
use crate::counters::Activity;
use crate::processor::Timed;

pub trait Protocol: Send + Sync + 'static {
    /// For one session. [`Infallible`]: there are no calls.
    type Handler: Handler;

    const NAME: &'static str;

    /// Of the tasks that serve it.
    const ACTIVITY: Activity = Activity::Service;

    fn sessions(&self) -> &Arc<Sessions>;

    /// The handshake before the first call. `None`: the client disconnected, was refused, or needs no calls.
    fn open(self: &Arc<Self>, session: &Session, peer: &Peer) -> impl Future<Output = Option<Self::Handler>>;

    /// Tells a client that there are too many, where the protocol has words for it. The connection is shut down if that
    /// takes long.
    fn turn_away(self: Arc<Self>, _cpu: Processor, _connection: Connection) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Executes the calls of one client.
pub trait Handler {
    type Decoder: Decoder;

    fn decoder(&self) -> Self::Decoder;

    /// Executes a call, or starts a task that does. A payload that follows it must be [received](Inbound::payload) or
    /// [skipped](Inbound::skip) first.
    fn call(
        &mut self,
        call: <Self::Decoder as Decoder>::Call,
        inbound: &mut Inbound<'_, Self::Decoder>,
    ) -> impl Future<Output = Step>;

    /// Before each wait for the next call and each yield; perhaps with none since the last. Not where a session ends
    /// otherwise: what is left then counts as lost with the connection.
    fn end_batch(&mut self, session: &Session) {
        let _ = session;
    }
}

/// The result of trying to answer a call at once from memory (OLTP-4).
pub enum FastPath {
    /// Its reply is queued.
    Answered,
    /// Nothing was done, except that its start may have been recorded: the general path must execute it.
    Missed(Option<Timed>),
}

/// For a protocol without calls.
impl Handler for Infallible {
    type Decoder = Infallible;

    fn decoder(&self) -> Infallible {
        match *self {}
    }

    async fn call(&mut self, call: Infallible, _inbound: &mut Inbound<'_, Infallible>) -> Step {
        match call {}
    }
}
