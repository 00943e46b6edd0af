//! The processors of this host: threads that run until they are stopped. This module, and those that open files and
//! sockets, choose Linux as the machine.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use kernel::trace::Tracer;
use kernel::{Kernel, KernelConfig, Processor, Switches};
use machine::linux::{self, Builder};
use policy::unit::ProcessorId;
use policy::{idle, sizing, writeback};

use crate::config::{Config, Problem, Problems, Settings};
use crate::tell;

/// The cache's share of memory where it is neither dynamic nor configured: a tenth, as before dynamic caches (WS-2).
pub const FIXED_SHARE: u64 = 10;

/// Prefix of the threads' names.
pub const PROCESSOR_THREADS: &str = "processor-";

/// How long a process that aborts still writes what was told.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

pub struct Processors {
    kernel: Arc<Kernel>,
    threads: Vec<JoinHandle<()>>,
    chosen: linux::Chosen,
}

impl Processors {
    /// Starts the configured number of processors, and the kernel that they share.
    ///
    /// # Errors
    /// When the host refuses what the configuration demands.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        Processors::start_traced(config, |_| Tracer::none())
    }

    /// The same, with the tracer that `tracer` makes for this number of processors.
    ///
    /// # Errors
    /// As [`Processors::start`].
    pub fn start_traced(config: &Config, tracer: impl FnOnce(u16) -> Tracer) -> anyhow::Result<Self> {
        let settings = &config.settings;
        let kernel = |count| kernel_config(settings, &config.switches, count);
        Self::start_kernel(&machine_config(settings), kernel, tracer).map_err(|error| match error.downcast() {
            Ok(error) => engine_problem(error, settings),
            Err(other) => other,
        })
    }

    /// Starts processors; `kernel` and `tracer` are given their number.
    ///
    /// # Errors
    /// When the host refuses; a [`linux::Error`] where it refuses the machine.
    pub fn start_kernel(
        machine: &linux::Config,
        kernel: impl FnOnce(u16) -> KernelConfig,
        tracer: impl FnOnce(u16) -> Tracer,
    ) -> anyhow::Result<Self> {
        let (builders, chosen) = linux::machines(machine)?;
        let count = chosen.cores.count() as u16;
        let kernel = Kernel::traced(kernel(count), Arc::new(tracer(count)))?;
        kernel.on_colors_found(linux::colors::find());
        let mut starting = Vec::new();
        for (number, builder) in builders.into_iter().enumerate() {
            starting.push(start(number, builder, &kernel)?);
        }
        let (mut threads, mut failure) = (Vec::new(), None);
        for (thread, ready) in starting {
            // A sender dropped without a message is a thread that panicked, which aborts.
            failure = failure.or(ready.recv().context("a processor ended while it started")?.err());
            threads.push(thread);
        }
        let processors = Processors { kernel, threads, chosen };
        match failure {
            None => Ok(processors),
            Some(error) => {
                processors.stop();
                Err(error.into())
            }
        }
    }

    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.kernel
    }

    pub fn ids(&self) -> impl Iterator<Item = ProcessorId> + use<> {
        (0..self.kernel.processors()).map(ProcessorId)
    }

    /// Their number and engine, as text.
    pub fn description(&self) -> String {
        self.chosen.to_string()
    }

    pub fn uses_io_uring(&self) -> bool {
        self.chosen.engine == linux::Engine::IoUring
    }

    /// The core of each.
    pub fn cores(&self) -> &linux::ProcessorCores {
        &self.chosen.cores
    }

    /// Starts a task on processor `id`; the receiver gets its result.
    pub fn start_task<T, F>(&self, id: ProcessorId, task: impl FnOnce(Processor) -> F + Send + 'static) -> Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        start_task(&self.kernel, id, task)
    }

    /// Has each, if it is idle, too, close the directories that are not locked any more, so that the host can unmount them.
    pub fn let_go(&self) {
        self.ids().for_each(|id| drop(self.start_task(id, async |_| {})));
    }

    /// Stops them. Requests in flight are abandoned.
    pub fn stop(self) {
        self.kernel.mailboxes().for_each(|mailbox| mailbox.stop());
        for thread in self.threads {
            // A panic would have aborted the process.
            let _ = thread.join();
        }
    }
}

/// Starts a task on processor `id` of `kernel`; the receiver gets its result.
pub fn start_task<T, F>(
    kernel: &Kernel,
    id: ProcessorId,
    task: impl FnOnce(Processor) -> F + Send + 'static,
) -> Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, receiver) = channel();
    kernel.mailbox(id).start(move |cpu| {
        let future = task(cpu.clone());
        cpu.spawn(async move {
            // The receiver may have been dropped.
            let _ = sender.send(future.await);
        });
    });
    receiver
}

type Starting = (JoinHandle<()>, Receiver<Result<(), linux::Error>>);

fn start(number: usize, builder: Builder, kernel: &Arc<Kernel>) -> anyhow::Result<Starting> {
    let (sender, receiver) = channel();
    let kernel = Arc::clone(kernel);
    let run = move || {
        let _abort = AbortOnPanic;
        match builder() {
            Ok(machine) => {
                let cpu = Processor::new(machine, &kernel);
                let _ = sender.send(Ok(()));
                cpu.run();
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        }
    };
    let thread = std::thread::Builder::new().name(format!("{PROCESSOR_THREADS}{number}")).spawn(run);
    Ok((thread.context("cannot start a thread for a processor")?, receiver))
}

/// A processor that panics leaves requests unanswered and locks held. Everything is designed to survive a crash, so the
/// process aborts, as soon as what was told before is written.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tell::settle_within(ABORT_TIMEOUT);
            std::process::abort();
        }
    }
}

fn machine_config(settings: &Settings) -> linux::Config {
    linux::Config {
        processors: match settings.processors {
            None => linux::Processors::Auto,
            Some(count) => linux::Processors::Count(count.into()),
        },
        engine: settings.engine,
        pin: true,
        idle: idle::Config::new(settings.idle_poll),
    }
}

/// A missing engine that was demanded is a problem of the configuration; any other error is the host's.
fn engine_problem(error: linux::Error, settings: &Settings) -> anyhow::Error {
    match error {
        linux::Error::NoIoUring(why) => {
            let what = format!("= \"io_uring\" is not available: {why}");
            Problems::from(Problem::new(&settings.place("engine"), "engine", what).allowed("\"auto\", \"threads\""))
                .into()
        }
        other => other.into(),
    }
}

fn kernel_config(settings: &Settings, switches: &Switches, processors: u16) -> KernelConfig {
    let host = host_memory_bytes();
    // Address space for both modes, between which a switch changes at run time.
    let memory_max = settings.memory.map_or(host, |wanted| wanted.min(host));
    let fixed_bytes = settings.memory.map_or(host / FIXED_SHARE, |wanted| wanted.min(host));
    let mode = if switches.dynamic_cache { sizing::Mode::Dynamic } else { sizing::Mode::Fixed { bytes: fixed_bytes } };
    KernelConfig {
        processors,
        memory_max,
        chunk_bytes: None,
        sizing: Some(sizing::Config { mode, fixed_bytes, ..sizing::Config::default() }),
        write_back: writeback::Config { smooth: switches.smooth_write_back, ..writeback::Config::default() },
        switches: switches.clone(),
    }
}

/// Memory of the host. Limits of control groups are followed at run time (`policy::sizing`).
fn host_memory_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    (host.totalram as u64).saturating_mul(host.mem_unit.into()).max(64 << 20)
}
