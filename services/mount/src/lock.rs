//! A lock that a task may hold while it waits.

use std::sync::atomic::{AtomicBool, Ordering};

use kernel::wait::WaitList;

#[derive(Default)]
pub(crate) struct Lock {
    is_locked: AtomicBool,
    unlocked: WaitList,
}

pub(crate) struct Locked<'a>(&'a Lock);

impl Lock {
    pub async fn lock(&self) -> Locked<'_> {
        self.unlocked.until(|| (!self.is_locked.swap(true, Ordering::AcqRel)).then_some(())).await;
        Locked(self)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
        self.0.unlocked.wake_all();
    }
}
