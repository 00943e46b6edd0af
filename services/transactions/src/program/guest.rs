//! What belongs to the instance of one call, and what it asks the transaction for.

use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use wasmtime::{Memory, ResourceLimiter};

use super::ProgramError;
use super::engine::MEMORY_BYTES_MAX;
use crate::store::{Row, Searched};

/// After this much fuel other tasks have their turn: 100 µs in usual loops, up to 4 ms in one made to miss caches.
pub(super) const SLICE: u64 = 100_000;

/// What every call has, however it is executed.
#[derive(Default)]
pub(super) struct Invocation {
    pub memory: Option<Memory>,
    /// The arguments that are text or bytea, at their places.
    pub texts: Vec<Option<Arc<[u8]>>>,
    /// A bit for each argument that is NULL.
    pub nulls: u32,
    pub reply: Option<Vec<u8>>,
    pub returns_null: bool,
}

impl Invocation {
    pub(super) fn new(texts: Vec<Option<Arc<[u8]>>>, nulls: u32) -> Invocation {
        Invocation { texts, nulls, ..Invocation::default() }
    }
}

/// What belongs to a call's instance.
pub(super) trait Guest: 'static {
    fn invocation(&self) -> &Invocation;
    fn invocation_mut(&mut self) -> &mut Invocation;
}

/// A guest on a stack of its own: it is suspended while the task performs what it asks for.
pub(super) struct Suspendable {
    pub invocation: Invocation,
    pub exchange: Arc<Mutex<Exchange>>,
    /// The fuel that there was when a call of the host last let others have their turn.
    pub slice_began: u64,
}

impl Guest for Suspendable {
    fn invocation(&self) -> &Invocation {
        &self.invocation
    }

    fn invocation_mut(&mut self) -> &mut Invocation {
        &mut self.invocation
    }
}

/// Where program and task meet.
#[derive(Default)]
pub(super) struct Exchange {
    pub request: Option<Request>,
    pub answer: Option<Answer>,
}

/// A key as the program has it: one of one or two numbers needs no allocation.
pub(super) type KeyBytes = SmallVec<[u8; 24]>;

pub(super) enum Request {
    Table(String),
    Get { table: u32, key: KeyBytes },
    Put { table: u32, key: KeyBytes, row: Row },
    Delete { table: u32, key: KeyBytes },
    Next { table: u32, range: Range },
}

pub(super) struct Range {
    pub low: Bound<KeyBytes>,
    pub high: Bound<KeyBytes>,
    pub backwards: bool,
}

pub(super) enum Answer {
    Done,
    Table(u32),
    Row(Option<Row>),
    Entry(Searched),
}

impl Range {
    /// Whether no key can be in it.
    pub(super) fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Included(low), Bound::Included(high)) => low > high,
            (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
            _ => false,
        }
    }
}

impl ResourceLimiter for Invocation {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > MEMORY_BYTES_MAX { Err(ProgramError::Memory(MEMORY_BYTES_MAX).into()) } else { Ok(true) }
    }

    /// The pool refuses a table that is too large.
    fn table_growing(&mut self, _current: usize, _desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true)
    }
}
