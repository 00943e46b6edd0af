//! The host names under which the server answers.
//!
//! A site can have its own name resolve to an address of this host ("DNS rebinding"): then its scripts may read what this
//! server answers. But the browser sends the name that it asked for (`Host`), which is the site's.

use std::net::{IpAddr, Ipv6Addr};

/// Names that mean this server. Addresses always do: they are not resolved.
#[derive(Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// `localhost`, the host's own name, and `others`.
    pub(super) fn new(others: &[String]) -> Hosts {
        // A host whose name cannot be read is reached by its addresses.
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let all = ["localhost", own.trim()].into_iter().chain(others.iter().map(String::as_str));
        Hosts(all.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// True if `host` (RFC 9110, section 7.2: `uri-host [ ":" port ]`) means this server.
    pub(super) fn has(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let is_ipv6 = |name: &str| {
            let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
            literal.is_some_and(|literal| literal.parse::<Ipv6Addr>().is_ok())
        };
        let known = || self.0.iter().any(|known| known.eq_ignore_ascii_case(name.strip_suffix('.').unwrap_or(name)));
        name.parse::<IpAddr>().is_ok() || is_ipv6(name) || known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_known_names_mean_this_server() {
        let hosts = Hosts::new(&["storage.example.org".to_owned()]);
        for host in
            ["127.0.0.1", "127.0.0.1:9809", "[::1]:9809", "[::1]", "localhost", "LOCALHOST:80", "localhost.:9809"]
        {
            assert!(hosts.has(host), "{host}");
        }
        assert!(hosts.has("storage.example.org") && hosts.has("Storage.Example.org:9809"));
        for host in
            ["", ":9809", "attacker.example", "localhost.attacker.example", "example.org", "127.0.0.1.nip.io", "[x]"]
        {
            assert!(!hosts.has(host), "{host}");
        }
    }
}
