//! Decodes what a client sends once its session has begun.

use bytes::BytesMut;
use kernel::connection::{Decoder, Headers, Next};
use pgwire::messages::extendedquery::Parse;
use pgwire::messages::{DecodeContext, PgWireFrontendMessage};

use super::frequent::{Bind, Name, Named};
use super::refusal::{Refusal, SqlState};
use super::shape::{self, Misshapen};

/// Longest message, in bytes: far more than the arguments of a call may be. Longer ones are skipped and refused.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Nobody who speaks this protocol announces more (PostgreSQL's `PQ_LARGE_MESSAGE_LIMIT`).
const ANNOUNCED_BYTES_MAX: usize = 1 << 30;
/// Kind and length.
const HEADER_BYTES: usize = 5;
/// Memory for a message grows as it arrives, by this. Bytes.
const PIECE_BYTES: usize = 32 << 10;
/// Memory that is kept for the next message, at most: that of an ordinary call.
const BYTES_REUSED: usize = 512;

/// Small, since it is moved from hand to hand: a Bind by value was a third of a kilobyte, ten times for each message.
#[derive(Debug)]
pub enum Message {
    Query(String),
    Parse(Box<Parse>),
    Bind(Box<Bind>),
    Describe(Named),
    /// The portal's name.
    Execute(Name),
    Close(Named),
    Flush,
    Sync,
    Terminate,
    /// Without meaning now, and harmless.
    Ignored,
    /// Not of the protocol: the stream is unusable.
    Malformed,
    /// `of_simple`: in place of a [`Message::Query`].
    Refused {
        refusal: Box<Refusal>,
        of_simple: bool,
    },
}

/// A message, and how many bytes it had.
pub struct Call {
    pub message: Message,
    pub bytes: usize,
}

/// What was received of the next message.
#[derive(Default)]
pub struct Messages {
    message: Vec<u8>,
    /// Bytes of a message that is too long, still to be skipped.
    skipped: usize,
    /// Of that one.
    kind: u8,
}

impl Messages {
    /// Length of the message with its header, once that is known.
    fn announced(&self) -> Option<usize> {
        let header = self.message.get(..HEADER_BYTES)?;
        let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        Some(1 + len as usize)
    }

    /// The message, which is complete.
    fn take(&mut self) -> Next<Call> {
        let (kind, bytes) = (self.message[0], self.message.len());
        let next = match decoded(kind, &self.message) {
            Some(message) => Next::Call(Call { message, bytes }),
            None => malformed(),
        };
        self.message.clear();
        self.message.shrink_to(BYTES_REUSED);
        next
    }
}

/// A whole message. `None`: it is not of the protocol.
fn decoded(kind: u8, message: &[u8]) -> Option<Message> {
    match well_formed(kind, message) {
        Ok(message) => Some(message),
        Err(Misshapen::Malformed) => None,
        Err(Misshapen::NotUtf8) => {
            let refusal = Refusal::new(SqlState::INVALID_BYTES, "invalid byte sequence for encoding \"UTF8\"");
            Some(Message::Refused { refusal: Box::new(refusal), of_simple: kind == b'Q' })
        }
    }
}

fn well_formed(kind: u8, message: &[u8]) -> Result<Message, Misshapen> {
    let body = &message[HEADER_BYTES..];
    Ok(match kind {
        b'B' => Message::Bind(Box::new(Bind::decode(body)?)),
        b'D' => Message::Describe(Named::decode(body)?),
        b'E' => Message::Execute(Name::decode(body)?),
        b'C' => Message::Close(Named::decode(body)?),
        b'S' => shape::check(kind, body).map(|()| Message::Sync)?,
        _ => {
            shape::check(kind, body)?;
            match PgWireFrontendMessage::decode(&mut BytesMut::from(message), &context()) {
                Ok(Some(message)) => own(message),
                _ => return Err(Misshapen::Malformed),
            }
        }
    })
}

