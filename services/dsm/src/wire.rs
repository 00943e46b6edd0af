//! The messages between nodes: a header of fixed size, and for some of them one page. Messages about adjacent pages can have one
//! header ([`Run`](crate::run::Run)), and then all their pages follow.
//!
//! Every field has its place whatever the message, so that a header and a page could also be two entries of a ring that
//! a network card fills (RDMA); nothing depends on TCP but its order. Integers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0, 1 | kind; flags |
//! | 2..4 | node to which a page is forwarded, which has died, was met, or whose flushes have failed, plus one |
//! | 4..8, 8..12 | incarnation of the sender and of the receiver |
//! | 12..16 | incarnation of the serial; term of a survey, or of a shard's home |
//! | 16..24 | page; number of a flush; shard |
//! | 24..32 | request; term of the home to which a page is given up |
//! | 32..40 | count of the serial; failures of flushes, with their incarnation at 12..16 |
//! | 40..44 | incarnation of the version; last term that a surveyed node knows |
//! | 44; 45 | how many more messages there are; which numbers step from one to the next; 46..48 zero |
//! | 48..56, 56..64 | count and writes of the version |
//!
//! The grant that a recall wants forwarded has the incarnation of that node in place of the version's, the count of its
//! serial in place of the version's, and its request in place of the version's writes.

use policy::coherence::{
    Address, Forward, Incarnation, Message, Mode, NodeId, PageNo, Request, Serial, ShardNo, Version,
};

pub const HEADER_BYTES: usize = 64;
pub const PAGE_BYTES: usize = 4096;

/// A message from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// About a page. If it has data, they follow, unless they are `lost`: nobody has them.
    Page {
        message: Message,
        lost: bool,
        /// The data of a grant may not be durable, on a device that all nodes reach.
        unflushed: bool,
    },
    /// Make durable what you stored. Numbered by the sender.
    Flush {
        number: u64,
        /// First have all stored that other nodes have written and not given up.
        all: bool,
        /// The sender knows of failures before this.
        since: Mark,
    },
    Flushed {
        number: u64,
        ok: bool,
        /// Failures before this are known now.
        mark: Mark,
    },
    /// The receiver has asked again for this flush, which is under way and not stuck.
    Flushing(u64),
    /// This incarnation of a node has ended, and may have written what the sender, its home, does not have.
    Died(Address),
    /// The sender, or whoever has told it so, has met this incarnation of a node, and none before it.
    Met(Address),
    /// What the sender stored at this incarnation of the receiver, or before, and had not flushed, may be lost.
    Unflushed(Incarnation),
    /// So many flushes of this home have failed, on a device that all nodes reach.
    Failed { home: Address, failures: u64 },
    /// All that the sender has stored of a shard, whose home it has been since then, is durable. If it takes the shard back and
    /// stores more of it, that is said later. Where homes stay: of all pages, the shard is zero, and the sender stores no more.
    Durable { shard: ShardNo, since: Incarnation },
    /// The sender ends in order. Until it has stored all that it wrote it needs the homes, those that end, too.
    Ending { has_stored: bool },
    /// The sender is there.
    Beat,
    /// The sender has stored all that it wrote, holds nothing, and ends.
    Bye,
}

impl Word {
    pub fn page(message: Message, lost: bool) -> Word {
        Word::Page { message, lost, unflushed: false }
    }
}

/// How often a home's storage has failed to flush, in which incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub incarnation: Incarnation,
    pub failures: u64,
}

/// A word and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub from: Incarnation,
    pub to: Incarnation,
    pub word: Word,
}

mod kind {
    pub const ASK: u8 = 1;
    pub const GRANT: u8 = 2;
    pub const RECALL: u8 = 3;
    pub const GAVE_UP: u8 = 4;
    pub const TAKEN: u8 = 5;
    pub const SURVEY: u8 = 6;
    pub const SURVEYED: u8 = 7;
    pub const FLUSH: u8 = 8;
    pub const FLUSHED: u8 = 9;
    pub const BEAT: u8 = 10;
    pub const BYE: u8 = 11;
    pub const UNFLUSHED: u8 = 12;
    pub const NOTED: u8 = 13;
    pub const RECORDED: u8 = 14;
    pub const DIED: u8 = 15;
    pub const FLUSHING: u8 = 16;
    pub const FAILED: u8 = 17;
    pub const DURABLE: u8 = 18;
    pub const ENDING: u8 = 19;
    pub const MET: u8 = 20;
}

mod flag {
    /// To write; the recalled or surrendered copy may be read on; the flush is of all nodes, or succeeded; all is stored.
    pub const YES: u8 = 1;
    /// The serial of a request that has a copy; the version of a message with data.
    pub const SOME: u8 = 2;
    pub const LOST: u8 = 4;
    /// All of the page will be written.
    pub const BLANK: u8 = 8;
    pub const UNFLUSHED: u8 = 16;
}

