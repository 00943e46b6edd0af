//! What a service implements: decoding the calls of its clients.

use std::convert::Infallible;
use std::ops::ControlFlow;

use super::Headers;

/// Decodes the stream of one client. Owns neither the connection nor a clock: bytes in, calls out.
pub trait Decoder {
    type Call;

    fn next(&mut self) -> Next<Self::Call>;

    /// Accepts up to `most` bytes, the number of [`Next::Bytes`], from `source`, which fills its argument from the
    /// start and returns the number of bytes. Returns the same.
    fn give(&mut self, most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize;

    /// `count` bytes of a payload, or of a [`Next::Skip`], have passed.
    fn pass(&mut self, count: usize) {
        let _ = count;
    }

    /// Is a message incomplete?
    fn is_within_message(&self) -> bool;

    /// Does the payload of a write follow, in one piece?
    fn has_payload(&self, call: &Self::Call) -> bool;

    /// The header bytes before the payloads of the next writes.
    fn headers(&self) -> Headers;
}

/// The decoder's next need or result.
#[derive(Debug)]
pub enum Next<C> {
    /// Needs at most this many bytes, by [`Decoder::give`].
    Bytes(usize),
    /// Needs this many bytes skipped; then [`Decoder::pass`].
    Skip(usize),
    Call(C),
    /// Not a message of the protocol: the stream is unusable.
    Malformed,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client disconnected or announced it, or accepts no replies; or the sessions are stopping.
    Closed,
    /// The client violated the protocol.
    Malformed,
}

/// Continues with a value, or ends the session.
pub type Step<T = ()> = ControlFlow<End, T>;

/// For a protocol without calls.
impl Decoder for Infallible {
    type Call = Infallible;

    fn next(&mut self) -> Next<Infallible> {
        match *self {}
    }

    fn give(&mut self, _most: usize, _source: impl FnOnce(&mut [u8]) -> usize) -> usize {
        match *self {}
    }

    fn is_within_message(&self) -> bool {
        match *self {}
    }

    fn has_payload(&self, call: &Infallible) -> bool {
        match *call {}
    }

    fn headers(&self) -> Headers {
        match *self {}
    }
}
