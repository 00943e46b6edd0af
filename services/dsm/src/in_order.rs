//! Runs of adjacent pages that are read in order: asked for, granted, cached and given to those who wait for them, each in one
//! step, where nothing else concerns any of their pages; else page by page. In either way the same becomes of them
//! ([`policy::coherence::Asks`]).

#[cfg(test)]
mod tests;

use std::ops::Range;

use kernel::trace::Event;
use kernel::{FrameRef, Frames, Processor};
use policy::coherence::{Asks, Envelope, Grants, Mode, PageNo};
use policy::unit::{BlockRange, Instant};
use smallvec::SmallVec;

use crate::Shared;
use crate::core::{Core, block};
use crate::mapping::{Fault, MappingNo};
use crate::storage::REQUEST_PAGES_MAX;
use crate::waiting::Loaded;
use crate::watch::Part;
use crate::wire::Word;

fn blocks(pages: &Range<PageNo>) -> BlockRange {
    block(pages.start).to(block(pages.end))
}

fn pages(blocks: BlockRange) -> Range<PageNo> {
    PageNo(blocks.start.0)..PageNo(blocks.end.0)
}

fn numbers(pages: &Range<PageNo>) -> impl Iterator<Item = PageNo> + use<> {
    (pages.start.0..pages.end.0).map(PageNo)
}

impl Shared {
    /// Asks for those of these pages that can be asked for in runs, each of which is noted. All but the first begin at a multiple
    /// of the most that is asked for in one step. Returns the others.
    pub(crate) fn ask_in_runs(
        &self,
        cpu: &Processor,
        core: &mut Core,
        wanted: BlockRange,
        mut note: impl FnMut(&mut Core, Range<PageNo>),
    ) -> SmallVec<[BlockRange; 4]> {
        let mut left = SmallVec::new();
        for piece in wanted.cut_at_multiples(REQUEST_PAGES_MAX as u64) {
            let pages = pages(piece);
            if piece.len() > 1 && self.ask_run(cpu, core, pages.clone()) {
                note(core, pages);
            } else {
                left.push(piece);
            }
        }
        left
    }

    fn ask_run(&self, cpu: &Processor, core: &mut Core, pages: Range<PageNo>) -> bool {
        let is_free = core.pages.within(pages.clone()).next().is_none() && !core.mapped.is_any_mapped(&pages);
        let is_settled = core.saving.range(pages.clone()).next().is_none() && core.forwarded.is_empty();
        let Some(volume) = self.volume().filter(|_| is_free && is_settled && !self.has_ended()) else { return false };
        // What the cache has evicted is held in name only.
        let is_cached = |page| volume.is_cached(block(page));
        let Some((asks, dropped)) = core.node.read_run(cpu.now(), pages, is_cached) else { return false };
        for page in dropped {
            core.mapped.unshare(page);
            core.flushes.unmark(page);
        }
        self.send_run(asks.envelopes().map(|envelope| (envelope, None)));
        for page in numbers(&asks.pages) {
            cpu.trace(Event::SharedAsked, self.whose(), page.0, asks.to.node.0.into());
        }
        true
    }

    /// Messages to one node, with their pages, and whether these may not be durable.
    fn send_run(&self, messages: impl Iterator<Item = (Envelope, Option<(FrameRef, bool)>)>) {
        let mut messages = messages.peekable();
        let Some(Envelope { to, .. }) = messages.peek().map(|(envelope, _)| *envelope) else { return };
        let Some(link) = self.links.get(usize::from(to.node.0)) else { return };
        let mut count = 0;
        let words = messages.map(|(Envelope { message, .. }, page)| {
            count += 1;
            let unflushed = page.as_ref().is_some_and(|(_, unflushed)| *unflushed);
            (Word::Page { message, lost: false, unflushed }, page.map(|(frame, _)| frame))
        });
        link.push_all((self.me.incarnation, to.incarnation), words);
        self.counters.messages.add(count);
    }

