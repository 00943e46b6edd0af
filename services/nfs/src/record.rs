//! Records of the stream: marks and fragments (RFC 5531, section 11), and the messages in them.
//!
//! A record is decoded as it arrives, so that the data of a WRITE can be placed before all of it has arrived. The state
//! here determines what is needed next; the caller provides the bytes.

use std::ops::ControlFlow;

use kernel::connection::{Decoder, Header, Headers, Next};
use nfs3_types::rpc::{accept_stat, fragment_header};

use crate::client::Credentials;
use crate::procedure::decode_arguments;
use crate::program::{Program, TRANSFER_BYTES_MAX};
use crate::rpc::{CALL_BYTES_MIN, CallHead, HEAD_BYTES_MIN, Parsed, parse, refusal};
use crate::shape::{self, Look, WRITE, WriteArguments};

/// Longest head of a WRITE: the call and all arguments but the data. Bytes.
const HEAD_BYTES_MAX: usize = 4096;

/// Longest record, in bytes: the largest WRITE. Clients that exceed it are disconnected.
pub(crate) const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + HEAD_BYTES_MAX;

/// Longest record of any other call, in bytes: more than a SYMLINK with the longest path that a host accepts. Longer
/// ones are refused with `GARBAGE_ARGS`.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Empty fragments in one record, besides the last. They make no progress.
pub(crate) const EMPTY_FRAGMENTS_MAX: usize = 16;

/// Bytes of a mark, and minimum of a receive.
const MARK_BYTES: usize = 4;

/// A decoded message or part of one.
#[derive(Debug)]
pub enum Message {
    /// A call without data, and its arguments.
    Call(CallHead, Vec<u8>),
    /// A WRITE whose data follows; its arguments up to `stable`. `whole`: is the data in one fragment?
    Write { head: CallHead, arguments: Vec<u8>, write: WriteArguments, whole: bool },
    /// This many bytes of data follow in one piece; then [`Decoder::pass`].
    Data(usize),
    /// The WRITE's data is complete.
    DataEnd,
    /// The call is to be answered with this reply. Data received for it is invalid.
    Refuse(Header),
}

/// Progress within a record.
enum Stage {
    Head,
    /// The arguments of a WRITE are arriving.
    Write(CallHead),
    /// The rest of the record are arguments.
    Arguments(CallHead),
    /// `left` bytes of data are missing.
    Data {
        xid: u32,
        left: usize,
    },
    Rest,
}

/// The decoder of one connection.
pub struct Incoming {
    /// Replaces the credentials of all calls, if the host reports the client's user.
    credentials: Option<Credentials>,
    mark: [u8; MARK_BYTES],
    mark_there: usize,
    /// Bytes of the fragment that have not arrived.
    left: usize,
    /// Is the fragment the record's last?
    last: bool,
    empty_fragments: usize,
    /// Bytes of the record in its fragments so far, without marks.
    announced: usize,
    /// Bytes of the record received, with marks.
    taken: usize,
    /// The record's bytes up to the data.
    message: Vec<u8>,
    stage: Stage,
    malformed: bool,
    /// Length of the last WRITE up to its data, with the mark, and its padding: a prediction for the next one. Bytes.
    head_bytes: usize,
    padding: usize,
}

