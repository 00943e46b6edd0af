//! Sockets: listening ones, and connections that others have made.
//!
//! A [`Listener`] and a [`Connection`] are descriptors in non-blocking mode. A connection is closed by
//! [`Machine::close`](crate::Machine::close), a listener by dropping its [`ListeningSocket`].
//!
//! Twice the usual send buffer on Unix sockets: server and client copy side by side (128 KiB reads: an eighth more).

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::syscall;
use crate::{Connection, Errno, Listener};

/// Connections waiting to be accepted, at most.
const BACKLOG: libc::c_int = 1024;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// In the file system.
    Unix(PathBuf),
    /// Another kind, made by the parent process.
    Unnamed,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(addr) => addr.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Unnamed => f.write_str("an unnamed socket"),
        }
    }
}

/// Why a socket cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    #[error("{0} is in use by another server; stop it or choose another address")]
    AddrInUse(Address),
    /// Something that is not a socket has its path.
    #[error("{0} exists and is not a socket; remove it or choose another path")]
    NotASocket(Address),
    /// The socket that was handed over cannot accept connections.
    #[error("descriptor {0} that was handed over is not a listening stream socket")]
    NotListening(RawFd),
    #[error("no permission for {0}")]
    Permission(Address),
    #[error("{address}: {errno}")]
    Host { address: Address, errno: Errno },
}

/// The host closes what the io_uring of a killed process had open some time after the process has ended: so long its socket
/// may take connections, on a busy machine.
const TEARDOWN_MAX: Duration = Duration::from_secs(1);
const TEARDOWN_LOOK: Duration = Duration::from_millis(20);

/// Owns a listening socket. Dropping it closes the socket and removes the file made for it.
#[derive(Debug)]
pub struct ListeningSocket {
    socket: OwnedFd,
    address: Address,
    /// Device and inode number of the file made for it.
    file: Option<(u64, u64)>,
    /// The parent process has it, too, and hands it to the next server: it stays usable.
    is_adopted: bool,
}

impl ListeningSocket {
    /// Identifies it in operations; valid until this is dropped.
    pub fn listener(&self) -> Listener {
        Listener(self.socket.as_raw_fd() as u32)
    }

