//! Programs of this host that map shared volumes (crate `awase-shm`): the socket at which they ask, and its bounds.
//!
//! What is said before a program has the memory is said here, on threads outside the path; then the connection, and the
//! faults of the memory, go to a processor: that on whose core the program runs, since a fault there costs a fraction of
//! one elsewhere.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dsm::{Dsm, MAPPINGS_MAX, Shared};
use kernel::Kernel;
use machine::linux::ProcessorCores;
use machine::linux::descriptors::{receive_with_descriptors, send_with_descriptor};
use machine::linux::file::make_directories;
use machine::linux::net::{self, ListeningSocket};
use machine::linux::userfault::Userfault;
use policy::unit::ProcessorId;
use rustix::fs::FlockOperation;
use shm::wire::{self, Answer, Hello, OFFER_BYTES, Offer};

use crate::client_threads::ClientThreads;
use crate::cluster::Cluster;
use crate::config::{Config, Disk};
use crate::guard::Guard;
use crate::processors::Processors;

/// Programs that have not said everything yet, at a time; further ones are refused.
const BEGINNERS_MAX: u32 = 64;

/// They must have done so after this time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between looks at the lock.
const RETRY: Duration = Duration::from_millis(20);

/// How long the next server waits for programs that may still have pages of the last one. Those that are stopped do not
/// give them up by themselves.
const EARLIER_TIMEOUT: Duration = Duration::from_secs(5);

/// The listening socket. When dropped, it accepts no more programs; those that have mapped something are others' concern.
pub struct Programs {
    _socket: ListeningSocket,
}

/// What is given to them.
struct Served {
    dsm: Weak<Dsm>,
    kernel: Weak<Kernel>,
    /// Of each processor.
    cores: ProcessorCores,
    lock: PathBuf,
    /// Where this node may have to take its pages back while it is stopped.
    guard: Option<Arc<Guard>>,
}

/// Beside the socket: whoever may have pages holds it.
fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn open_lock(path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), make_directories)?;
    File::options().read(true).append(true).create(true).mode(0o600).open(path)
}

fn shared_lock(path: &Path) -> io::Result<File> {
    let lock = open_lock(path)?;
    rustix::fs::flock(&lock, FlockOperation::LockShared)?;
    Ok(lock)
}

/// Waits until no program has pages that an earlier server gave it, which died: other nodes may change them as soon as they
/// hear of this server. Each gives them up when it sees the death. Returns what people should know.
fn await_unlocked(path: &Path) -> anyhow::Result<Option<String>> {
    let lock = open_lock(path).with_context(|| path.display().to_string())?;
    let end = Instant::now() + EARLIER_TIMEOUT;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= end {
            return Ok(Some(format!(
                "a program may still have pages that an earlier server gave it, though {EARLIER_TIMEOUT:?} have passed: is one \
                 stopped? What it reads before it sees that server's end may be old ({} is locked)",
                path.display()
            )));
        }
        thread::sleep(RETRY);
    }
    Ok(None)
}

impl Programs {
    /// To be called before the cluster is joined.
    ///
    /// # Errors
    /// When the lock cannot be made.
    pub fn await_earlier(config: &Config) -> anyhow::Result<Option<String>> {
        let is_shared = config.exports.iter().any(|export| export.kind == Disk::Shared);
        let socket = config.settings.shm_socket().filter(|_| is_shared);
        socket.map_or(Ok(None), |socket| await_unlocked(&lock_path(&socket)))
    }

    /// Accepts programs from a thread of its own.
    ///
    /// # Errors
    /// When the host has no descriptor or thread left.
    pub fn serve(
        socket: ListeningSocket,
        path: &Path,
        cluster: &Cluster,
        processors: &Processors,
    ) -> anyhow::Result<Self> {
        let listener = socket.for_thread().context("cannot listen for programs that map shared disks")?;
        let (dsm, kernel) = (Arc::downgrade(cluster.protocol()), Arc::downgrade(processors.kernel()));
        let (cores, lock, guard) = (processors.cores().clone(), lock_path(path), cluster.guard());
        let known = Weak::clone(&kernel);
        let served = Served { dsm, kernel, cores, lock, guard };
        let threads = ClientThreads { accepting: "programs", serving: "program", clients_max: BEGINNERS_MAX };
        // A program that has gone, or says something else, is told nothing.
        let begin = move |stream| drop(served.begin(stream));
        threads.accept(listener, move || known.strong_count() == 0, refuse, begin).context("cannot start a thread")?;
        Ok(Programs { _socket: socket })
    }
}

