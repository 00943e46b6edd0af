//! A shared volume in this program's memory.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::server::{Happened, Server, Willing, wait};
use crate::{Error, Memory};

/// Between attempts to find a server that has ended, at first and at last.
const RETRY: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Where a server is found if nobody says: in this directory's `awase-data`.
const SOCKET: &str = "awase-data/shm";

/// The environment variable that says otherwise.
const SOCKET_VARIABLE: &str = "AWASE_SHM";

/// What happens to accesses when the server has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnServerLost {
    /// They wait until a server is there again.
    #[default]
    Wait,
    /// They end in SIGBUS, all from then on.
    Signal,
}

/// How a volume is mapped.
#[derive(Clone, Debug)]
pub struct Options {
    socket: PathBuf,
    on_server_lost: OnServerLost,
}

impl Default for Options {
    /// With the server whose socket the environment variable `AWASE_SHM` names, or `awase-data/shm`.
    fn default() -> Options {
        Options::at(std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into()))
    }
}

impl Options {
    /// With the server that listens at this Unix socket: the file `shm` in its data directory, or what it was told
    /// (`listen.shm`).
    pub fn at(socket: impl Into<PathBuf>) -> Options {
        Options { socket: socket.into(), on_server_lost: OnServerLost::default() }
    }

    #[must_use]
    pub fn on_server_lost(self, on_server_lost: OnServerLost) -> Options {
        Options { on_server_lost, ..self }
    }

    /// Maps the shared volume of this name.
    ///
    /// # Errors
    /// When no server answers, it refuses, or the host does.
    pub fn open(&self, volume: &str) -> Result<Mapping, Error> {
        let willing = Willing::connect(&self.socket, volume)?;
        let len = usize::try_from(willing.size).map_err(|_| Error::Misunderstood("the volume is too large"))?;
        let memory = Memory::new(len)?;
        let server = willing.offer(&memory)?;
        let host = |what| move |source| Error::Host { what, source };
        let watched = server.watched().map_err(host("a descriptor"))?;
        let (stop, stopped) = UnixStream::pair().map_err(host("a pair of sockets"))?;
        let shared = Arc::new(Inner {
            memory,
            server: Mutex::new(Some(server)),
            losses: AtomicU64::new(0),
            options: self.clone(),
        });
        let (own, volume) = (Arc::clone(&shared), volume.to_owned());
        let follow = move || own.follow(watched, &stopped, &volume);
        let thread = std::thread::Builder::new().name("awase-shm".into()).spawn(follow).map_err(host("a thread"))?;
        Ok(Mapping { inner: shared, stop: Some(stop), thread: Some(thread) })
    }
}

#[derive(Debug)]
struct Inner {
    memory: Memory,
    server: Mutex<Option<Server>>,
    losses: AtomicU64,
    options: Options,
}

impl Inner {
    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        // Whoever panicked with it left it as it was.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the server's end, and does what the program has chosen. Otherwise asleep.
    fn follow(&self, mut watched: UnixStream, stopped: &UnixStream, volume: &str) {
        while wait(stopped, Some(&watched), None) == Happened::ServerEnded {
            let next = match self.on_server_ended() {
                true => self.find(stopped, volume),
                false => None,
            };
            match next {
                Some(next) => watched = next,
                None => return,
            }
        }
    }

    /// Nothing that is here counts any more. Returns whether to look for another server.
    fn on_server_ended(&self) -> bool {
        let mut server = self.server();
        let is_cleared = self.memory.clear().is_ok();
        let waits = self.options.on_server_lost == OnServerLost::Wait && is_cleared;
        if !waits && self.memory.fail().is_err() {
            // Old pages must not be used.
            std::process::abort();
        }
        // Whoever sees it sees nothing of before, and whoever sees what comes after sees it.
        self.losses.fetch_add(1, Ordering::SeqCst);
        // The last that is done: other nodes, and the next server, may go on.
        *server = None;
        waits
    }

