//! Records of the stream: marks and fragments (RFC 5531, section 11), and what each record holds.
//!
//! A record is looked at as it arrives, so that the data of a WRITE can go to its place before all of it is there. The
//! state here knows what comes next and how much of it; whoever has the bytes gives them.

use std::ops::ControlFlow;

use kernel::connection::Header;
use nfs3_types::rpc::{accept_stat, fragment_header};

use crate::call::{Program, TRANSFER_BYTES_MAX};
use crate::procedure::decode_arguments;
use crate::rpc::{CALL_BYTES_MIN, CallHead, HEAD_BYTES_MIN, Parsed, parse, refusal};
use crate::shape::{self, WRITE, WriteShape};

/// Longest head of a WRITE: the call and all its arguments but the data. Bytes.
const HEAD_BYTES_MAX: usize = 4096;

/// Longest record, in bytes: the largest WRITE. Who sends more is disconnected.
pub(crate) const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + HEAD_BYTES_MAX;

/// Longest record of any other call, in bytes: a SYMLINK with the longest path that a host takes, and more. Longer ones are
/// refused with `GARBAGE_ARGS`.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Fragments without bytes in one record, besides the last. They bring nothing on.
pub(crate) const EMPTY_FRAGMENTS_MAX: usize = 16;

/// Bytes of a mark.
const MARK_BYTES: usize = 4;

/// What comes next, or has come.
#[derive(Debug)]
pub(crate) enum Next {
    /// Up to so many bytes are to be [given](Incoming::give).
    Bytes(usize),
    /// A call that has no data. Its arguments.
    Call(CallHead, Vec<u8>),
    /// A WRITE of which the data comes next; its arguments up to `stable`. Is the data in one piece?
    Write { head: CallHead, arguments: Vec<u8>, shape: WriteShape, whole: bool },
    /// So many bytes of data come next in one piece; then [`Incoming::pass`].
    Data(usize),
    /// The WRITE's data is complete.
    DataEnd,
    /// The call is answered with this reply, and done. If data was on its way, it does not count.
    Refuse(Header),
    /// So many bytes come next that nobody needs; then [`Incoming::pass`].
    Skip(usize),
    /// What came is no call: there is no way to go on.
    Broken,
}

/// How far the record has come.
enum Stage {
    Head,
    /// The rest of it are arguments.
    Arguments(CallHead),
    /// So much data is missing of a call with this `xid`.
    Data {
        xid: u32,
        left: usize,
    },
    Rest,
}

/// What comes in on one connection.
pub(crate) struct Incoming {
    mark: [u8; MARK_BYTES],
    mark_there: usize,
    /// Bytes of the fragment that have not come.
    left: usize,
    /// Is the fragment the record's last?
    last: bool,
    empty_fragments: usize,
    /// Bytes of the record, marks not counted, as far as they were announced.
    announced: usize,
    /// Bytes of the record that have come, marks counted.
    taken: usize,
    /// The record's first bytes, up to the data.
    message: Vec<u8>,
    stage: Stage,
    broken: bool,
}

impl Incoming {
    /// At the beginning of a stream.
    pub(crate) fn new() -> Self {
        Incoming {
            mark: [0; MARK_BYTES],
            mark_there: 0,
            left: 0,
            last: false,
            empty_fragments: 0,
            announced: 0,
            taken: 0,
            message: Vec::new(),
            stage: Stage::Head,
            broken: false,
        }
    }

