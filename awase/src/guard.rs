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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use machine::linux::descriptors::{receive_with_descriptors, send_with_descriptor};
use machine::mapping::PAGE_BYTES;
use parking_lot::Mutex;
use policy::unit::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FallocateFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::membership::now;
use crate::tell::tell;

/// The command that a guard is.
const COMMAND: &str = "guard";

const MESSAGE_BYTES: usize = 16;
const ADD: u64 = 1;
const REMOVE: u64 = 0;

/// The guard acts after the end of a lease by this part of it: an eighth is between the end here and the arbiter's
/// (`policy::membership::Config`).
const SLACK: u32 = 32;

/// What programs of this node may have at a time, for each second of the lease. All of it must be taken from them between
/// the guard's time and the arbiter's end of the lease, 3/32 of it: 94 ms for 128 MiB. Measured (Linux 6.18, AMD EPYC, two
/// cores in a virtual machine) are 0.11 s for each GiB, and 0.21 to 0.32 s while a thread reads it: up to 40 ms.
///
/// Rejected: to begin earlier with more memory. A healthy node that renews late would lose what its programs have written.
const MEMORY_A_SECOND: u64 = 128 << 20;

/// Pages that programs of this node may have at a time, of all disks together.
pub fn pages_max(lease: Duration) -> usize {
    (lease.as_secs() * MEMORY_A_SECOND) as usize / PAGE_BYTES
}

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
    /// How often the guard may have emptied the memory: leases that came after that, and ends of guards.
    lapses: AtomicU64,
    /// Ends all mappings then.
    lapsed: OnceLock<Arc<dyn Fn() + Send + Sync>>,
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
            lapsed: OnceLock::new(),
        })
    }

    /// What ends all mappings when the guard may have emptied their memory while the lease goes on. To be called once.
    pub fn on_lapse(&self, lapsed: impl Fn() + Send + Sync + 'static) {
        let _ = self.lapsed.set(Arc::new(lapsed));
    }

    /// The lease lasts until then.
    pub fn renew(&self, until: Instant) {
        let mut link = self.link.lock();
        let until = (until + self.slack).ns();
        let mut has_lapsed = !self.say(&mut link, message(0, until));
        // Looked at after the guard was told: it may have acted until then.
        if now().ns() >= self.until.load(Ordering::Relaxed) {
            self.lapses.fetch_add(1, Ordering::Relaxed);
            has_lapsed = link.last > 0;
        }
        // After the count of lapses: who sees the new end sees that, too.
        self.until.store(until, Ordering::Release);
        if has_lapsed {
            self.tell();
        }
    }

    /// By a thread of its own: who renews a lease waits for nobody.
    fn tell(&self) {
        let Some(lapsed) = self.lapsed.get().cloned() else { return };
        if let Err(error) = std::thread::Builder::new().name("guard".into()).spawn(move || lapsed()) {
            tell(format_args!("programs that have mapped shared disks may have to be started again: {error}"));
        }
    }

    /// False: the guard is given up. It takes that for the end of the server, and empties all memory.
    fn say(&self, link: &mut Link, message: [u8; MESSAGE_BYTES]) -> bool {
        let sent = link.socket.as_ref().map_or(Ok(MESSAGE_BYTES), |socket| (&**socket).write(&message));
        let is_sent = matches!(sent, Ok(MESSAGE_BYTES));
        if !is_sent {
            self.give_up(link);
        }
        is_sent
    }

    fn give_up(&self, link: &mut Link) {
        let Some(socket) = link.socket.take() else { return };
        // Before the guard hears of it: what it empties is never taken for what programs have written.
        self.lapses.fetch_add(1, Ordering::Release);
        let _ = socket.shutdown(std::net::Shutdown::Both);
        tell(
            "the process that guards mapped memory has ended, or does not answer: all mappings of shared disks begin \
             anew",
        );
    }

    fn has_lapsed_since(&self, lapses: u64) -> bool {
        let until = self.until.load(Ordering::Acquire);
        now().ns() >= until || self.lapses.load(Ordering::Acquire) != lapses
    }

    /// Guards a memory. `lock` is held by a guard that must be started.
    ///
    /// # Errors
    /// When none can be started, or it does not answer.
    pub fn add(self: &Arc<Self>, memory: &impl AsFd, lock: impl FnOnce() -> io::Result<File>) -> io::Result<Guarded> {
        let _adding = self.adding.lock();
        let running = self.link.lock().socket.clone();
        let socket = match running {
            Some(socket) => socket,
            None => {
                let socket = start(lock()?)?;
                Arc::clone(self.link.lock().socket.insert(socket))
            }
        };
        let guarded = {
            let mut link = self.link.lock();
            link.last += 1;
            let guarded =
                Guarded { guard: Arc::clone(self), number: link.last, lapses: self.lapses.load(Ordering::Acquire) };
            self.say(&mut link, message(0, self.until.load(Ordering::Relaxed)));
            guarded
        };
        let sent = send_with_descriptor(&*socket, &message(guarded.number, ADD), memory);
        // What it empties because of earlier leases is empty when it answers.
        let mut answer = [0; 8];
        let answered = sent.and_then(|()| wait(&socket, TIMEOUT)).and_then(|()| (&*socket).read_exact(&mut answer));
        if answered.is_ok() && u64::from_le_bytes(answer) == guarded.number {
            return Ok(guarded);
        }
        // What else it says would be taken for the answer to another.
        self.give_up(&mut self.link.lock());
        self.tell();
        Err(io::Error::other("the process that guards mapped memory does not answer"))
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
        let is_said = self.guard.say(&mut self.guard.link.lock(), message(self.number, REMOVE));
        if !is_said {
            self.guard.tell();
        }
    }
}