/// The fields of a header, before they have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    kind: u8,
    flags: u8,
    node: Option<NodeId>,
    pub(crate) page: u64,
    pub(crate) request: u64,
    pub(crate) serial: Serial,
    pub(crate) version: Version,
}

impl Fields {
    fn of(kind: u8, yes: bool) -> Self {
        Fields { kind, flags: if yes { flag::YES } else { 0 }, ..Fields::default() }
    }

    fn page(self, page: PageNo, serial: Serial) -> Self {
        Fields { page: page.0, serial, ..self }
    }

    fn mark(self, number: u64, mark: Mark) -> Self {
        Fields { page: number, serial: Serial { incarnation: mark.incarnation, count: mark.failures }, ..self }
    }

    fn address(self, Address { node, incarnation }: Address) -> Self {
        Fields { node: Some(node), serial: Serial { incarnation, count: 0 }, ..self }
    }

    fn terms(self, since: Incarnation, seen: Incarnation) -> Self {
        let serial = |incarnation| Serial { incarnation, count: 0 };
        Fields { serial: serial(since), version: Version { serial: serial(seen), writes: 0 }, ..self }
    }

    fn data(self, data: Option<Version>, lost: bool) -> Self {
        let some = if data.is_some() { flag::SOME } else { 0 };
        let lost = if lost { flag::LOST } else { 0 };
        Fields { flags: self.flags | some | lost, version: data.unwrap_or_default(), ..self }
    }

    fn forward(self, forward: Option<Forward>) -> Self {
        let Some(Forward { to, request, serial }) = forward else { return self };
        let serial = Serial { incarnation: to.incarnation, ..serial };
        Fields { node: Some(to.node), version: Version { serial, writes: request.0 }, ..self }
    }