    /// Bytes of the record that has begun, marks counted; 0 between two records.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Bytes that are left of the record's last fragment, as far as that is known.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Is only the end of the record missing, which nobody needs?
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Rest)
    }

    /// Memory of arguments that are done with, for the next record.
    pub(crate) fn reuse(&mut self, mut arguments: Vec<u8>) {
        if self.message.capacity() == 0 {
            arguments.clear();
            self.message = arguments;
        }
    }

    pub(crate) fn next(&mut self) -> Next {
        loop {
            if self.broken {
                return Next::Broken;
            }
            let wanted = match self.advance() {
                ControlFlow::Continue(wanted) => wanted,
                ControlFlow::Break(next) => return next,
            };
            if self.left > 0 {
                let here = wanted.min(self.left);
                return match self.stage {
                    Stage::Head | Stage::Arguments(_) => Next::Bytes(here),
                    Stage::Data { .. } => Next::Data(here),
                    Stage::Rest => Next::Skip(here),
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

    /// Takes up to `most` bytes, as [`Next::Bytes`] said, from `source`, which fills what it is given from the start and
    /// returns how many it had.
    pub(crate) fn give(&mut self, most: usize, source: impl FnOnce(&mut [u8]) -> usize) -> usize {
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

    /// `count` bytes of what [`Next::Data`] or [`Next::Skip`] spoke of have passed.
    pub(crate) fn pass(&mut self, count: usize) {
        self.left -= count;
        self.taken += count;
        if let Stage::Data { left, .. } = &mut self.stage {
            *left -= count;
        }
    }

    fn begin_fragment(&mut self) {
        let mark = fragment_header::from(self.mark);
        self.mark_there = 0;
        self.left = mark.fragment_length() as usize;
        self.last = mark.eof();
        self.announced = self.announced.saturating_add(self.left);
        self.empty_fragments += usize::from(self.left == 0 && !self.last);
        self.broken = self.announced > RECORD_BYTES_MAX || self.empty_fragments > EMPTY_FRAGMENTS_MAX;
    }

    /// Goes on as far as it can with what is there. How many bytes are wanted then, or what there is to do.
    fn advance(&mut self) -> ControlFlow<Next, usize> {
        if matches!(self.stage, Stage::Head) && self.taken > 0 {
            let needed = self.look_at_head()?;
            if let Some(needed) = needed {
                return ControlFlow::Continue(needed - self.message.len());
            }
        }
        match self.stage {
            Stage::Arguments(ref head) if self.announced > MESSAGE_BYTES_MAX => {
                let xid = head.xid;
                ControlFlow::Break(self.refuse(xid))
            }
            Stage::Data { left: 0, .. } => {
                self.stage = Stage::Rest;
                ControlFlow::Break(Next::DataEnd)
            }
            Stage::Data { left, .. } => ControlFlow::Continue(left),
            Stage::Head | Stage::Arguments(_) | Stage::Rest => ControlFlow::Continue(usize::MAX),
        }
    }

    /// How long the head must be at least to say more; `None` when it is known what the record holds.
    fn look_at_head(&mut self) -> ControlFlow<Next, Option<usize>> {
        let head = match parse(&self.message) {
            Parsed::More(needed) => return ControlFlow::Continue(Some(needed.max(HEAD_BYTES_MIN))),
            Parsed::NoCall => {
                self.broken = true;
                return ControlFlow::Break(Next::Broken);
            }
            Parsed::Refused(reply) => {
                self.stage = Stage::Rest;
                return ControlFlow::Break(Next::Refuse(reply));
            }
            Parsed::Call(head) => head,
        };
        if (head.program, head.procedure) != (Program::Nfs, WRITE) {
            self.stage = Stage::Arguments(head);
            return ControlFlow::Continue(None);
        }
        let Some(shape) = shape::write(&self.message[head.len..]) else {
            return ControlFlow::Break(self.refuse(head.xid));
        };
        let shape = match shape {
            Ok(shape) => shape,
            Err(needed) => return ControlFlow::Continue(Some(head.len + needed)),
        };
        let padded = (shape.data_len as usize).next_multiple_of(4);
        if shape.data_len > TRANSFER_BYTES_MAX || (self.last && padded > self.left) {
            return ControlFlow::Break(self.refuse(head.xid));
        }
        self.stage = Stage::Data { xid: head.xid, left: shape.data_len as usize };
        self.message.truncate(head.len + shape.arguments);
        let arguments = self.message.split_off(head.len);
        let whole = shape.data_len as usize <= self.left;
        ControlFlow::Break(Next::Write { head, arguments, shape, whole })
    }

    fn end_record(&mut self) -> Option<Next> {
        let message = std::mem::take(&mut self.message);
        let stage = std::mem::replace(&mut self.stage, Stage::Head);
        (self.last, self.empty_fragments, self.announced, self.taken) = (false, 0, 0, 0);
        match stage {
            Stage::Head if message.len() < CALL_BYTES_MIN => {
                self.broken = true;
                Some(Next::Broken)
            }
            Stage::Head => Some(Next::Refuse(refusal(crate::rpc::xid(&message), accept_stat::GARBAGE_ARGS))),
            Stage::Arguments(head) => {
                let mut arguments = message;
                arguments.drain(..head.len);
                if shape::fits(head.program, head.procedure, &arguments) {
                    Some(Next::Call(head, arguments))
                } else {
                    Some(Next::Refuse(refusal(head.xid, accept_stat::GARBAGE_ARGS)))
                }
            }
            Stage::Data { xid, .. } => Some(Next::Refuse(refusal(xid, accept_stat::GARBAGE_ARGS))),
            Stage::Rest => None,
        }
    }

    /// The arguments cannot be decoded; the rest of the record is skipped.
    fn refuse(&mut self, xid: u32) -> Next {
        self.stage = Stage::Rest;
        Next::Refuse(refusal(xid, accept_stat::GARBAGE_ARGS))
    }
}

/// What a stream holds, as a connection would take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Calls that would be done.
    pub calls: usize,
    /// Of these, whose arguments are such of their procedures.
    pub understood: usize,
    /// Calls that are refused on sight.
    pub refused: usize,
    /// Bytes of WRITEs' data.
    pub data: usize,
    /// Did it end because it is no stream of calls?
    pub broken: bool,
}

/// Takes a stream apart without doing what it asks for. `cuts` are the sizes of the pieces in which it arrives, in turn: what
/// it holds does not depend on them. For fuzzing.
pub fn decode(stream: &[u8], cuts: &[usize]) -> Decoded {
    let mut incoming = Incoming::new();
    let mut decoded = Decoded::default();
    let mut cuts = cuts.iter().copied().cycle();
    let (mut at, mut arrived, mut is_write) = (0, 0, false);
    loop {
        let there = arrived - at;
        let mut used = 0;
        match incoming.next() {
            Next::Bytes(most) => {
                used = incoming.give(most, |to| {
                    let len = to.len().min(there);
                    to[..len].copy_from_slice(&stream[at..at + len]);
                    len
                });
            }
            Next::Data(most) | Next::Skip(most) if there > 0 => {
                used = most.min(there);
                decoded.data += if incoming.is_at_rest() { 0 } else { used };
                incoming.pass(used);
            }
            Next::Data(_) | Next::Skip(_) => {}
            Next::Call(head, arguments) => {
                decoded.calls += 1;
                decoded.understood += usize::from(decode_arguments(head.program, head.procedure, &arguments));
                continue;
            }
            Next::Write { head, arguments, .. } => {
                is_write = decode_arguments(head.program, head.procedure, &arguments);
                continue;
            }
            Next::DataEnd => {
                decoded.calls += 1;
                decoded.understood += usize::from(is_write);
                continue;
            }
            Next::Refuse(_) => {
                decoded.refused += 1;
                continue;
            }
            Next::Broken => return Decoded { broken: true, ..decoded },
        }
        at += used;
        assert!(incoming.message.len() <= MESSAGE_BYTES_MAX, "more is kept than a message may be long");
        if used == 0 {
            if arrived == stream.len() {
                return decoded;
            }
            arrived = (arrived + cuts.next().unwrap_or(usize::MAX).max(1)).min(stream.len());
        }
    }
}
