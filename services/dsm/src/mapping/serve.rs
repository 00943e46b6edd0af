//! Giving pages to mappings whose threads wait.

use std::ops::Range;
use std::sync::Arc;

use kernel::trace::Event;
use kernel::volume::Change;
use kernel::{FrameRef, Frames, Processor, Volume};
use machine::mapping;
use policy::coherence::{Local, Mode, PageNo};
use policy::unit::{BlockNo, BlockRange, Instant, JobId};
use smallvec::SmallVec;

use super::MappingNo;
use super::fill::fill;
use super::table::{Fault, Place, Served, WINDOW};
use crate::Shared;
use crate::core::{Core, block};
use crate::waiting::{Content, Filling, Loaded};

/// Pages given up and not stored yet, above which a mapping that is full gets no others.
const SAVING_MAX: usize = 1024;

impl Shared {
    /// Threads of a program wait for pages: gives them those that can be given now, and the others later. Called for what
    /// the host reports of a mapping ([`Op::Faults`](machine::Op::Faults)).
    pub fn on_faults(&self, cpu: &Processor, no: MappingNo, faults: &[mapping::Fault]) {
        let since = cpu.now();
        let deadline = since + self.config.timeout;
        let mut core = self.core.lock();
        let core = &mut *core;
        self.counters.faults.add(faults.len() as u64);
        let mut read: SmallVec<[PageNo; 8]> = SmallVec::new();
        for fault in faults {
            let page = PageNo(fault.page);
            let Some(member) = core.mapped.member(no).filter(|member| !member.is_ending) else { break };
            let has = core.mapped.place(no, page);
            if has == Some(Place::Write) || (has == Some(Place::Read) && !fault.is_write) {
                // Given since the thread began to wait.
                let _ = member.memory.wake(page.0);
                continue;
            }
            let is_write = fault.is_write;
            let added = core.page(page).add_fault(Fault { no, is_write, since: Some(since), began: None, deadline });
            added.began.get_or_insert_with(|| cpu.begin(Event::SharedFault, self.whose()));
            core.due.push_back(page);
            read.extend(Some(page).filter(|_| !fault.is_write));
        }
        // What threads wait for is asked for first.
        if let Some(volume) = self.volume().filter(|_| !self.has_ended()) {
            while let Some(page) = core.due.pop_front() {
                self.pump(cpu, core, &volume, page);
            }
        }
        read.into_iter().for_each(|page| self.ask_ahead(cpu, core, page, (no, deadline)));
        self.drive(cpu, core);
    }

    /// A program that reads in order is given the next pages as if its threads waited for them, too. What another program
    /// writes is left to it.
    fn ask_ahead(&self, cpu: &Processor, core: &mut Core, page: PageNo, (no, deadline): (MappingNo, Instant)) {
        let Some(mut ahead) = core.mapped.ahead(no, page, cpu.switches().read_ahead) else { return };
        let most = cpu.kernel().cache_blocks() / 8;
        ahead.end = ahead.end.min(ahead.start + most).min(BlockNo(self.config.policy().pages));
        let expect = |core: &mut Core, pages| core.mapped.expected.add(pages, no, deadline);
        for page in self.ask_in_runs(cpu, core, ahead, expect).into_iter().flat_map(BlockRange::iter) {
            let page = PageNo(page.0);
            let entries = core.mapped.entries(page);
            if entries.iter().all(|entry| entry.no != no && entry.place != Place::Write) {
                core.page(page).add_fault(Fault { no, is_write: false, since: None, began: None, deadline });
                core.due.push_back(page);
            }
        }
    }

    /// Gives adjacent pages, which have just come, to a mapping that was to be given them ahead. False: nothing is done.
    pub(crate) fn give_run(
        &self,
        cpu: &Processor,
        core: &mut Core,
        no: MappingNo,
        pages: &Range<PageNo>,
        frames: &[FrameRef],
    ) -> bool {
        if core.mapped.member(no).is_none_or(|member| member.is_ending) || !core.mapped.set_run(no, pages, cpu.now()) {
            return false;
        }
        for (page, frame) in (pages.start.0..pages.end.0).map(PageNo).zip(frames) {
            let fault = core.pages.get_mut(page).and_then(|entry| entry.take_only_fault(no));
            let is_awaited = fault.is_some_and(|fault| fault.since.is_some());
            fault.into_iter().for_each(|fault| self.end_fault(cpu, page, fault));
            core.filling.push(Filling { no, page, content: Loaded::Frame(frame.clone()), is_awaited });
        }
        self.fill_some(cpu, core);
        true
    }