impl Incoming {
    /// At the start of a stream.
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        Incoming {
            credentials,
            mark: [0; MARK_BYTES],
            mark_there: 0,
            left: 0,
            last: false,
            empty_fragments: 0,
            announced: 0,
            taken: 0,
            message: Vec::new(),
            stage: Stage::Head,
            malformed: false,
            head_bytes: 0,
            padding: 0,
        }
    }

    /// Returns memory of arguments, or of a message, for reuse.
    pub(crate) fn reuse(&mut self, mut arguments: Vec<u8>) {
        if self.message.capacity() == 0 {
            arguments.clear();
            self.message = arguments;
        }
    }

    fn begin_fragment(&mut self) {
        let mark = fragment_header::from(self.mark);
        self.mark_there = 0;
        self.left = mark.fragment_length() as usize;
        self.last = mark.eof();
        self.announced = self.announced.saturating_add(self.left);
        self.empty_fragments += usize::from(self.left == 0 && !self.last);
        self.malformed = self.announced > RECORD_BYTES_MAX || self.empty_fragments > EMPTY_FRAGMENTS_MAX;
    }

    /// Decodes as far as possible. Returns the number of bytes needed next, or a result.
    fn advance(&mut self) -> ControlFlow<Next<Message>, usize> {
        if matches!(self.stage, Stage::Head) && self.taken > 0 {
            match parse(&self.message) {
                Parsed::More(needed) => {
                    return ControlFlow::Continue(needed.max(HEAD_BYTES_MIN) - self.message.len());
                }
                Parsed::NoCall => {
                    self.malformed = true;
                    return ControlFlow::Break(Next::Malformed);
                }
                Parsed::Refused(reply) => {
                    self.stage = Stage::Rest;
                    return ControlFlow::Break(Next::Call(Message::Refuse(reply)));
                }
                Parsed::Call(head) => self.stage = self.stage_of(head),
            }
        }
        match self.stage {
            Stage::Write(ref head) => match WriteArguments::look(&self.message[head.len..]) {
                Look::More(needed) => ControlFlow::Continue(head.len + needed - self.message.len()),
                Look::Known(write) => ControlFlow::Break(self.begin_data(write)),
                Look::Malformed => ControlFlow::Break(self.refuse(head.xid)),
            },
            Stage::Arguments(ref head) if self.announced > MESSAGE_BYTES_MAX => {
                ControlFlow::Break(self.refuse(head.xid))
            }
            Stage::Data { left: 0, .. } => {
                self.stage = Stage::Rest;
                ControlFlow::Break(Next::Call(Message::DataEnd))
            }
            Stage::Data { left, .. } => ControlFlow::Continue(left),
            Stage::Head | Stage::Arguments(_) | Stage::Rest => ControlFlow::Continue(usize::MAX),
        }
    }

    fn stage_of(&self, mut head: CallHead) -> Stage {
        if let Some(credentials) = &self.credentials {
            head.credentials.clone_from(credentials);
        }
        let is_write = (head.program, head.procedure) == (Program::Nfs, WRITE);
        if is_write { Stage::Write(head) } else { Stage::Arguments(head) }
    }

    /// The arguments of a WRITE are complete; its data follows.
    fn begin_data(&mut self, write: WriteArguments) -> Next<Message> {
        let Stage::Write(head) = std::mem::replace(&mut self.stage, Stage::Rest) else { return Next::Malformed };
        let len = write.data_len as usize;
        let padded = len.next_multiple_of(4);
        if write.data_len > TRANSFER_BYTES_MAX || (self.last && padded > self.left) {
            return garbage(head.xid);
        }
        self.stage = Stage::Data { xid: head.xid, left: len };
        self.message.truncate(head.len + write.wire_len());
        let arguments = self.message.split_off(head.len);
        let whole = len <= self.left;
        if whole {
            (self.head_bytes, self.padding) = (self.taken, padded - len);
        }
        Next::Call(Message::Write { head, arguments, write, whole })
    }

    fn end_record(&mut self) -> Option<Next<Message>> {
        let message = std::mem::take(&mut self.message);
        let stage = std::mem::replace(&mut self.stage, Stage::Head);
        (self.last, self.empty_fragments, self.announced, self.taken) = (false, 0, 0, 0);
        match stage {
            Stage::Head if message.len() < CALL_BYTES_MIN => {
                self.malformed = true;
                Some(Next::Malformed)
            }
            Stage::Head => Some(garbage(crate::rpc::xid(&message))),
            Stage::Arguments(head) => {
                let mut arguments = message;
                arguments.drain(..head.len);
                if shape::fits(head.program, head.procedure, &arguments) {
                    Some(Next::Call(Message::Call(head, arguments)))
                } else {
                    Some(garbage(head.xid))
                }
            }
            Stage::Write(CallHead { xid, .. }) | Stage::Data { xid, .. } => Some(garbage(xid)),
            Stage::Rest => {
                self.reuse(message);
                None
            }
        }
    }

    /// The arguments are malformed; the rest of the record is skipped.
    fn refuse(&mut self, xid: u32) -> Next<Message> {
        self.stage = Stage::Rest;
        garbage(xid)
    }
}

/// The arguments of a call are malformed.
fn garbage(xid: u32) -> Next<Message> {
    Next::Call(Message::Refuse(refusal(xid, accept_stat::GARBAGE_ARGS)))
}

impl Decoder for Incoming {
    type Call = Message;

