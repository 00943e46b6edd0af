//! Errors of a file that are told later, as on Linux (`lib/errseq.c`): once through each descriptor, and to none that is opened
//! when somebody has been told.

use std::cell::Cell;

use machine::Errno;

/// The errors that need not be told through a descriptor any more, as a count.
pub(super) type Told = Cell<u64>;

/// The errors of a file.
#[derive(Debug, Default)]
pub(super) struct Errors {
    count: u64,
    last: Option<Errno>,
    is_told: bool,
}

impl Errors {
    /// Of a descriptor that is opened now.
    pub(super) fn on_open(&self) -> Told {
        Told::new(if self.is_told { self.count } else { 0 })
    }

    pub(super) fn add(&mut self, errno: Errno) {
        *self = Errors { count: self.count + 1, last: Some(errno), is_told: false };
    }

    /// Tells the last error through a descriptor.
    pub(super) fn tell(&mut self, told: &Told) -> Option<Errno> {
        if told.replace(self.count) == self.count {
            return None;
        }
        self.is_told = true;
        self.last
    }
}
