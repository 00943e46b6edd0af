//! Who is woken.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake};

use super::*;

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn of_those_who_wait_for_blocks_only_those_concerned_are_woken() {
    let list = RangeWaitList::default();
    let is_ready = Cell::new(false);
    let ranges = [0..4, 4..8, 6..7, 100..200];
    let wakes: Vec<Arc<Wakes>> = ranges.iter().map(|_| Arc::default()).collect();
    let mut waiting: Vec<_> = ranges.iter().map(|range| Box::pin(list.until(range, || is_ready.get()))).collect();
    let poll = |at: usize, future: &mut Pin<Box<_>>| -> Poll<()> {
        let waker = Waker::from(Arc::clone(&wakes[at]));
        Future::poll(Pin::as_mut(future), &mut Context::from_waker(&waker))
    };
    let woken = || wakes.iter().map(|wakes| wakes.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    for (at, future) in waiting.iter_mut().enumerate() {
        assert_eq!(poll(at, future), Poll::Pending);
    }
    list.wake(&(3..5));
    assert_eq!(woken(), [1, 1, 0, 0]);
    list.wake(&(3..5));
    assert_eq!(woken(), [1, 1, 0, 0], "nobody waits who has not looked again");
    list.wake(&(6..150));
    assert_eq!(woken(), [1, 1, 1, 1]);
    is_ready.set(true);
    for (at, future) in waiting.iter_mut().enumerate() {
        assert_eq!(poll(at, future), Poll::Ready(()));
    }
}

#[test]
fn what_happened_while_a_wait_begins_is_not_missed() {
    let list = RangeWaitList::default();
    let asked = Cell::new(0);
    // Not yet at the first question, but before the place in the list is taken.
    let is_ready = || asked.replace(asked.get() + 1) > 0;
    let mut waiting = pin!(list.until(&(0..1), is_ready));
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!((polled, asked.get()), (Poll::Ready(()), 2));
}
