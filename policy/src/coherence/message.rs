//! What nodes say to each other about a page.

use super::PageNo;

/// A node, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// Which life of a node: a new and higher one each time it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// The first life of all.
    pub const FIRST: Incarnation = Incarnation(1);
}

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub node: NodeId,
    pub incarnation: Incarnation,
}

/// A request's number, counted up by the node that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// A grant's number, counted up by the home: later grants of a page have higher ones, over all lives of the home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial {
    pub incarnation: Incarnation,
    /// Counted from 1 in each life.
    pub count: u64,
}

/// What a page holds: under which grant it was written, and how often since then. The default is a page never written.
/// A later version of a page is higher; one that was lost with its node is never given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub serial: Serial,
    pub writes: u64,
}

/// What a page may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// With other readers.
    Read,
    Write,
}

/// A message about a page. See the table in [`coherence`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Ask {
        page: PageNo,
        mode: Mode,
        request: Request,
        /// I have a copy to read by this grant, and need no data if it is still good.
        have: Option<Serial>,
    },
    Grant {
        page: PageNo,
        mode: Mode,
        /// The request that it answers.
        request: Request,
        serial: Serial,
        /// The data that come with it; none if the copy that the node has is good.
        data: Option<Version>,
    },
    /// I got the grant and did my access.
    Got { page: PageNo, serial: Serial },
    Recall {
        page: PageNo,
        serial: Serial,
        /// May a copy to read be kept?
        keep: bool,
    },
    /// I write no more, or use it no more.
    GaveUp {
        page: PageNo,
        serial: Serial,
        /// Did I keep a copy to read?
        kept: bool,
        /// The data that come with it: those that I wrote.
        data: Option<Version>,
    },
    /// The data that you gave up are stored.
    Taken {
        page: PageNo,
        /// The grant that they were written under.
        serial: Serial,
    },
    /// I have returned and know of no holder.
    Survey,
    /// I hold nothing that an earlier life of yours granted.
    Surveyed,
}

impl Message {
    /// The page whose bytes come with it, and their version.
    pub fn data(&self) -> Option<(PageNo, Version)> {
        match *self {
            Message::Grant { page, data, .. } | Message::GaveUp { page, data, .. } => {
                data.map(|version| (page, version))
            }
            _ => None,
        }
    }
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Envelope {
    pub from: Address,
    pub to: Address,
    pub message: Message,
}
