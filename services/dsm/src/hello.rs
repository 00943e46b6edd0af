//! The first message on a connection: who speaks, and whether both mean the same volume.
//!
//! Magic, version and kind, then the length of the rest, which is bounded. The answer is a hello, or a refusal with its
//! reason as text for people.

use kernel::connection::{Session, receive_exact, send_all};
use policy::coherence::{Incarnation, NodeId};

use crate::wire::{u16_at, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"AWASEDSM";
const VERSION: u16 = 13;
const PREFIX_BYTES: usize = 16;
const FIXED_BYTES: usize = 56;

/// The rest of a hello, or of a refusal. Bytes.
const BODY_BYTES_MAX: u32 = 16 << 10;

/// Nobody.
const NOT_MET: Process = Process { incarnation: Incarnation(0), id: 0 };

const HELLO: u16 = 1;
const REFUSED: u16 = 2;

/// What both ends must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Bytes.
    pub size: u64,
    /// A bit for each node.
    pub homes: u64,
    /// The names of all nodes, in order, separated by commas.
    pub nodes: String,
    pub volume: String,
}

/// A process of a node. Two of them may have one incarnation, where what counts them was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub incarnation: Incarnation,
    /// At random.
    pub id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub from: NodeId,
    pub to: NodeId,
    pub process: Process,
    /// The first incarnation of that process: what it has stored since then it has not lost.
    pub first: Incarnation,
    /// The last of the receiver that the sender met. Not where members come and go.
    pub met: Option<Process>,
    pub terms: Terms,
}

/// The first message of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    Hello(Hello),
    /// Why the peer does not want this connection.
    Refused(String),
}

impl First {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            First::Hello(hello) => {
                body.extend(hello.from.0.to_le_bytes());
                body.extend(hello.to.0.to_le_bytes());
                let met = hello.met.unwrap_or(NOT_MET);
                body.extend([hello.process, met].iter().flat_map(|process| process.incarnation.0.to_le_bytes()));
                body.extend(hello.first.0.to_le_bytes());
                body.extend([hello.process, met].iter().flat_map(|process| process.id.to_le_bytes()));
                body.extend(hello.terms.size.to_le_bytes());
                body.extend(hello.terms.homes.to_le_bytes());
                body.extend((hello.terms.nodes.len() as u32).to_le_bytes());
                body.extend((hello.terms.volume.len() as u32).to_le_bytes());
                body.extend(hello.terms.nodes.as_bytes());
                body.extend(hello.terms.volume.as_bytes());
                HELLO
            }
            First::Refused(why) => {
                body.extend(why.bytes().take(BODY_BYTES_MAX as usize));
                REFUSED
            }
        };
        let len = (body.len() as u32).to_le_bytes();
        [&MAGIC[..], &VERSION.to_le_bytes(), &kind.to_le_bytes(), &len, &body].concat()
    }

    fn decode(kind: u16, body: &[u8]) -> Option<First> {
        if kind == REFUSED {
            return Some(First::Refused(String::from_utf8_lossy(body).into_owned()));
        }
        if kind != HELLO || body.len() < FIXED_BYTES {
            return None;
        }
        let (nodes, volume) = (u32_at(body, 48) as usize, u32_at(body, 52) as usize);
        let text = &body[FIXED_BYTES..];
        if nodes.checked_add(volume) != Some(text.len()) {
            return None;
        }
        let text = |part: &[u8]| std::str::from_utf8(part).ok().map(str::to_owned);
        let terms = Terms {
            size: u64_at(body, 32),
            homes: u64_at(body, 40),
            nodes: text(&body[FIXED_BYTES..FIXED_BYTES + nodes])?,
            volume: text(&body[FIXED_BYTES + nodes..])?,
        };
        let process =
            |incarnation, id| Process { incarnation: Incarnation(u32_at(body, incarnation)), id: u64_at(body, id) };
        let met = Some(process(8, 24)).filter(|met| met.incarnation > NOT_MET.incarnation);
        let (from, to) = (NodeId(u16_at(body, 0)), NodeId(u16_at(body, 2)));
        let (process, first) = (process(4, 16), Incarnation(u32_at(body, 12)));
        let is_possible = first > NOT_MET.incarnation && first <= process.incarnation;
        is_possible.then_some(First::Hello(Hello { from, to, process, first, met, terms }))
    }

    /// Sends it; false if the connection has ended.
    pub async fn send(&self, session: &Session) -> bool {
        send_all(session.cpu(), session.connection(), self.encode()).await.is_ok()
    }

    /// `None`: the connection has ended, or the peer is no node.
    pub async fn receive(session: &Session) -> Option<First> {
        let prefix = receive_exact(session.cpu(), session.connection(), PREFIX_BYTES).await.ok()?;
        let (version, kind, len) = (u16_at(&prefix, 8), u16_at(&prefix, 10), u32_at(&prefix, 12));
        if &prefix[..8] != MAGIC || len > BODY_BYTES_MAX {
            session.note_malformed();
            return None;
        }
        if version != VERSION {
            return Some(First::Refused(format!("speaks version {version} of the protocol, not {VERSION}")));
        }
        let body = receive_exact(session.cpu(), session.connection(), len as usize).await.ok()?;
        let first = First::decode(kind, &body);
        if first.is_none() {
            session.note_malformed();
        }
        first
    }
}

