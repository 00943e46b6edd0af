//! How `awase umount --force` asks a mount's process to give up: over a socket with an abstract name, which is there as long
//! as that process and needs no directory.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::mounts::Device;

/// For the answer and the end of the process: neither needs the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 1024;

fn address(Device { major, minor }: Device) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("awase-mount-{major}:{minor}"))
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
    let listener = UnixListener::bind_addr(&address(device)?)?;
    let answering = move || {
        for stream in listener.incoming().flatten() {
            if is_trusted(&stream) && !asked(Asker(stream)) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("mount-control".into()).spawn(answering).map(drop)
}

/// Has the mount give up, and returns what it says.
///
/// # Errors
/// When its process is gone, or does not answer.
pub fn ask(device: Device) -> io::Result<String> {
    let stream = UnixStream::connect_addr(&address(device)?)?;
    if !is_trusted(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(error),
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        // Answered, but it takes long to end.
        Ok(_) | Err(_) => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Is the other end this user, or root? Anybody may use a name that is free.
fn is_trusted(stream: &UnixStream) -> bool {
    let trusted = |user: rustix::process::Uid| user.is_root() || user == geteuid();
    geteuid().is_root() || socket_peercred(stream).is_ok_and(|peer| trusted(peer.uid))
}