    /// Looks for a server until there is one, and hands the memory over.
    fn find(&self, stopped: &UnixStream, volume: &str) -> Option<UnixStream> {
        let [mut pause, longest] = RETRY;
        while wait(stopped, None, Some(pause)) != Happened::Stopped {
            match self.return_to(volume) {
                Ok(Some(watched)) => return Some(watched),
                Ok(None) => {
                    // Another volume has its name: what is here will never be filled.
                    if self.memory.fail().is_err() {
                        std::process::abort();
                    }
                    return None;
                }
                Err(_) => pause = (pause * 2).min(longest),
            }
        }
        None
    }

    /// `None`: the volume has another size.
    fn return_to(&self, volume: &str) -> Result<Option<UnixStream>, Error> {
        let willing = Willing::connect(&self.options.socket, volume)?;
        if willing.size != self.memory.len() as u64 {
            return Ok(None);
        }
        let server = willing.offer(&self.memory)?;
        let watched = server.watched().map_err(|_| Error::ServerLost)?;
        *self.server() = Some(server);
        // What the last server had been told of, and not answered, is not told again by itself.
        self.memory.wake();
        Ok(Some(watched))
    }
}

/// A shared volume in this program's memory, for as long as this lives.
#[derive(Debug)]
pub struct Mapping {
    inner: Arc<Inner>,
    /// Closed to end the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Mapping {
    /// The first byte. Accesses through it must be such that other programs may change the memory at any moment: volatile
    /// or atomic.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.inner.memory.base()
    }

    /// In bytes.
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place<T>(&self, offset: usize, count: usize) -> Option<*const T> {
        let bytes = count.checked_mul(size_of::<T>())?;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len());
        let is_aligned = offset.is_multiple_of(align_of::<T>());
        (is_inside && is_aligned).then(|| self.as_ptr().as_ptr().wrapping_add(offset).cast_const().cast())
    }

    /// The 8 bytes at `offset`; `None` where they are not aligned or beyond the end. In the machine's order of bytes, as
    /// all numbers here: machines of another order do not understand each other.
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: it lies within the mapping, which lives as long as `self`, is aligned, valid for all bits, and changed by
        // others only as atomics are.
        self.place(offset, 1).map(|place| unsafe { &*place })
    }

    /// The 4 bytes at `offset`, in the same way.
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        // SAFETY: as above.
        self.place(offset, 1).map(|place| unsafe { &*place })
    }

    /// `count` numbers of 8 bytes from `offset` on, in the same way.
    pub fn atomics_u64(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        // SAFETY: as above, for all of them.
        self.place(offset, count).map(|place| unsafe { std::slice::from_raw_parts(place, count) })
    }

    /// `count` bytes from `offset` on, in the same way.
    pub fn bytes(&self, offset: usize, count: usize) -> Option<&[AtomicU8]> {
        // SAFETY: as above.
        self.place(offset, count).map(|place| unsafe { std::slice::from_raw_parts(place, count) })
    }

    /// Orders the accesses before it before those after it, for all who share the volume. Needed only between accesses that
    /// are not `SeqCst`. It asks nobody: a page is written only where nobody else has it.
    pub fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Makes durable, at the volume's homes, what this program (and all others on this machine) have written before.
    ///
    /// # Errors
    /// When something could not be made durable, or the server has ended.
    pub fn flush(&self) -> Result<(), Error> {
        self.inner.server().as_mut().ok_or(Error::ServerLost)?.flush()
    }

    /// How often the server has ended under this mapping: each time, what had not been flushed may have been lost.
    pub fn losses(&self) -> u64 {
        self.inner.losses.load(Ordering::SeqCst)
    }

    /// Whether system calls may be given memory of the mapping that is not present; see the crate's documentation.
    pub fn serves_system_calls(&self) -> bool {
        !self.inner.memory.is_user_mode_only()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It ends at once, and has not panicked: nothing in it does.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