    /// For a thread that accepts by itself, blocking, until [`ListeningSocket::stop`].
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn for_thread(&self) -> io::Result<UnixListener> {
        let listener = UnixListener::from(self.socket.try_clone()?);
        listener.set_nonblocking(false)?;
        Ok(listener)
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Stops listening: an accept in flight completes soon, with `EINVAL`. All of them must be complete before the
    /// socket is dropped. One that was handed over goes on to listen, and clients wait in its queue: its accepts are to be
    /// ended by [`Machine::cancel_accepts`](crate::Machine::cancel_accepts).
    pub fn stop(&self) {
        // A shutdown is one of the socket, whoever else has it.
        if !self.is_adopted {
            shutdown_fd(self.socket.as_fd());
        }
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        self.stop();
        let (Address::Unix(path), Some(ours)) = (&self.address, self.file) else {
            return;
        };
        // Another file may have been put in its place.
        if file_id(path).is_ok_and(|found| found == ours) {
            // If this fails the file is stale, which the next server will notice.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens on TCP; port 0 chooses a free one. Returns the socket and the address in use.
pub fn listen_tcp(addr: SocketAddr) -> Result<(ListeningSocket, SocketAddr), NetError> {
    let at = |error| failure(Address::Tcp(addr), &error);
    // The standard library sets SO_REUSEADDR and close-on-exec.
    let listener = TcpListener::bind(addr).map_err(at)?;
    let bound = listener.local_addr().map_err(at)?;
    let socket = prepare(listener.into()).map_err(at)?;
    let socket = ListeningSocket { socket, address: Address::Tcp(bound), file: None, is_adopted: false };
    Ok((socket, bound))
}

/// Listens on a socket in the file system. Replaces the file of a server that no longer runs.
pub fn listen_unix(path: &Path) -> Result<ListeningSocket, NetError> {
    listen_at(path, |path| UnixListener::bind(path))
}

/// The same, accessible to this user (and root) only.
pub fn listen_unix_private(path: &Path) -> Result<ListeningSocket, NetError> {
    listen_at(path, bind_private)
}

fn listen_at(path: &Path, bind: impl Fn(&Path) -> io::Result<UnixListener>) -> Result<ListeningSocket, NetError> {
    let address = Address::Unix(path.to_owned());
    let at = |error| failure(address.clone(), &error);
    let listener = match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_if_stale(path)?;
            bind(path)
        }
        other => other,
    };
    let listener = listener.map_err(at)?;
    let file = file_id(path).map_err(at)?;
    let socket = prepare(listener.into()).map_err(at)?;
    Ok(ListeningSocket { socket, address, file: Some(file), is_adopted: false })
}

/// Whether this host has the address, though its port may be in use.
///
/// # Errors
/// If it does not. Nothing listens there meanwhile.
pub fn examine_tcp(address: SocketAddr) -> Result<(), NetError> {
    match UdpSocket::bind((address.ip(), 0)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(failure(Address::Tcp(address), &error)),
        _ => Ok(()),
    }
}

/// Whether a socket may be at `path`, where one may be that is in use.
///
/// # Errors
/// If something else is there, or no directory to make it in.
pub fn examine_unix(path: &Path) -> Result<(), NetError> {
    let address = || Address::Unix(path.to_owned());
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(()),
        Ok(_) => Err(NetError::NotASocket(address())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
            std::fs::metadata(directory).map(drop).map_err(|error| failure(address(), &error))
        }
        Err(error) => Err(failure(address(), &error)),
    }
}

/// Binds a socket to whose file no other user can connect, not even for a moment: on Linux the file gets the mode that
/// the socket has when it is bound.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: only numbers are passed.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open, and the address has the given length.
    unsafe {
        check(libc::fchmod(fd, 0o600))?;
        check(libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t))?;
        check(libc::listen(fd, 16))?;
    }
    Ok(UnixListener::from(socket))
}

/// Takes over a listening socket made by the parent process (socket activation).
pub fn adopt_listener(socket: OwnedFd) -> Result<ListeningSocket, NetError> {
    let fd = socket.as_raw_fd();
    let listening = option(socket.as_fd(), libc::SO_ACCEPTCONN) == Ok(1)
        && option(socket.as_fd(), libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if !listening {
        return Err(NetError::NotListening(fd));
    }
    let tcp = TcpListener::from(socket);
    let address = match tcp.local_addr() {
        Ok(addr) => Address::Tcp(addr),
        Err(_) => Address::Unnamed,
    };
    let unix = UnixListener::from(OwnedFd::from(tcp));
    let address = match unix.local_addr().ok().as_ref().map(|a| a.as_pathname()) {
        Some(Some(path)) if address == Address::Unnamed => Address::Unix(path.to_owned()),
        _ => address,
    };
    let socket = prepare(unix.into()).map_err(|error| failure(address.clone(), &error))?;
    Ok(ListeningSocket { socket, address, file: None, is_adopted: true })
}

/// Takes over a connected stream socket.
pub fn adopt_connection(socket: OwnedFd) -> io::Result<Connection> {
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    let fd = stream.into_raw_fd();
    set_options(fd);
    Ok(Connection(fd as u32))
}

/// Send buffer, in bytes, for a client on this host; the kernel allows less where `wmem_max` is less. Large enough for
/// two replies of 128 KiB, so that server and client copy concurrently instead of alternately: such reads are an eighth
/// faster.
const UNIX_SEND_BUFFER: libc::c_int = 1 << 20;

/// Sets a new connection's options: small messages are sent at once, not collected. TCP sizes its buffers itself.
pub(super) fn set_options(fd: RawFd) {
    let set = |level, name, value: libc::c_int| {
        let len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: `len` bytes are read from `value`.
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) == 0 }
    };
    let is_tcp = set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if !is_tcp {
        // The connection works without it.
        set(libc::SOL_SOCKET, libc::SO_SNDBUF, UNIX_SEND_BUFFER);
    }
}

