//! How `awase umount --force` asks a mount's process to give up: over a socket with an abstract name, which is there as long
//! as that process and needs no directory.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Uid, geteuid};

use super::mounts::{Device, OwnMount};

/// For the answer and the end of the process: neither needs the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024;

fn name(Device { major, minor }: Device) -> String {
    format!("awase-mount-{major}:{minor}")
}

/// Who asks a mount to give up, and waits for an answer.
pub struct Asker(UnixStream);

impl Asker {
    /// The connection ends with this process: who asked waits for that, after which nobody can write any more.
    pub fn answer(mut self, text: &str) {
        // Who asked may be gone.
        let _ = self.0.write_all(text.as_bytes());
        std::mem::forget(self.0);
    }
}

/// Calls `asked` for each who may ask: the user who mounted, and root. Returns when that says false.
///
/// # Errors
/// When the name is taken.
pub fn listen(device: Device, mut asked: impl FnMut(Asker) -> bool + Send + 'static) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(device))?)?;
    let answering = move || {
        for stream in listener.incoming().flatten() {
            if is_root_or(geteuid(), &stream) && !asked(Asker(stream)) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("mount-control".into()).spawn(answering).map(drop)
}

/// Has the mount give up, and returns what it says, for a terminal.
///
/// # Errors
/// When its process is gone, or does not answer.
pub fn ask(OwnMount { device, owner }: OwnMount) -> io::Result<String> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut stream = UnixStream::from(stream);
    // For the connection, too.
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    connect(&stream, &SocketAddrUnix::new_abstract_name(name(device).as_bytes())?)?;
    if !is_root_or(Uid::from_raw(owner), &stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let answer = read_until(&mut stream, deadline)?;
    Ok(String::from_utf8_lossy(&answer).chars().map(printable).collect())
}

/// Reads to the end; if that does not come in time, what has come.
fn read_until(stream: &mut UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut answer, mut part) = (Vec::new(), [0; ANSWER_BYTES_MAX]);
    let ended = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break io::ErrorKind::TimedOut.into();
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
            Ok(len) => answer.extend_from_slice(&part[..len]),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => break error,
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    };
    // Answered, though it may take long to end.
    if answer.is_empty() { Err(ended) } else { Ok(answer) }
}

/// What a terminal would obey becomes something to be seen.
fn printable(character: char) -> char {
    if character.is_control() { char::REPLACEMENT_CHARACTER } else { character }
}

/// Is the other end this user, or root? Anybody may use a name that is free.
fn is_root_or(user: Uid, stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_must_be_root_or_the_user() {
        let (stream, _other) = UnixStream::pair().expect("sockets");
        assert!(is_root_or(geteuid(), &stream));
        let stranger = Uid::from_raw(geteuid().as_raw() + 1);
        assert_eq!(is_root_or(stranger, &stream), geteuid().is_root());
    }

    #[test]
    fn an_answer_is_what_came_in_time_and_not_too_long() {
        let read = |sent: &[u8]| {
            let (mut stream, mut other) = UnixStream::pair().expect("sockets");
            other.write_all(sent).expect("sent");
            drop(other);
            read_until(&mut stream, Instant::now() + ANSWER_TIMEOUT).map_err(|error| error.kind())
        };
        assert_eq!(read(b"lost"), Ok(b"lost".to_vec()));
        assert_eq!(read(b""), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(read(&[b'a'; 2 * ANSWER_BYTES_MAX]), Err(io::ErrorKind::InvalidData));
        let (mut stream, mut other) = UnixStream::pair().expect("sockets");
        let read = |stream: &mut _| read_until(stream, Instant::now()).map_err(|error| error.kind());
        assert_eq!(read(&mut stream), Err(io::ErrorKind::TimedOut));
        other.write_all(b"lost").expect("sent");
        assert_eq!(read(&mut stream), Err(io::ErrorKind::TimedOut), "its time is over");
    }

    #[test]
    fn an_answer_does_not_move_the_cursor() {
        assert_eq!("lost\u{1b}[2J\n".chars().map(printable).collect::<String>(), "lost\u{fffd}[2J\u{fffd}");
    }
}
