//! Waiting for something that another task does.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// Tasks that wait until somebody says that a condition may have changed.
///
/// Lock order: innermost; nothing is locked while a list is.
#[derive(Debug, Default)]
pub struct WaitList {
    wakers: Mutex<Vec<Waker>>,
}

impl WaitList {
    /// Wakes everybody who waits; each looks at its condition again.
    pub fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.lock());
        for waker in wakers {
            waker.wake();
        }
    }

    /// Does anybody wait?
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until `ready` gives a value. It is asked at once and again after every [`wake_all`](Self::wake_all).
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            self.lock().push(cx.waker().clone());
            // The condition may have changed between the question and the registration.
            match ready() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tasks that wait for something that happens to a range of blocks. Of many that wait, each for its own, only those are
/// woken whom it concerns.
///
/// Lock order: as [`WaitList`].
#[derive(Debug, Default)]
pub(crate) struct RangeWaitList {
    wakers: Mutex<Vec<(Range<u64>, Waker)>>,
}

impl RangeWaitList {
    /// Wakes those who wait for any of `blocks`; each looks at its condition again.
    pub(crate) fn wake(&self, blocks: &Range<u64>) {
        let is_concerned =
            |(waits_for, _): &mut (Range<u64>, Waker)| waits_for.start < blocks.end && blocks.start < waits_for.end;
        let woken: SmallVec<[_; 4]> = self.lock().extract_if(.., is_concerned).collect();
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Waits until `ready`. It is asked at once, and again whenever something happened to any of `blocks`.
    pub(crate) async fn until(&self, blocks: &Range<u64>, ready: impl Fn() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            self.lock().push((blocks.clone(), cx.waker().clone()));
            // As above.
            if ready() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Range<u64>, Waker)>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs several futures side by side and gives their results in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    enum Slot<F: Future> {
        Running(Pin<Box<F>>),
        Done(Option<F::Output>),
    }
    let mut slots: Vec<Slot<F>> = futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for slot in &mut slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    slots
        .into_iter()
        .filter_map(|slot| match slot {
            Slot::Done(output) => output,
            Slot::Running(_) => None,
        })
        .collect()
}
