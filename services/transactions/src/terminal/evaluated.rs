//! What the statements of a client use between two Syncs: a parameter may be used far more often than it was sent.

use std::cell::Cell;

use super::refusal::{Refusal, SqlState};
use crate::Value;

/// Each value counts whenever it is used, and once more for each cast: twice for all that may be sent, and some more. Nothing else
/// is done by the processor meanwhile. Bytes.
const EVALUATED_BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
pub struct Evaluated(Cell<usize>);

impl Evaluated {
    pub fn so_far(&self) -> usize {
        self.0.get()
    }

    /// What was used since there were `so_far` is used again: once, or a transaction that conflicts would use all up.
    pub fn set_back(&self, so_far: usize) {
        self.0.set(so_far);
    }

    /// # Errors
    /// If it is too much.
    pub fn count(&self, value: &Value) -> Result<(), Refusal> {
        self.0.set(self.0.get() + value.bytes());
        if self.0.get() <= EVALUATED_BYTES_MAX {
            return Ok(());
        }
        let bounds = format!("{EVALUATED_BYTES_MAX} bytes of values, counted as often as they are used or cast,");
        Err(Refusal::new(SqlState::LIMIT_EXCEEDED, format!("more than {bounds} without a Sync")))
    }
}
