//! A mount from its begin to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use fuser::{MountOption, SessionACL};
use kernel::trace::{self, Tracer};
use kernel::{KernelConfig, Switches};
use machine::{Errno, linux};
use mount::{Caller, Export, Files, Unstored};
use policy::unit::ProcessorId;
use policy::{idle, readahead, sizing, writeback};
use rustix::process::{getegid, geteuid, getgroups};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::control::{self, Asker};
use super::dial::{Dial, addresses};
use super::fuse::{Adapter, allow_read_ahead};
use super::host::{Notices, ToHost};
use super::messages::Messages;
use super::mounts::{SUBTYPE, own_mount};
use super::options::MountOptions;
use super::umount::take_away;
use super::url::Url;
use crate::processors::Processors;
use crate::signals::SAME_SIGNAL;
use crate::stack::disk_in_memory;

/// The one processor of a mount.
const PROCESSOR: ProcessorId = ProcessorId(0);

/// How long it polls at most before it sleeps: most of a call's time on a network nearby is that of waking up. Opening, reading and
/// closing a file of a server on the same host took 164 µs without it, 58 with it, and 69 with 500 µs.
const POLL: Duration = Duration::from_micros(50);

/// For what could not be stored before, when the mount ends.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// What ends a mount.
enum Event {
    Signal,
    /// Somebody wants it to give up.
    Forced(Asker),
    /// After the first signal: what was written is stored, or cannot be.
    Flushed(Result<(), Errno>),
    /// It was unmounted, or the host's kernel refuses to go on.
    Unmounted(std::io::Result<()>),
}

/// How a mount has ended.
enum End {
    Unmounted,
    /// By force or a second signal: nobody wants to wait any longer.
    AtOnce(Unstored),
}

/// Mounts, calls `ready`, and returns when it is unmounted.
///
/// # Errors
/// When it cannot be mounted, or something that was written could not be stored.
pub fn run(
    url: &Url,
    options: &MountOptions,
    directory: &Path,
    messages: &Arc<Messages>,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    addresses(&url.host, mount::Port(0)).with_context(|| format!("no server {:?}", url.host))?;
    let directory = std::fs::canonicalize(directory)?;
    let processors = start_processors(options)?;
    let (host, notices) = ToHost::new(messages);
    let files = open(&processors, url, options, messages, Arc::clone(&host))?;
    let ended = serve(&processors, &files, options, (url, &directory), (&host, notices), ready);
    let flushed = match ended {
        Ok(End::AtOnce(unstored)) if unstored.files > 0 => {
            let lost = lost(unstored);
            messages.line(&lost);
            Err(anyhow!(lost))
        }
        Ok(End::AtOnce(_)) => Ok(()),
        _ => flush(&processors, &files),
    };
    files.server().close();
    processors.stop();
    ended.and(flushed)
}

fn start_processors(options: &MountOptions) -> anyhow::Result<Processors> {
    let machine = linux::Config {
        processors: linux::Processors::Count(1),
        engine: linux::Engine::Auto,
        // A mount is one of many processes: it takes a core when it has something to do, and any.
        pin: false,
        idle: idle::Config { longest: POLL, longest_lone: POLL },
    };
    let mode = sizing::Mode::Dynamic;
    let sizing = sizing::Config { mode, fixed_bytes: options.cache, ..sizing::Config::default() };
    let switches = Switches { read_ahead: options.read_ahead, trace: trace::Mode::Off, ..Switches::default() };
    let kernel = |processors| KernelConfig {
        processors,
        memory_max: options.cache,
        chunk_bytes: None,
        sizing: Some(sizing),
        write_back: writeback::Config::default(),
        switches,
    };
    Processors::start_kernel(&machine, kernel, |_| Tracer::none())
}

/// Finds the export.
fn open(
    processors: &Processors,
    url: &Url,
    options: &MountOptions,
    messages: &Arc<Messages>,
    host: Arc<ToHost>,
) -> anyhow::Result<Arc<Files>> {
    let mut serial = [0; 8];
    getrandom::fill(&mut serial).map_err(std::io::Error::from)?;
    let serial = u64::from_ne_bytes(serial);
    let export = Export {
        connector: Arc::new(Dial {
            host: url.host.clone(),
            privileged: options.privileged,
            messages: Arc::clone(messages),
        }),
        caller: caller()?,
        path: url.path.clone(),
        ports: options.ports,
        connections: options.connections,
        timeouts: options.timeouts,
        serial,
    };
    let (files, disk) = (options.files.clone(), disk_in_memory());
    let opened = processors.start_task(PROCESSOR, move |cpu| async move {
        let server = mount::mount(&cpu, &export).await?;
        let opened = Files::open(&cpu, server, disk, files, serial, host).await;
        opened.map_err(|errno| anyhow!("the server does not say what the export's root is: {errno}"))
    });
    opened.recv().context("the mount's processor has ended")?.with_context(|| format!("cannot mount {url}"))
}

/// The user who mounts, in whose name everything is done.
fn caller() -> anyhow::Result<Caller> {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let groups = getgroups().context("cannot read this user's groups")?;
    Ok(Caller {
        machine,
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    })
}

