//! Runs of adjacent pages to read, each in one step: what most pages of most runs go through when they are read in order. It
//! is what [`Node::on_local`] and [`Node::on_message`] would do page by page (a test compares them), with one look-up for
//! many neighbours. A run of which any page is in another state is refused, unchanged, and is taken page by page.

use std::ops::Range;

use super::copies::{Copies, Copy, Held, Waiting};
use super::directory::Directory;
use super::entry::{Entry, Holder, Holding};
use super::{Address, Envelope, Incarnation, Message, Mode, Node, NodeId, PageNo, Request, Serial, Version};
use crate::unit::Instant;

/// Requests to read adjacent pages: those of the first, and of each next one by one higher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    pub from: Address,
    pub to: Address,
    pub pages: Range<PageNo>,
    pub first: Request,
}

/// Grants to read adjacent pages, with data; requests as in [`Asks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    pub from: Address,
    pub to: Address,
    pub pages: Range<PageNo>,
    pub first: Request,
    /// Of each page.
    pub granted: Vec<(Serial, Version)>,
}

/// The number of a page's request, of a run whose first has `first`.
fn request_of(page: PageNo, pages: &Range<PageNo>, first: Request) -> Request {
    Request(first.0.wrapping_add(page.0 - pages.start.0))
}

fn len(pages: &Range<PageNo>) -> u64 {
    pages.end.0.saturating_sub(pages.start.0)
}

impl Asks {
    /// The same, up to so many pages at a time.
    pub fn pieces(&self, len_max: u64) -> impl Iterator<Item = Asks> + '_ {
        let Asks { from, to, ref pages, first } = *self;
        (pages.start.0..pages.end.0).step_by(len_max.max(1) as usize).map(PageNo).map(move |start| {
            let end = PageNo(start.0.saturating_add(len_max).min(pages.end.0));
            Asks { from, to, pages: start..end, first: request_of(start, pages, first) }
        })
    }

    /// In order of page.
    pub fn envelopes(&self) -> impl Iterator<Item = Envelope> + '_ {
        let Asks { from, to, ref pages, first } = *self;
        (pages.start.0..pages.end.0).map(PageNo).map(move |page| {
            let request = request_of(page, pages, first);
            Envelope { from, to, message: Message::Ask { page, mode: Mode::Read, request, have: None, blank: false } }
        })
    }
}

impl Grants {
    /// In order of page.
    pub fn envelopes(&self) -> impl Iterator<Item = Envelope> + '_ {
        let Grants { from, to, ref pages, first, ref granted } = *self;
        (pages.start.0..pages.end.0).map(PageNo).zip(granted).map(move |(page, (serial, version))| {
            let (request, serial, data) = (request_of(page, pages, first), *serial, Some(*version));
            Envelope { from, to, message: Message::Grant { page, mode: Mode::Read, request, serial, data } }
        })
    }
}

impl Node {
    /// A local process reads all of these pages. Those that this node may only read, and that are not `is_cached`, are dropped
    /// before ([`Local::Drop`](super::Local::Drop)), and returned. `None`: it has others of them, or waits for some, or they
    /// have not one home that is another node and lives.
    pub fn read_run(
        &mut self,
        now: Instant,
        pages: Range<PageNo>,
        is_cached: impl Fn(PageNo) -> bool,
    ) -> Option<(Asks, Vec<PageNo>)> {
        self.one_shard(&pages)?;
        let home = self.places.home(pages.start).filter(|home| home.at != self.me)?;
        let (first, dropped) = self.copies.read_run(now, &pages, is_cached)?;
        Some((Asks { from: self.me, to: home.at, pages, first }, dropped))
    }

    /// Whether all pages that another node asks this home for can be granted at once.
    pub fn may_grant(&self, asks: &Asks) -> bool {
        let may = |term| self.directory.may_grant_run(&asks.pages, term, (asks.from.node, asks.first));
        self.own_term(asks).is_some_and(may)
    }

    /// Another node asks for pages of this home. `None`: not all of them can be granted at once.
    pub fn on_asks(&mut self, asks: &Asks) -> Option<Grants> {
        let Asks { from, ref pages, first, .. } = *asks;
        let term = self.own_term(asks)?;
        let granted = self.directory.grant_run(pages, term, (from.node, first))?;
        Some(Grants { from: self.me, to: from, pages: pages.clone(), first, granted })
    }

    /// Grants of a home have arrived. False: not all of them are waited for just so. True: the pages may be accessed now.
    pub fn on_grants(&mut self, grants: &Grants) -> bool {
        let Grants { from, to, ref pages, first, ref granted } = *grants;
        let is_its = |(serial, _): &(Serial, Version)| self.places.is_of_home(pages.start, from, *serial);
        self.one_shard(pages).is_some()
            && self.is_from_another(from, to)
            && granted.len() as u64 == len(pages)
            && granted.iter().all(is_its)
            && self.copies.take_run(pages, first, granted)
    }

    /// The term of this home, of which another node asks for pages.
    fn own_term(&self, asks: &Asks) -> Option<Incarnation> {
        self.one_shard(&asks.pages).filter(|_| self.is_from_another(asks.from, asks.to))?;
        self.places.own(asks.pages.start)
    }

