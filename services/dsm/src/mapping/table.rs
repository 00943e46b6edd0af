//! Which mappings of programs have which pages of a volume.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kernel::trace::Began;
use machine::Connection;
use machine::mapping::Mapping;
use policy::coherence::PageNo;
use policy::readahead::{self, faults::FaultAhead};
use policy::unit::{BlockNo, BlockRange, Instant, ProcessorId};
use smallvec::{SmallVec, smallvec};

use super::expected::Expected;
use super::{MappingNo, PAGES_MAX, RETAINED_MAX};

/// What a mapping may do with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Read,
    /// No other mapping has the page then, nor has the cache.
    Write,
    /// Accesses fail.
    Poisoned,
}

/// A page that a mapping has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) no: MappingNo,
    pub(crate) place: Place,
    pub(crate) since: Instant,
    /// Later ones are higher.
    grant: u64,
}

pub(crate) struct Member {
    pub(crate) memory: Arc<dyn Mapping>,
    pub(crate) connection: Connection,
    /// On which its faults and connection are.
    pub(crate) processor: ProcessorId,
    /// It gets no more pages.
    pub(crate) is_ending: bool,
    /// It has none any more, and its connection is to be closed.
    pub(crate) is_stopped: bool,
    /// A task takes its faults.
    pub(crate) is_read: bool,
    /// Pages that it may read or write, by grant.
    order: BTreeMap<u64, PageNo>,
    /// Poisoned ones, for another attempt in this order.
    poisoned: VecDeque<PageNo>,
    ahead: FaultAhead,
}

pub(crate) struct Table {
    members: BTreeMap<MappingNo, Member>,
    pages: BTreeMap<PageNo, SmallVec<[Entry; 2]>>,
    /// Pages that a mapping may write. True: they may have what clients have written, and no home has.
    written: BTreeMap<PageNo, bool>,
    /// Pages that went from such a mapping into the cache, where they may still be dirty. True as above.
    shared: BTreeMap<PageNo, bool>,
    last_no: u32,
    last_grant: u64,
    /// Pages that mappings are to be given ahead, when they come.
    pub(crate) expected: Expected,
    /// The most pages that one mapping has.
    pub(crate) pages_max: usize,
    /// The most that all have together.
    pub(crate) all_max: usize,
    /// The most that only programs have written and that are copied when all mappings are stopped at once.
    pub(crate) retained_max: usize,
}

impl Default for Table {
    fn default() -> Self {
        let (members, pages, written, shared, expected) = Default::default();
        let (pages_max, all_max, retained_max) = (PAGES_MAX, usize::MAX, RETAINED_MAX);
        Table { members, pages, written, shared, last_no: 0, last_grant: 0, expected, pages_max, all_max, retained_max }
    }
}

impl Table {
    pub(crate) fn add(
        &mut self,
        memory: Arc<dyn Mapping>,
        connection: Connection,
        processor: ProcessorId,
    ) -> MappingNo {
        self.last_no += 1;
        let no = MappingNo(self.last_no);
        let (order, poisoned, ahead) = Default::default();
        let (is_ending, is_stopped, is_read) = (false, false, true);
        let member = Member { memory, connection, processor, is_ending, is_stopped, is_read, order, poisoned, ahead };
        self.members.insert(no, member);
        no
    }

