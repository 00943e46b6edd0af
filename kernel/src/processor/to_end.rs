//! Work of a task that must not be dropped with it.

use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{LocalFuture, Processor};
use crate::job::JobId;

impl Processor {
    /// Runs a future of the I/O path in this task; if this task is dropped before the end, in one of its own, charged
    /// to `job`.
    pub(crate) async fn run_to_end(&self, job: JobId, future: LocalFuture) {
        let mut rest = Rest { cpu: self, job, future: Some(future) };
        poll_fn(|cx| rest.poll(cx)).await;
    }
}

/// What is left of a future that must run to its end.
struct Rest<'a> {
    cpu: &'a Processor,
    job: JobId,
    future: Option<LocalFuture>,
}

impl Rest<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.future.as_mut().map_or(Poll::Ready(()), |future| future.as_mut().poll(cx));
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.cpu.spawn_path_boxed(self.job, future);
        }
    }
}
