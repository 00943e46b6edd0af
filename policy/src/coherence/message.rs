//! The messages between nodes about a page.

use super::PageNo;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// A part of the pages that have one home together, where homes move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardNo(pub u16);

/// Increases each time a node returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    pub const FIRST: Incarnation = Incarnation(1);
}

/// A node in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub node: NodeId,
    pub incarnation: Incarnation,
}

/// A request's number, counted by the requesting node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// A grant's number, counted by the home: later grants of a page have higher ones, over all incarnations of the home and
/// over all homes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Without gaps: there is one in each record of a page, and two in a version.
#[repr(Rust, packed(4))]
pub struct Serial {
    /// The home's incarnation; where homes move, its term ([`Home::since`](super::Home::since)).
    pub incarnation: Incarnation,
    /// Counted from 1 in each incarnation.
    pub count: u64,
}

/// The contents of a page: the grant under which it was written, and the number of writes since. The default is a page
/// never written. Later versions are higher; one that was lost with its node is not used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(4))]
pub struct Version {
    pub serial: Serial,
    pub writes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    Write,
}

/// The grant that the home makes when a page is given up, to be sent by the node that gives it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Forward {
    /// In another incarnation it has not asked.
    pub to: Address,
    pub request: Request,
    pub serial: Serial,
}

/// See the table in [`coherence`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Ask {
        page: PageNo,
        mode: Mode,
        request: Request,
        /// The grant of a copy to read that the node has; if it is still valid, no data is needed.
        have: Option<Serial>,
        /// All of the page will be written: no data is needed.
        blank: bool,
    },
    Grant {
        page: PageNo,
        mode: Mode,
        /// The request that this answers.
        request: Request,
        serial: Serial,
        /// The version that is attached; none if the node's copy is valid.
        data: Option<Version>,
    },
    Recall {
        page: PageNo,
        serial: Serial,
        /// The request that was granted. If it still waits, this has overtaken the grant.
        request: Request,
        /// A copy to read may be retained.
        retain: bool,
        /// Send what was written straight to the node that wants it, and to the home as well.
        forward: Option<Forward>,
    },
    /// Writing, or all use, has ended.
    GaveUp {
        page: PageNo,
        serial: Serial,
        /// A copy to read was retained.
        retained: bool,
        /// The version that is attached: what this node wrote.
        data: Option<Version>,
        /// The home's term by which it was sent. One from before may come late, when what it brings is old.
        to: Incarnation,
        /// The node that was sent the same.
        forwarded: Option<NodeId>,
    },
    /// The data given up are stored.
    Taken {
        page: PageNo,
        /// The grant under which they were written.
        serial: Serial,
    },
    /// `Taken` arrived ([`Storage::Shared`](super::Storage::Shared)).
    Noted { page: PageNo, serial: Serial },
    /// The home has what was forwarded under this grant.
    Recorded { page: PageNo, serial: Serial },
    /// The home is one since this term, and knows no holder.
    Survey { since: Incarnation },
    /// Nothing granted before that term is held of what the home then got.
    Surveyed {
        since: Incarnation,
        /// The last term that the sender knows of: a home that has not seen it may have lost its pages since.
        seen: Incarnation,
    },
}

impl Message {
    /// The page that it is about.
    pub fn page(&self) -> Option<PageNo> {
        match *self {
            Message::Ask { page, .. }
            | Message::Grant { page, .. }
            | Message::Recall { page, .. }
            | Message::GaveUp { page, .. }
            | Message::Taken { page, .. }
            | Message::Noted { page, .. }
            | Message::Recorded { page, .. } => Some(page),
            Message::Survey { .. } | Message::Surveyed { .. } => None,
        }
    }

    /// The same to the home in this term.
    pub(super) fn in_term(self, term: Incarnation) -> Message {
        match self {
            Message::GaveUp { page, serial, retained, data, forwarded, .. } => {
                Message::GaveUp { page, serial, retained, data, to: term, forwarded }
            }
            other => other,
        }
    }

    /// The page whose bytes are attached, and their version.
    pub fn data(&self) -> Option<(PageNo, Version)> {
        match *self {
            Message::Grant { page, data, .. } | Message::GaveUp { page, data, .. } => {
                data.map(|version| (page, version))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Envelope {
    pub from: Address,
    pub to: Address,
    pub message: Message,
}