fn refuse(mut stream: &UnixStream) {
    let why = format!("{BEGINNERS_MAX} programs are about to map a volume already; try again later");
    // It may have gone.
    let _ = stream.write_all(&wire::encode_answer(&Err(why)));
}

/// Reads until a point in time, however slowly bytes arrive.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Timed<'_> {
    fn begin_wait(&self) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))
    }

    fn offer(&self) -> io::Result<(Offer, Vec<std::os::fd::OwnedFd>)> {
        let (mut bytes, mut at, mut descriptors) = ([0; OFFER_BYTES], 0, Vec::new());
        while at < OFFER_BYTES {
            self.begin_wait()?;
            let (count, more) = receive_with_descriptors(self.stream, &mut bytes[at..], 2)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += count;
            descriptors.extend(more);
        }
        Ok((Offer::decode(&bytes), descriptors))
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.begin_wait()?;
        self.stream.read(into)
    }
}

impl Served {
    /// Talks to a program until its memory is served, or it cannot be.
    fn begin(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut timed = Timed { stream: &stream, end: Instant::now() + TIMEOUT };
        let hello = Hello::receive(&mut timed)?;
        let say = |answer: Answer| (&stream).write_all(&wire::encode_answer(&answer));
        let shared = match self.volume(&hello.volume) {
            Ok(shared) => shared,
            Err(why) => return say(Err(why)),
        };
        let size = shared.config().size;
        say(Ok(size))?;
        let (offer, descriptors) = timed.offer()?;
        let mapping = <[_; 2]>::try_from(descriptors)
            .map_err(|_| "two descriptors are needed".to_owned())
            .and_then(|[fault, memory]| {
                Userfault::adopt(fault, memory, offer.base, offer.len).map_err(|refusal| refusal.to_string())
            })
            .and_then(|mapping| {
                if offer.len == size {
                    Ok(mapping)
                } else {
                    Err(format!("the volume has {size} bytes, not {}", offer.len))
                }
            });
        let mapping = match mapping {
            Ok(mapping) => mapping,
            Err(why) => return say(Err(why)),
        };
        let mapping = match self.guarded(mapping) {
            Ok(mapping) => mapping,
            Err(error) => return say(Err(format!("the memory cannot be guarded: {error}"))),
        };
        let lock = shared_lock(&self.lock)?;
        send_with_descriptor(&stream, &wire::encode_answer(&Ok(size)), &lock)?;
        self.hand_over(shared, mapping, stream)
    }

    fn guarded(&self, mapping: Userfault) -> io::Result<Userfault> {
        let Some(guard) = &self.guard else { return Ok(mapping) };
        let guarded = guard.add(&mapping.memory(), || shared_lock(&self.lock))?;
        Ok(mapping.guarded(Box::new(move || guarded.is_intact())))
    }

    fn volume(&self, name: &str) -> Result<Arc<Shared>, String> {
        let volumes = self.dsm.upgrade().map(|dsm| dsm.volumes()).unwrap_or_default();
        let Some(shared) = volumes.iter().find(|shared| shared.name() == name) else {
            let names: Vec<String> = volumes.iter().map(|shared| format!("{:?}", shared.name())).collect();
            return Err(format!("no shared volume is called {name:?}; there are: {}", names.join(", ")));
        };
        if !shared.answers() {
            return Err("this node is no member of its cluster now; try again later".to_owned());
        }
        if shared.is_read_only() {
            return Err(format!("volume {name:?} is served read-only"));
        }
        if shared.mappings() >= MAPPINGS_MAX {
            return Err(format!("{MAPPINGS_MAX} programs have mapped volume {name:?} already"));
        }
        Ok(Arc::clone(shared))
    }

    fn hand_over(&self, shared: Arc<Shared>, mapping: Userfault, stream: UnixStream) -> io::Result<()> {
        let connection = net::adopt_connection(stream.into())?;
        let core = net::peer_core(connection);
        let number = core.and_then(|core| self.cores.iter().position(|own| own == core)).unwrap_or(0);
        let Some(kernel) = self.kernel.upgrade() else { return Ok(()) };
        kernel.mailbox(ProcessorId(number as u16)).start(move |cpu| {
            if shared.map(&cpu, Arc::new(mapping), connection).is_none() {
                cpu.close(connection);
            }
        });
        Ok(())
    }
}