/// Starts a guard, which holds `lock` until it has emptied all: the next server waits for that.
fn start(lock: File) -> io::Result<Arc<UnixStream>> {
    let (own, its) = UnixStream::pair()?;
    // This program, also if another one has its name by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("awase").arg(COMMAND).stdin(Stdio::from(OwnedFd::from(its))).stdout(lock).stderr(Stdio::null());
    // Signals of the terminal are not for it.
    command.process_group(0);
    let mut child = command.spawn()?;
    std::thread::Builder::new().name("guard".into()).spawn(move || child.wait())?;
    // Who renews a lease waits for nobody.
    own.set_nonblocking(true)?;
    Ok(Arc::new(own))
}

/// Waits until something can be read, or the time is over.
fn wait(socket: &UnixStream, most: Duration) -> io::Result<()> {
    let end = std::time::Instant::now() + most;
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(std::time::Instant::now())).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            polled => return polled.map(drop).map_err(io::Error::from),
        }
    }
}

/// Goes off at a time of [`now`].
struct Alarm(OwnedFd);

impl Alarm {
    fn new() -> io::Result<Alarm> {
        Ok(Alarm(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
    }

    fn set(&self, at: u64) -> io::Result<()> {
        let it_value = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
        Ok(())
    }
}

/// What a guard is: ends when the server does.
///
/// # Errors
/// The host's.
pub fn run() -> anyhow::Result<()> {
    // A service manager sends SIGTERM to all processes of a service. It ends when the server has.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let alarm = Alarm::new()?;
    let mut watch = Watch::default();
    loop {
        alarm.set(watch.alarm())?;
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN), PollFd::new(&alarm.0, PollFlags::IN)], None);
        if !watch.turn(&socket, || now().ns()) {
            return Ok(());
        }
    }
}

/// The guard's side.
#[derive(Default)]
struct Watch {
    memory: BTreeMap<u64, OwnedFd>,
    /// When it acts. Nanoseconds.
    until: u64,
    /// The last such time at which it has.
    emptied: u64,
}

impl Watch {
    /// When it is to look again if nothing is said. That may be in the past: the alarm goes off at once then. 0: never, since
    /// what comes next says more.
    fn alarm(&self) -> u64 {
        if self.emptied == self.until { 0 } else { self.until }
    }

    /// Takes what was said, and empties all memory if its time is over. False: the server has ended.
    fn turn(&mut self, socket: &UnixStream, now: impl FnOnce() -> u64) -> bool {
        // The clock is read first: a lease that the server has told, and then seen that it came in time, is heard below.
        let at = now();
        let is_heard = self.hear(socket);
        if !is_heard || at >= self.until {
            self.memory.values().for_each(empty);
            self.emptied = self.until;
        }
        is_heard
    }