/// The core on which the peer ran last, if it is a process of this host: known for Unix sockets and for loopback. A
/// server on the same core runs alternately with it instead of concurrently.
pub fn peer_core(connection: Connection) -> Option<usize> {
    // SAFETY: the holder of a connection has it open.
    let socket = unsafe { BorrowedFd::borrow_raw(connection.0 as RawFd) };
    if let Ok(credentials) = getsockopt::<libc::ucred>(socket, libc::SO_PEERCRED)
        && credentials.pid > 0
    {
        return core_of(&std::fs::read_to_string(format!("/proc/{}/stat", credentials.pid)).ok()?);
    }
    let peer = tcp_peer(socket).ok()?;
    let core = getsockopt::<libc::c_int>(socket, libc::SO_INCOMING_CPU).ok().filter(|_| peer.ip().is_loopback())?;
    usize::try_from(core).ok()
}

/// The user of the peer when it connected through a Unix socket, as the host reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// `None` if not through a Unix socket.
pub fn peer_credentials(connection: Connection) -> Option<PeerCredentials> {
    // SAFETY: the holder of a connection has it open.
    let socket = unsafe { BorrowedFd::borrow_raw(connection.0 as RawFd) };
    if option(socket, libc::SO_DOMAIN).ok()? != libc::AF_UNIX {
        return None;
    }
    let libc::ucred { uid, gid, .. } = getsockopt(socket, libc::SO_PEERCRED).ok()?;
    Some(PeerCredentials { uid, gid, groups: peer_groups(socket).ok()? })
}

fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        let to = groups.as_mut_ptr().cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
        // SAFETY: at most `len` bytes are written to `groups`, which has as many.
        let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len) };
        let count = len as usize / size_of::<libc::gid_t>();
        match syscall::check(result) {
            // There are more; the host returned their number.
            Err(Errno(libc::ERANGE)) if count > groups.len() => groups.resize(count, 0),
            Err(error) => return Err(error),
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
        }
    }
}

/// The core in a `/proc/PID/stat` (proc(5)): field 39; field 2 is a name in brackets that may contain anything.
fn core_of(stat: &str) -> Option<usize> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(39 - 3)?.parse().ok()
}

/// The peer's address. An error for a peer that has gone already, never another's address.
///
/// # Errors
/// The host's.
pub fn peer_address(connection: Connection) -> Result<Address, Errno> {
    // SAFETY: the holder of a connection has it open.
    let socket = unsafe { BorrowedFd::borrow_raw(connection.0 as RawFd) };
    if option(socket, libc::SO_DOMAIN)? == libc::AF_UNIX {
        return Ok(Address::Unnamed);
    }
    tcp_peer(socket).map(Address::Tcp)
}

/// Without a descriptor of its own, which there may be none for.
fn tcp_peer(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    let errno = |error: rustix::io::Errno| Errno(error.raw_os_error());
    let peer = rustix::net::getpeername(socket).map_err(errno)?.ok_or(Errno(libc::ENOTCONN))?;
    SocketAddr::try_from(peer).map_err(errno)
}

