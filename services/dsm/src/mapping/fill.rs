//! Putting pages into a program's memory. Those that it only reads go there in batches: a page by itself costs the host more
//! than its copy, and a program that is woken for each page runs before the next one is there. Nothing else is done to any
//! mapping before they are there.

use std::sync::Arc;

use kernel::{FRAME_BYTES, Processor};
use machine::Errno;
use machine::mapping::{self, Mapping};
use policy::coherence::PageNo;
use policy::unit::Instant;

use super::MappingNo;
use super::table::Place;
use crate::Shared;
use crate::core::Core;
use crate::waiting::{Filling, Loaded};

/// Pages put into memory at a time. The program reads the first of them while the next are fetched.
const AT_ONCE: usize = 32;

/// A page, as mappings take it.
fn page_bytes(loaded: &Loaded) -> Option<&[u8; mapping::PAGE_BYTES]> {
    loaded.bytes().first_chunk().filter(|_| loaded.bytes().len() == FRAME_BYTES)
}

/// Fills a page that should be absent. A program may have put something there by itself, which is no one's.
pub(super) fn fill(memory: &dyn Mapping, page: PageNo, loaded: &Loaded, is_writable: bool) -> Result<(), Errno> {
    let bytes = page_bytes(loaded).ok_or(Errno::IO)?;
    match memory.fill(page.0, bytes, is_writable) {
        Ok(()) => Ok(()),
        Err(_) => {
            memory.remove(page.0)?;
            memory.fill(page.0, bytes, is_writable)
        }
    }
}

impl Core {
    /// The host does not give a mapping a page for which a thread waits: it may have no memory for it now. Its accesses fail until
    /// it can be had. If even that cannot be said, the program has ended, or does not want to have it, unless they fail already
    /// by what it `had`: the host refuses to poison a page again.
    pub(super) fn poison(&mut self, memory: &dyn Mapping, no: MappingNo, page: PageNo, had: Option<Place>) {
        if memory.poison(page.0).is_err() {
            if had != Some(Place::Poisoned) {
                return;
            }
            let _ = memory.wake(page.0);
        }
        self.mapped.set(no, page, Place::Poisoned, Instant::ZERO);
    }

    /// For the next pages to be filled.
    fn recycle(&mut self, mut filled: Vec<Filling>) {
        filled.clear();
        self.filling = filled;
    }
}

impl Shared {
    /// Fills a page soon.
    pub(super) fn fill_later(&self, cpu: &Processor, core: &mut Core, filling: Filling) {
        core.filling.push(filling);
        self.fill_some(cpu, core);
    }

    /// Fills what is to be filled, if that is enough.
    pub(super) fn fill_some(&self, cpu: &Processor, core: &mut Core) {
        if core.filling.len() >= AT_ONCE {
            self.fill_last(cpu, core);
        }
    }

    /// Fills what is to be filled, at the end of what is done at a time. What is filled stays from then on for a while.
    pub(crate) fn fill_last(&self, cpu: &Processor, core: &mut Core) {
        let filled = self.fill_runs(core);
        let now = cpu.now();
        filled.iter().for_each(|Filling { no, page, .. }| core.mapped.begin_window(*no, *page, now));
        core.recycle(filled);
    }

    /// Fills what is to be filled. To be called before anything else is done to a mapping, and before others may lock.
    pub(crate) fn fill_now(&self, core: &mut Core) {
        let filled = self.fill_runs(core);
        core.recycle(filled);
    }

    /// Returns what was to be filled.
    fn fill_runs(&self, core: &mut Core) -> Vec<Filling> {
        let filling = std::mem::take(&mut core.filling);
        let follows = |one: &Filling, next: &Filling| next.no == one.no && next.page.0 == one.page.0 + 1;
        for run in filling.chunk_by(follows) {
            self.fill_run(core, run);
        }
        filling
    }

    fn fill_run(&self, core: &mut Core, run: &[Filling]) {
        let [Filling { no, page, .. }, ..] = run else { return };
        let Some(member) = core.mapped.member(*no) else { return };
        let memory = Arc::clone(&member.memory);
        let pages: Vec<_> = run.iter().map_while(|filling| page_bytes(&filling.content)).collect();
        let filled = memory.fill_run(page.0, &pages);
        for Filling { no, page, content, is_awaited } in &run[filled..] {
            if fill(&*memory, *page, content, false).is_err() {
                core.mapped.remove(*no, *page);
                if *is_awaited {
                    core.poison(&*memory, *no, *page, None);
                }
            }
        }
    }
}
