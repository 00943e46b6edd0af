//! Taking all pages from all mappings at once, when the lease of this node or its incarnation is over.
//!
//! A client is answered only while the lease lasts, but a program asks nobody before it reads or writes. So its pages must
//! be gone when others may take them over: after the end by this node's clock, and before that by the arbiter's. Programs
//! see this as the end of the server, with what they have chosen for it: they wait, or get a signal. Those that wait hand
//! their memory to the next mapping, of this incarnation if the lease was renewed in time, else of the next one.
//!
//! Rejected: mappings that live on without a lease, with threads that wait. If it is not renewed in time, what they have
//! written is lost, and they must learn of that anyway.

use std::sync::Arc;

use kernel::volume::Change;
use kernel::{Frames, Kernel, Processor, Volume};
use machine::Connection;
use machine::mapping::Mapping;
use policy::coherence::PageNo;
use policy::unit::JobId;

use super::MappingNo;
use crate::Shared;
use crate::core::{Core, block};

impl Shared {
    /// The lease of this node is over. When this returns, no program can use a page of the volume, whatever it does. What
    /// programs have written stays in the cache, in case that the lease is renewed in time, as far as there is memory at
    /// once; what is not retained is an error for all then, until somebody writes it anew. What clients have written, too, and
    /// was acknowledged comes first; if some of it cannot be retained, the next flush fails.
    pub fn on_lease_over(&self, kernel: &Kernel) {
        let volume = self.volume();
        let mut core = self.core.lock();
        let volume = volume.filter(|_| !self.has_ended());
        let acknowledged: Vec<PageNo> = core.mapped.taken_over().collect();
        let others: Vec<PageNo> = core.mapped.not_taken_over().collect();
        let mut lost = acknowledged.len() + others.len();
        if let Some(volume) = volume {
            let retained = self.retain_written(kernel, &mut core, &volume, &acknowledged);
            if retained < acknowledged.len() {
                core.flushes.failures.on_lost();
            }
            let most = others.len().min(core.mapped.retained_max);
            lost -= retained + self.retain_written(kernel, &mut core, &volume, &others[..most]);
        }
        self.stop_mappings(&mut core);
        drop(core);
        if lost > 0 {
            self.report(None, format!("the lease is over, and {lost} pages that programs had written are lost"));
        }
    }

    /// Copies as many as can be had at once into the cache; returns their number.
    fn retain_written(&self, kernel: &Kernel, core: &mut Core, volume: &Volume, written: &[PageNo]) -> usize {
        let mut retained = 0;
        for page in written {
            let mut spare = Frames::new();
            if !kernel.try_allocate(1, &mut spare) {
                break;
            }
            let Some(no) = core.mapped.writer(*page) else { continue };
            if let Some(frame) = self.copy_out(core, no, *page, spare.pop()) {
                core.mapped.share(*page);
                // The whole of a block needs nothing that is cached: it is not refused.
                let _ = volume.change(block(*page), Change::Whole(frame), JobId::default());
                retained += 1;
            }
        }
        retained
    }

    /// All mappings end, and have no pages any more.
    pub(crate) fn stop_mappings(&self, core: &mut Core) {
        core.filling.clear();
        for memory in core.mapped.stop_all() {
            // It fails only for memory that its program has sealed: then that is wrong, and nothing else.
            let _ = memory.clear();
        }
        for (page, entry) in core.pages.iter_mut() {
            let traced = entry.take_faults(|_| true).into_iter().filter(|fault| fault.began.is_some());
            core.stopped.extend(traced.map(|fault| (page, fault)));
        }
        self.stopped.wake_all();
    }

    /// What its threads waited for is in the trace, too.
    fn end_stopped(&self, cpu: &Processor, no: MappingNo) {
        let stopped: Vec<_> = self.core.lock().stopped.extract_if(.., |(_, fault)| fault.no == no).collect();
        stopped.into_iter().for_each(|(page, fault)| self.end_fault(cpu, page, fault));
    }

    /// Waits until a mapping is stopped, or has ended by itself, and closes the connection of one that is stopped.
    pub(crate) async fn close_stopped(
        &self,
        cpu: &Processor,
        no: MappingNo,
        memory: Arc<dyn Mapping>,
        connection: Connection,
    ) {
        let is_stopped = |core: &Core| core.mapped.member(no).is_none_or(|member| member.is_stopped);
        self.stopped.until(|| is_stopped(&self.core.lock()).then_some(())).await;
        self.end_stopped(cpu, no);
        cpu.cancel_faults(memory.faults());
        // The program hands its memory over again when it sees the end: nobody else may take its faults then.
        let is_unread = |core: &Core| core.mapped.member(no).is_none_or(|member| !member.is_read);
        self.stopped.until(|| is_unread(&self.core.lock()).then_some(())).await;
        // The number of a connection that was closed may be another one's.
        if self.core.lock().mapped.member(no).is_some() {
            cpu.shutdown(connection);
        }
    }
}
