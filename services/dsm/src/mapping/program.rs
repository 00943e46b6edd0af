//! A program that has mapped the volume, from the begin to the end of its connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernel::connection::{receive_exact, send_all};
use kernel::request::Context;
use kernel::{Hold, Processor};
use machine::mapping::Mapping;
use machine::{Connection, Errno, Segments};
use policy::coherence::{NodeId, PageNo};
use policy::unit::JobId;

use super::table::{Fault, Place};
use super::{MAPPINGS_MAX, MappingNo};
use crate::Shared;
use crate::core::Core;

/// Reported faults taken at a time.
const FAULTS_AT_ONCE: usize = 32;

/// Bytes of one of them in the host's form, at most.
const FAULT_BYTES: usize = 32;

/// The request to make durable what was written (`awase_shm::wire::FLUSH`).
const FLUSH: u64 = 1;

/// Pages of a mapping that ends, stored at a home at a time.
const STORED_AT_ONCE: usize = 64;

/// Pages that programs have written, flushed at a time.
const FLUSHED_AT_ONCE: usize = 1024;

/// Pages that it may only read, taken from it at a time: others wait meanwhile.
const TAKEN_AT_ONCE: usize = 256;

/// Between attempts to store them while their home does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Poisoned pages of each mapping that are asked for again at a time.
const TRIED_AGAIN: usize = 16;

/// Which of the pages that mappings may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    All,
    /// Those that mappings have taken over from clients' writes.
    TakenOver,
}

impl Shared {
    /// Fills a program's memory from now on, until its connection ends. Its faults, and what it asks for, are served by
    /// this processor. `None`: too many have mapped the volume, or this node may not answer.
    pub fn map(&self, cpu: &Processor, memory: Arc<dyn Mapping>, connection: Connection) -> Option<MappingNo> {
        let shared = self.this.upgrade()?;
        let no = {
            let mut core = self.core.lock();
            if !self.answers() || core.mapped.len() >= MAPPINGS_MAX {
                return None;
            }
            core.mapped.add(Arc::clone(&memory), connection, cpu.id())
        };
        let (own, here, its) = (Arc::clone(&shared), cpu.clone(), Arc::clone(&memory));
        cpu.spawn(async move {
            own.take_faults(&here, no, &*its).await;
            own.core.lock().mapped.set_unread(no);
            own.stopped.wake_all();
        });
        let (own, here) = (Arc::clone(&shared), cpu.clone());
        cpu.spawn(async move { own.close_stopped(&here, no, memory, connection).await });
        let here = cpu.clone();
        cpu.spawn(async move {
            shared.take_requests(&here, connection).await;
            shared.end_mapping(&here, no).await;
            shared.core.lock().mapped.end(no);
            shared.changed.wake_all();
            shared.stopped.wake_all();
            here.close(connection);
        });
        Some(no)
    }

    /// For tests. From now on, one mapping has no more than so many pages, instead of [`PAGES_MAX`](super::PAGES_MAX).
    pub fn limit_mappings(&self, pages_max: usize) {
        self.core.lock().mapped.pages_max = pages_max;
    }

    /// From now on, all mappings together have about so many pages at most: what can be taken from them at once when the
    /// lease of this node is over.
    pub fn limit_mapped(&self, pages_max: usize) {
        self.core.lock().mapped.all_max = pages_max;
    }

    /// For tests. From now on, so many pages that only programs have written are retained at most when the lease of this
    /// node is over.
    pub fn limit_retained(&self, pages_max: usize) {
        self.core.lock().mapped.retained_max = pages_max;
    }

    /// Programs that have mapped the volume.
    pub fn mappings(&self) -> usize {
        self.core.lock().mapped.len()
    }

