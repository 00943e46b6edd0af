//! Connecting to the server, each attempt on a thread of its own: names are looked up and answers awaited there.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use machine::linux::net;
use machine::{Connection, Errno};
use mount::{Connector, Port};
use parking_lot::Mutex;

use super::messages::Messages;

/// An attempt ends after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server by its name or address.
pub struct Dial {
    pub host: String,
    pub messages: Arc<Messages>,
}

impl Connector for Dial {
    fn connect(&self, port: Port, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>) {
        let host = self.host.clone();
        // Also if there is no thread for it.
        let made = Arc::new(Mutex::new(Some(made)));
        let tell = move |result| made.lock().take().into_iter().for_each(|made| made(result));
        let dialling = {
            let tell = tell.clone();
            move || tell(dial(&host, port))
        };
        if let Err(error) = std::thread::Builder::new().name("mount-dial".into()).spawn(dialling) {
            self.messages.line(&format!("no thread to connect to the server: {error}"));
            tell(Err(Errno(libc::EAGAIN)));
        }
    }

    fn report(&self, line: &str) {
        self.messages.line(line);
    }
}

fn dial(host: &str, port: Port) -> Result<Connection, Errno> {
    let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EHOSTUNREACH));
    let mut last = Errno(libc::EHOSTUNREACH);
    for address in addresses(host, port).map_err(errno)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return net::adopt_connection(stream.into()).map_err(errno),
            Err(error) => last = errno(error),
        }
    }
    Err(last)
}

/// # Errors
/// The resolver's.
pub fn addresses(host: &str, port: Port) -> std::io::Result<Vec<SocketAddr>> {
    Ok((host, port.0).to_socket_addrs()?.collect())
}