/// Sends the acknowledgement that TCP delays (RFC 1122, section 4.2.3.2). Nothing happens on other sockets.
pub(super) fn acknowledge(connection: Connection) {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is passed with its length. An error changes nothing: it is only a hint.
    unsafe {
        libc::setsockopt(
            connection.0 as RawFd,
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
}

/// Ends a connection in both directions.
pub(super) fn shutdown(connection: Connection) {
    // SAFETY: no pointer is passed. It fails when the peer was faster, with the same effect.
    unsafe { libc::shutdown(connection.0 as RawFd, libc::SHUT_RDWR) };
}

/// Whether the socket was shut down in both directions.
pub(super) fn is_shut_down(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one descriptor is passed.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 && polled.revents & libc::POLLHUP != 0 }
}

pub(super) fn close(connection: Connection) {
    // SAFETY: a connection owns its descriptor, which is not used after closing.
    unsafe { libc::close(connection.0 as RawFd) };
}

fn shutdown_fd(socket: BorrowedFd<'_>) {
    // SAFETY: no pointer is passed.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// When nothing was heard of a client for so long, it is asked whether it is there, so often, each time after this: 20 minutes in
/// all. A network that is away for less ends no connection, nor would TCP itself while something is under way.
const KEEPALIVE: (Duration, u32, Duration) = (Duration::from_secs(600), 10, Duration::from_secs(60));

/// Ends connections of clients that vanished without a word (RFC 9293, section 3.8.4): accepted ones have what the listening
/// socket has. Nothing happens on other sockets than TCP's.
fn keep_alive(socket: &OwnedFd) {
    if sockopt::socket_keepalive(socket) == Ok(true) {
        // As systemd was told (KeepAlive=).
        return;
    }
    let (idle, count, interval) = KEEPALIVE;
    let _ = sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, idle))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, count))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, interval));
}

/// Sets the backlog, non-blocking mode and close-on-exec, and has clients asked whether they are there.
fn prepare(socket: OwnedFd) -> io::Result<OwnedFd> {
    let fd = socket.as_raw_fd();
    let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
    // SAFETY: no pointer is passed. Listening again only changes the backlog.
    syscall::check(unsafe { libc::listen(fd, BACKLOG) }).map_err(error)?;
    // SAFETY: no pointer is passed.
    syscall::check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }).map_err(error)?;
    keep_alive(&socket);
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

fn option(socket: BorrowedFd<'_>, name: libc::c_int) -> Result<libc::c_int, Errno> {
    getsockopt(socket, name)
}

/// A socket's option of level `SOL_SOCKET`. `T` is plain integers.
fn getsockopt<T>(socket: BorrowedFd<'_>, name: libc::c_int) -> Result<T, Errno> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: at most `len` bytes are written to `value`.
    syscall::check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) })?;
    // SAFETY: all zeroes, and whatever was written over them, is a value of integers.
    Ok(unsafe { value.assume_init() })
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Removes the file of a socket to which no server listens.
fn remove_if_stale(path: &Path) -> Result<(), NetError> {
    let address = || Address::Unix(path.to_owned());
    let at = |error| failure(address(), &error);
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(NetError::NotASocket(address()));
        }
        Ok(_) => {}
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(error)),
    }
    let end = Instant::now() + TEARDOWN_MAX;
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return std::fs::remove_file(path).map_err(at);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(at(error)),
            // A server answers, or is too busy to.
            _ if Instant::now() >= end => return Err(NetError::AddrInUse(address())),
            _ => std::thread::sleep(TEARDOWN_LOOK),
        }
    }
}

fn failure(address: Address, error: &io::Error) -> NetError {
    match error.kind() {
        io::ErrorKind::AddrInUse => NetError::AddrInUse(address),
        io::ErrorKind::PermissionDenied => NetError::Permission(address),
        io::ErrorKind::NotFound if matches!(address, Address::Unix(_)) => {
            NetError::Host { address, errno: Errno(libc::ENOENT) }
        }
        // A path that is too long for a socket is reported without an error number.
        io::ErrorKind::InvalidInput => NetError::Host { address, errno: Errno(libc::ENAMETOOLONG) },
        _ => NetError::Host { address, errno: syscall::errno(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::core_of;

    #[test]
    fn the_core_is_found_after_any_name() {
        let rest = (3..39).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(core_of(&format!("17 (a) b) (c) {rest} 5 0 0\n")), Some(5));
        assert_eq!(core_of("17 (cut) S 1 2"), None);
        assert_eq!(core_of(""), None);
    }
}