    async fn take_faults(&self, cpu: &Processor, no: MappingNo, memory: &dyn Mapping) {
        let mut bytes = vec![0; FAULTS_AT_ONCE * FAULT_BYTES];
        while self.core.lock().mapped.member(no).is_some_and(|member| !member.is_ending) {
            let into = Segments::from_iter([kernel::connection::segment(&mut bytes)]);
            let (result, hold) = cpu.faults(memory.faults(), Hold::new(bytes, Default::default()), into).await;
            bytes = hold.bytes;
            // Cancelled, or the program has made its descriptor useless. Its connection tells when it ends.
            let Ok(count) = result else { return };
            let received = bytes.get(..count as usize).unwrap_or_default();
            self.on_faults(cpu, no, &memory.decode(received));
        }
    }

    /// Answers the program's requests until it has ended.
    async fn take_requests(&self, cpu: &Processor, connection: Connection) {
        while let Ok(request) = receive_exact(cpu, connection, size_of::<u64>()).await {
            if request != FLUSH.to_le_bytes() {
                return;
            }
            let errno = self.flush_for_programs(cpu).await.err().map_or(0, |errno| errno.0);
            if send_all(cpu, connection, i64::from(errno).to_le_bytes().to_vec()).await.is_err() {
                return;
            }
        }
    }

    /// Makes durable what programs of this node have written, and what clients of the volume have.
    async fn flush_for_programs(&self, cpu: &Processor) -> Result<(), Errno> {
        let volume = self.volume().ok_or(Errno::IO)?;
        // What was taken from a mapping into the cache is dirty there. What is not may be all there is.
        let of_volume = volume.flush(cpu, Context::synchronous(JobId::default())).await;
        self.store_mapped(cpu, Written::All).await?;
        of_volume.and(self.flush_own(cpu).await)
    }

    /// Stores what programs have written at the homes, however much that is.
    ///
    /// # Errors
    /// When that does not go on, or something of it is lost.
    pub(crate) async fn store_mapped(&self, cpu: &Processor, which: Written) -> Result<(), Errno> {
        let (written, losses): (Vec<PageNo>, _) = {
            let mut core = self.core.lock();
            let Core { mapped, node, flushes, .. } = &mut *core;
            let mut written: Vec<PageNo> = match which {
                Written::All => mapped.written(None).collect(),
                Written::TakenOver => mapped.taken_over().collect(),
            };
            // The flush of the volume may have passed them before they were in the cache.
            written.extend(mapped.shared(which == Written::All, |page| node.is_dirty(page)));
            (written, flushes.failures.losses)
        };
        for some in written.chunks(FLUSHED_AT_ONCE) {
            self.store_dirty(cpu, &mut self.core.lock(), some.iter().copied());
            self.until_stored(cpu, some, Core::is_stored).await?;
        }
        if self.core.lock().flushes.failures.losses == losses { Ok(()) } else { Err(Errno::IO) }
    }

    /// Ends a mapping: it gets no more pages, what it has written is stored, and it has none any more.
    async fn end_mapping(&self, cpu: &Processor, no: MappingNo) {
        let Some(memory) = self.begin_end(cpu, no) else { return };
        cpu.cancel_faults(memory.faults());
        // Nothing is written any more. A home that does not answer holds up its own pages only.
        let written = self.unstored_by_home(no);
        let homes = written.values().map(async |pages| {
            for some in pages.chunks(STORED_AT_ONCE) {
                // What is under way when the incarnation ends stays so.
                while !self.has_ended() && !self.store_some(cpu, no, some).await {}
            }
        });
        futures_util::future::join_all(homes).await;
        while self.take_some(no) {
            cpu.yield_now().await;
        }
    }

    /// Takes some pages from a mapping that may only read them. False: it has none.
    fn take_some(&self, no: MappingNo) -> bool {
        let mut core = self.core.lock();
        let some: Vec<PageNo> = core.mapped.oldest(no).take(TAKEN_AT_ONCE).collect();
        for page in &some {
            self.take_from(&mut core, no, *page);
        }
        !some.is_empty()
    }

    fn begin_end(&self, cpu: &Processor, no: MappingNo) -> Option<Arc<dyn Mapping>> {
        let mut core = self.core.lock();
        let core = &mut *core;
        let memory = Arc::clone(&core.mapped.member(no)?.memory);
        core.mapped.set_ending(no);
        for (page, entry) in core.pages.iter_mut() {
            let ended = entry.take_faults(|fault| fault.no == no);
            ended.into_iter().for_each(|fault| self.end_fault(cpu, page, fault));
        }
        Some(memory)
    }

