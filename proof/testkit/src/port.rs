//! TCP ports of loopback for servers that a test must name before they run.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the least port that Linux hands out by itself (`ip_local_port_range`, ip(7); 32768 as it comes), so that nobody's
/// connection takes one before it is bound or while its server is restarted.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A port that nobody uses, given to no other test until this process ends.
pub fn unused() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() * 61;
    (0..u32::from(u16::MAX))
        .map(|_| start + u32::from(NEXT.fetch_add(1, Ordering::Relaxed)))
        .map(|number| PORTS.start + (number % PORTS.len() as u32) as u16)
        .find(|&port| claim(port) && TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a port that nobody uses")
}

/// Among tests: an abstract socket (unix(7)) that is bound until the process ends.
fn claim(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("awase-test-port-{port}")).expect("a short name");
    UnixListener::bind_addr(&name).map(std::mem::forget).is_ok()
}

#[test]
fn a_port_is_given_once() {
    let ports: std::collections::HashSet<u16> = (0..200).map(|_| unused()).collect();
    assert_eq!(ports.len(), 200);
    assert!(ports.iter().all(|port| PORTS.contains(port) && !claim(*port)));
}
