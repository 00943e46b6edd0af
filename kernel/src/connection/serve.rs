//! Serves one client with its protocol.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use machine::Connection;

use super::{End, Handler, Inbound, Introduction, Peer, Protocol, Session, Step};
use crate::Processor;

/// Serves a client on this processor until it disconnects or the sessions end, then closes its connection. The work is
/// charged to the job of the task ([`Processor::spawn_for`]).
pub(super) async fn serve<P: Protocol>(protocol: Arc<P>, cpu: Processor, connection: Connection, peer: Peer) {
    cpu.work_as(P::ACTIVITY);
    let session = Session::begin(&cpu, connection, protocol.sessions());
    session.set_handshake(true);
    let handler = protocol.open(&session, &peer).await;
    session.set_handshake(false);
    if let Some(mut handler) = handler {
        let mut inbound = Inbound::new(&session, handler.decoder());
        let end = calls(&mut inbound, &mut handler).await;
        session.end_batch();
        if end == End::Malformed {
            session.note_malformed();
        }
        // In any case, requests in flight are finished first.
        session.outbound().until_idle().await;
    }
    session.end();
}

/// Speaks `protocol` on a connection that this processor made, until it ends. `name`: the peer's, for people.
pub async fn converse<P: Protocol>(protocol: Arc<P>, cpu: Processor, connection: Connection, name: String) {
    let introduction = Introduction { protocol: P::NAME, client: name, at: Instant::now() };
    cpu.kernel().connections().introduce(connection, introduction);
    serve(protocol, cpu, connection, Peer::default()).await;
}

/// Executes calls until the session ends.
async fn calls<H: Handler>(inbound: &mut Inbound<'_, H::Decoder>, handler: &mut H) -> End {
    let outbound = Rc::clone(inbound.session().outbound());
    while !outbound.is_broken() {
        let next = match inbound.next_received() {
            Ok(next) => next,
            Err(holds) => {
                handler.end_batch(inbound.session());
                inbound.next_after(holds).await
            }
        };
        let step = match next {
            Step::Continue(call) => {
                if inbound.is_yield_due() {
                    handler.end_batch(inbound.session());
                    inbound.yield_now().await;
                }
                handler.call(call, inbound).await
            }
            Step::Break(end) => Step::Break(end),
        };
        if let Step::Break(end) = step {
            return end;
        }
    }
    End::Closed
}
