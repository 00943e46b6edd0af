//! Which waiters are woken.

use std::cell::Cell;
use std::pin::Pin;
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
    let ranges = [0..4, 4..8, 6..7, 100..200].map(BlockRange::from);
    let wakes: Vec<Arc<Wakes>> = ranges.iter().map(|_| Arc::default()).collect();
    let mut waiting: Vec<_> = ranges.iter().map(|range| Box::pin(list.until(*range, || is_ready.get()))).collect();
    let poll = |at: usize, future: &mut Pin<Box<_>>| -> Poll<()> {
        let waker = Waker::from(Arc::clone(&wakes[at]));
        Future::poll(Pin::as_mut(future), &mut Context::from_waker(&waker))
    };
    let woken = || wakes.iter().map(|wakes| wakes.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    for (at, future) in waiting.iter_mut().enumerate() {
        assert_eq!(poll(at, future), Poll::Pending);
    }
    list.wake((3..5).into());
    assert_eq!(woken(), [1, 1, 0, 0]);
    list.wake((3..5).into());
    assert_eq!(woken(), [1, 1, 0, 0], "nobody waits who has not looked again");
    list.wake((6..150).into());
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
    // False at the first check, true before the registration.
    let is_ready = || asked.replace(asked.get() + 1) > 0;
    let mut waiting = pin!(list.until((0..1).into(), is_ready));
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!((polled, asked.get()), (Poll::Ready(()), 2));
}

fn waiters(list: &WaitList) -> usize {
    list.slots.state.lock().slots.len()
}

#[test]
fn a_waiter_has_one_slot_however_often_it_is_polled_and_none_when_it_is_dropped() {
    let (list, ranges) = (WaitList::default(), RangeWaitList::default());
    let range_waiters = || ranges.slots.state.lock().slots.len();
    let mut first = Box::pin(list.until(|| None::<()>));
    let mut second = Box::pin(list.until(|| None::<()>));
    let mut of_range = Box::pin(ranges.until((0..1).into(), || false));
    for _ in 0..1000 {
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(of_range.as_mut().poll(&mut context).is_pending());
        assert_eq!((waiters(&list), range_waiters()), (2, 1));
    }
    drop((first, of_range));
    assert_eq!((waiters(&list), range_waiters()), (1, 0));
    drop(second);
    assert!(list.is_empty());
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    let list = WaitList::default();
    let wakes: [Arc<Wakes>; 2] = Default::default();
    let mut waiting = Box::pin(list.until(|| None::<()>));
    for wakes in &wakes {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    list.wake_all();
    assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn a_waiter_that_was_notified_frees_no_slot_of_another() {
    let list = WaitList::default();
    let mut context = Context::from_waker(Waker::noop());
    let mut notified = Box::pin(list.until(|| None::<()>));
    assert!(notified.as_mut().poll(&mut context).is_pending());
    list.wake_all();
    let mut other = Box::pin(list.until(|| None::<()>));
    assert!(other.as_mut().poll(&mut context).is_pending());
    drop(notified);
    assert_eq!(waiters(&list), 1, "the same key, another waiter");
}

fn has_ended(oldest: &Cell<u64>, number: u64) -> impl Fn() -> bool {
    move || oldest.get() > number
}

#[test]
fn of_those_who_wait_for_numbers_only_those_that_ended_are_woken() {
    let list = SequenceWaitList::default();
    let oldest = Cell::new(0);
    let numbers = [3, 7, 5];
    let wakes: Vec<Arc<Wakes>> = numbers.iter().map(|_| Arc::default()).collect();
    let mut waiting = numbers.map(|number| Box::pin(list.until(number, has_ended(&oldest, number))));
    for (wakes, future) in wakes.iter().zip(&mut waiting) {
        let waker = Waker::from(Arc::clone(wakes));
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
    }
    let woken = || wakes.iter().map(|wakes| wakes.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    list.wake(3);
    assert_eq!(woken(), [0, 0, 0], "3 itself has not ended");
    oldest.set(6);
    list.wake(6);
    assert_eq!(woken(), [1, 0, 1]);
    list.wake(u64::MAX);
    assert_eq!(woken(), [1, 1, 1]);
}