/// Serves the host's kernel until it is unmounted.
fn serve(
    processors: &Processors,
    files: &Arc<Files>,
    options: &MountOptions,
    (url, directory): (&Url, &PathBuf),
    (host, notices): (&Arc<ToHost>, Notices),
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<End> {
    let kernel = Arc::clone(processors.kernel());
    let mailbox = Arc::clone(kernel.mailbox(PROCESSOR));
    let reads_ahead = options.read_ahead != readahead::Mode::Off;
    let (files_of, direct_io, waiting) = (Arc::clone(files), options.direct_io, Arc::default());
    let (host_reads_ahead, device): (Arc<AtomicBool>, Arc<OnceLock<OwnedFd>>) = Default::default();
    let adapter = Adapter {
        files: files_of,
        kernel,
        mailbox,
        waiting,
        direct_io,
        reads_ahead,
        host_reads_ahead: Arc::clone(&host_reads_ahead),
        device: Arc::clone(&device),
    };
    // From here on, so that none is missed that comes as soon as it is ready.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let session =
        fuser::Session::new(adapter, directory, &config(url, options)).map_err(|error| refusal(error, directory))?;
    // It serves nothing before it runs.
    let _ = device.set(session.as_fd().try_clone_to_owned()?);
    let mounted = own_mount(directory)?.context("the host does not list the mount")?.device;
    if reads_ahead {
        // Ordinary users have what the host gives them.
        let is_adaptive = matches!(options.read_ahead, readahead::Mode::Adaptive { .. });
        host_reads_ahead.store(allow_read_ahead(mounted).is_ok() && is_adaptive, Ordering::Relaxed);
    }
    host.start(&session, mounted, notices)?;
    let (events, happened) = channel();
    let (unmounted, signalled, forced) = (events.clone(), events.clone(), events.clone());
    if let Err(error) = control::listen(mounted, move |asker| forced.send(Event::Forced(asker)).is_ok()) {
        host.messages.line(&format!("umount --force will not know what is lost: {error}"));
    }
    std::thread::Builder::new().name("mount-session".into()).spawn(move || {
        let _ = unmounted.send(Event::Unmounted(session.run()));
    })?;
    let handle = signals.handle();
    std::thread::Builder::new().name("mount-signals".into()).spawn(move || {
        for _ in signals.forever() {
            let _ = signalled.send(Event::Signal);
        }
    })?;
    let ready = ready().inspect_err(|_| {
        // Nobody waits for the mount any more; without its process it would only be in the way.
        let _ = take_away(directory, true);
    });
    let result =
        ready.and_then(|()| until_unmounted(processors, files, directory, &host.messages, (&events, &happened)));
    handle.close();
    result
}

fn until_unmounted(
    processors: &Processors,
    files: &Arc<Files>,
    directory: &Path,
    messages: &Messages,
    (events, happened): (&Sender<Event>, &Receiver<Event>),
) -> anyhow::Result<End> {
    // When the first signal came.
    let mut ends: Option<Instant> = None;
    let mut wait = Duration::MAX;
    loop {
        let event = match happened.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Event::Flushed(Err(Errno::TIMED_OUT)),
            event => event.context("the mount's threads have ended")?,
        };
        match event {
            Event::Unmounted(result) => return result.context("the host has ended the mount").map(|()| End::Unmounted),
            Event::Signal if ends.is_some_and(|since| since.elapsed() < SAME_SIGNAL) => {}
            Event::Signal if ends.is_some() => {
                // It may be away already.
                let _ = take_away(directory, true);
                return Ok(End::AtOnce(files.unstored()));
            }
            Event::Forced(asker) => {
                let taken_away = take_away(directory, true);
                let unstored = files.unstored();
                asker.answer(&lost(unstored));
                return taken_away.map(|()| End::AtOnce(unstored));
            }
            Event::Signal => {
                ends = Some(Instant::now());
                wait = LAST_FLUSH_TIMEOUT;
                let (files, events) = (Arc::clone(files), events.clone());
                processors.start_task(PROCESSOR, move |cpu| async move {
                    // Who waits for it may be gone.
                    let _ = events.send(Event::Flushed(files.flush_all(&cpu).await));
                });
            }
            // After a timeout it is flushed once more.
            Event::Flushed(_) if wait == Duration::MAX => {}
            Event::Flushed(flushed) => {
                wait = Duration::MAX;
                if let Err(errno) = flushed {
                    messages.line(&format!("not everything could be stored so far: {errno}"));
                }
                // Those who use it may go on until they let go of it.
                take_away(directory, true)?;
            }
        }
    }
}

fn lost(Unstored { bytes, files }: Unstored) -> String {
    match files {
        0 => "nothing is lost: the server has stored everything".into(),
        1 => format!("lost: {bytes} bytes of 1 file, which the server has not stored"),
        _ => format!("lost: {bytes} bytes of {files} files, which the server has not stored"),
    }
}

/// Makes everything durable that was written.
fn flush(processors: &Processors, files: &Arc<Files>) -> anyhow::Result<()> {
    let files = Arc::clone(files);
    let flushed = processors.start_task(PROCESSOR, move |cpu| async move { files.flush_all(&cpu).await });
    let flushed = flushed.recv_timeout(LAST_FLUSH_TIMEOUT);
    flushed
        .context("the server does not answer: what it has not stored is lost")?
        .context("not everything could be stored")
}

fn config(url: &Url, options: &MountOptions) -> fuser::Config {
    let mut config = fuser::Config::default();
    let name = url.to_string();
    // The host's list of options ends at a comma.
    let name = name.replace(',', "_");
    config.mount_options = vec![MountOption::FSName(name), MountOption::Subtype(SUBTYPE.into())];
    config.mount_options.extend(options.of_host.iter().cloned());
    if options.files.read_only {
        config.mount_options.push(MountOption::RO);
    }
    if options.allow_other {
        // Others' rights are checked by the host: the server knows only who mounted.
        config.mount_options.push(MountOption::DefaultPermissions);
        config.acl = SessionACL::All;
    }
    config
}

/// Why the host does not mount, in words that help.
fn refusal(error: std::io::Error, directory: &Path) -> anyhow::Error {
    let directory = directory.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            anyhow!("cannot mount on {directory}: fusermount3 (package fuse3) and /dev/fuse are needed: {error}")
        }
        _ => anyhow!("cannot mount on {directory}: {error}"),
    }
}
