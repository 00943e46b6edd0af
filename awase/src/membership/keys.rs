//! The keys of a cluster in etcd and what their values say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use policy::membership::homes::{Home, Map};
use policy::membership::{Address, Incarnation, NodeId};
use serde_json::{Value, json};

use super::settings::Settings;

/// Nodes that a cluster can number.
pub(super) const NODES_MAX: u16 = 64;

#[derive(Clone, Debug)]
pub(super) struct Keys {
    root: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Member(&'a str),
    Map,
    Other,
}

/// The value of `members/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub node: NodeId,
    pub address: SocketAddr,
    /// [`Settings::disks`]; `None` by a server that did not say so yet.
    pub disks: Option<BTreeMap<String, u64>>,
}

impl Keys {
    pub fn new(settings: &Settings) -> Self {
        Keys { root: format!("{}/{}/", settings.prefix.trim_end_matches('/'), settings.cluster) }
    }

    pub fn root(&self) -> &str {
        &self.root
    }

    pub fn members(&self) -> String {
        format!("{}members/", self.root)
    }

    pub fn member(&self, name: &str) -> String {
        format!("{}{name}", self.members())
    }

    pub fn map(&self) -> String {
        format!("{}map", self.root)
    }

    pub fn numbers(&self) -> String {
        format!("{}numbers/", self.root)
    }

    pub fn number(&self, node: NodeId) -> String {
        format!("{}{}", self.numbers(), node.0)
    }

    pub fn kind<'a>(&self, key: &'a str) -> Key<'a> {
        match key.strip_prefix(&self.root) {
            Some("map") => Key::Map,
            Some(rest) => rest.strip_prefix("members/").map_or(Key::Other, Key::Member),
            None => Key::Other,
        }
    }

    pub fn database(&self, name: &str) -> String {
        format!("{}databases/{name}", self.root)
    }

    /// The node whose number a key below `numbers/` is.
    pub fn numbered(&self, key: &str) -> Option<NodeId> {
        key.strip_prefix(&self.numbers())?.parse().ok().map(NodeId)
    }
}

impl Record {
    pub fn encode(&self) -> String {
        json!({ "node": self.node.0, "address": self.address.to_string(), "disks": self.disks }).to_string()
    }

    pub fn decode(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let node = value["node"].as_u64().and_then(|node| u16::try_from(node).ok()).filter(|node| *node < NODES_MAX);
        let node = NodeId(node.ok_or("no number of a node")?);
        let address = value["address"].as_str().and_then(|address| address.parse().ok()).ok_or("no address")?;
        let disks = serde_json::from_value(value["disks"].clone()).map_err(|error| error.to_string())?;
        Ok(Record { node, address, disks })
    }
}

pub(super) fn encode_map(map: &Map) -> String {
    let homes: Vec<_> = map.0.iter().map(|home| json!([home.at.node.0, home.at.incarnation.0, home.since.0])).collect();
    json!({ "homes": homes }).to_string()
}

pub(super) fn decode_map(text: &[u8]) -> Result<Map, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let homes = value["homes"].as_array().ok_or("no homes")?;
    let home = |home: &Value| {
        let number = |index: usize| u32::try_from(home[index].as_u64()?).ok().map(Incarnation);
        let node = NodeId(u16::try_from(home[0].as_u64()?).ok()?);
        Some(Home { at: Address { node, incarnation: number(1)? }, since: number(2)? })
    };
    Ok(Map(homes.iter().map(home).collect::<Option<_>>().ok_or("a home is not [NUMBER, EPOCH, TERM]")?))
}

/// The gateway's form of bytes.
pub(super) fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

pub(super) fn decoded(value: &Value) -> Option<Vec<u8>> {
    // An empty value is left out.
    value.as_str().map_or(Some(Vec::new()), |text| STANDARD.decode(text).ok())
}

/// The first key after all that begin with `prefix`, which ends in an ASCII character.
pub(super) fn end_of(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    let last = end.pop().unwrap_or('\0');
    end.push(char::from_u32(u32::from(last) + 1).unwrap_or(last));
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again_and_garbage_is_an_error() {
        for disks in [None, Some(BTreeMap::new()), Some([("s".to_owned(), u64::MAX)].into())] {
            let record = Record { node: NodeId(3), address: "[::1]:7000".parse().expect("an address"), disks };
            assert_eq!(Record::decode(record.encode().as_bytes()), Ok(record));
        }
        let earlier = Record::decode(b"{\"node\":3,\"address\":\"[::1]:7000\"}");
        assert_eq!(earlier.map(|record| record.disks), Ok(None));
        let home = |node, epoch| {
            let at = Address { node: NodeId(node), incarnation: Incarnation(epoch) };
            Home { at, since: Incarnation(epoch / 2) }
        };
        let map = Map(vec![home(0, 7), home(63, u32::MAX)]);
        assert_eq!(decode_map(encode_map(&map).as_bytes()), Ok(map));
        for text in ["", "{}", "[]", "{\"node\":64,\"address\":\"a:1\"}", "{\"node\":1}", "{\"homes\":[[1]]}"] {
            assert!(Record::decode(text.as_bytes()).is_err() && decode_map(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_are_told_apart() {
        let keys = Keys { root: "/awase/lab/".into() };
        assert_eq!(keys.kind(&keys.member("a")), Key::Member("a"));
        assert_eq!(keys.kind(&keys.map()), Key::Map);
        assert_eq!(keys.kind(&keys.number(NodeId(1))), Key::Other);
        assert_eq!(keys.kind("/awase/labor/map"), Key::Other);
        assert_eq!(keys.numbered(&keys.number(NodeId(12))), Some(NodeId(12)));
        assert_eq!(end_of(keys.root()), "/awase/lab0");
    }
}