impl Terms {
    /// Why `other` does not mean the same as node `me`.
    pub fn refuse(&self, other: &Terms, me: &str) -> Option<String> {
        let volume = &self.volume;
        if self.nodes != other.nodes {
            return Some(format!("its peers are {}, those of node {me:?} are {}", other.nodes, self.nodes));
        }
        if self.size != other.size {
            return Some(format!("its volume {volume:?} has {} bytes, that of node {me:?} {}", other.size, self.size));
        }
        (self.homes != other.homes).then(|| format!("its volume {volume:?} has other homes than that of node {me:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let terms = Terms { size: 1 << 30, homes: 5, nodes: "a,b,ü".into(), volume: "disk".into() };
        let process = |number, id| Process { incarnation: Incarnation(number), id };
        let (from, to, first) = (NodeId(2), NodeId(0), Incarnation(5));
        Hello { from, to, process: process(7, u64::MAX), first, met: Some(process(3, 9)), terms }
    }

    #[test]
    fn a_hello_and_a_refusal_are_decoded_as_they_were_encoded() {
        let firsts = [
            First::Hello(hello()),
            First::Hello(Hello { met: None, ..hello() }),
            First::Refused("no such volume".into()),
        ];
        for first in firsts {
            let bytes = first.encode();
            assert_eq!(u32_at(&bytes, 12) as usize, bytes.len() - PREFIX_BYTES);
            assert_eq!(First::decode(u16_at(&bytes, 10), &bytes[PREFIX_BYTES..]), Some(first));
        }
    }

    #[test]
    fn a_hello_cut_short_or_with_wrong_lengths_is_refused() {
        let bytes = First::Hello(hello()).encode();
        let body = &bytes[PREFIX_BYTES..];
        for len in 0..body.len() {
            assert_eq!(First::decode(HELLO, &body[..len]), None, "{len} bytes");
        }
        let mut wrong = body.to_vec();
        wrong[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(First::decode(HELLO, &wrong), None);
        assert_eq!(First::decode(9, body), None);
    }

    #[test]
    fn a_hello_of_a_process_that_began_later_than_it_is_or_never_is_refused() {
        for (first, is_possible) in [(0, false), (1, true), (7, true), (8, false), (u32::MAX, false)] {
            let hello = First::Hello(Hello { first: Incarnation(first), ..hello() });
            let decoded = First::decode(HELLO, &hello.encode()[PREFIX_BYTES..]);
            assert_eq!(decoded.is_some(), is_possible, "{first}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let terms = hello().terms;
        let refusal = |other: Terms| terms.refuse(&other, "a").unwrap_or_default();
        assert_eq!(terms.refuse(&terms.clone(), "a"), None);
        assert!(refusal(Terms { size: 1, ..terms.clone() }).contains("has 1 bytes, that of node \"a\" 1073741824"));
        assert!(refusal(Terms { nodes: "a,b".into(), ..terms.clone() }).contains("its peers are a,b"));
        assert!(refusal(Terms { homes: 1, ..terms.clone() }).contains("other homes"));
    }
}
