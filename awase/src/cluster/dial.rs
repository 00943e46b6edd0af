//! Connecting to peers, each attempt on a thread of its own: names are looked up and answers awaited there.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use dsm::Connector;
use machine::linux::net;
use machine::{Connection, Errno};
use parking_lot::Mutex;
use policy::coherence::NodeId;

/// An attempt to reach a peer ends after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Host and port of each node.
#[derive(Clone, Default)]
pub struct Addresses(Arc<Mutex<BTreeMap<NodeId, String>>>);

impl Addresses {
    pub fn set(&self, node: NodeId, address: String) {
        self.0.lock().insert(node, address);
    }
}

impl Connector for Addresses {
    fn connect(&self, node: NodeId, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>) {
        let address = self.0.lock().get(&node).cloned().unwrap_or_default();
        let made = Arc::new(Mutex::new(Some(made)));
        let own = Arc::clone(&made);
        let dialling = move || {
            let result = dial(&address);
            let made = own.lock().take();
            made.into_iter().for_each(|made| made(result));
        };
        let thread = std::thread::Builder::new().name("cluster-dial".into()).spawn(dialling);
        // Without a thread the attempt has failed.
        if let Err(error) = thread {
            let made = made.lock().take();
            made.into_iter().for_each(|made| made(Err(Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))));
        }
    }
}

fn dial(address: &str) -> Result<Connection, Errno> {
    let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EHOSTUNREACH));
    let mut last = Errno(libc::EHOSTUNREACH);
    for address in address.to_socket_addrs().map_err(errno)? {
        match std::net::TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return net::adopt_connection(stream.into()).map_err(errno),
            Err(error) => last = errno(error),
        }
    }
    Err(last)
}
