//! The end of a request, which another task or processor reports.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use machine::Errno;

use crate::request::Outcome;

/// The pending result of a request.
pub(super) struct End<T = Outcome> {
    state: Mutex<EndState<T>>,
}

struct EndState<T> {
    result: Option<Result<T, Errno>>,
    waker: Option<Waker>,
}

impl<T: Copy> End<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(End { state: Mutex::new(EndState { result: None, waker: None }) })
    }

    pub(super) fn set(&self, result: Result<T, Errno>) {
        let waker = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Errno>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.result {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