    /// Pages that a mapping has written and that its homes do not have: a flush may be storing some of them.
    fn unstored_by_home(&self, no: MappingNo) -> BTreeMap<Option<NodeId>, Vec<PageNo>> {
        let core = self.core.lock();
        let mut by_home: BTreeMap<_, Vec<PageNo>> = BTreeMap::new();
        // Not all that it may read: with the state locked that would take too long.
        let busy = core.pages.iter().map(|(page, _)| page).chain(core.saving.keys().copied());
        let storing = busy.filter(|page| core.mapped.has(no, *page) && !core.is_stored(*page));
        let unstored = core.mapped.written(Some(no)).chain(storing);
        for page in unstored.collect::<BTreeSet<_>>() {
            let home = core.node.home(page).map(|home| home.at.node);
            by_home.entry(home).or_default().push(page);
        }
        by_home
    }

    /// Stores some pages that a mapping has written: nobody else has them. False: not all within a timeout in which nothing
    /// was.
    async fn store_some(&self, cpu: &Processor, no: MappingNo, some: &[PageNo]) -> bool {
        let is_written = |core: &Core, page| core.mapped.place(no, page) == Some(Place::Write);
        let is_stored = |core: &Core, page| core.is_stored(page) && !is_written(core, page);
        let left: Vec<PageNo> = {
            let mut core = self.core.lock();
            let left: Vec<PageNo> = some.iter().copied().filter(|page| !is_stored(&core, *page)).collect();
            self.store_dirty(cpu, &mut core, left.iter().copied());
            left
        };
        let is_done = left.is_empty() || self.until_stored(cpu, &left, is_stored).await.is_ok();
        if !is_done {
            cpu.sleep(RETRY).await;
        }
        is_done
    }

    /// Ends all mappings, before the volume is closed: programs see that the server has ended when what they have written
    /// is stored. To be called once.
    pub async fn end_mappings(&self, cpu: &Processor) {
        let Some(shared) = self.this.upgrade() else { return };
        let members: Vec<_> = {
            let core = self.core.lock();
            core.mapped.members().map(|(no, member)| (no, member.processor, member.connection)).collect()
        };
        for (no, processor, connection) in members {
            let shared = Arc::clone(&shared);
            cpu.spawn_on(processor, move |cpu| {
                cpu.clone().spawn(async move {
                    shared.end_mapping(&cpu, no).await;
                    // Its own task closes the connection when it has forgotten the mapping.
                    if shared.core.lock().mapped.member(no).is_some() {
                        cpu.shutdown(connection);
                    }
                });
            });
        }
        // After a timeout in which nothing was stored some are left whose homes do not answer: what they have written is
        // lost with this process.
        let left = |core: &Core| if core.mapped.len() == 0 { 0 } else { core.mapped.work() + core.saving.len() };
        let _ = self.until_none_left(cpu, left).await;
    }

    /// Threads that have waited for too long get an error.
    pub(crate) fn expire_faults(&self, cpu: &Processor, core: &mut Core) {
        let now = cpu.now();
        core.mapped.expected.expire(now);
        let is_over = |fault: &Fault| fault.deadline <= now;
        let over = core.pages.iter().filter(|(_, entry)| entry.faults.iter().any(is_over));
        for page in over.map(|(page, _)| page).collect::<Vec<_>>() {
            self.fail_faults(cpu, core, page, is_over);
        }
    }

    /// Asks again for some of the pages whose accesses fail: their home may answer again, or somebody has written them.
    pub(crate) fn try_poisoned(&self, cpu: &Processor, core: &mut Core) {
        let deadline = cpu.now() + self.config.timeout;
        for (no, page) in core.mapped.some_poisoned(TRIED_AGAIN) {
            core.page(page).add_fault(Fault { no, is_write: false, since: None, began: None, deadline });
            core.due.push_back(page);
        }
    }
}
