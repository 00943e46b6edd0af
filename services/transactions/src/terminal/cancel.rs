//! Cancel requests: they come on connections of their own, with a number and a key that the session was told.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::wait::WaitList;
use parking_lot::Mutex;

/// Of one session. Whether what it executes is to end.
#[derive(Default)]
pub struct Cancel {
    requested: AtomicBool,
    wait: WaitList,
}

impl Cancel {
    /// Something begins: what was requested before is over.
    pub fn begin(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }

    fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        self.wait.wake_all();
    }

    pub async fn requested(&self) {
        self.wait.until(|| self.requested.load(Ordering::SeqCst).then_some(())).await;
    }
}

/// All sessions that may be asked to cancel.
#[derive(Default)]
pub struct Cancels {
    sessions: Mutex<HashMap<i32, (i32, Arc<Cancel>)>>,
}

/// A session's entry, until dropped.
pub struct Registered {
    cancels: Arc<Cancels>,
    process: i32,
    pub cancel: Arc<Cancel>,
}

impl Cancels {
    pub fn register(self: &Arc<Self>, process: i32, key: i32) -> Registered {
        let cancel = Arc::<Cancel>::default();
        self.sessions.lock().insert(process, (key, Arc::clone(&cancel)));
        Registered { cancels: Arc::clone(self), process, cancel }
    }

    /// Nothing is told of whether there is such a session.
    pub fn request(&self, process: i32, key: i32) {
        let found =
            self.sessions.lock().get(&process).filter(|(own, _)| *own == key).map(|(_, cancel)| Arc::clone(cancel));
        if let Some(cancel) = found {
            cancel.request();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut sessions = self.cancels.sessions.lock();
        if sessions.get(&self.process).is_some_and(|(_, cancel)| Arc::ptr_eq(cancel, &self.cancel)) {
            sessions.remove(&self.process);
        }
    }
}
