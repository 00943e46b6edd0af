//! Connecting to the server, each attempt on a thread of its own: names are looked up and answers awaited there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use machine::linux::net;
use machine::{Connection, Errno};
use mount::{Connector, Port};
use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::messages::Messages;

/// An attempt ends after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The ports from which only root connects, those that the host's own client uses.
const PRIVILEGED: RangeInclusive<u16> = 665..=1023;

/// A server by its name or address.
pub struct Dial {
    pub host: String,
    pub privileged: bool,
    pub messages: Arc<Messages>,
}

impl Connector for Dial {
    fn connect(&self, port: Port, made: Box<dyn FnOnce(Result<Connection, Errno>) + Send>) {
        let (host, privileged) = (self.host.clone(), self.privileged);
        // Also if there is no thread for it.
        let made = Arc::new(Mutex::new(Some(made)));
        let tell = move |result| made.lock().take().into_iter().for_each(|made| made(result));
        let dialling = {
            let tell = tell.clone();
            move || tell(dial(&host, port, privileged))
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

fn dial(host: &str, port: Port, privileged: bool) -> Result<Connection, Errno> {
    let errno = |error: io::Error| Errno(error.raw_os_error().unwrap_or(libc::EHOSTUNREACH));
    let mut last = Errno(libc::EHOSTUNREACH);
    for address in addresses(host, port).map_err(errno)? {
        let stream = if privileged {
            connect_privileged(address)
        } else {
            TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
        };
        match stream {
            Ok(stream) => return net::adopt_connection(stream.into()).map_err(errno),
            Err(error) => last = errno(error),
        }
    }
    Err(last)
}

/// Connects from the first of the privileged ports that is free.
fn connect_privileged(address: SocketAddr) -> io::Result<TcpStream> {
    for port in PRIVILEGED.rev() {
        let socket = bound(address.is_ipv6(), port)?;
        let Some(socket) = socket else { continue };
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
        match connect(&socket, &address) {
            Ok(()) => {
                set_socket_timeout(&socket, Timeout::Send, None)?;
                return Ok(socket.into());
            }
            // An earlier connection from there is not over yet.
            Err(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::ADDRINUSE) => {}
            Err(rustix::io::Errno::INPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(rustix::io::Errno::ADDRINUSE.into())
}

/// A socket at this port; `None`: another one has it.
fn bound(is_ipv6: bool, port: u16) -> io::Result<Option<OwnedFd>> {
    let (family, any) = if is_ipv6 {
        (AddressFamily::INET6, IpAddr::from(Ipv6Addr::UNSPECIFIED))
    } else {
        (AddressFamily::INET, IpAddr::from(Ipv4Addr::UNSPECIFIED))
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    match bind(&socket, &SocketAddr::new(any, port)) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether privileged ports may be used, for an error before anything is tried.
///
/// # Errors
/// If not.
pub fn check_privileged() -> anyhow::Result<()> {
    for port in PRIVILEGED.rev() {
        if bound(false, port).context("resvport: ports below 1024 are for root (CAP_NET_BIND_SERVICE) only")?.is_some()
        {
            break;
        }
    }
    Ok(())
}

/// # Errors
/// The resolver's.
pub fn addresses(host: &str, port: Port) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port.0).to_socket_addrs()?.collect())
}
