//! The end of a request, which another task or processor reports.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use machine::Errno;
use parking_lot::Mutex;

use crate::request::Outcome;

/// The pending result of a request.
pub(super) struct End<T = Outcome> {
    state: Mutex<EndState<T>>,
}

struct EndState<T> {
    result: Option<Result<T, Errno>>,
    waker: Option<Waker>,
}

impl<T: Clone> End<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(End { state: Mutex::new(EndState { result: None, waker: None }) })
    }

    pub(super) fn set(&self, result: Result<T, Errno>) {
        let waker = {
            let mut state = self.state.lock();
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Errno>> {
        let mut state = self.state.lock();
        match &state.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
