//! The switches as one processor sees them: a copy of its own, renewed at the beginning of a turn.

use std::rc::Rc;

use super::Processor;
use super::recording::NOBODY;
use crate::Switches;
use crate::trace::Event;

impl Processor {
    /// The techniques that are on, as of this turn.
    pub fn switches(&self) -> Rc<Switches> {
        Rc::clone(&self.0.switches.borrow())
    }

    /// Takes over what was changed since the turn before.
    pub(super) fn follow_switches(&self) {
        let live = self.kernel().live_switches();
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
