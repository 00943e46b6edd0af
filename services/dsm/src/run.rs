//! Messages about adjacent pages, as they are sent and received: one header for all, and then their pages. What is read or
//! written in order is asked for, granted and stored so. Besides the page, some of their numbers may step by one.

use policy::coherence::{Incarnation, Serial};

use crate::wire::{Fields, HEADER_BYTES, Header, PAGE_BYTES, Word, fields, word};

/// Messages of one header, at most: 64 KiB of pages. More of them would save little, and who waits for the first would wait for the last.
pub const RUN_MAX: usize = 16;

/// Where the header says how many more messages there are, and which numbers step.
const MORE: usize = 44;
const STEPS: usize = 45;

/// Which numbers step from one message to the next, a bit for each.
mod step {
    pub const REQUEST: u8 = 1;
    pub const SERIAL: u8 = 2;
    /// The count of the version's serial.
    pub const VERSION: u8 = 4;
}

/// At least one message; of several, all are about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub from: Incarnation,
    pub to: Incarnation,
    first: Fields,
    count: u8,
    steps: u8,
    word: Word,
}

impl Run {
    pub fn of(Header { from, to, word }: Header) -> Run {
        Run { from, to, first: fields(word), count: 1, steps: 0, word }
    }

    /// Takes the message that follows in, if it is one of these. Both have their page, or none has.
    pub fn extend(&mut self, next: &Header) -> bool {
        let Run { from, to, .. } = *self;
        let are_alike = (from, to) == (next.from, next.to) && self.word.is_about_page() && next.word.is_about_page();
        if !are_alike || self.len() == RUN_MAX {
            return false;
        }
        let fields = fields(next.word);
        let steps = if self.count == 1 { steps(&self.first, &fields) } else { self.steps };
        let is_next = after(&self.first, self.count, steps) == Some(fields);
        if is_next {
            (self.count, self.steps) = (self.count + 1, steps);
        }
        is_next
    }

    /// Messages.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// The first of them.
    pub fn word(&self) -> Word {
        self.word
    }

    /// In order.
    pub fn headers(&self) -> impl Iterator<Item = Header> + use<> {
        let Run { from, to, first, steps, .. } = *self;
        let fields = (0..self.count).filter_map(move |number| after(&first, number, steps));
        fields.filter_map(|fields| word(&fields)).map(move |word| Header { from, to, word })
    }

    /// Of the pages that follow.
    pub fn page_bytes(&self) -> usize {
        if self.word.has_page() { self.len() * PAGE_BYTES } else { 0 }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = self.first.encode(self.from, self.to);
        bytes[MORE] = self.count - 1;
        bytes[STEPS] = self.steps;
        bytes
    }

    /// `None`: not a message.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Run> {
        let (first, from, to) = Fields::decode(bytes);
        let (word, steps, more) = (word(&first)?, bytes[STEPS], bytes[MORE]);
        let is_possible = usize::from(more) < RUN_MAX && (more == 0 || word.is_about_page());
        after(&first, more, steps).filter(|_| is_possible)?;
        Some(Run { from, to, first, count: more + 1, steps, word })
    }
}

/// Which numbers differ.
fn steps(first: &Fields, next: &Fields) -> u8 {
    let step = |differs: bool, bit: u8| if differs { bit } else { 0 };
    step(first.request != next.request, step::REQUEST)
        | step(first.serial != next.serial, step::SERIAL)
        | step(first.version != next.version, step::VERSION)
}

/// The message that is so many after the first; `None`: its numbers would be too large.
fn after(first: &Fields, number: u8, steps: u8) -> Option<Fields> {
    let add = |to: u64, bit: u8| if steps & bit == 0 { Some(to) } else { to.checked_add(number.into()) };
    let mut fields = *first;
    fields.page = first.page.checked_add(number.into())?;
    fields.request = add(first.request, step::REQUEST)?;
    fields.serial = Serial { count: add(first.serial.count, step::SERIAL)?, ..first.serial };
    fields.version.serial.count = add(first.version.serial.count, step::VERSION)?;
    Some(fields)
}
