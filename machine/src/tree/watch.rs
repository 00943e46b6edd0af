//! Changes of files beside Awase.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reports what others than this process do to the content of an open file: each write and each change of its size by a
/// system call, soon after it. What is written through shared mappings shows in the file's times alone.
#[derive(Clone)]
pub struct Watch {
    /// How often something may have been done: goes up, soon after it.
    pub changes: Arc<AtomicU64>,
    /// Has it go up at once for what is over.
    pub take: fn(),
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl Watch {
    /// How often others may have changed the content, as far as that is known without asking.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}
