//! A node's answers to homes that ask for what was granted before their terms.

use super::copies::{Copies, Copy};
use super::{Address, Incarnation, Message, Outbox, PageNo, Places};

impl Copies {
    /// A home asks for what was granted before its term. It may have ignored what it was asked before the first time.
    pub(super) fn on_survey(&mut self, places: &Places, (home, since): (Address, Incarnation), out: &mut Outbox) {
        let is_first = self.surveyed.add(home, since);
        // The map that says the same is still to be seen.
        if places.seen(home) < since {
            return;
        }
        self.answer_survey(places, (home, since), PageNo(0), out);
        if !is_first {
            return;
        }
        let is_its = |page| places.named(page).is_some_and(|named| named.at == home && named.since == since);
        self.pages.for_waiting(|copy| match copy.saving() {
            Some(saving) if saving.serial.incarnation < since && is_its(copy.page) => {
                copy.send_gave_up(saving.serial, out);
            }
            None if is_its(copy.page) => copy.ask(out),
            _ => {}
        });
    }

    /// Nothing is retained of what was granted before this term: its home is told so, whether or not it has asked yet.
    /// `page`: the last that was stored. Most are stored in order, so the next is found at once.
    pub(super) fn answer_survey(
        &self,
        places: &Places,
        (home, since): (Address, Incarnation),
        page: PageNo,
        out: &mut Outbox,
    ) {
        let is_its = |page| places.named(page).is_some_and(|named| named.at == home && named.since == since);
        let is_old = |copy: &Copy| copy.saving().is_some_and(|saving| saving.serial.incarnation < since);
        if !self.pages.waiting_from(page).any(|copy| is_old(copy) && is_its(copy.page)) {
            out.send(home.node, Message::Surveyed { since, seen: places.seen(home) });
        }
    }
}
