//! What a node must know to join a cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

/// Characters of a name at most: of a node or cluster.
const NAME_MAX: usize = 64;

/// As many as [`Map`](policy::membership::homes::Map) can hold in a value that etcd takes (1.5 MiB) with much to spare.
const SHARDS_MAX: u16 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `http://HOST:PORT`, tried in turn.
    pub etcd: Vec<String>,
    /// Above it are keys of others, such as `/awase`.
    pub prefix: String,
    pub cluster: String,
    /// This node's name.
    pub node: String,
    /// Names that get numbers with it, whether or not their nodes have ever registered.
    pub others: Vec<String>,
    /// Where the other nodes reach it.
    pub address: SocketAddr,
    /// Disks of which any member becomes a home, and their sizes in bytes: identical on all nodes.
    pub disks: BTreeMap<String, u64>,
    /// Identical on all nodes.
    pub shards: u16,
    /// Whole seconds. etcd makes it longer if it is shorter than one and a half of its election timeouts (2 s unless it is
    /// configured otherwise).
    pub lease: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    #[error("no endpoint of etcd is named: one at least, such as \"http://127.0.0.1:2379\"")]
    NoEndpoint,
    #[error("the endpoint {0:?} is not understood: allowed is http://HOST:PORT (without TLS)")]
    Endpoint(String),
    #[error("the name {0:?} is not allowed: 1 to {NAME_MAX} letters, digits, '-', '_' and '.'")]
    Name(String),
    #[error("{0} shards are not allowed: 1 to {SHARDS_MAX}")]
    Shards(u16),
    #[error("a lease of {0:?} is not allowed: whole seconds from 1 to 3600")]
    Lease(Duration),
}

impl Settings {
    /// # Errors
    /// What is not allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.etcd.is_empty() {
            return Err(SettingsError::NoEndpoint);
        }
        if let Some(wrong) = self.etcd.iter().find(|url| !is_endpoint(url)) {
            return Err(SettingsError::Endpoint(wrong.clone()));
        }
        let mut names = [&self.cluster, &self.node].into_iter().chain(&self.others);
        if let Some(wrong) = names.find(|name| !is_name(name)) {
            return Err(SettingsError::Name(wrong.clone()));
        }
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(SettingsError::Shards(self.shards));
        }
        if self.lease.subsec_nanos() != 0 || !(1..=3600).contains(&self.lease.as_secs()) {
            return Err(SettingsError::Lease(self.lease));
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_allowed)
}

fn is_endpoint(url: &str) -> bool {
    let Some((host, port)) = url.strip_prefix("http://").and_then(|rest| rest.rsplit_once(':')) else { return false };
    !host.is_empty() && !host.contains(['/', '@', '?']) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            etcd: vec!["http://127.0.0.1:2379".into()],
            prefix: "/awase".into(),
            cluster: "lab".into(),
            node: "a".into(),
            others: Vec::new(),
            address: "127.0.0.1:7000".parse().expect("an address"),
            disks: BTreeMap::new(),
            shards: 64,
            lease: Duration::from_secs(2),
        }
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        assert_eq!(settings().check(), Ok(()));
        for url in ["https://a:1", "http://a", "http://:1", "http://a:1/", "http://a:99999", "a:1", "http://u@a:1"] {
            let wrong = Settings { etcd: vec![url.into()], ..settings() };
            assert_eq!(wrong.check(), Err(SettingsError::Endpoint(url.into())));
        }
        for name in ["", "a/b", "a b", &"a".repeat(65)] {
            let wrong = Settings { node: name.into(), ..settings() };
            assert_eq!(wrong.check(), Err(SettingsError::Name(name.into())));
        }
        let lease = Duration::from_millis(1500);
        assert_eq!(Settings { lease, ..settings() }.check(), Err(SettingsError::Lease(lease)));
        assert_eq!(Settings { shards: 0, ..settings() }.check(), Err(SettingsError::Shards(0)));
        assert_eq!(Settings { etcd: vec![], ..settings() }.check(), Err(SettingsError::NoEndpoint));
    }
}
