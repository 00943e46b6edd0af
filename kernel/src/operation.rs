//! Operations under way on one processor: who waits for each, and the memory that it uses.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use machine::{Completion, Errno, Token};
use slab::Slab;

use crate::device::MappedBuffer;
use crate::frame::Frames;

/// Memory that an operation uses. The processor keeps it until the operation is complete, whatever happens to the
/// task that started it, then gives it back.
#[derive(Debug, Default)]
pub struct Hold {
    /// Header bytes. Their heap memory does not move with the `Hold`.
    pub bytes: Vec<u8>,
    pub frames: Frames,
    /// A buffer mapped for this operation alone.
    pub(crate) mapped: Option<MappedBuffer>,
}

impl Hold {
    /// Header bytes and payload.
    pub fn new(bytes: Vec<u8>, frames: Frames) -> Self {
        Hold { bytes, frames, mapped: None }
    }
}

#[derive(Debug)]
enum Slot {
    Waiting {
        hold: Hold,
        waker: Option<Waker>,
        is_short: bool,
    },
    /// The task is gone, the operation is not.
    Abandoned {
        _hold: Hold,
    },
    Done {
        hold: Hold,
        result: Result<u64, Errno>,
    },
}

/// The operations under way on one processor.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: RefCell<Slab<Slot>>,
}

impl Operations {
    /// Registers an operation that is about to start, and names it. Is what its task does at the end short?
    pub(crate) fn begin(self: &Rc<Self>, hold: Hold, is_short: bool) -> Operation {
        let key = self.slots.borrow_mut().insert(Slot::Waiting { hold, waker: None, is_short });
        Operation { operations: Rc::clone(self), key, finished: false }
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Takes note of the end of an operation and wakes whoever waits for it. Says whether what it does then is short.
    pub(crate) fn complete(&self, completion: Completion) -> bool {
        let mut slots = self.slots.borrow_mut();
        let key = completion.token.0 as usize;
        let Some(slot) = slots.get_mut(key) else {
            debug_assert!(false, "completion of an unknown operation {key}");
            return false;
        };
        match std::mem::replace(slot, Slot::Abandoned { _hold: Hold::default() }) {
            Slot::Waiting { hold, waker, is_short } => {
                *slot = Slot::Done { hold, result: completion.result };
                drop(slots);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return is_short;
            }
            Slot::Abandoned { _hold: hold } => {
                slots.remove(key);
                drop(slots);
                drop(hold);
            }
            Slot::Done { .. } => debug_assert!(false, "operation {key} completed twice"),
        }
        false
    }
}

/// The end of one operation, to be awaited: its result and the memory that it used.
#[must_use = "an operation does nothing for a task that does not await it"]
pub(crate) struct Operation {
    operations: Rc<Operations>,
    key: usize,
    finished: bool,
}

impl Operation {
    pub(crate) fn token(&self) -> Token {
        Token(self.key as u64)
    }
}

impl Future for Operation {
    type Output = (Result<u64, Errno>, Hold);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let operations = Rc::clone(&self.operations);
        let mut slots = operations.slots.borrow_mut();
        if let Slot::Waiting { waker, .. } = &mut slots[self.key] {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        self.finished = true;
        match slots.remove(self.key) {
            Slot::Done { hold, result } => Poll::Ready((result, hold)),
            Slot::Waiting { .. } | Slot::Abandoned { .. } => unreachable!("only its own future takes a slot"),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut slots = self.operations.slots.borrow_mut();
        let slot = &mut slots[self.key];
        match std::mem::replace(slot, Slot::Abandoned { _hold: Hold::default() }) {
            Slot::Waiting { hold, .. } => *slot = Slot::Abandoned { _hold: hold },
            Slot::Done { hold, .. } => {
                slots.remove(self.key);
                drop(slots);
                drop(hold);
            }
            Slot::Abandoned { .. } => {}
        }
    }
}
