//! Calls that wait for the server, and the processes that wait for them.
//!
//! A process that is killed while it waits must end, although its call goes on. The host says so by FUSE_INTERRUPT, which
//! `fuser` 0.18 refuses, and waits for the call's end then. So calls that take long are looked after here: the thread
//! that waits is asked for, and if it was killed, its call is answered with EINTR. Other signals do not end a wait, as
//! with the host's own client.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use fuser::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite,
};
use kernel::Processor;
use parking_lot::Mutex;

/// Between two looks at the threads that wait.
const INTERVAL: Duration = Duration::from_millis(250);

const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// A thread, as the host numbers it. 0: nobody, or one that cannot be seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(pub u32);

/// The calls that wait.
#[derive(Default)]
pub struct Waiting(Mutex<State>);

#[derive(Default)]
struct State {
    calls: BTreeMap<u64, Call>,
    next: u64,
    /// A task looks after them.
    is_watched: bool,
}

struct Call {
    thread: ThreadId,
    waker: Waker,
    /// Since the last look, at least.
    is_slow: bool,
    is_killed: bool,
}

/// A call's place among those that wait, until dropped.
struct Registered<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.waiting.0.lock().calls.remove(&self.number);
    }
}

impl Waiting {
    /// The result of `work`; `None`: the thread that waits for it was killed, and `work` is not done yet.
    pub async fn unless_killed<T>(
        self: &Arc<Self>,
        cpu: &Processor,
        thread: ThreadId,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let mut registered: Option<Registered<'_>> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            match &registered {
                None if thread != ThreadId(0) => registered = Some(self.register(cpu, thread, cx.waker())),
                Some(registered) if self.is_killed(registered, cx.waker()) => return Poll::Ready(None),
                _ => {}
            }
            Poll::Pending
        })
        .await
    }

    fn register(self: &Arc<Self>, cpu: &Processor, thread: ThreadId, waker: &Waker) -> Registered<'_> {
        let mut state = self.0.lock();
        state.next += 1;
        let number = state.next;
        state.calls.insert(number, Call { thread, waker: waker.clone(), is_slow: false, is_killed: false });
        if !std::mem::replace(&mut state.is_watched, true) {
            cpu.spawn(watch(Arc::clone(self), cpu.clone()));
        }
        Registered { waiting: self, number }
    }

    fn is_killed(&self, registered: &Registered<'_>, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        let Some(call) = state.calls.get_mut(&registered.number) else { return false };
        call.waker.clone_from(waker);
        call.is_killed
    }

    /// Looks at each call that has waited since the last look; false: none waits.
    fn look(&self) -> bool {
        let mut state = self.0.lock();
        for call in state.calls.values_mut() {
            if std::mem::replace(&mut call.is_slow, true) && !call.is_killed && is_killed(call.thread) {
                call.is_killed = true;
                call.waker.wake_by_ref();
            }
        }
        state.is_watched = !state.calls.is_empty();
        state.is_watched
    }
}

/// Looks until no call waits.
async fn watch(waiting: Arc<Waiting>, cpu: Processor) {
    loop {
        cpu.sleep(INTERVAL).await;
        if !waiting.look() {
            return;
        }
    }
}

/// Was the thread killed? It is if its process was: also while that ends, and closes its files.
fn is_killed(ThreadId(thread): ThreadId) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_kill_pending(&status))
}

fn has_kill_pending(status: &str) -> bool {
    let sets = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & SIGKILL_BIT != 0)
}

/// A reply that may be an error.
pub trait Refuse {
    fn refuse(self, errno: fuser::Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: fuser::Errno) {
                self.error(errno);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_killed_is_seen_in_both_sets() {
        let status =
            |private: &str, shared: &str| format!("Name:\tcat\nSigPnd:\t{private}\nShdPnd:\t{shared}\nSigBlk:\t0100\n");
        assert!(has_kill_pending(&status("0000000000000100", "0000000000000000")));
        assert!(has_kill_pending(&status("0000000000000000", "0000000000000101")));
        assert!(!has_kill_pending(&status("0000000000000002", "0000000000004000")));
        assert!(!is_killed(ThreadId(std::process::id())));
    }
}
