//! Child programs: bounded in time, ended by their id, and killed when this program ends.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, set_parent_process_death_signal};

/// Timeout of a server's start: reading back a large image is not part of it.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time between two looks at a program that starts: not all servers report when they are ready.
const START_PERIOD: Duration = Duration::from_millis(5);

/// Timeout of a server's end: after SIGTERM it writes out what is dirty.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// Set when the user interrupts the program.
pub type Interrupted = Arc<AtomicBool>;

/// # Errors
/// When the user has interrupted the program.
pub fn unless(interrupted: &AtomicBool) -> Result<()> {
    ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Has a program killed when the thread that starts it ends.
fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is a system call and touches no memory of ours.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// A running program. Killed when dropped.
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    interrupted: Interrupted,
}

impl Process {
    /// Starts a program; stderr goes to `log`, stdout to `log` with the extension `.out`.
    pub fn start(mut command: Command, log: &Path, interrupted: &Interrupted) -> Result<Process> {
        let name = command.get_program().to_string_lossy().into_owned();
        let errors = File::create(log).with_context(|| log.display().to_string())?;
        let output = File::create(output_path(log)).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // Ctrl-C is for the measuring program, which then ends this one.
        command.process_group(0);
        end_with_parent(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Process { child, name, log: log.to_owned(), interrupted: interrupted.clone() })
    }

    /// Processor time of all its threads so far, in user and system mode.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(&self.proc_file("stat")?, OWN).with_context(|| format!("/proc/{}/stat", self.child.id()))
    }

    /// The same with its children, those that have ended and those that run; not theirs.
    pub fn cpu_of_tree(&self) -> Result<Duration> {
        let id = self.child.id();
        let ended = cpu_of(&self.proc_file("stat")?, ENDED_CHILDREN).with_context(|| format!("/proc/{id}/stat"))?;
        let children = self.proc_file(&format!("task/{id}/children"))?;
        // One that has ended since is counted next time.
        let running = children.split_whitespace().filter_map(|child| {
            let text = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
            cpu_of(&text, OWN)
        });
        Ok(self.cpu()? + ended + running.sum())
    }

    /// Resident memory in bytes, huge pages included.
    pub fn resident_bytes(&self) -> Result<u64> {
        Ok(self.status_bytes("VmRSS:")? + self.status_bytes("HugetlbPages:")?)
    }

    /// The largest resident memory in bytes, huge pages as of now.
    pub fn peak_resident_bytes(&self) -> Result<u64> {
        Ok(self.status_bytes("VmHWM:")? + self.status_bytes("HugetlbPages:")?)
    }

    fn status_bytes(&self, key: &str) -> Result<u64> {
        let text = self.proc_file("status")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kilobytes.with_context(|| format!("/proc/{}/status has no {key}", self.child.id()))? * 1024)
    }

    fn proc_file(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/{name}", self.child.id());
        fs::read_to_string(&path).with_context(|| format!("{} has ended: {}", self.name, self.messages()))
    }

    pub fn messages(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Waits until `probe` succeeds. Returns what that gives.
    pub fn ready<T>(&mut self, mut probe: impl FnMut(&Process) -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let error = match probe(self) {
                Ok(ready) => return Ok(ready),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}): {}", self.messages());
            }
            if Instant::now() > deadline {
                let late = format!("not ready within {} s: {}", START_TIMEOUT.as_secs(), self.messages());
                return Err(error.context(late));
            }
            thread::sleep(START_PERIOD);
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(output_path(&self.log)).unwrap_or_default()
    }

    /// Waits for the program's end. Returns its standard output; an error if it failed or took longer than `timeout`.
    pub fn finish(mut self, timeout: Duration) -> Result<String> {
        self.await_end(timeout)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed ({status}): {}", self.name, self.messages());
        }
        Ok(fs::read_to_string(output_path(&self.log))?)
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(mut self) -> Result<()> {
        // An error says that it has ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.await_end(STOP_TIMEOUT)?;
        self.child.wait()?;
        Ok(())
    }

    fn await_end(&self, timeout: Duration) -> Result<()> {
        let end = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).context("pidfd_open")?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Wakes periodically, since a signal may arrive just before poll.
            let pause = Timespec::try_from(left.min(Duration::from_millis(200)))?;
            if matches!(poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&pause)), Ok(1)) {
                return Ok(());
            }
            unless(&self.interrupted)?;
            if left.is_zero() {
                bail!("{} did not end within {} s: {}", self.name, timeout.as_secs(), self.messages());
            }
        }
    }

    /// Ends it at once; what it has not written out is lost.
    pub fn kill(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Of the fields after the name in `/proc/PID/stat` (proc(5)), the processor time in user mode; that in system mode
/// follows.
const OWN: usize = 11;
const ENDED_CHILDREN: usize = 13;

fn cpu_of(stat: &str, field: usize) -> Option<Duration> {
    // The name, in parentheses, may hold spaces.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let seconds = (ticks(field)? + ticks(field + 1)?) as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(Duration::from_secs_f64(seconds))
}

fn output_path(log: &Path) -> PathBuf {
    log.with_extension("out")
}
