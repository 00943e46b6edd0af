//! Taking pages from mappings.

use std::sync::Arc;

use kernel::volume::WrittenBy;
use kernel::{FRAME_BYTES, FrameRef, Frames, Processor, Volume};
use machine::mapping;
use policy::coherence::PageNo;
use policy::unit::Instant;

use super::MappingNo;
use super::table::{Place, WINDOW};
use crate::Shared;
use crate::core::{Core, Progress, Saving, block};

impl Shared {
    /// The policy has given up the right to write a page and, unless `retain`, to read it: nobody of this node does when
    /// the step is done, and what was written is ready to be sent.
    pub(crate) fn withdraw(
        &self,
        cpu: &Processor,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        retain: bool,
    ) -> Progress {
        let is_written = core.mapped.writer(page).is_some();
        if core.filling.iter().any(|filling| filling.page == page) {
            // No thread could access it yet.
            self.fill_last(cpu, core);
        }
        let concerns_mappings = is_written || (!retain && core.mapped.is_mapped(page));
        let until = core.mapped.newest(page, None).filter(|_| concerns_mappings).map(|since| since + WINDOW);
        let mut spare = Frames::new();
        let is_short = is_written && !cpu.kernel().try_allocate(1, &mut spare);
        if !is_short && until.is_none_or(|until| cpu.now() >= until) {
            self.withdraw_now(core, volume, page, (retain, spare.pop()));
            return Progress::Done;
        }
        let (Some(shared), here, volume) = (self.this.upgrade(), cpu.clone(), Arc::clone(volume)) else {
            return Progress::Done;
        };
        cpu.spawn(async move {
            here.sleep_until(until.unwrap_or(Instant::ZERO)).await;
            if is_short {
                spare = here.kernel().allocate(&here, 1).await;
            }
            let frame = spare.pop();
            shared.go_on(&here, page, |core| shared.withdraw_now(core, &volume, page, (retain, frame)));
        });
        Progress::Running
    }

    fn withdraw_now(
        &self,
        core: &mut Core,
        volume: &Arc<Volume>,
        page: PageNo,
        (retain, spare): (bool, Option<FrameRef>),
    ) {
        let mut written = None;
        if let Some(no) = core.mapped.writer(page) {
            written = self.copy_out(core, no, page, spare);
            match &written {
                Some(frame) if retain => {
                    core.mapped.set(no, page, Place::Read, Instant::ZERO);
                    let by = self.config.shards.map(|_| WrittenBy::Program);
                    volume.put(block(page), frame.clone(), by);
                }
                _ => self.take_from(core, no, page),
            }
            if written.is_none() {
                core.flushes.failures.on_lost();
            }
        }
        if !retain {
            self.take_from_all(core, page, None);
        }
        core.mapped.unshare(page);
        let cached = self.give_up(core, volume, page, retain);
        let forwarded = core.forwarded.remove(&page).map(|(_, frame)| frame);
        self.retain(core, page, written.or(cached).or(forwarded));
    }

    /// What was given up is retained until the steps of the page are done, or its home has it.
    pub(crate) fn retain(&self, core: &mut Core, page: PageNo, frame: Option<FrameRef>) {
        match core.saving.get_mut(&page) {
            Some(saving) if frame.is_some() => saving.frame = frame,
            Some(_) => {}
            None => {
                core.saves += 1;
                core.saving.insert(page, Saving { number: core.saves, frame });
            }
        }
    }

    /// What a mapping has written, after which it may only read it. `None`: the host does not give it, or there is no
    /// `spare` frame for it.
    pub(crate) fn copy_out(
        &self,
        core: &mut Core,
        no: MappingNo,
        page: PageNo,
        spare: Option<FrameRef>,
    ) -> Option<FrameRef> {
        self.fill_now(core);
        let memory = &core.mapped.member(no)?.memory;
        let mut frame = spare?;
        // Before it is copied: what is written after the copy would be lost. It fails if nobody can write it any more
        // through the mapping, since the program has ended or mapped something else there.
        let _ = memory.forbid_writes(page.0);
        let into: &mut [u8; mapping::PAGE_BYTES] = frame.bytes_mut()?.first_chunk_mut()?;
        const { assert!(mapping::PAGE_BYTES == FRAME_BYTES, "a page is a frame") };
        memory.copy_out(page.0, into).ok()?;
        Some(frame)
    }

    /// A mapping does not have the page any more.
    pub(crate) fn take_from(&self, core: &mut Core, no: MappingNo, page: PageNo) {
        self.fill_now(core);
        if let Some(member) = core.mapped.member(no) {
            // It fails only if there is nothing.
            let _ = member.memory.remove(page.0);
        }
        core.mapped.remove(no, page);
    }

    /// No mapping may read the page any more, but for `except`.
    pub(crate) fn take_from_all(&self, core: &mut Core, page: PageNo, except: Option<MappingNo>) {
        let others = core.mapped.holders(page).map(|entry| entry.no).filter(|no| Some(*no) != except);
        for no in others.collect::<Vec<_>>() {
            self.take_from(core, no, page);
        }
    }
}