    /// Its serial is of the same home as the one that is recalled.
    fn forwarded(&self) -> Option<Forward> {
        let Version { serial, writes } = self.version;
        let to = Address { node: self.node?, incarnation: serial.incarnation };
        let serial = Serial { incarnation: self.serial.incarnation, ..serial };
        Some(Forward { to, request: Request(writes), serial })
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn mode(&self) -> Mode {
        if self.is(flag::YES) { Mode::Write } else { Mode::Read }
    }
}

pub(crate) fn fields(word: Word) -> Fields {
    let (message, lost, unflushed) = match word {
        Word::Page { message, lost, unflushed } => (message, lost, unflushed),
        Word::Flush { number, all, since } => return Fields::of(kind::FLUSH, all).mark(number, since),
        Word::Flushed { number, ok, mark } => return Fields::of(kind::FLUSHED, ok).mark(number, mark),
        Word::Flushing(number) => return Fields::of(kind::FLUSHING, false).mark(number, Mark::default()),
        Word::Failed { home: Address { node, incarnation }, failures } => {
            let fields = Fields::of(kind::FAILED, false).mark(0, Mark { incarnation, failures });
            return Fields { node: Some(node), ..fields };
        }
        Word::Unflushed(incarnation) => {
            return Fields::of(kind::UNFLUSHED, false).mark(0, Mark { incarnation, failures: 0 });
        }
        Word::Died(of) => return Fields::of(kind::DIED, false).address(of),
        Word::Met(of) => return Fields::of(kind::MET, false).address(of),
        Word::Durable { shard, since } => {
            return Fields::of(kind::DURABLE, false).mark(shard.0.into(), Mark { incarnation: since, failures: 0 });
        }
        Word::Ending { has_stored } => return Fields::of(kind::ENDING, has_stored),
        Word::Beat => return Fields::of(kind::BEAT, false),
        Word::Bye => return Fields::of(kind::BYE, false),
    };
    match message {
        Message::Ask { page, mode, request, have, blank } => {
            let fields = Fields::of(kind::ASK, mode == Mode::Write).page(page, have.unwrap_or_default());
            let some = if have.is_some() { flag::SOME } else { 0 };
            let blank = if blank { flag::BLANK } else { 0 };
            Fields { request: request.0, flags: fields.flags | some | blank, ..fields }
        }
        Message::Grant { page, mode, request, serial, data } => {
            let fields = Fields::of(kind::GRANT, mode == Mode::Write).page(page, serial).data(data, lost);
            let unflushed = if unflushed { flag::UNFLUSHED } else { 0 };
            Fields { request: request.0, flags: fields.flags | unflushed, ..fields }
        }
        Message::Recall { page, serial, request, retain, forward } => {
            let fields = Fields::of(kind::RECALL, retain).page(page, serial).forward(forward);
            Fields { request: request.0, ..fields }
        }
        Message::GaveUp { page, serial, retained, data, to, forwarded } => {
            let fields = Fields::of(kind::GAVE_UP, retained).page(page, serial).data(data, lost);
            Fields { request: u64::from(to.0), node: forwarded, ..fields }
        }
        Message::Recorded { page, serial } => Fields::of(kind::RECORDED, false).page(page, serial),
        Message::Taken { page, serial } => Fields::of(kind::TAKEN, false).page(page, serial),
        Message::Noted { page, serial } => Fields::of(kind::NOTED, false).page(page, serial),
        Message::Survey { since } => Fields::of(kind::SURVEY, false).terms(since, Incarnation::default()),
        Message::Surveyed { since, seen } => Fields::of(kind::SURVEYED, false).terms(since, seen),
    }
}

pub(crate) fn word(fields: &Fields) -> Option<Word> {
    let (page, serial, yes) = (PageNo(fields.page), fields.serial, fields.is(flag::YES));
    let data = fields.is(flag::SOME).then_some(fields.version);
    let request = Request(fields.request);
    let mark = Mark { incarnation: serial.incarnation, failures: serial.count };
    let message = match fields.kind {
        kind::ASK => {
            let (have, blank) = (fields.is(flag::SOME).then_some(serial), fields.is(flag::BLANK));
            Message::Ask { page, mode: fields.mode(), request, have, blank }
        }
        kind::GRANT => Message::Grant { page, mode: fields.mode(), request, serial, data },
        kind::RECALL => Message::Recall { page, serial, request, retain: yes, forward: fields.forwarded() },
        kind::GAVE_UP => {
            let (to, forwarded) = (Incarnation(fields.request as u32), fields.node);
            Message::GaveUp { page, serial, retained: yes, data, to, forwarded }
        }
        kind::RECORDED => Message::Recorded { page, serial },
        kind::TAKEN => Message::Taken { page, serial },
        kind::NOTED => Message::Noted { page, serial },
        kind::SURVEY => Message::Survey { since: serial.incarnation },
        kind::SURVEYED => Message::Surveyed { since: serial.incarnation, seen: fields.version.serial.incarnation },
        kind::FLUSH => return Some(Word::Flush { number: fields.page, all: yes, since: mark }),
        kind::FLUSHED => return Some(Word::Flushed { number: fields.page, ok: yes, mark }),
        kind::FLUSHING => return Some(Word::Flushing(fields.page)),
        kind::UNFLUSHED => return Some(Word::Unflushed(mark.incarnation)),
        kind::DIED | kind::MET | kind::FAILED => {
            let of = Address { node: fields.node?, incarnation: serial.incarnation };
            return Some(match fields.kind {
                kind::DIED => Word::Died(of),
                kind::MET => Word::Met(of),
                _ => Word::Failed { home: of, failures: mark.failures },
            });
        }
        kind::DURABLE => {
            return Some(Word::Durable { shard: ShardNo(fields.page.try_into().ok()?), since: mark.incarnation });
        }
        kind::ENDING => return Some(Word::Ending { has_stored: yes }),
        kind::BEAT => return Some(Word::Beat),
        kind::BYE => return Some(Word::Bye),
        _ => return None,
    };
    Some(Word::Page { message, lost: fields.is(flag::LOST), unflushed: fields.is(flag::UNFLUSHED) })
}

impl Fields {
    pub(crate) fn encode(&self, from: Incarnation, to: Incarnation) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(2, &self.node.map_or(0, |node| node.0 + 1).to_le_bytes());
        put(4, &from.0.to_le_bytes());
        put(8, &to.0.to_le_bytes());
        put(12, &self.serial.incarnation.0.to_le_bytes());
        put(16, &self.page.to_le_bytes());
        put(24, &self.request.to_le_bytes());
        put(32, &self.serial.count.to_le_bytes());
        put(40, &self.version.serial.incarnation.0.to_le_bytes());
        put(48, &self.version.serial.count.to_le_bytes());
        put(56, &self.version.writes.to_le_bytes());
        bytes
    }

    /// With the incarnations of sender and receiver.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> (Fields, Incarnation, Incarnation) {
        let serial = Serial { incarnation: Incarnation(u32_at(bytes, 12)), count: u64_at(bytes, 32) };
        let written = Serial { incarnation: Incarnation(u32_at(bytes, 40)), count: u64_at(bytes, 48) };
        let fields = Fields {
            kind: bytes[0],
            flags: bytes[1],
            node: u16_at(bytes, 2).checked_sub(1).map(NodeId),
            page: u64_at(bytes, 16),
            request: u64_at(bytes, 24),
            serial,
            version: Version { serial: written, writes: u64_at(bytes, 56) },
        };
        (fields, Incarnation(u32_at(bytes, 4)), Incarnation(u32_at(bytes, 8)))
    }
}