    /// Takes what was said; false: the server has ended.
    fn hear(&mut self, socket: &UnixStream) -> bool {
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
                    self.memory.insert(number, descriptor);
                    if { socket }.write(&number.to_le_bytes()).is_err() {
                        return false;
                    }
                }
                None if number == 0 => self.until = value,
                None => drop(self.memory.remove(&number)),
            }
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
    use std::os::unix::fs::FileExt;

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
    fn no_memory_is_intact_after_the_end_of_its_guard_and_all_mappings_are_told() {
        let guard = Guard::new(Duration::from_secs(64));
        guard.renew(soon(60_000));
        let (say, told) = std::sync::mpsc::channel();
        guard.on_lapse(move || say.send(()).expect("waited for"));
        let before = guarded(&guard);
        let (own, its) = UnixStream::pair().expect("a pair");
        guard.link.lock().socket = Some(Arc::new(own));
        guard.renew(soon(60_000));
        assert!(before.is_intact() && told.try_recv().is_err());
        drop(its);
        guard.renew(soon(60_000));
        assert!(!before.is_intact());
        told.recv_timeout(Duration::from_secs(60)).expect("told");
        assert!(guarded(&guard).is_intact(), "what the next guard has");
    }

    #[test]
    fn a_lease_that_comes_late_ends_all_mappings() {
        let guard = Guard::new(Duration::from_secs(64));
        let (say, told) = std::sync::mpsc::channel();
        guard.on_lapse(move || say.send(()).expect("waited for"));
        guard.renew(soon(60_000));
        assert!(told.try_recv().is_err(), "the first one, and nothing is mapped");
        guard.link.lock().last = 1;
        guard.until.store(now().ns(), Ordering::Relaxed);
        guard.renew(soon(60_000));
        told.recv_timeout(Duration::from_secs(60)).expect("told");
    }

    #[test]
    fn all_that_was_said_is_heard_at_once_and_the_end_of_the_server_too() {
        let (own, its) = UnixStream::pair().expect("a pair");
        its.set_nonblocking(true).expect("set");
        let mut watch = Watch::default();
        let file = tempfile::tempfile().expect("a file");
        send_with_descriptor(&own, &message(7, ADD), &file).expect("sent");
        { &own }.write_all(&message(0, 5)).expect("sent");
        { &own }.write_all(&message(0, 9)).expect("sent");
        assert!(watch.hear(&its));
        assert_eq!((watch.memory.len(), watch.until), (1, 9));
        let mut answer = [0; 8];
        { &own }.read_exact(&mut answer).expect("answered");
        assert_eq!(u64::from_le_bytes(answer), 7);
        { &own }.write_all(&message(7, REMOVE)).expect("sent");
        assert!(watch.hear(&its) && watch.memory.is_empty());
        drop(own);
        assert!(!watch.hear(&its));
    }

    /// A guard that has a memory with this content.
    fn watching(until: u64, content: &[u8]) -> (Watch, File) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).expect("written");
        let memory = BTreeMap::from([(1, file.as_fd().try_clone_to_owned().expect("a descriptor"))]);
        (Watch { memory, until, emptied: 0 }, file)
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![1; 4];
        file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    #[test]
    fn a_lease_that_was_told_before_the_guard_has_looked_at_the_clock_is_heard_before_that_counts() {
        let (own, its) = UnixStream::pair().expect("a pair");
        its.set_nonblocking(true).expect("set");
        let (mut watch, file) = watching(10, b"page");
        // Woken just before the end, it is not run for a while, in which the server renews the lease.
        let late = || {
            { &own }.write_all(&message(0, 20)).expect("sent");
            11
        };
        assert!(watch.turn(&its, late));
        assert_eq!((content(&file), watch.alarm()), (b"page".to_vec(), 20));
        assert!(watch.turn(&its, || 20));
        assert_eq!((content(&file), watch.alarm()), (vec![0; 4], 0), "none came in time");
    }

    #[test]
    fn the_alarm_is_set_until_the_memory_was_emptied_also_when_its_time_has_come() {
        let (own, its) = UnixStream::pair().expect("a pair");
        its.set_nonblocking(true).expect("set");
        let (mut watch, file) = watching(10, b"page");
        assert!(watch.turn(&its, || 9));
        assert_eq!((content(&file), watch.alarm()), (b"page".to_vec(), 10));
        assert!(watch.turn(&its, || 10));
        assert_eq!((content(&file), watch.alarm()), (vec![0; 4], 0));
        { &own }.write_all(&message(0, 12)).expect("sent");
        assert!(watch.turn(&its, || 11));
        assert_eq!(watch.alarm(), 12);
    }
}
