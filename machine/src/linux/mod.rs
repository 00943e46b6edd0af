//! Machines on Linux: [`uring`] on io_uring, [`threads`] on epoll and a pool of threads where io_uring is forbidden.
//!
//! [`machines`] chooses, and returns one builder for each processor, to be called on that processor's thread: a ring
//! belongs to the thread that makes it. The control plane: [`file`](mod@file) opens files and devices, [`tree`]
//! directory trees, [`net`] makes sockets.

mod alone;
mod awake;
mod bell;
pub mod colors;
mod core_worker;
mod cores;
mod credentials;
pub mod descriptors;
mod epoll;
pub mod file;
pub mod file_system;
mod idling;
mod memory;
pub mod net;
mod perform;
mod placement;
mod pool;
pub mod shared_memory;
mod syscall;
mod task;
pub mod threads;
pub mod tree;
pub mod uring;
pub mod userfault;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use alone::LastWaiter;
use awake::Awake;
pub use cores::{Cores, ProcessorCores};
use memory::MemoryWatch;
use placement::Placement;
use policy::idle;
use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};
use pool::Pool;
use threads::Threads;
use uring::Uring;

use crate::{Errno, Machine, Park};

pub const PROCESSORS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processors {
    /// One for each core that this process may use.
    #[default]
    Auto,
    /// From 1 to [`PROCESSORS_MAX`].
    Count(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or threads where it does not work.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    Threads,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Auto => "auto",
            Engine::IoUring => "io_uring",
            Engine::Threads => "threads",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub processors: Processors,
    pub engine: Engine,
    /// Pin each processor's thread to a core.
    pub pin: bool,
    /// Idle polling, with io_uring.
    pub idle: idle::Config,
}

impl Default for Config {
    fn default() -> Self {
        Config { processors: Processors::Auto, engine: Engine::Auto, pin: true, idle: idle::Config::default() }
    }
}

#[derive(Clone, Debug)]
pub struct Chosen {
    /// Never [`Engine::Auto`].
    pub engine: Engine,
    /// Why it is not io_uring, where [`Engine::Auto`] was configured.
    pub reason: Option<String>,
    pub cores: ProcessorCores,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.cores.count();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} processor{plural}, {}", self.engine)?;
        match &self.reason {
            Some(reason) => write!(f, " (io_uring: {reason})"),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// io_uring was configured and does not work.
    #[error("io_uring does not work: {0}; choose the engine `threads` or `auto`")]
    NoIoUring(String),
    #[error("{0} processors are not possible: 1 to {PROCESSORS_MAX} are")]
    Processors(usize),
    #[error("can't {what}: {errno}")]
    Host { what: &'static str, errno: Errno },
}

/// Makes the machine of one processor. To be called on the thread that will use it; pins that thread if configured.
pub type Builder = Box<dyn FnOnce() -> Result<Box<dyn Machine>, Error> + Send>;

/// So few processors may keep others' cores awake for a lone client, and change cores for it. On larger machines clients find
/// idle cores, and disks have a queue and interrupts for each core, as a rule; and all would have to be kept awake, or tried.
const WITH_OTHERS: std::ops::RangeInclusive<usize> = 2..=4;

/// State that all processors of one machine share.
struct Shared {
    clock: Clock,
    pool: Arc<Pool>,
    memory: MemoryWatch,
    cores: Cores,
    idle: idle::Config,
    awake: Awake,
    placement: Placement,
    last_waiter: LastWaiter,
}

/// Chooses the engine (by testing io_uring) and returns a builder for each processor, in order of number.
pub fn machines(config: &Config) -> Result<(Vec<Builder>, Chosen), Error> {
    let cores = Cores::allowed();
    let count = match config.processors {
        Processors::Auto => cores.count().min(PROCESSORS_MAX),
        Processors::Count(count) if (1..=PROCESSORS_MAX).contains(&count) => count,
        Processors::Count(count) => return Err(Error::Processors(count)),
    };
    let (engine, reason) = choose(config.engine)?;
    let own = ProcessorCores::new((0..count).map(|k| cores.number(k)));
    let chosen = Chosen { engine, reason: reason.clone(), cores: own.clone() };
    let with_others = if WITH_OTHERS.contains(&count) { count } else { 0 };
    let shared = Arc::new(Shared {
        clock: Clock::new(),
        pool: Pool::new(cores.clone()),
        memory: MemoryWatch::new(),
        cores,
        idle: config.idle,
        awake: Awake::new(with_others),
        placement: Placement::new(if config.pin { with_others } else { 0 }, own),
        last_waiter: LastWaiter::default(),
    });
    let may_fall_back = config.engine == Engine::Auto;
    let builders = (0..count).map(|k| {
        let processor = Plan {
            processor: ProcessorId(k as u16),
            shared: Arc::clone(&shared),
            engine,
            may_fall_back,
            reason: reason.clone(),
            pin: config.pin,
        };
        Box::new(move || processor.build()) as Builder
    });
    Ok((builders.collect(), chosen))
}

/// The memory of this process now.
pub fn memory() -> MemoryFacts {
    MemoryWatch::new().read()
}

fn choose(wanted: Engine) -> Result<(Engine, Option<String>), Error> {
    if wanted == Engine::Threads {
        return Ok((Engine::Threads, None));
    }
    match (uring::try_out(), wanted) {
        (Ok(()), _) => Ok((Engine::IoUring, None)),
        (Err(error), Engine::IoUring) => Err(Error::NoIoUring(error.to_string())),
        (Err(error), _) => Ok((Engine::Threads, Some(error.to_string()))),
    }
}

struct Plan {
    processor: ProcessorId,
    shared: Arc<Shared>,
    engine: Engine,
    /// Falls back to threads if its ring cannot be made, after the test succeeded.
    may_fall_back: bool,
    reason: Option<String>,
    pin: bool,
}

impl Plan {
    fn build(self) -> Result<Box<dyn Machine>, Error> {
        if self.pin {
            let pinned = self.shared.cores.pin(self.processor.0.into());
            pinned.map_err(|errno| Error::Host { what: "pin a processor to its core", errno })?;
        }
        let reason = match self.engine {
            Engine::Threads => self.reason.clone(),
            _ => match Uring::new(self.processor, Arc::clone(&self.shared)) {
                Ok(machine) => return Ok(Box::new(machine)),
                Err(error) if self.may_fall_back => Some(error.to_string()),
                Err(error) => return Err(Error::NoIoUring(error.to_string())),
            },
        };
        let machine = Threads::new(self.processor, self.shared, reason);
        let machine = machine.map_err(|errno| Error::Host { what: "make an event descriptor", errno })?;
        Ok(Box::new(machine))
    }
}

/// Time since the first machine of this process was made.
#[derive(Clone, Copy)]
struct Clock(std::time::Instant);

impl Clock {
    fn new() -> Self {
        Clock(crate::counter::clock_origin())
    }

    fn now(self) -> Instant {
        Instant::from_ns(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// What a sleep may take longer than it should.
const SLEEP: Duration = Duration::from_micros(100);

/// Sleeps most of a long time, and spins for the rest.
fn pause(clock: &Clock, time: Duration) {
    let end = clock.now() + time;
    if time > 2 * SLEEP {
        std::thread::sleep(time - SLEEP);
    }
    while clock.now() < end {
        std::hint::spin_loop();
    }
}

/// How long a processor may sleep: not at all (`None`), until it is woken (`Some(None)`), or at most a time.
fn park_time(park: Park, now: Instant) -> Option<Option<Duration>> {
    match park {
        Park::No => None,
        Park::Until { deadline: Some(deadline), .. } if deadline <= now => None,
        Park::Until { deadline, .. } => Some(deadline.map(|deadline| deadline.since(now))),
    }
}

fn time_of_day() -> crate::tree::Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    crate::tree::Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
