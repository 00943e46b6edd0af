//! The physical memory of a machine: that of programs, that of the buffer cache, and free memory.

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
    /// `programs`: what kernel and programs have of `total`.
    pub fn new(total: u64, programs: u64) -> Self {
        Memory(Rc::new(State { total, programs: Cell::new(programs.min(total)), cache: Cell::new(0) }))
    }

    pub fn total(&self) -> u64 {
        self.0.total
    }

    pub fn free(&self) -> u64 {
        self.0.total - self.programs() - self.cache()
    }

    pub fn programs(&self) -> u64 {
        self.0.programs.get()
    }

    pub fn cache(&self) -> u64 {
        self.0.cache.get()
    }

    /// Allocates memory to a program, if enough is free. If not, the program has to wait for the cache, or to page.
    pub fn take(&self, bytes: u64) -> bool {
        let is_free = self.free() >= bytes;
        if is_free {
            self.0.programs.set(self.programs() + bytes);
        }
        is_free
    }

    /// A program frees memory.
    pub fn give_back(&self, bytes: u64) {
        self.0.programs.set(self.programs().saturating_sub(bytes));
    }

    /// Allocates memory to the cache, if enough is free.
    pub fn lend(&self, bytes: u64) -> bool {
        let is_free = self.free() >= bytes;
        if is_free {
            self.0.cache.set(self.cache() + bytes);
        }
        is_free
    }

    /// The cache returns memory.
    pub fn on_returned(&self, bytes: u64) {
        self.0.cache.set(self.cache().saturating_sub(bytes));
    }

    /// A policy's view of it.
    pub fn facts(&self) -> MemoryFacts {
        MemoryFacts { total: self.0.total, available: self.free(), group: None }
    }
}
