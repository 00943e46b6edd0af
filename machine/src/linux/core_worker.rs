//! A thread that makes a processor's blocking calls on the processor's own core, while a lone request waits for them.
//!
//! A thread of the pool runs on an idle core, as a rule, which has to be woken first, and then the processor's again: on a
//! virtual machine 20 to 45 µs each, for calls of a few microseconds. On the same core both are changes of threads.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::cores;
use super::credentials;
use super::pool::Job;

/// The thread, from its first job until this is dropped.
#[derive(Default)]
pub(super) struct CoreWorker {
    shared: Arc<Shared>,
    is_started: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// With the number of the core that it is to be done on.
    job: Option<(Job, usize)>,
    is_busy: bool,
    is_closed: bool,
}

impl CoreWorker {
    /// Has the thread do a job on the caller's core. Returns the job if the thread is busy, or the host gives none.
    pub(super) fn submit(&mut self, job: Job) -> Option<Job> {
        self.is_started = self.is_started || self.start();
        let mut state = self.shared.state.lock();
        if !self.is_started || state.is_busy {
            return Some(job);
        }
        state.is_busy = true;
        state.job = Some((job, cores::current()));
        drop(state);
        self.shared.work.notify_one();
        None
    }

    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new().name("awase-near".into()).spawn(move || shared.work()).is_ok()
    }
}

impl Drop for CoreWorker {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        credentials::drop_resource_capability();
        let mut core = None;
        let mut state = self.state.lock();
        loop {
            let Some((mut job, on)) = state.job.take() else {
                if state.is_closed {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            };
            drop(state);
            if core.replace(on) != Some(on) {
                // Fails where the core was taken away meanwhile: then it is done on another.
                let _ = cores::pin_thread(cores::CALLER, on);
            }
            let result = job.call();
            // Before it is told: the next one may follow at once.
            self.state.lock().is_busy = false;
            job.finish(result);
            state = self.state.lock();
        }
    }
}
