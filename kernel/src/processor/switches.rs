//! A processor's copy of the switches, renewed at the start of a time slice.

use std::rc::Rc;

use super::Processor;
use super::recording::NOBODY;
use crate::Switches;
use crate::trace::Event;

impl Processor {
    /// As of this time slice.
    pub fn switches(&self) -> Rc<Switches> {
        Rc::clone(&self.0.switches.borrow())
    }

    /// Adopts changes since the last time slice.
    pub(super) fn follow_switches(&self) {
        let live = &self.kernel().observed().switches;
        let generation = live.generation();
        if self.0.switches_seen.replace(generation) == generation {
            return;
        }
        let new = live.current();
        self.trace(Event::SwitchSet, NOBODY, generation, 0);
        if self.switches().quantum != new.quantum {
            self.0.quantum.borrow_mut().set_mode(new.quantum);
        }
        if self.switches().usage != new.usage {
            self.0.ready.borrow_mut().set_by_usage(new.usage);
        }
        self.0.switches.replace(Rc::new(Switches::clone(&new)));
    }
}