    pub(crate) fn end(&mut self, no: MappingNo) {
        self.members.remove(&no);
        let written: Vec<PageNo> = self.written(Some(no)).collect();
        self.written.retain(|page, _| written.binary_search(page).is_err());
        self.pages.retain(|_, entries| {
            entries.retain(|entry| entry.no != no);
            !entries.is_empty()
        });
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (MappingNo, &Member)> {
        self.members.iter().map(|(no, member)| (*no, member))
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn member(&self, no: MappingNo) -> Option<&Member> {
        self.members.get(&no)
    }

    pub(crate) fn set_ending(&mut self, no: MappingNo) {
        self.members.get_mut(&no).into_iter().for_each(|member| member.is_ending = true);
        self.expected.end(no);
    }

    /// No mapping gets pages any more, and none has any. Returns the memory of those that were not stopped before.
    pub(crate) fn stop_all(&mut self) -> Vec<Arc<dyn Mapping>> {
        self.pages.clear();
        self.written.clear();
        self.expected.clear();
        let mut stopped = Vec::new();
        for member in self.members.values_mut() {
            member.order.clear();
            member.poisoned.clear();
            member.is_ending = true;
            if !std::mem::replace(&mut member.is_stopped, true) {
                stopped.push(Arc::clone(&member.memory));
            }
        }
        stopped
    }

    /// No task takes its faults any more.
    pub(crate) fn set_unread(&mut self, no: MappingNo) {
        self.members.get_mut(&no).into_iter().for_each(|member| member.is_read = false);
    }

    pub(crate) fn entries(&self, page: PageNo) -> &[Entry] {
        self.pages.get(&page).map_or(&[], |entries| entries)
    }

    /// Has any mapping any of these pages?
    pub(crate) fn is_any_mapped(&self, pages: &Range<PageNo>) -> bool {
        self.pages.range(pages.clone()).next().is_some()
    }

    /// A mapping gets adjacent pages, which no mapping has, to read. False: that would be too many.
    pub(crate) fn set_run(&mut self, no: MappingNo, pages: &Range<PageNo>, now: Instant) -> bool {
        let len = (pages.end.0 - pages.start.0) as usize;
        let is_too_many = self.held(no) + len > self.pages_max || self.all_held().saturating_add(len) > self.all_max;
        if is_too_many || self.is_any_mapped(pages) {
            return false;
        }
        let Some(member) = self.members.get_mut(&no) else { return false };
        for page in (pages.start.0..pages.end.0).map(PageNo) {
            self.last_grant += 1;
            let grant = self.last_grant;
            member.order.insert(grant, page);
            self.pages.insert(page, smallvec![Entry { no, place: Place::Read, since: now, grant }]);
        }
        true
    }

    pub(crate) fn place(&self, no: MappingNo, page: PageNo) -> Option<Place> {
        self.entries(page).iter().find(|entry| entry.no == no).map(|entry| entry.place)
    }

    /// May it read or write the page?
    pub(crate) fn has(&self, no: MappingNo, page: PageNo) -> bool {
        matches!(self.place(no, page), Some(Place::Read | Place::Write))
    }

    /// Those that may read it, and the one that may write it.
    pub(crate) fn holders(&self, page: PageNo) -> impl Iterator<Item = &Entry> {
        self.entries(page).iter().filter(|entry| entry.place != Place::Poisoned)
    }

    pub(crate) fn is_mapped(&self, page: PageNo) -> bool {
        self.holders(page).next().is_some()
    }

    pub(crate) fn writer(&self, page: PageNo) -> Option<MappingNo> {
        self.entries(page).iter().find(|entry| entry.place == Place::Write).map(|entry| entry.no)
    }

    /// When the last one that has the page got it, but for `except`.
    pub(crate) fn newest(&self, page: PageNo, except: Option<MappingNo>) -> Option<Instant> {
        self.holders(page).filter(|entry| Some(entry.no) != except).map(|entry| entry.since).max()
    }

    pub(crate) fn set(&mut self, no: MappingNo, page: PageNo, place: Place, now: Instant) {
        self.remove(no, page);
        let Some(member) = self.members.get_mut(&no) else { return };
        self.last_grant += 1;
        let grant = self.last_grant;
        match place {
            Place::Poisoned => member.poisoned.push_back(page),
            Place::Read | Place::Write => {
                member.order.insert(grant, page);
            }
        }
        if place == Place::Write {
            self.written.insert(page, false);
            self.shared.remove(&page);
        }
        self.pages.entry(page).or_default().push(Entry { no, place, since: now, grant });
    }

    /// The page is there only now: from now on it stays for [`WINDOW`].
    pub(crate) fn begin_window(&mut self, no: MappingNo, page: PageNo, now: Instant) {
        let entries = self.pages.get_mut(&page).into_iter().flatten();
        entries.filter(|entry| entry.no == no).for_each(|entry| entry.since = now);
    }

    pub(crate) fn remove(&mut self, no: MappingNo, page: PageNo) {
        let Some(entries) = self.pages.get_mut(&page) else { return };
        let Some(index) = entries.iter().position(|entry| entry.no == no) else { return };
        let entry = entries.swap_remove(index);
        if entries.is_empty() {
            self.pages.remove(&page);
        }
        if entry.place == Place::Write {
            self.written.remove(&page);
        }
        let Some(member) = self.members.get_mut(&no) else { return };
        member.order.remove(&entry.grant);
        if entry.place == Place::Poisoned {
            member.poisoned.retain(|poisoned| *poisoned != page);
        }
    }

    /// What a mapping is given in addition to a page that it reads.
    pub(crate) fn ahead(&mut self, no: MappingNo, page: PageNo, mode: readahead::Mode) -> Option<BlockRange> {
        self.members.get_mut(&no)?.ahead.on_fault(mode, BlockNo(page.0))
    }

    /// Pages that a mapping may read or write.
    pub(crate) fn held(&self, no: MappingNo) -> usize {
        self.members.get(&no).map_or(0, |member| member.order.len())
    }

    /// Has a mapping so many pages, or have all together, that one must go for each new one?
    pub(crate) fn is_full(&self, no: MappingNo) -> bool {
        self.held(no) >= self.pages_max || self.all_held() >= self.all_max
    }

    /// The mapping that must give up a page now that `no` has a new one: itself, or the one that has most.
    pub(crate) fn overfull(&self, no: MappingNo) -> Option<MappingNo> {
        if self.held(no) > self.pages_max {
            return Some(no);
        }
        let most = || self.members.iter().max_by_key(|(_, member)| member.order.len());
        if self.all_held() > self.all_max { most().map(|(no, _)| *no) } else { None }
    }

    /// Those granted first, of a mapping that must give up some: the least recently granted.
    pub(crate) fn oldest(&self, no: MappingNo) -> impl Iterator<Item = PageNo> {
        self.members.get(&no).into_iter().flat_map(|member| member.order.values().copied())
    }

    /// Pages that mappings may write, of one or of all.
    pub(crate) fn written(&self, of: Option<MappingNo>) -> impl Iterator<Item = PageNo> {
        self.written.keys().copied().filter(move |page| of.is_none() || self.writer(*page) == of)
    }

    /// The mapping that may write this page has taken over what clients have written.
    pub(crate) fn take_over(&mut self, page: PageNo) {
        self.written.entry(page).and_modify(|is_taken_over| *is_taken_over = true);
    }

    /// What a mapping has written goes into the cache.
    pub(crate) fn share(&mut self, page: PageNo) {
        if let Some(is_taken_over) = self.written.get(&page) {
            self.shared.insert(page, *is_taken_over);
        }
    }

    /// It is given up there.
    pub(crate) fn unshare(&mut self, page: PageNo) {
        self.shared.remove(&page);
    }

    /// Pages that went from mappings into the cache and are still dirty, of all or of those with what clients have written.
    pub(crate) fn shared(&mut self, all: bool, is_dirty: impl Fn(PageNo) -> bool) -> impl Iterator<Item = PageNo> {
        self.shared.retain(|page, _| is_dirty(*page));
        self.shared.iter().filter(move |(_, is_taken_over)| all || **is_taken_over).map(|(page, _)| *page)
    }

    /// Of the pages that mappings may write, those with what clients have written.
    pub(crate) fn taken_over(&self) -> impl Iterator<Item = PageNo> {
        self.written.iter().filter(|(_, is_taken_over)| **is_taken_over).map(|(page, _)| *page)
    }

    /// Those with what only programs have written.
    pub(crate) fn not_taken_over(&self) -> impl Iterator<Item = PageNo> {
        self.written.iter().filter(|(_, is_taken_over)| !**is_taken_over).map(|(page, _)| *page)
    }

    /// Some poisoned pages, each time others.
    pub(crate) fn some_poisoned(&mut self, most: usize) -> Vec<(MappingNo, PageNo)> {
        let mut some = Vec::new();
        for (no, member) in &mut self.members {
            let count = most.min(member.poisoned.len());
            member.poisoned.rotate_left(count);
            let looked_at = member.poisoned.iter().rev().take(count);
            some.extend(looked_at.map(|page| (*no, *page)));
        }
        some
    }

    /// What is to be done until all mappings have ended: each has its end, each page is to be taken, and stored before if
    /// it is written.
    pub(crate) fn work(&self) -> usize {
        self.members.len() + self.all_held() + self.written.len()
    }

    /// Pages that mappings may read or write, all together.
    pub(crate) fn all_held(&self) -> usize {
        self.members.values().map(|member| member.order.len()).sum()
    }

    /// Pages that mappings may only read, and that they may write.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.all_held() - self.written.len(), self.written.len()]
    }
}

/// A page that a mapping is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) no: MappingNo,
    pub(crate) is_write: bool,
    /// Since when a thread waits for it. `None`: none does, it is expected to, or accesses fail.
    pub(crate) since: Option<Instant>,
    /// For the trace.
    pub(crate) began: Option<Began>,
    pub(crate) deadline: Instant,
}

/// What was done for threads that wait for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// A mapping has it now, and its threads go on.
    Given,
    /// Nothing can be done before something else happens, which looks again.
    Later,
    /// The page, its content, or the right to write it is not here.
    Lacking,
}

/// What a mapping got stays for this long at least, whoever wants it: the thread that waited for it must run first, which
/// takes up to 50 µs on another processor. Otherwise two could take the page from each other again and again without an
/// access (the time window of Fleisch and Popek, *Mirage*, SOSP 1989).
pub(crate) const WINDOW: Duration = Duration::from_micros(100);
