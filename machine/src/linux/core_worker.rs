//! A thread that makes a processor's blocking calls on the processor's own core, while a lone request waits for them.
//!
//! A thread of the pool runs on an idle core, as a rule, which has to be woken first, and then the processor's again: on a
//! virtual machine 20 to 45 µs each, for calls of a few microseconds. On the same core both are changes of threads.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::cores;
use super::credentials;
use super::pool::{Job, Pool};

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

struct Next {
    job: Job,
    /// Whose lane it has entered.
    pool: Arc<Pool>,
    /// The number of the core that it is to be done on.
    core: usize,
}

#[derive(Default)]
struct State {
    next: Option<Next>,
    is_busy: bool,
    is_closed: bool,
}

impl CoreWorker {
    /// Has the thread do a job on the caller's core. Returns the job if the thread is busy, a thread of the pool serves its lane,
    /// or the host gives no thread.
    pub(super) fn submit(&mut self, job: Job, pool: &Arc<Pool>) -> Option<Job> {
        if !self.is_started {
            self.is_started = self.start();
        }
        let mut state = self.shared.state.lock();
        if !self.is_started || state.is_busy || !pool.enter(&job) {
            return Some(job);
        }
        state.is_busy = true;
        state.next = Some(Next { job, pool: Arc::clone(pool), core: cores::current() });
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
        let mut pinned_to = None;
        let mut state = self.state.lock();
        loop {
            let Some(Next { mut job, pool, core }) = state.next.take() else {
                if state.is_closed {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            };
            drop(state);
            if pinned_to != Some(core) {
                // Fails where the core was taken away meanwhile: then it is done on another.
                pinned_to = cores::pin_thread(cores::CALLER, core).is_ok().then_some(core);
            }
            let result = job.call();
            pool.leave(&job);
            // Before it is told: the next one may follow at once.
            self.state.lock().is_busy = false;
            job.finish(result);
            state = self.state.lock();
        }
    }
}
