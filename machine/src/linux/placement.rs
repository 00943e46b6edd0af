//! Processors that change cores with each other, where that shortens a lone client's waits (`policy/trial`).

use std::sync::Arc;

use parking_lot::Mutex;
use policy::unit::ProcessorId;

use super::bell::Bell;
use super::cores;

/// Which core each processor is pinned to.
pub(super) struct Placement {
    /// By number of the processor; empty if they do not change.
    places: Mutex<Box<[Option<Place>]>>,
}

struct Place {
    bell: Arc<Bell>,
    thread: libc::pid_t,
    core: usize,
    /// With whom it has changed, by number of the processor.
    changed_with: Option<usize>,
    /// It changes with who is so many numbers further next.
    next: usize,
}

impl Placement {
    pub(super) fn new(processors: usize) -> Placement {
        Placement { places: Mutex::new((0..processors).map(|_| None).collect()) }
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

    /// Gives `processor` the core of another one, which sleeps; or takes that back.
    pub(super) fn change(&self, processor: ProcessorId, is_changed: bool) {
        let mut places = self.places.lock();
        let number = usize::from(processor.0);
        let count = places.len();
        let Some(mut own) = places.get_mut(number).and_then(Option::take) else { return };
        let next = (number + own.next) % count;
        let other = if is_changed { own.changed_with.is_none().then_some(next) } else { own.changed_with };
        if let Some(other) = other.and_then(|other| places[other].as_mut())
            && (!is_changed || other.bell.is_parked())
        {
            own.changed_with = is_changed.then_some(next);
            if !is_changed {
                own.next = own.next % (count - 1) + 1;
            }
            std::mem::swap(&mut own.core, &mut other.core);
            // Fails only where the core was taken away meanwhile: the host has placed the thread already.
            let _ = cores::pin_thread(own.thread, own.core);
            let _ = cores::pin_thread(other.thread, other.core);
        }
        places[number] = Some(own);
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
    fn a_processor_gets_the_core_of_one_that_sleeps_and_gives_it_back() {
        let allowed = Cores::allowed();
        if allowed.count() < 2 {
            return eprintln!("skipped: one core only");
        }
        let placement = Placement::new(2);
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
            let (first, second) = (allowed.number(0), allowed.number(1));
            placement.change(ProcessorId(0), true);
            assert_eq!(cores_of(&placement), [first, second], "the other one is awake");
            assert!(bells[1].park());
            placement.change(ProcessorId(0), true);
            assert_eq!(cores_of(&placement), [second, first]);
            placement.change(ProcessorId(0), true);
            assert_eq!(cores_of(&placement), [second, first], "it has changed already");
            placement.change(ProcessorId(0), false);
            assert_eq!(cores_of(&placement), [first, second]);
            drop(ends);
        });
        placement.change(ProcessorId(0), true);
    }
}