    /// Does what can be done for mappings, and for the volume's readers and writers whose page a mapping has. `None`: it
    /// makes no difference to them. Otherwise whether there is something to do.
    pub(crate) fn want_mapped(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
    ) -> Option<bool> {
        let entry = core.pages.get(page)?;
        let (writes, reads) = (!entry.changes.is_empty(), !entry.loads.is_empty());
        let faults = !entry.faults.is_empty();
        if core.mapped.writer(page).is_some() && (writes || reads || faults) {
            if !self.may_take(cpu, core, page, None) {
                return Some(false);
            }
            return Some(self.share_written(cpu, core, volume, page));
        }
        if writes && !self.may_take(cpu, core, page, None) {
            return Some(false);
        }
        if !faults {
            return None;
        }
        // Programs of this node that all want to write the page must not keep its clients from it.
        let held = core.node.holds(page).map(|(mode, _)| mode);
        if reads
            && !writes
            && held.is_some()
            && let Some(frame) = volume.cached(block(page))
        {
            core.page(page).finish_loads(page, &Ok(Loaded::Frame(frame)));
            return Some(true);
        }
        if held == Some(Mode::Write) && core.pages.get(page)?.is_changed_first() {
            return None;
        }
        match self.serve_faults(cpu, core, volume, page, None) {
            Served::Given => Some(true),
            Served::Later => Some(false),
            Served::Lacking => None,
        }
    }

    /// May the page be taken from those mappings that have it, but for `except`? If not, it is looked at again when they
    /// have had it for long enough.
    fn may_take(&self, cpu: &Processor, core: &mut Core, page: PageNo, except: Option<MappingNo>) -> bool {
        let Some(until) = core.mapped.newest(page, except).map(|since| since + WINDOW) else { return true };
        if cpu.now() >= until {
            return true;
        }
        if !std::mem::replace(&mut core.page(page).is_timed, true)
            && let Some(shared) = self.this.upgrade()
        {
            let here = cpu.clone();
            cpu.spawn(async move {
                here.sleep_until(until).await;
                let mut core = shared.core.lock();
                core.page(page).is_timed = false;
                core.due.push_back(page);
                shared.drive(&here, &mut core);
            });
        }
        false
    }

    /// What a mapping has written goes into the cache, where it is dirty, and the mapping may only read it. False: there
    /// is no memory for it.
    fn share_written(&self, cpu: &Processor, core: &mut Core, volume: &Arc<Volume>, page: PageNo) -> bool {
        let Some(no) = core.mapped.writer(page) else { return true };
        let mut spare = Frames::new();
        if !cpu.kernel().try_allocate(1, &mut spare) {
            return false;
        }
        let since = core.mapped.newest(page, None).unwrap_or(Instant::ZERO);
        match self.copy_out(core, no, page, spare.pop()) {
            Some(frame) => {
                core.mapped.share(page);
                core.mapped.set(no, page, Place::Read, since);
                // The whole of a block needs nothing that is cached: it is not refused.
                let _ = volume.change(block(page), Change::Whole(frame), JobId::default());
            }
            // Then nobody has what was written, and whoever waits for it is told.
            None => {
                core.flushes.failures.on_lost();
                self.take_from(core, no, page);
            }
        }
        true
    }

    /// Gives a page that this node holds to mappings: to all that wait to read it, or to one that waits to write it,
    /// whichever came first. `granted`: it was just granted, with this content, if it came with it: then it is given to
    /// one that waits whatever others have just got, since another node may take it next.
    pub(crate) fn serve_faults(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        granted: Option<Option<&Loaded>>,
    ) -> Served {
        let Some((held, _)) = core.node.holds(page) else { return Served::Lacking };
        if !self.answers() {
            return Served::Later;
        }
        let Some(first) = core.pages.get(page).and_then(|entry| entry.faults.first().copied()) else {
            return Served::Lacking;
        };
        if core.mapped.writer(page).is_some() {
            return Served::Later;
        }
        let is_late =
            core.saving.len() >= SAVING_MAX || core.mapped.all_held() >= core.mapped.all_max.saturating_add(SAVING_MAX);
        if core.mapped.is_full(first.no) && is_late {
            return Served::Later;
        }
        let content = match granted.flatten() {
            Some(loaded) => Some(loaded.clone()),
            None => volume.cached(block(page)).map(Loaded::Frame),
        };
        if first.is_write {
            if held != Mode::Write {
                return Served::Lacking;
            }
            if granted.is_none() && !self.may_take(cpu, core, page, Some(first.no)) {
                return Served::Later;
            }
            self.give_to_write(cpu, core, volume, page, (first, content))
        } else {
            let Some(content) = content else { return Served::Lacking };
            self.give_to_read(cpu, core, page, &content)
        }
    }

