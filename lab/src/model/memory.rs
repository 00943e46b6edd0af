//! The physical memory of a machine: what programs have, what the buffer cache has, what is free.

use std::cell::Cell;
use std::rc::Rc;

use policy::sizing::MemoryFacts;

/// The memory. All in bytes.
#[derive(Clone)]
pub struct Memory(Rc<State>);

struct State {
    total: u64,
    programs: Cell<u64>,
    cache: Cell<u64>,
}

impl Memory {
    /// `total` of it, of which kernel and programs have `programs`.
    pub fn new(total: u64, programs: u64) -> Self {
        Memory(Rc::new(State { total, programs: Cell::new(programs.min(total)), cache: Cell::new(0) }))
    }

    pub fn total(&self) -> u64 {
        self.0.total
    }

    pub fn free(&self) -> u64 {
        self.0.total - self.programs() - self.cache()
    }

    /// What kernel and programs have.
    pub fn programs(&self) -> u64 {
        self.0.programs.get()
    }

    /// What the buffer cache has.
    pub fn cache(&self) -> u64 {
        self.0.cache.get()
    }

    /// A program takes so much, if there is so much. If not, it has to wait until the cache gives some back, or to page.
    pub fn take(&self, bytes: u64) -> bool {
        let is_there = self.free() >= bytes;
        if is_there {
            self.0.programs.set(self.programs() + bytes);
        }
        is_there
    }

    /// A program gives back so much of what it took.
    pub fn give_back(&self, bytes: u64) {
        self.0.programs.set(self.programs().saturating_sub(bytes));
    }

    /// The cache takes so much, if there is so much.
    pub fn lend(&self, bytes: u64) -> bool {
        let is_there = self.free() >= bytes;
        if is_there {
            self.0.cache.set(self.cache() + bytes);
        }
        is_there
    }

    /// The cache gives back so much of what it took.
    pub fn on_returned(&self, bytes: u64) {
        self.0.cache.set(self.cache().saturating_sub(bytes));
    }

    /// What a policy is told of it.
    pub fn facts(&self) -> MemoryFacts {
        MemoryFacts { total: self.0.total, available: self.free(), group: None }
    }
}