    fn is_from_another(&self, from: Address, to: Address) -> bool {
        let is_known = from.node.0 < self.places.config.nodes && from.node != self.me.node;
        to == self.me && is_known && self.places.members.of(from.node) == Some(from.incarnation)
    }

    /// Are all pages of a run that is not empty in the space, and in one part of it, which has one home?
    fn one_shard(&self, pages: &Range<PageNo>) -> Option<()> {
        let shard = |page: u64| page / self.places.config.shard.max(1);
        let is_one = pages.start < pages.end && shard(pages.start.0) == shard(pages.end.0 - 1);
        (is_one && pages.end.0 <= self.places.config.pages).then_some(())
    }
}

impl Copies {
    fn read_run(
        &mut self,
        now: Instant,
        pages: &Range<PageNo>,
        is_cached: impl Fn(PageNo) -> bool,
    ) -> Option<(Request, Vec<PageNo>)> {
        let is_full = self.pages.len().saturating_add(len(pages) as usize) > self.pages_max;
        let may = |page, copy: Option<&Copy>| copy.is_none_or(|copy| copy.is_only_read() && !is_cached(page));
        if is_full || !self.pages.all(pages.clone(), may) {
            return None;
        }
        let mut dropped = Vec::new();
        let first = Request(self.requests + 1);
        self.requests += len(pages);
        self.pages.change_run(pages.clone(), Copy::new, |page, copy| {
            let request = request_of(page, pages, first);
            dropped.extend(copy.held.take().map(|_| page));
            copy.set_waiting(Some(Waiting { request, mode: Mode::Read, blank: false, recalled: None }));
            copy.set_sent(now);
        });
        self.held[Mode::Read as usize] -= dropped.len();
        Some((first, dropped))
    }

    fn take_run(&mut self, pages: &Range<PageNo>, first: Request, granted: &[(Serial, Version)]) -> bool {
        let waits_for = |page, copy: Option<&Copy>| {
            let is_plain = |copy: &&Copy| copy.held.is_none() && copy.saving().is_none();
            let waiting = copy.filter(is_plain).and_then(Copy::waiting);
            let request = request_of(page, pages, first);
            // A request to write is answered by a grant to write.
            waiting.is_some_and(|own| {
                own.request == request && own.mode == Mode::Read && !own.blank && own.recalled.is_none()
            })
        };
        if !self.pages.all(pages.clone(), waits_for) {
            return false;
        }
        let mut granted = granted.iter();
        self.pages.change_run(pages.clone(), Copy::new, |_, copy| {
            if let Some(&(serial, version)) = granted.next() {
                copy.held = Some(Held { serial, mode: Mode::Read, version, is_dirty: false, is_forwarded: false });
            }
            copy.set_waiting(None);
            copy.rest();
        });
        self.held[Mode::Read as usize] += len(pages) as usize;
        true
    }
}

impl Copy {
    /// May this node only read it, and is nothing unanswered?
    fn is_only_read(&self) -> bool {
        let is_plain = |held: &Held| held.mode == Mode::Read && !held.is_dirty && !held.is_forwarded;
        self.held.as_ref().is_some_and(is_plain) && self.waiting().is_none() && self.saving().is_none()
    }
}

impl Directory {
    fn may_grant_run(&self, pages: &Range<PageNo>, term: Incarnation, (node, first): (NodeId, Request)) -> bool {
        let may = |page, entry: Option<&Entry>| {
            entry.is_none_or(|entry| entry.may_grant_read(node, request_of(page, pages, first)))
        };
        !self.is_surveying_in(term) && self.entries.all(pages.clone(), may)
    }

    fn grant_run(
        &mut self,
        pages: &Range<PageNo>,
        term: Incarnation,
        (node, first): (NodeId, Request),
    ) -> Option<Vec<(Serial, Version)>> {
        if !self.may_grant_run(pages, term, (node, first)) {
            return None;
        }
        let mut numbers = self.numbers();
        let mut granted = Vec::with_capacity(len(pages) as usize);
        let new = |page| Entry::new(page, Version::default());
        self.entries.change_run(pages.clone(), new, |page, entry| {
            let serial = numbers.next(term);
            entry.grant_read((node, request_of(page, pages, first)), serial);
            granted.push((serial, entry.stored));
        });
        self.serials = numbers.serials;
        Some(granted)
    }
}

impl Entry {
    /// Can a request to read, of a node that has no copy, be granted at once?
    fn may_grant_read(&self, node: NodeId, request: Request) -> bool {
        let is_new = |index: usize| request > self.holders[index].request;
        self.is_at_rest() && !self.is_exclusive && self.holder(node).ok().is_none_or(is_new)
    }

    fn grant_read(&mut self, (node, request): (NodeId, Request), serial: Serial) {
        self.is_to_store = false;
        let holder = Holder { node, serial, request, step: Holding::Held, with_data: true };
        match self.holder(node) {
            Ok(index) => self.holders[index] = holder,
            Err(index) => self.holders.insert(index, holder),
        }
    }
}
