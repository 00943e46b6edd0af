//! Flushes that are received together are one: what each costs besides the disk's flush is paid once.

use std::rc::Rc;

use kernel::connection::Release;
use kernel::processor::Timed;

use super::Commands;
use crate::proto::Request;

/// A flush that is to be answered.
pub(super) struct Flush {
    pub(super) request: Request,
    pub(super) release: Release,
    pub(super) began: Timed,
}

impl Commands {
    /// Flushes once for all that are received before the task begins.
    pub(super) fn start_flush(self: &Rc<Self>, flush: Flush) {
        let mut flushes = self.flushes.borrow_mut();
        flushes.push(flush);
        if flushes.len() > 1 {
            return;
        }
        let commands = Rc::clone(self);
        self.cpu.spawn(async move {
            let flushes = commands.flushes.take();
            let Some(Flush { request, .. }) = flushes.first() else { return };
            let context = commands.context(request);
            let result = commands.volume().flush_for(&commands.cpu, context, flushes.len() as u32).await;
            for Flush { request, release, began } in flushes {
                commands.reply(&request, result, release);
                commands.end(began, &request);
            }
        });
    }
}
