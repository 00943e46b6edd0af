//! What systemd is told, where it asks: whether the server is ready, what it serves, and that it is alive.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kernel::Kernel;
use policy::unit::ProcessorId;
use sd_notify::NotifyState;

use crate::processors::start_task;
use crate::tell::{self, tell};

/// A notice that is longer is not delivered at all.
const STATUS_CHARS_MAX: usize = 500;

/// What was told until now comes first. `status` is a line for `systemctl status`.
pub fn notify_ready(status: &str) {
    tell::settle();
    let plain = status.chars().map(|char| if char.is_control() { ' ' } else { char });
    let line: String = plain.take(STATUS_CHARS_MAX).collect();
    notify(&[NotifyState::Ready, NotifyState::Status(&line)]);
}

pub fn notify_reloading() {
    let now = NotifyState::monotonic_usec_now().unwrap_or(NotifyState::MonotonicUsec(0));
    notify(&[NotifyState::Reloading, now]);
}

pub fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies the watchdog, if there is one (`WatchdogSec=`), four times in its time, as long as all processors run what is ready
/// there: until the process ends, so that what is written at the end may take its time.
pub fn begin_watchdog(kernel: &Arc<Kernel>) {
    let Some(timeout) = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero()) else { return };
    let kernel = Arc::clone(kernel);
    let run = move || watch(&kernel, timeout / 4, || notify(&[NotifyState::Watchdog]));
    if let Err(error) = thread::Builder::new().name("watchdog".into()).spawn(run) {
        tell(format_args!("the watchdog of systemd is not notified: no thread: {error}"));
    }
}

/// Goes on until the process ends: what a processor that has ended is asked is not answered.
fn watch(kernel: &Kernel, interval: Duration, mut notify: impl FnMut()) {
    loop {
        let start = |id| start_task(kernel, ProcessorId(id), async |_| {});
        let started: Vec<_> = (0..kernel.processors()).map(start).collect();
        if !started.into_iter().all(|ran| ran.recv().is_ok()) {
            return;
        }
        notify();
        thread::sleep(interval);
    }
}

/// A failure is told and no error.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tell(format_args!("systemd cannot be notified: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;
    use crate::config::Config;
    use crate::processors::Processors;

    /// A processor that runs answers sooner.
    const LONG: Duration = Duration::from_millis(300);

    #[test]
    fn a_watchdog_is_not_notified_while_one_processor_hangs() {
        let config = Config::parse("awase.toml", "processors = 2\nmemory = \"16MiB\"\n").expect("a good configuration");
        let processors = Processors::start(&config).expect("started");
        let kernel = Arc::clone(processors.kernel());
        let (notices, notified) = sync_channel(0);
        let notify = move || notices.send(()).expect("a test that waits");
        thread::spawn(move || watch(&kernel, Duration::ZERO, notify));
        notified.recv().expect("they run");
        let ((hangs, hung), (release, released)) = (channel(), channel::<()>());
        let hang = move |_| async move {
            hangs.send(()).expect("a test that waits");
            released.recv().expect("released");
        };
        drop(processors.start_task(ProcessorId(1), hang));
        hung.recv().expect("it hangs");
        // Both had run before.
        let late = notified.recv_timeout(LONG).into_iter().count();
        assert!(late == 0 || notified.recv_timeout(LONG).is_err());
        release.send(()).expect("it hangs");
        notified.recv().expect("they run again");
        notified.recv().expect("and again");
        std::mem::forget(notified);
        processors.stop();
    }
}
