//! The transmission phase: receiving requests.
//!
//! At shutdown, a request that was not begun gets no reply, instead of `NBD_ESHUTDOWN`: a client that reconnects
//! (nbd.ko, QEMU) resends unanswered requests, so a restart goes unnoticed; an error reply it would pass on to its
//! users.

use std::rc::Rc;

use kernel::connection::{End, FastPath, FixedHeader, Handler, Headerwise, Holds, Inbound, Release, Session, Step};

use crate::command::{Commands, Verdict};
use crate::negotiate::Negotiated;
use crate::proto::{REQUEST_BYTES, Request, cmd};
use crate::refusal::Refusal;

/// The payload of a WRITE is left to the handler.
pub type Requests = Headerwise<Request, REQUEST_BYTES>;

impl FixedHeader<REQUEST_BYTES> for Request {
    fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        Request::decode(bytes)
    }

    fn has_payload(&self) -> bool {
        self.kind == cmd::WRITE
    }
}

pub struct Transmission {
    commands: Rc<Commands>,
}

impl Transmission {
    pub(crate) fn new(session: &Session, negotiated: Negotiated) -> Self {
        Transmission { commands: Rc::new(Commands::new(session, negotiated)) }
    }

    /// Receives a write's payload and writes it, piece by piece.
    async fn write(&self, request: &Request, release: Release, inbound: &mut Inbound<'_, Requests>) -> Step {
        let mut write = self.commands.begin_write(request, release);
        for piece in self.commands.pieces(request) {
            let (offset, len) = (piece.at.in_block(), piece.len as usize);
            let mut permit = None;
            if !self.commands.is_whole_blocks(piece) {
                permit = Some(inbound.edge_permit(offset, len).await);
            }
            inbound.restart_timeout();
            match inbound.payload(offset, len).await {
                Step::Continue(frames) => write.piece(piece, frames, permit).await,
                Step::Break(end) => {
                    // The client disconnected within the payload: there is no reply.
                    inbound.session().outbound().release(release);
                    return Step::Break(end);
                }
            }
        }
        Step::Continue(())
    }
}

impl Handler for Transmission {
    type Decoder = Requests;

    fn decoder(&self) -> Requests {
        Requests::default()
    }

    async fn call(&mut self, request: Request, inbound: &mut Inbound<'_, Requests>) -> Step {
        let (commands, session) = (&self.commands, inbound.session());
        let began = match commands.answer_fast(&request, session).await {
            FastPath::Answered => return Step::Continue(()),
            FastPath::Missed(began) => began,
        };
        session.end_batch();
        if request.kind == cmd::DISC {
            return Step::Break(End::Closed);
        }
        let verdict = commands.check(&request);
        let holds = if request.kind == cmd::READ { Holds::Frames } else { Holds::Nothing };
        let release = inbound.admit(commands.payload_under_way(&request), holds).await;
        let is_durable = request.kind == cmd::FLUSH || request.flags & cmd::FLAG_FUA != 0;
        match verdict {
            Verdict::Refuse(refusal) => {
                let began = began.unwrap_or_else(|| commands.begin(&request));
                let is_write = request.kind == cmd::WRITE;
                let skipped = if is_write { inbound.skip(request.len as usize).await } else { Step::Continue(()) };
                commands.refuse(&request, refusal, release, began);
                skipped
            }
            Verdict::Disconnect => {
                commands.refuse(&request, Refusal::PayloadTooLong, release, commands.begin(&request));
                Step::Break(End::Malformed)
            }
            Verdict::Do if request.kind == cmd::WRITE && request.len > 0 => {
                let written = self.write(&request, release, inbound).await;
                if is_durable {
                    inbound.acknowledge();
                }
                written
            }
            Verdict::Do => {
                if is_durable {
                    inbound.acknowledge();
                }
                commands.start(&request, release, began).await;
                Step::Continue(())
            }
        }
    }
}
