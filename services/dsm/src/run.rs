//! Messages about adjacent pages, as they are sent and received: one header for all, and then their pages. What is read or
//! written in order is asked for, granted and stored so. Besides the page, some of their numbers may step by one.

use std::ops::Range;

use policy::coherence::{Address, Asks, Grants, Incarnation, Message, Mode, PageNo, Request, Serial, Version};

use crate::wire::{Fields, HEADER_BYTES, Header, PAGE_BYTES, Word, fields, word};

/// Messages of one header, at most: 64 KiB of pages. More of them would save little, and who waits for the first would wait for the last.
pub const MESSAGES_MAX: usize = 16;

/// Where the header says how many more messages there are, and which numbers step.
const MORE: usize = 44;
const STEPS: usize = 45;

/// Which numbers step from one message to the next, a bit for each.
mod step {
    pub const REQUEST: u8 = 1;
    pub const SERIAL: u8 = 2;
    /// The count of the version's serial.
    pub const VERSION: u8 = 4;
    pub const ALL: u8 = REQUEST | SERIAL | VERSION;
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
        if !are_alike || self.len() == MESSAGES_MAX {
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

    /// The same as requests to read pages that their sender does not have.
    pub fn asks(&self, from: Address, to: Address) -> Option<Asks> {
        let Word::Page { message, .. } = self.word else { return None };
        let Message::Ask { page, mode: Mode::Read, request, have: None, blank: false } = message else { return None };
        let (pages, first) = self.requests(page, request)?;
        Some(Asks { from, to, pages, first })
    }

    /// The same as grants to read pages, which come with them and are durable.
    pub fn grants(&self, from: Address, to: Address) -> Option<Grants> {
        let Word::Page { message, lost: false, unflushed: false } = self.word else { return None };
        let Message::Grant { page, mode: Mode::Read, request, serial, data: Some(version) } = message else {
            return None;
        };
        let (pages, first) = self.requests(page, request)?;
        let step = |bit: u8| if self.steps & bit == 0 { 0 } else { 1 };
        let later = |serial: Serial, more: u64| Serial { count: serial.count + more, ..serial };
        let granted = (0..u64::from(self.count)).map(|number| {
            let written = later(version.serial, number * step(step::VERSION));
            (later(serial, number * step(step::SERIAL)), Version { serial: written, ..version })
        });
        Some(Grants { from, to, pages, first, granted: granted.collect() })
    }

    /// The pages of several messages, whose requests step by one.
    fn requests(&self, page: PageNo, request: Request) -> Option<(Range<PageNo>, Request)> {
        let pages = page..PageNo(page.0.checked_add(self.count.into())?);
        (self.steps & step::REQUEST != 0).then_some((pages, request))
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
        let may_step = if more == 0 { 0 } else { step::ALL };
        let is_possible = usize::from(more) < MESSAGES_MAX && (more == 0 || word.is_about_page());
        let is_possible = is_possible && steps & !may_step == 0;
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

#[cfg(test)]
mod tests {
    use policy::coherence::{Message, Mode, PageNo, Request, Version};
    use proptest::prelude::*;

    use super::*;

    const FROM: Incarnation = Incarnation(3);
    const TO: Incarnation = Incarnation(4);

    fn header(message: Message) -> Header {
        Header { from: FROM, to: TO, word: Word::page(message, false) }
    }

    fn grant(page: u64, request: u64, count: u64, version: Option<(u64, u64)>) -> Header {
        let of = |count| Serial { incarnation: Incarnation(2), count };
        let data = version.map(|(count, writes)| Version { serial: of(count), writes });
        let (page, request, serial) = (PageNo(page), Request(request), of(count));
        header(Message::Grant { page, mode: Mode::Read, request, serial, data })
    }

    /// As a link sends them.
    fn folded(headers: &[Header]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for header in headers {
            if !runs.last_mut().is_some_and(|run| run.extend(header)) {
                runs.push(Run::of(*header));
            }
        }
        runs
    }

    fn received(runs: &[Run]) -> Vec<Header> {
        runs.iter().flat_map(|run| Run::decode(&run.encode()).expect("a message").headers()).collect()
    }

    #[test]
    fn pages_in_order_are_one_run_up_to_its_bound() {
        let steps: Vec<Header> = (0..40).map(|n| grant(n, 100 + n, 200 + n, Some((n + 1, 1)))).collect();
        let same: Vec<Header> = (0..40).map(|n| grant(n, 7, 9, Some((0, 0)))).collect();
        for headers in [steps, same] {
            let runs = folded(&headers);
            let lengths: Vec<usize> = runs.iter().map(Run::len).collect();
            assert_eq!(lengths, [MESSAGES_MAX, MESSAGES_MAX, 40 - 2 * MESSAGES_MAX]);
            assert_eq!(runs[0].page_bytes(), MESSAGES_MAX * PAGE_BYTES);
            assert_eq!(received(&runs), headers);
        }
    }

    fn message(header: Header) -> Option<Message> {
        if let Word::Page { message, .. } = header.word { Some(message) } else { None }
    }

    #[test]
    fn a_run_of_plain_requests_or_grants_to_read_is_the_same_as_its_messages() {
        let ask = |number: u64, have: Option<Serial>, blank: bool, mode: Mode| {
            header(Message::Ask { page: PageNo(number), mode, request: Request(50 + number), have, blank })
        };
        let (from, to) = (Address::default(), Address { incarnation: TO, ..Address::default() });
        let run = |of: &dyn Fn(u64) -> Header| folded(&(3..9).map(of).collect::<Vec<_>>())[0];
        let plain = run(&|number| ask(number, None, false, Mode::Read));
        let asks = plain.asks(from, to).expect("they are plain");
        let messages: Vec<Message> = asks.envelopes().map(|envelope| envelope.message).collect();
        assert_eq!(messages, plain.headers().filter_map(message).collect::<Vec<_>>());
        assert_eq!((asks.from, asks.to, plain.grants(from, to)), (from, to, None));
        let serial = Serial { incarnation: FROM, count: 1 };
        let others: [&dyn Fn(u64) -> Header; 4] = [
            &|number| ask(number, Some(serial), false, Mode::Read),
            &|number| ask(number, None, true, Mode::Read),
            &|number| ask(number, None, false, Mode::Write),
            &|number| grant(number, 50 + number, number, None),
        ];
        for other in others {
            assert_eq!((run(other).asks(from, to), run(other).grants(from, to)), (None, None));
        }
        let grants = run(&|number| grant(number, 50 + number, 70 + number, Some((number, 2))));
        let taken = grants.grants(from, to).expect("they are plain");
        let messages: Vec<Message> = taken.envelopes().map(|envelope| envelope.message).collect();
        assert_eq!(messages, grants.headers().filter_map(message).collect::<Vec<_>>());
        for (lost, unflushed) in [(true, false), (false, true)] {
            let odd = run(&|number| {
                let header = grant(number, 50 + number, 70 + number, Some((number, 2)));
                let Some(message) = message(header) else { unreachable!("it is about a page") };
                Header { word: Word::Page { message, lost, unflushed }, ..header }
            });
            assert_eq!(odd.grants(from, to), None);
        }
        let one = Run::of(ask(1, None, false, Mode::Read));
        assert_eq!(one.asks(from, to), None, "no number steps");
    }

    #[test]
    fn what_differs_in_more_than_its_numbers_is_not_one_run() {
        let first = grant(4, 10, 20, Some((1, 1)));
        let serial = Serial { incarnation: Incarnation(2), count: 21 };
        let page = PageNo(5);
        let Word::Page { message, .. } = grant(5, 11, 21, Some((2, 1))).word else {
            unreachable!("it is about a page")
        };
        let lost = Word::page(message, true);
        let others = [
            grant(6, 11, 21, Some((2, 1))),
            grant(4, 11, 21, Some((2, 1))),
            grant(3, 9, 19, Some((0, 1))),
            grant(5, 12, 21, Some((2, 1))),
            grant(5, 11, 21, Some((2, 2))),
            grant(5, 11, 21, None),
            header(Message::Taken { page, serial }),
            header(Message::Grant { page, mode: Mode::Write, request: Request(11), serial, data: None }),
            Header { word: lost, ..first },
            Header { word: Word::Beat, ..first },
            Header { from: TO, ..grant(5, 11, 21, Some((2, 1))) },
        ];
        for other in others {
            assert_eq!(folded(&[first, other]).len(), 2, "{other:?}");
        }
        assert_eq!(folded(&[Header { word: Word::Beat, ..first }; 2]).len(), 2);
        let survey = header(Message::Survey { since: Incarnation(1) });
        assert_eq!(folded(&[survey; 2]).len(), 2);
    }

    #[test]
    fn what_cannot_be_a_run_is_refused() {
        let with = |header: Header, more: u8, steps: u8| {
            let mut bytes = Run::of(header).encode();
            (bytes[MORE], bytes[STEPS]) = (more, steps);
            Run::decode(&bytes).map(|run| run.headers().count())
        };
        let grant = |page, request| grant(page, request, 1, None);
        assert_eq!(with(grant(0, 1), MESSAGES_MAX as u8 - 1, 7), Some(MESSAGES_MAX));
        assert_eq!(with(grant(0, 1), MESSAGES_MAX as u8, 7), None);
        assert_eq!(with(grant(u64::MAX - 2, 1), 2, 0), Some(3));
        assert_eq!(with(grant(u64::MAX - 2, 1), 3, 0), None);
        assert_eq!(with(grant(0, u64::MAX), 1, 0), Some(2));
        assert_eq!(with(grant(0, u64::MAX), 1, step::REQUEST), None);
        assert_eq!(with(Header { word: Word::Beat, ..grant(0, 1) }, 1, 0), None);
        assert_eq!(with(header(Message::Survey { since: FROM }), 1, 0), None);
        assert_eq!(with(grant(0, 1), 0, step::REQUEST), None, "nothing steps");
        assert_eq!(with(grant(0, 1), 1, 8), None, "no such number");
    }

    proptest! {
        #[test]
        fn what_is_sent_in_runs_arrives_as_it_was(
            first in prop_oneof![0..1000_u64, u64::MAX - 40..u64::MAX],
            changes in proptest::collection::vec((0..12_u8, any::<bool>(), any::<bool>()), 0..80),
        ) {
            let (mut page, mut request, mut serial, mut version) = (first, first, 5, Some((first, 0)));
            let mut headers = Vec::new();
            for (change, steps, writes) in changes {
                headers.push(grant(page, request, serial, version));
                page = page.wrapping_add(u64::from(change != 1));
                request = if steps { request.wrapping_add(1) } else { request };
                serial = if change == 2 { serial } else { serial.wrapping_add(1) };
                version = match (change, version) {
                    (3, Some(_)) => None,
                    (3, None) => Some((first, 0)),
                    (4, Some((count, written))) => Some((count, written + u64::from(writes))),
                    (_, Some((count, written))) => Some((if writes { count.wrapping_add(1) } else { count }, written)),
                    (_, None) => None,
                };
            }
            let runs = folded(&headers);
            prop_assert!(runs.iter().all(|run| run.len() <= MESSAGES_MAX));
            for run in &runs {
                let messages: Vec<Message> = run.headers().filter_map(message).collect();
                if let Some(grants) = run.grants(Address::default(), Address::default()) {
                    prop_assert_eq!(grants.envelopes().map(|envelope| envelope.message).collect::<Vec<_>>(), messages);
                }
            }
            prop_assert_eq!(received(&runs), headers);
        }
    }
}
