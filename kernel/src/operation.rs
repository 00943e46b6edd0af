//! Operations in flight on one processor: their waiters and their memory.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use machine::{Completion, Errno, Segment, Token};
use slab::Slab;

use crate::frame::{FRAME_BYTES, Frames, MappedBuffer};

/// Memory of an operation. The processor owns it until completion, even if the task that started the operation is
/// dropped, and then returns it.
#[derive(Debug, Default)]
pub struct Hold {
    /// Header bytes. Their heap memory does not move with the `Hold`.
    pub bytes: Vec<u8>,
    pub frames: Frames,
    /// A buffer mapped for this operation only.
    pub(crate) mapped: Option<MappedBuffer>,
}

impl Hold {
    pub fn new(bytes: Vec<u8>, frames: Frames) -> Self {
        Hold { bytes, frames, mapped: None }
    }

    /// Asserts that the segments lie in this memory, in builds with debug assertions only: every caller makes its
    /// segments from the frames that it holds.
    pub(crate) fn assert_holds(&self, segments: &[Segment]) {
        if cfg!(debug_assertions) {
            let mut bases: Vec<usize> = self.frames.iter().map(|frame| frame.as_ptr() as usize).collect();
            bases.sort_unstable();
            let in_frame = |at: usize| {
                let base = bases[..bases.partition_point(|&base| base <= at)].last();
                base.is_some_and(|base| at < base + FRAME_BYTES)
            };
            for segment in segments {
                let start = segment.ptr as usize;
                let end = start + segment.len as usize;
                let bytes = self.bytes.as_ptr() as usize..self.bytes.as_ptr() as usize + self.bytes.capacity();
                let inside = (bytes.start <= start && end <= bytes.end)
                    || (in_frame(end - 1) && (start..end).step_by(FRAME_BYTES).all(in_frame));
                assert!(inside, "a segment lies outside the memory that the operation holds");
            }
        }
    }
}

#[derive(Debug)]
enum Slot {
    Waiting {
        hold: Hold,
        waker: Option<Waker>,
        is_short: bool,
    },
    /// The task was dropped, the operation is in flight.
    Abandoned {
        _hold: Hold,
    },
    Done {
        hold: Hold,
        result: Result<u64, Errno>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: RefCell<Slab<Slot>>,
}

impl Operations {
    /// Registers an operation that is about to start. `is_short`: does little work follow its completion?
    pub(crate) fn begin(self: &Rc<Self>, hold: Hold, is_short: bool) -> Operation {
        let key = self.slots.borrow_mut().insert(Slot::Waiting { hold, waker: None, is_short });
        Operation { operations: Rc::clone(self), key, finished: false }
    }

    /// Records a completion and wakes its waiter. Returns whether the work after it is short.
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

/// A future of an operation's result and memory.
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