impl Word {
    /// Does a page follow?
    pub fn has_page(&self) -> bool {
        matches!(self, Word::Page { message, lost: false, .. } if message.data().is_some())
    }

    /// Is it about a page?
    pub fn is_about_page(&self) -> bool {
        matches!(self, Word::Page { message, .. } if message.page().is_some())
    }
}

/// The number at an offset within the bytes.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;
    use proptest::prelude::*;

    fn decoded(bytes: &[u8; HEADER_BYTES]) -> Option<Vec<Header>> {
        Run::decode(bytes).map(|run| run.headers().collect())
    }

    fn message() -> impl Strategy<Value = Message> {
        let serial = (any::<u32>(), any::<u64>())
            .prop_map(|(incarnation, count)| Serial { incarnation: Incarnation(incarnation), count });
        let version = (serial.clone(), any::<u64>()).prop_map(|(serial, writes)| Version { serial, writes });
        let node = proptest::option::of(0..u16::MAX).prop_map(|node| node.map(NodeId));
        let parts = (0..9, any::<u64>(), any::<bool>(), any::<u64>(), serial, proptest::option::of(version), node);
        parts.prop_map(|(kind, page, yes, request, serial, data, node)| {
            let (page, mode, request) = (PageNo(page), if yes { Mode::Write } else { Mode::Read }, Request(request));
            match kind {
                0 => {
                    Message::Ask { page, mode, request, have: data.map(|_| serial), blank: request.0.is_multiple_of(2) }
                }
                1 => Message::Grant { page, mode, request, serial, data },
                2 => {
                    let forward = node.map(|node| {
                        let to = Address { node, incarnation: Incarnation(page.0 as u32) };
                        Forward { to, request, serial: Serial { count: page.0, ..serial } }
                    });
                    Message::Recall { page, serial, request, retain: yes, forward }
                }
                3 => {
                    let to = Incarnation(request.0 as u32);
                    Message::GaveUp { page, serial, retained: yes, data, to, forwarded: node }
                }
                7 => Message::Recorded { page, serial },
                4 => Message::Taken { page, serial },
                5 => Message::Survey { since: serial.incarnation },
                6 => Message::Surveyed { since: serial.incarnation, seen: Incarnation(request.0 as u32) },
                _ => Message::Noted { page, serial },
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(message in message(), lost: bool, unflushed: bool, from: u32, to: u32) {
            let (from, to) = (Incarnation(from), Incarnation(to));
            let lost = lost && message.data().is_some();
            let unflushed = unflushed && matches!(message, Message::Grant { .. });
            let header = Header { from, to, word: Word::Page { message, lost, unflushed } };
            prop_assert_eq!(decoded(&Run::of(header).encode()), Some(vec![header]));
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
            let mut header = [0; HEADER_BYTES];
            header.copy_from_slice(&bytes);
            let is_possible = match header[0] {
                kind::DIED | kind::MET | kind::FAILED => header[2..4] != [0; 2],
                kind::DURABLE => header[18..24] == [0; 6],
                _ => true,
            };
            header[44..46].fill(0);
            let known = (kind::ASK..=kind::MET).contains(&header[0]) && is_possible;
            prop_assert_eq!(Run::decode(&header).is_some(), known);
        }
    }

    #[test]
    fn the_cluster_s_own_words_are_encoded_too() {
        let mark = Mark { incarnation: Incarnation(3), failures: 4 };
        let answers = [true, false].map(|ok| Word::Flushed { number: 8, ok, mark });
        let flushes = [true, false].map(|all| Word::Flush { number: 7, all, since: mark });
        let home = Address { node: NodeId(0), incarnation: Incarnation(6) };
        let of_node = [Word::Died(home), Word::Met(home), Word::Failed { home, failures: 7 }];
        let told = [Word::Flushing(9), Word::Unflushed(Incarnation(5))].into_iter().chain(of_node);
        let durable = Word::Durable { shard: ShardNo(u16::MAX), since: Incarnation(5) };
        let told = [true, false].map(|has_stored| Word::Ending { has_stored }).into_iter().chain(told);
        let others = [Word::Beat, Word::Bye, durable].into_iter().chain(told);
        for word in answers.into_iter().chain(flushes).chain(others) {
            let header = Header { from: Incarnation(1), to: Incarnation(2), word };
            assert_eq!(decoded(&Run::of(header).encode()), Some(vec![header]));
            assert!(!header.word.has_page());
        }
    }
}