    /// Another node is granted pages of this home. False: nothing is done.
    pub(crate) fn grant_run(&self, cpu: &Processor, core: &mut Core, asks: &Asks) -> bool {
        let count = (asks.pages.end.0 - asks.pages.start.0) as usize;
        let is_plain = core.pages.within(asks.pages.clone()).next().is_none() && !self.is_any_lost(core, &asks.pages);
        let mut frames = Frames::new();
        let is_one_request = count <= self.request_pages_max(cpu);
        let may = is_plain && is_one_request && self.answers() && self.volume().is_some() && cpu.switches().look_ahead;
        // Memory is taken only for what will be granted.
        let may = may && core.node.may_grant(asks);
        if !may || !cpu.kernel().try_allocate(count, &mut frames) {
            return false;
        }
        let now = cpu.now();
        let Some(grants) = core.node.on_asks(asks) else { return false };
        let to = grants.to;
        numbers(&grants.pages).for_each(|page| core.watch.on_grant(page, to.node, Mode::Read));
        let Some(frames) = self.read_grants(cpu, core, &grants, (now, frames)) else { return true };
        self.counters.home.add_all(count as u64, cpu.now().since(now));
        self.counters.grants.add(count as u64);
        for page in numbers(&grants.pages) {
            // An earlier request for it may not have been answered.
            core.watch.end(Part::Home, page, to.node, now);
            cpu.trace(Event::SharedGranted, self.whose(), page.0, to.node.0.into());
        }
        let unflushed = |page| self.config.shards.is_some() && core.flushes.home.is_unflushed(page);
        let pages = numbers(&grants.pages).zip(frames);
        let pages = pages.map(|(page, frame)| Some((frame, unflushed(page))));
        self.send_run(grants.envelopes().zip(pages));
        true
    }

    /// Grants of a home to read pages, which have come with them. False: nothing is done.
    pub(crate) fn take_run(&self, cpu: &Processor, core: &mut Core, grants: &Grants, frames: &Frames) -> bool {
        let all = &grants.pages;
        let is_read = core.pages.within(all.clone()).all(|(_, entry)| entry.is_only_read());
        let is_free = core.saving.range(all.clone()).next().is_none() && core.forwarded.is_empty();
        let Some(volume) = self.volume().filter(|_| is_read && is_free && self.answers()) else {
            return false;
        };
        if frames.len() as u64 != all.end.0 - all.start.0 || !core.node.on_grants(grants) {
            return false;
        }
        self.counters.fetches.add(frames.len() as u64);
        self.counters.fetches_in_runs.add(frames.len() as u64);
        volume.put_run(blocks(all), frames.iter().cloned());
        let busy: SmallVec<[PageNo; 16]> = core.pages.within(all.clone()).map(|(page, _)| page).collect();
        for page in &busy {
            let entry = core.page(*page);
            let since = entry.waits_since();
            self.counters.fetch.add(since.map(|since| cpu.now().since(since)));
            // No step was under way.
            entry.unwritten = None;
            let frame = frames[(page.0 - all.start.0) as usize].clone();
            entry.finish_loads(*page, &Ok(Loaded::Frame(frame)));
        }
        for (pages, no, deadline) in core.mapped.expected.take(all) {
            let first = (pages.start.0 - all.start.0) as usize;
            if !self.give_run(cpu, core, no, &pages, &frames[first..]) {
                numbers(&pages).for_each(|page| self.expect(core, page, no, deadline));
            }
        }
        // Before a recall that may have come with them.
        let waiting: SmallVec<[PageNo; 16]> = core.pages.within(all.clone()).map(|(page, _)| page).collect();
        for page in waiting {
            let content = Loaded::Frame(frames[(page.0 - all.start.0) as usize].clone());
            self.serve_faults(cpu, core, &volume, page, Some(Some(&content)));
        }
        for page in busy {
            core.pages.remove(page);
            if core.pages.contains(page) {
                core.due.push_back(page);
            }
        }
        true
    }

    /// If a mapping is to be given this page ahead in a run, it is from now on to be given it by itself.
    pub(crate) fn expect_alone(&self, core: &mut Core, page: PageNo) {
        for (_, no, deadline) in core.mapped.expected.take(&(page..PageNo(page.0 + 1))) {
            self.expect(core, page, no, deadline);
        }
    }

    /// What another mapping waits to write is left to it.
    fn expect(&self, core: &mut Core, page: PageNo, no: MappingNo, deadline: Instant) {
        if core.pages.get(page).is_some_and(|entry| entry.faults.iter().any(|fault| fault.is_write)) {
            return;
        }
        core.page(page).add_fault(Fault { no, is_write: false, since: None, began: None, deadline });
        core.due.push_back(page);
    }
}
