//! Takes mapped memory from programs when this server cannot: a process that has the memory, too, and knows how long the
//! lease lasts.
//!
//! A server that is stopped (SIGSTOP, starved) for longer than its lease takes nothing from programs, which go on and ask
//! nobody before they read. So each lease is told to the guard. It hears of no other in time, empties all memory, and the
//! programs' next accesses wait for the server, as those to any absent page. It empties the memory, too, when the server
//! dies, for programs that are stopped and do not see that. A guard is started with the first mapping.
//!
//! It empties memory later than the server itself does, which retains what was written ([`SLACK`]). What was emptied reads
//! as zeroes, so what the server has read counts only if the guard cannot have done so yet: [`Guarded::is_intact`], by the
//! clock that both have. What the server puts there too late it takes away again, which a program may see for a moment.
//!
//! Messages are two numbers, little-endian: 0 and the end of the lease; the number of a memory and [`ADD`], with its
//! descriptor, which is answered by its number; or that and [`REMOVE`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use machine::linux::descriptors::{receive_with_descriptors, send_with_descriptor};
use parking_lot::Mutex;
use policy::unit::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FallocateFlags;

use crate::membership::now;

/// The command that a guard is.
pub const COMMAND: &str = "guard";

const MESSAGE_BYTES: usize = 16;
const ADD: u64 = 1;
const REMOVE: u64 = 0;

/// The guard acts after the end of a lease by this part of it: an eighth is between the end here and the arbiter's
/// (`policy::membership::Config`).
const SLACK: u32 = 32;

/// A guard answers within this time, or the memory is not mapped.
const TIMEOUT: Duration = Duration::from_secs(5);

fn message(number: u64, value: u64) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The server's side.
pub struct Guard {
    slack: Duration,
    /// One memory at a time is added.
    adding: Mutex<()>,
    link: Mutex<Link>,
    /// When the guard acts. Nanoseconds.
    until: AtomicU64,
    /// Counts leases that came after that.
    lapses: AtomicU64,
}

#[derive(Default)]
struct Link {
    socket: Option<Arc<UnixStream>>,
    /// Numbers memory.
    last: u64,
}

/// Memory that the guard has.
pub struct Guarded {
    guard: Arc<Guard>,
    number: u64,
    lapses: u64,
}

impl Guard {
    pub fn new(lease: Duration) -> Arc<Guard> {
        Arc::new(Guard {
            slack: lease / SLACK,
            adding: Mutex::default(),
            link: Mutex::default(),
            until: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
        })
    }

    /// The lease lasts until then.
    pub fn renew(&self, until: Instant) {
        let mut link = self.link.lock();
        let until = (until + self.slack).ns();
        if now().ns() >= self.until.load(Ordering::Relaxed) {
            self.lapses.fetch_add(1, Ordering::Relaxed);
        }
        // After the count of lapses: who sees the new end sees that, too.
        self.until.store(until, Ordering::Release);
        link.say(message(0, until));
    }

    fn has_lapsed_since(&self, lapses: u64) -> bool {
        let until = self.until.load(Ordering::Acquire);
        now().ns() >= until || self.lapses.load(Ordering::Relaxed) != lapses
    }

    /// Guards a memory. `lock` is held by a guard that must be started.
    ///
    /// # Errors
    /// When none can be started, or it does not answer.
    pub fn add(self: &Arc<Self>, memory: &impl AsFd, lock: impl FnOnce() -> io::Result<File>) -> io::Result<Guarded> {
        let _adding = self.adding.lock();
        let (socket, guarded) = {
            let mut link = self.link.lock();
            let socket = match &link.socket {
                Some(socket) => Arc::clone(socket),
                None => Arc::clone(link.socket.insert(start(lock()?)?)),
            };
            link.last += 1;
            let (number, lapses) = (link.last, self.lapses.load(Ordering::Relaxed));
            link.say(message(0, self.until.load(Ordering::Relaxed)));
            send_with_descriptor(&*socket, &message(number, ADD), memory)?;
            (socket, Guarded { guard: Arc::clone(self), number, lapses })
        };
        // What it empties because of earlier leases is empty now.
        let mut answer = [0; 8];
        let answered = wait(&socket, Some(TIMEOUT)).and_then(|()| (&*socket).read_exact(&mut answer));
        match answered {
            Ok(()) if u64::from_le_bytes(answer) == guarded.number => Ok(guarded),
            // What else it says would be taken for the answer to another.
            _ => {
                self.link.lock().end();
                Err(io::Error::other("the process that guards mapped memory does not answer"))
            }
        }
    }
}

impl Link {
    fn say(&mut self, message: [u8; MESSAGE_BYTES]) {
        let sent = self.socket.as_ref().map_or(Ok(MESSAGE_BYTES), |socket| (&**socket).write(&message));
        if !matches!(sent, Ok(MESSAGE_BYTES)) {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
            eprintln!(
                "awase: the process that guards mapped memory has ended: programs that have mapped shared disks before could \
                 read old data if this server is stopped for longer than its lease"
            );
        }
    }
}