    fn next(&mut self) -> Next<Message> {
        loop {
            if self.malformed {
                return Next::Malformed;
            }
            let wanted = match self.advance() {
                ControlFlow::Continue(wanted) => wanted,
                ControlFlow::Break(next) => return next,
            };
            if self.left > 0 {
                let count = wanted.min(self.left);
                return match self.stage {
                    Stage::Head | Stage::Write(_) | Stage::Arguments(_) => Next::Bytes(count),
                    Stage::Data { .. } => Next::Call(Message::Data(count)),
                    Stage::Rest => Next::Skip(count),
                };
            }
            if !self.last {
                return Next::Bytes(MARK_BYTES - self.mark_there);
            }
            if let Some(next) = self.end_record() {
                return next;
            }
        }
    }

    fn give(&mut self, most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let count;
        if self.left == 0 {
            count = source(&mut self.mark[self.mark_there..]);
            self.mark_there += count;
            if self.mark_there == MARK_BYTES {
                self.begin_fragment();
            }
        } else {
            let at = self.message.len();
            self.message.resize(at + most.min(self.left), 0);
            count = source(&mut self.message[at..]);
            self.message.truncate(at + count);
            self.left -= count;
        }
        self.taken += count;
        count
    }

    fn pass(&mut self, count: usize) {
        self.left -= count;
        self.taken += count;
        if let Stage::Data { left, .. } = &mut self.stage {
            *left -= count;
        }
    }

    fn is_within_message(&self) -> bool {
        self.taken > 0
    }

    fn has_payload(&self, message: &Message) -> bool {
        match message {
            Message::Write { whole, .. } => *whole,
            Message::Data(_) | Message::DataEnd => true,
            Message::Call(..) | Message::Refuse(_) => false,
        }
    }

    fn headers(&self) -> Headers {
        let first = match self.stage {
            Stage::Data { .. } => self.padding + self.head_bytes,
            Stage::Rest => self.left + self.head_bytes,
            Stage::Head | Stage::Write(_) | Stage::Arguments(_) => self.head_bytes.saturating_sub(self.taken),
        };
        Headers { first: first.max(MARK_BYTES), each: self.padding + self.head_bytes }
    }
}

/// Counts of a decoded stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Calls to be executed.
    pub calls: usize,
    /// Those with well-formed arguments.
    pub understood: usize,
    /// Calls refused by the decoder.
    pub refused: usize,
    /// Bytes of WRITEs' data.
    pub data: usize,
    /// Did it end because it is not a stream of calls?
    pub malformed: bool,
}

/// Decodes a stream as a connection would, without executing calls, for fuzzing. `cuts`: sizes of the pieces in which
/// it arrives, repeated; the result must not depend on them.
pub fn decode(stream: &[u8], cuts: &[usize]) -> Decoded {
    let mut incoming = Incoming::new(None);
    let mut decoded = Decoded::default();
    let mut cuts = cuts.iter().copied().cycle();
    let (mut at, mut arrived) = (0, 0);
    loop {
        let there = arrived - at;
        let used = match incoming.next() {
            Next::Bytes(most) => incoming.give(most, |to| {
                let len = to.len().min(there);
                to[..len].copy_from_slice(&stream[at..at + len]);
                len
            }),
            Next::Skip(most) => {
                incoming.pass(most.min(there));
                most.min(there)
            }
            Next::Call(Message::Data(most)) => {
                decoded.data += most.min(there);
                incoming.pass(most.min(there));
                most.min(there)
            }
            Next::Call(Message::Call(head, arguments)) => {
                decoded.calls += 1;
                decoded.understood += usize::from(decode_arguments(head.program, head.procedure, &arguments));
                continue;
            }
            Next::Call(Message::Write { .. }) => continue,
            Next::Call(Message::DataEnd) => {
                decoded.calls += 1;
                decoded.understood += 1;
                continue;
            }
            Next::Call(Message::Refuse(_)) => {
                decoded.refused += 1;
                continue;
            }
            Next::Malformed => return Decoded { malformed: true, ..decoded },
        };
        at += used;
        assert!(incoming.message.len() <= MESSAGE_BYTES_MAX, "more is buffered than a message may be long");
        if used == 0 {
            if arrived == stream.len() {
                return decoded;
            }
            arrived = (arrived + cuts.next().unwrap_or(usize::MAX).max(1)).min(stream.len());
        }
    }
}
