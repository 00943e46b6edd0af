//! What addresses and sockets need of each other.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::Config;
use super::problem::{Problem, Problems};
use super::settings::{Control, SOCKET_BYTES_MAX};

/// An address with a port, and its key.
struct Listed {
    key: &'static str,
    address: SocketAddr,
    /// If those before it take the address, that is only told.
    may_fail: bool,
}

/// Those that must be served are listed once each, and the sockets in the data directory are not too long.
pub(super) fn check(config: &Config, problems: &mut Problems) {
    let settings = &config.settings;
    // In the order in which the server takes them.
    let mut listed: Vec<Listed> = Vec::new();
    let mut sockets: Vec<(&'static str, &PathBuf)> = Vec::new();
    if !config.exports.is_empty() {
        listed.extend(addresses("listen.nbd", &settings.nbd, false));
        sockets.extend(settings.nbd_unix.iter().map(|path| ("listen.nbd_unix", path)));
    }
    let may_fail = |key, is_optional| is_optional && !settings.places.contains_key(key);
    if let Some(first) = config.directories.first() {
        listed.extend(addresses("listen.nfs", &settings.nfs_addresses(), may_fail("listen.nfs", first.optional)));
        sockets.extend(settings.nfs_unix.iter().map(|path| ("listen.nfs_unix", path)));
    }
    if let Some(first) = config.databases.first() {
        let may_fail = may_fail("listen.postgres", first.optional);
        listed.extend(addresses("listen.postgres", &settings.postgres_addresses(), may_fail));
        if !first.optional || settings.places.contains_key("listen.postgres_unix") {
            sockets.extend(settings.postgres_unix.iter().map(|path| ("listen.postgres_unix", path)));
        }
    }
    let derived = sockets.iter().filter(|(key, _)| !settings.places.contains_key(*key)).map(|(_, path)| *path);
    let longest = derived.max_by_key(|path| path.as_os_str().len());
    if let Some(path) = longest.filter(|path| path.as_os_str().len() > SOCKET_BYTES_MAX) {
        let name = path.file_name().unwrap_or_default();
        let what = format!("= {:?} is too long for the Unix socket {name:?} in it", settings.data);
        let problem = Problem::new(&settings.place("data"), "data", what);
        problems
            .0
            .push(problem.allowed(format!("a directory whose sockets have paths of at most {SOCKET_BYTES_MAX} bytes")));
    }
    if let Control::At(path) = &settings.control {
        sockets.push(("listen.control", path));
    }
    listed.extend(addresses("listen.metrics", settings.metrics.as_deref().unwrap_or_default(), false));
    let refused = |key: &str, what| {
        let problem = Problem::new(&settings.place(key), key, what);
        Some(problem.allowed("an address or path of its own"))
    };
    let twice = |first: &str, key: &str, at: &dyn Display| match first == key {
        true => refused(key, format!("holds {at} twice")),
        false => refused(key, format!("holds {at}, which {first} has already")),
    };
    let port = |one: &Listed| one.address.port();
    problems.refuse_pairs(&listed, port, |first, Listed { key, address, may_fail }| match *address {
        _ if *may_fail || !overlap(first.address, *address) => None,
        same if same == first.address => twice(first.key, key, address),
        _ => refused(key, format!("holds {address}, which overlaps {} of {}", first.address, first.key)),
    });
    let path = |(_, path): &(&str, &PathBuf)| (*path).clone();
    problems.refuse_pairs(&sockets, path, |(first, _), (key, path)| twice(first, key, &path.display()));
}

/// Those with a port: 0 is any free one.
fn addresses(key: &'static str, all: &[SocketAddr], may_fail: bool) -> Vec<Listed> {
    let with_ports = all.iter().filter(|address| address.port() != 0);
    with_ports.map(|address| Listed { key, address: *address, may_fail }).collect()
}

/// Whether two of one port cannot be listened at both: an unspecified address is all of its family, and that of IPv6 mostly
/// all of IPv4, too.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_in = |inner: SocketAddr, outer: SocketAddr| {
        let is_of_family = || inner.is_ipv6() == outer.is_ipv6() || outer.is_ipv6() && !is_ipv6_alone();
        outer.ip().is_unspecified() && is_of_family()
    };
    one == other || is_in(one, other) || is_in(other, one)
}

/// Whether a socket of IPv6 is by default of nothing else (ipv6(7)).
fn is_ipv6_alone() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|set| set.trim() == "1")
}
