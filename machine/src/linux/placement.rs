//! Processors that change cores with each other, where that shortens a lone request's waits (`policy/trial`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use policy::unit::ProcessorId;

use super::bell::Bell;
use super::cores::{self, ProcessorCores};

/// No processor.
const NOBODY: usize = usize::MAX;

/// Which core each processor is pinned to.
pub(super) struct Placement {
    /// By number of the processor; empty if they do not change.
    places: Mutex<Box<[Option<Place>]>>,
    /// The number of the processor on the core where the last trial has found waits to be shortest.
    preferred: AtomicUsize,
    /// For others to see.
    cores: ProcessorCores,
}

struct Place {
    bell: Arc<Bell>,
    thread: libc::pid_t,
    core: usize,
    /// With whom it has changed on trial, by number of the processor.
    changed_with: Option<usize>,
    /// It changes with who is so many numbers further next.
    next: usize,
}

impl Placement {
    /// For so many processors; `cores`: where they are.
    pub(super) fn new(processors: usize, cores: ProcessorCores) -> Placement {
        let places = Mutex::new((0..processors).map(|_| None).collect());
        Placement { places, preferred: AtomicUsize::new(NOBODY), cores }
    }

    /// The calling thread is `processor`, and is pinned to `core`.
    pub(super) fn enroll(&self, processor: ProcessorId, core: usize, bell: &Arc<Bell>) {
        if let Some(place) = self.places.lock().get_mut(usize::from(processor.0)) {
            // SAFETY: returns a number.
            let thread = unsafe { libc::gettid() };
            *place = Some(Place { bell: Arc::clone(bell), thread, core, changed_with: None, next: 1 });
        }
    }

    /// The thread of `processor` is about to end.
    pub(super) fn leave(&self, processor: ProcessorId) {
        if let Some(place) = self.places.lock().get_mut(usize::from(processor.0)) {
            *place = None;
        }
    }

    /// Exchanges the core of `processor` for that of another one, which sleeps; the next time back again. Returns whether it did.
    pub(super) fn toggle(&self, processor: ProcessorId) -> bool {
        let mut places = self.places.lock();
        let number = usize::from(processor.0);
        let count = places.len();
        let Some(own) = places.get_mut(number).and_then(Option::as_mut) else { return false };
        if let Some(other) = own.changed_with.take() {
            return self.exchange(&mut places, number, other);
        }
        let other = (number + own.next) % count;
        own.next = own.next % (count - 1) + 1;
        let is_asleep = places[other].as_ref().is_some_and(|other| other.bell.is_parked());
        if !is_asleep || !self.exchange(&mut places, number, other) {
            return false;
        }
        places[number].as_mut().expect("looked at above").changed_with = Some(other);
        true
    }

    /// `processor` is on the best core that it has tried.
    pub(super) fn prefer(&self, processor: ProcessorId) {
        let mut places = self.places.lock();
        if let Some(own) = places.get_mut(usize::from(processor.0)).and_then(Option::as_mut) {
            own.changed_with = None;
            self.preferred.store(processor.0.into(), Ordering::Relaxed);
        }
    }

    /// Gives `processor` the preferred core, if another one has it, which sleeps. Returns whether it did.
    pub(super) fn take_preferred(&self, processor: ProcessorId) -> bool {
        let number = usize::from(processor.0);
        let is_elsewhere = |preferred| preferred != NOBODY && preferred != number;
        if !is_elsewhere(self.preferred.load(Ordering::Relaxed)) {
            return false;
        }
        let mut places = self.places.lock();
        let preferred = self.preferred.load(Ordering::Relaxed);
        if !is_elsewhere(preferred) {
            return false;
        }
        let is_asleep = places[preferred].as_ref().is_some_and(|other| other.bell.is_parked());
        is_asleep && self.exchange(&mut places, number, preferred)
    }

    /// Exchanges the cores of two processors, if both are there.
    fn exchange(&self, places: &mut [Option<Place>], one: usize, other: usize) -> bool {
        let Ok([Some(a), Some(b)]) = places.get_disjoint_mut([one, other]) else { return false };
        std::mem::swap(&mut a.core, &mut b.core);
        self.cores.set(one, a.core);
        self.cores.set(other, b.core);
        // Fails only where a core was taken away meanwhile: the host has placed the thread already.
        let _ = cores::pin_thread(a.thread, a.core);
        let _ = cores::pin_thread(b.thread, b.core);
        let preferred = self.preferred.load(Ordering::Relaxed);
        if preferred == one {
            self.preferred.store(other, Ordering::Relaxed);
        } else if preferred == other {
            self.preferred.store(one, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::super::Cores;
    use super::*;

    /// The cores that the processors are pinned to.
    fn cores_of(placement: &Placement) -> Vec<usize> {
        let cores = |place: &Option<Place>| {
            let cores = Cores::of(place.as_ref().expect("enrolled").thread);
            assert_eq!(cores.count(), 1, "pinned to one");
            cores.number(0)
        };
        placement.places.lock().iter().map(cores).collect()
    }

    #[test]
    fn a_processor_gets_the_core_of_one_that_sleeps_and_the_preferred_one_again() {
        let allowed = Cores::allowed();
        if allowed.count() < 2 {
            return eprintln!("skipped: one core only");
        }
        let cores = ProcessorCores::new([allowed.number(0), allowed.number(1)]);
        let placement = Placement::new(2, cores.clone());
        let bells = [(); 2].map(|()| Arc::new(Bell::new().expect("a bell")));
        thread::scope(|scope| {
            let mut ends = Vec::new();
            for (k, bell) in bells.iter().enumerate() {
                let (end, ended) = channel::<()>();
                let (is_there, there) = channel();
                let (placement, allowed) = (&placement, &allowed);
                scope.spawn(move || {
                    let core = allowed.pin(k).expect("pinned");
                    placement.enroll(ProcessorId(k as u16), core, bell);
                    is_there.send(()).expect("awaited");
                    let _ = ended.recv();
                    placement.leave(ProcessorId(k as u16));
                });
                there.recv().expect("enrolled");
                ends.push(end);
            }
            let as_at_start = [allowed.number(0), allowed.number(1)];
            let changed = [allowed.number(1), allowed.number(0)];
            assert!(!placement.toggle(ProcessorId(0)), "the other one is awake");
            assert_eq!(cores_of(&placement), as_at_start);
            assert!(bells.iter().all(|bell| bell.park()));
            assert!(placement.toggle(ProcessorId(0)));
            assert_eq!(cores_of(&placement), changed);
            assert!(cores.iter().eq(changed), "as others see it");
            assert!(placement.toggle(ProcessorId(0)));
            assert_eq!(cores_of(&placement), as_at_start);

            assert!(!placement.take_preferred(ProcessorId(1)), "none is");
            assert!(placement.toggle(ProcessorId(0)));
            placement.prefer(ProcessorId(0));
            assert!(!placement.take_preferred(ProcessorId(0)), "it has it");
            assert!(placement.take_preferred(ProcessorId(1)));
            assert_eq!(cores_of(&placement), as_at_start);
            assert!(placement.take_preferred(ProcessorId(0)));
            assert_eq!(cores_of(&placement), changed);
            assert!(placement.toggle(ProcessorId(1)), "on trial, and back");
            assert!(placement.toggle(ProcessorId(1)));
            assert_eq!(cores_of(&placement), changed);
            assert!(!placement.take_preferred(ProcessorId(0)), "it has it again");
            drop(ends);
        });
        assert!(!placement.toggle(ProcessorId(0)), "none is there any more");
    }
}
