//! Changes of files by other processes.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reports what other processes do to the content of an open file: each write and each change of its size by a system
/// call, soon after it. Writes through shared mappings show in the file's times only.
#[derive(Clone)]
pub struct Watch {
    /// Incremented soon after each possible change.
    pub changes: Arc<AtomicU64>,
    /// Makes `changes` include all that has happened.
    pub take: fn(),
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl Watch {
    /// Number of possible changes reported so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}