/// The client is told before the session ends.
fn malformed() -> Next<Call> {
    Next::Call(Call { message: Message::Malformed, bytes: 0 })
}

/// Of a session that has begun.
fn context() -> DecodeContext {
    let mut context = DecodeContext::default();
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = false;
    context
}

fn own(message: PgWireFrontendMessage) -> Message {
    match message {
        PgWireFrontendMessage::Query(query) => Message::Query(query.query),
        PgWireFrontendMessage::Parse(parse) => Message::Parse(Box::new(parse)),
        PgWireFrontendMessage::Flush(_) => Message::Flush,
        PgWireFrontendMessage::Terminate(_) => Message::Terminate,
        _ => Message::Ignored,
    }
}

impl Decoder for Messages {
    type Call = Call;

    fn next(&mut self) -> Next<Call> {
        if self.skipped > 0 {
            return Next::Skip(self.skipped);
        }
        if self.kind != 0 {
            let message = format!("a message is longer than {MESSAGE_BYTES_MAX} bytes");
            let refusal = Box::new(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
            let of_simple = std::mem::take(&mut self.kind) == b'Q';
            return Next::Call(Call { message: Message::Refused { refusal, of_simple }, bytes: 0 });
        }
        let Some(announced) = self.announced() else { return Next::Bytes(HEADER_BYTES - self.message.len()) };
        if !(HEADER_BYTES..=ANNOUNCED_BYTES_MAX).contains(&announced) {
            return malformed();
        }
        if announced > MESSAGE_BYTES_MAX {
            self.skipped = announced - HEADER_BYTES;
            self.kind = self.message[0].max(1);
            self.message = Vec::new();
            return Next::Skip(self.skipped);
        }
        match announced - self.message.len() {
            0 => self.take(),
            missing => Next::Bytes(missing),
        }
    }

    fn give(&mut self, most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let at = self.message.len();
        self.message.resize(at + most.min(PIECE_BYTES), 0);
        let count = source(&mut self.message[at..]);
        self.message.truncate(at + count);
        count
    }

    fn pass(&mut self, count: usize) {
        self.skipped -= count;
    }

    fn is_within_message(&self) -> bool {
        !self.message.is_empty() || self.kind != 0
    }

    fn has_payload(&self, _call: &Call) -> bool {
        false
    }

    fn headers(&self) -> Headers {
        Headers { first: HEADER_BYTES, each: HEADER_BYTES }
    }
}

/// Decodes a stream as a session would, for tests: how many messages of each outcome it holds. `cuts`: sizes of the
/// pieces in which it arrives, repeated; the result must not depend on them.
#[cfg(test)]
pub fn decode(stream: &[u8], cuts: &[usize]) -> (usize, usize, bool) {
    let mut messages = Messages::default();
    let (mut good, mut refused) = (0, 0);
    let (mut at, mut arrived) = (0, 0);
    let mut cuts = cuts.iter().copied().cycle();
    loop {
        let there = arrived - at;
        let used = match messages.next() {
            Next::Bytes(most) => messages.give(most, |to| {
                let len = to.len().min(there);
                to[..len].copy_from_slice(&stream[at..at + len]);
                len
            }),
            Next::Skip(most) => {
                messages.pass(most.min(there));
                most.min(there)
            }
            Next::Call(call) => {
                match call.message {
                    Message::Refused { .. } => refused += 1,
                    Message::Malformed => return (good, refused, true),
                    _ => good += 1,
                }
                continue;
            }
            Next::Malformed => return (good, refused, true),
        };
        at += used;
        assert!(messages.message.capacity() <= 2 * MESSAGE_BYTES_MAX, "memory for more than a message");
        if used == 0 {
            if arrived == stream.len() {
                return (good, refused, false);
            }
            arrived = (arrived + cuts.next().unwrap_or(usize::MAX).max(1)).min(stream.len());
        }
    }
}