impl Guarded {
    /// Has the guard not emptied the memory, nor may do so at any moment?
    pub fn is_intact(&self) -> bool {
        !self.guard.has_lapsed_since(self.lapses)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.guard.link.lock().say(message(self.number, REMOVE));
    }
}

/// Starts a guard, which holds `lock` until it has emptied all: the next server waits for that.
fn start(lock: File) -> io::Result<Arc<UnixStream>> {
    let (own, its) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).stdin(Stdio::from(OwnedFd::from(its))).stdout(lock).stderr(Stdio::null());
    // Signals of the terminal are not for it.
    command.process_group(0);
    let mut child = command.spawn()?;
    std::thread::Builder::new().name("guard".into()).spawn(move || child.wait())?;
    // Who renews a lease waits for nobody.
    own.set_nonblocking(true)?;
    Ok(Arc::new(own))
}

/// Waits until something can be read, or the time is over.
fn wait(socket: &UnixStream, most: Option<Duration>) -> io::Result<()> {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    poll(&mut [PollFd::new(socket, PollFlags::IN)], most.as_ref())?;
    Ok(())
}

/// What a guard is: ends when the server does.
///
/// # Errors
/// The host's.
pub fn run() -> anyhow::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut memory: BTreeMap<u64, OwnedFd> = BTreeMap::new();
    let mut until = 0_u64;
    loop {
        let left = until.checked_sub(now().ns()).filter(|left| *left > 0).map(Duration::from_nanos);
        // It is over: what comes next says when.
        let _ = wait(&socket, left);
        // All that was said before the end is heard before it counts.
        let is_heard = hear(&socket, &mut memory, &mut until);
        if !is_heard || now().ns() >= until {
            memory.values().for_each(empty);
        }
        if !is_heard {
            return Ok(());
        }
    }
}

/// Takes what was said; false: the server has ended.
fn hear(socket: &UnixStream, memory: &mut BTreeMap<u64, OwnedFd>, until: &mut u64) -> bool {
    loop {
        let mut bytes = [0; MESSAGE_BYTES];
        let descriptors = match receive_with_descriptors(socket, &mut bytes, 1) {
            Ok((MESSAGE_BYTES, descriptors)) => descriptors,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            _ => return false,
        };
        let (numbers, _) = bytes.as_chunks();
        let [number, value] = [numbers[0], numbers[1]].map(u64::from_le_bytes);
        match descriptors.into_iter().next() {
            Some(descriptor) => {
                memory.insert(number, descriptor);
                if { socket }.write(&number.to_le_bytes()).is_err() {
                    return false;
                }
            }
            None if number == 0 => *until = value,
            None => drop(memory.remove(&number)),
        }
    }
}

/// It fails only for memory that its program has sealed: then that is wrong, and nothing else.
fn empty(memory: &OwnedFd) {
    let len = rustix::fs::fstat(memory).map_or(0, |facts| facts.st_size as u64);
    let _ = rustix::fs::fallocate(memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon(ms: u64) -> Instant {
        now() + Duration::from_millis(ms)
    }

    fn guarded(guard: &Arc<Guard>) -> Guarded {
        Guarded { guard: Arc::clone(guard), number: 1, lapses: guard.lapses.load(Ordering::Relaxed) }
    }

    #[test]
    fn memory_is_intact_while_each_lease_follows_the_last_in_time() {
        let guard = Guard::new(Duration::from_secs(64));
        guard.renew(soon(60_000));
        let before = guarded(&guard);
        guard.renew(soon(90_000));
        assert!(before.is_intact());
        // Over for as long as the guard leaves the server.
        guard.until.store(now().ns(), Ordering::Relaxed);
        assert!(!before.is_intact(), "over");
        guard.renew(soon(60_000));
        assert!(!before.is_intact(), "the guard may have emptied it in between");
        assert!(guarded(&guard).is_intact(), "what was added after that");
    }

    #[test]
    fn all_that_was_said_is_heard_at_once_and_the_end_of_the_server_too() {
        let (own, its) = UnixStream::pair().expect("a pair");
        its.set_nonblocking(true).expect("set");
        let (mut memory, mut until) = (BTreeMap::new(), 0);
        let file = tempfile::tempfile().expect("a file");
        send_with_descriptor(&own, &message(7, ADD), &file).expect("sent");
        { &own }.write_all(&message(0, 5)).expect("sent");
        { &own }.write_all(&message(0, 9)).expect("sent");
        assert!(hear(&its, &mut memory, &mut until));
        assert_eq!((memory.len(), until), (1, 9));
        let mut answer = [0; 8];
        { &own }.read_exact(&mut answer).expect("answered");
        assert_eq!(u64::from_le_bytes(answer), 7);
        { &own }.write_all(&message(7, REMOVE)).expect("sent");
        assert!(hear(&its, &mut memory, &mut until) && memory.is_empty());
        drop(own);
        assert!(!hear(&its, &mut memory, &mut until));
    }
}
