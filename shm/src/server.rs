//! A connection to the server of this machine.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::wire::{self, Answer, FLUSH, Hello, Offer};
use crate::{Error, Memory};

/// A server that says nothing for this long while a mapping is made is none.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that fills a mapping.
#[derive(Debug)]
pub(crate) struct Server {
    stream: UnixStream,
    /// While this process holds it, it may have pages.
    _holding: OwnedFd,
}

/// A server that has said how large the volume is.
pub(crate) struct Willing {
    stream: UnixStream,
    /// In bytes.
    pub(crate) size: u64,
}

fn misunderstood(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::InvalidData => Error::Misunderstood("its answer is none of this version"),
        _ => Error::ServerLost,
    }
}

fn understood(answer: std::io::Result<Answer>) -> Result<u64, Error> {
    answer.map_err(misunderstood)?.map_err(Error::Refused)
}

impl Willing {
    pub(crate) fn connect(path: &Path, volume: &str) -> Result<Willing, Error> {
        let no_server = |source| Error::NoServer { path: path.to_owned(), source };
        let mut stream = connect(path).map_err(no_server)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(no_server)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(no_server)?;
        // A server that refuses before it has heard this has said why.
        let _ = stream.write_all(&Hello { volume: volume.to_owned() }.encode());
        let size = understood(wire::receive_answer(&mut stream))?;
        Ok(Willing { stream, size })
    }

    /// Hands memory over: from now on the server fills it.
    pub(crate) fn offer(self, memory: &Memory) -> Result<Server, Error> {
        let Willing { mut stream, .. } = self;
        let offer = Offer { base: memory.base().as_ptr().expose_provenance() as u64, len: memory.len() as u64 };
        let descriptors = memory.descriptors();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = offer.encode();
        let vector = [IoSlice::new(&bytes)];
        let send = || rustix::net::sendmsg(&stream, &vector, &mut ancillary, SendFlags::NOSIGNAL);
        match retry_on_intr(send) {
            Ok(count) if count == bytes.len() => {}
            _ => return Err(Error::ServerLost),
        }
        let (first, holding) = first_byte(&stream)?;
        understood(wire::receive_answer(&mut (&[first][..]).chain(&mut stream)))?;
        stream.set_read_timeout(None).map_err(|_| Error::ServerLost)?;
        let holding = holding.ok_or(Error::Misunderstood("a descriptor is missing in its answer"))?;
        Ok(Server { stream, _holding: holding })
    }
}

fn connect(path: &Path) -> std::io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            connected => return connected,
        }
    }
}

/// The first byte of an answer, and the descriptor that comes with it.
fn first_byte(stream: &UnixStream) -> Result<(u8, Option<OwnedFd>), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut vector = [std::io::IoSliceMut::new(&mut byte)];
    // With a timeout it is not restarted after a signal's handler: socket(7), signal(7).
    let received = retry_on_intr(|| rustix::net::recvmsg(stream, &mut vector, &mut ancillary, RecvFlags::CMSG_CLOEXEC));
    if !received.is_ok_and(|message| message.bytes == 1) {
        return Err(Error::ServerLost);
    }
    let mut descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let holding = descriptors.next();
    drop(descriptors);
    Ok((byte[0], holding))
}

impl Server {
    /// Makes durable what this program has written.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all(&FLUSH.to_le_bytes()).map_err(|_| Error::ServerLost)?;
        let mut answer = [0; wire::REQUEST_BYTES];
        self.stream.read_exact(&mut answer).map_err(|_| Error::ServerLost)?;
        match i64::from_le_bytes(answer) {
            0 => Ok(()),
            errno => Err(Error::NotDurable(std::io::Error::from_raw_os_error(errno as i32))),
        }
    }

    /// A second handle of the connection, to see its end.
    pub(crate) fn watched(&self) -> std::io::Result<UnixStream> {
        self.stream.try_clone()
    }
}

/// What has happened first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Stopped,
    ServerEnded,
    TimePassed,
}

/// Waits until somebody has closed the other end of `stop`, a server has ended, or a time has passed.
pub(crate) fn wait(stop: &UnixStream, server: Option<&UnixStream>, time: Option<Duration>) -> Happened {
    let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut watched = vec![PollFd::from_borrowed_fd(stop.as_fd(), end | PollFlags::IN)];
    watched.extend(server.map(|server| PollFd::from_borrowed_fd(server.as_fd(), end)));
    let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
    loop {
        match rustix::event::poll(&mut watched, time.as_ref()) {
            Err(_) => {}
            Ok(0) => return Happened::TimePassed,
            Ok(_) if !watched[0].revents().is_empty() => return Happened::Stopped,
            Ok(_) => return Happened::ServerEnded,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;

    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn signals_do_not_end_the_wait_for_an_answer() {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        ours.set_read_timeout(Some(TIMEOUT)).expect("set");
        let waits = std::thread::spawn(move || first_byte(&ours).map(|(byte, _)| byte));
        for _ in 0..100 {
            // SAFETY: the thread was not joined.
            unsafe { libc::pthread_kill(waits.as_pthread_t(), libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(1));
        }
        theirs.write_all(&[7]).expect("it waits");
        assert!(matches!(waits.join(), Ok(Ok(7))));
    }
}