    fn give_to_read(&self, cpu: &Processor, core: &mut Core, page: PageNo, content: &Loaded) -> Served {
        let waiting = core.page(page).take_faults(|fault| !fault.is_write);
        for fault in waiting {
            self.end_fault(cpu, page, fault);
            let Some(member) = core.mapped.member(fault.no).filter(|member| !member.is_ending) else { continue };
            let memory = Arc::clone(&member.memory);
            match core.mapped.place(fault.no, page) {
                Some(Place::Read | Place::Write) => {
                    let _ = memory.wake(page.0);
                }
                None => {
                    core.mapped.set(fault.no, page, Place::Read, cpu.now());
                    self.make_room(cpu, core, fault.no, page);
                    let (content, is_awaited) = (content.clone(), fault.since.is_some());
                    self.fill_later(cpu, core, Filling { no: fault.no, page, content, is_awaited });
                }
                Some(Place::Poisoned) => {
                    if fill(&*memory, page, content, false).is_ok() {
                        core.mapped.set(fault.no, page, Place::Read, cpu.now());
                        self.make_room(cpu, core, fault.no, page);
                    } else {
                        core.poison(&*memory, fault.no, page, Some(Place::Poisoned));
                    }
                }
            }
        }
        Served::Given
    }

    fn give_to_write(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        (fault, content): (Fault, Option<Loaded>),
    ) -> Served {
        let no = fault.no;
        let had = core.mapped.place(no, page);
        let has = had == Some(Place::Read);
        if !has && content.is_none() {
            return Served::Lacking;
        }
        core.page(page).faults.remove(0);
        let Some(member) = core.mapped.member(no).filter(|member| !member.is_ending) else {
            self.end_fault(cpu, page, fault);
            return Served::Given;
        };
        let memory = Arc::clone(&member.memory);
        self.fill_now(core);
        self.take_from_all(core, page, Some(no));
        // Before it is given: a reader of the cache must not find what was there before what this program writes next.
        let is_taken_over = volume.is_unwritten(block(page));
        let retained = self.retained(core, volume, page);
        let cached = self.give_up(core, volume, page, false);
        let given = match &content {
            Some(content) if !has => fill(&*memory, page, content, true),
            _ => memory.allow_writes(page.0),
        };
        self.end_fault(cpu, page, fault);
        match given {
            Ok(()) => {
                core.mapped.set(no, page, Place::Write, cpu.now());
                if is_taken_over {
                    core.mapped.take_over(page);
                }
                core.written(page, cpu.now());
                self.make_room(cpu, core, no, page);
                Served::Given
            }
            Err(_) => {
                if let (Some(frame), Some(retained)) = (cached, retained) {
                    self.put_back(cpu, core, volume, page, (frame, retained));
                }
                self.take_from(core, no, page);
                core.poison(&*memory, no, page, had);
                Served::Given
            }
        }
    }

    /// Takes a page from a mapping that has too many, now that `no` has got `page`, which stays.
    fn make_room(&self, cpu: &Processor, core: &mut Core, no: MappingNo, page: PageNo) {
        let Some(no) = core.mapped.overfull(no) else { return };
        // One more for each that is on its way out already.
        let Some(oldest) = core.mapped.oldest(no).find(|oldest| *oldest != page && !core.is_leaving(*oldest)) else {
            return;
        };
        if core.mapped.place(no, oldest) == Some(Place::Read) {
            self.take_from(core, no, oldest);
        } else if let Ok(actions) = core.node.on_local(cpu.now(), Local::Drop, oldest) {
            self.note(core, actions, Content::None);
        }
    }

    /// Whoever waits for a page in a mapping, and cannot have it, is told: an access fails.
    pub(crate) fn fail_faults(
        &self,
        cpu: &Processor,
        core: &mut Core,
        page: PageNo,
        is_meant: impl Fn(&Fault) -> bool,
    ) {
        self.fill_now(core);
        for fault in core.page(page).take_faults(is_meant).into_iter().filter(|fault| fault.since.is_some()) {
            self.end_fault(cpu, page, fault);
            let Some(member) = core.mapped.member(fault.no) else { continue };
            let memory = Arc::clone(&member.memory);
            let has = core.mapped.place(fault.no, page);
            if has == Some(Place::Write) {
                let _ = memory.wake(page.0);
                continue;
            }
            self.take_from(core, fault.no, page);
            if memory.poison(page.0).is_err() && has == Some(Place::Poisoned) {
                // It was and is: a thread that waits since before then sees it.
                let _ = memory.wake(page.0);
            }
            core.mapped.set(fault.no, page, Place::Poisoned, Instant::ZERO);
        }
    }

    /// What a thread waited for is decided.
    pub(super) fn end_fault(&self, cpu: &Processor, page: PageNo, fault: Fault) {
        if let Some(began) = fault.began {
            cpu.end(began, Event::SharedFault, self.whose(), page.0, fault.is_write.into());
        }
    }
}
