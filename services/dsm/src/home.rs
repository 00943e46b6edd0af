//! The storage of the pages whose home this node is: who may use it, and making durable what it has.

use std::ops::Range;
use std::sync::atomic::Ordering;

use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::wait::WaitList;
use kernel::{FrameRef, Frames, Processor};
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::PageNo;

use crate::Shared;
use crate::core::Core;
use crate::member::ENDED;

/// Frames that are only for pages that arrive when no other is free.
const RESERVED: usize = 16;

#[derive(Default)]
pub(crate) struct Reserve {
    frames: Mutex<Frames>,
    given_back: WaitList,
}

impl Reserve {
    pub(crate) async fn fill(&self, cpu: &Processor) {
        let mut frames = cpu.kernel().allocate(cpu, RESERVED).await;
        self.frames.lock().append(&mut frames);
        self.given_back.wake_all();
    }

    pub(crate) async fn take(&self) -> FrameRef {
        self.given_back.until(|| self.frames.lock().pop()).await
    }

    pub(crate) fn give_back(&self, frame: FrameRef) {
        self.frames.lock().push(frame);
        self.given_back.wake_all();
    }
}

impl Shared {
    /// Does nobody have the page's bytes?
    pub(crate) fn is_lost(&self, core: &Core, page: PageNo) -> bool {
        let ended = self.config.is_volatile && core.home.has_lost && !core.home.stored.contains(page);
        ended || core.home.lost.contains(page)
    }

    /// As [`Self::is_lost`], of any of these pages, or perhaps.
    pub(crate) fn is_any_lost(&self, core: &Core, pages: &Range<PageNo>) -> bool {
        let ended = self.config.is_volatile && core.home.has_lost;
        ended || core.home.lost.within(pages.clone()).next().is_some()
    }

    pub(crate) async fn perform(&self, cpu: &Processor, action: Action) -> Result<(), Errno> {
        // The lease may be renewed in time.
        self.try_perform(cpu, action).await.unwrap_or(Err(if self.has_ended() { ENDED } else { Errno::IO }))
    }

    /// `None`: the storage was not asked, since others may store what this node stored before, once its lease is over.
    async fn try_perform(&self, cpu: &Processor, action: Action) -> Option<Result<(), Errno>> {
        let context = Context::synchronous(JobId::default());
        // Before the lease is looked at: whoever waits for the last of these after its end must see this one.
        let _performing = Performing::begin(self);
        if !self.answers() {
            return None;
        }
        Some(self.storage.perform(cpu, Request { action, context }).await.and_then(Outcome::required))
    }

    /// Flushes storage that all nodes reach, whether or not this node has stored anything since the last flush.
    pub(crate) async fn flush_anew(&self, cpu: &Processor) -> Result<(), Errno> {
        self.core.lock().flushes.home.stored += 1;
        self.make_durable(cpu).await
    }

    /// Flushes this home's storage, unless another flush does it: never two at a time, since the success of one would prove
    /// nothing if the other fails. A failure is counted, and told where homes move.
    ///
    /// # Errors
    /// When a flush has failed since, or the lease does not last.
    pub(crate) async fn make_durable(&self, cpu: &Processor) -> Result<(), Errno> {
        let (wanted, failures) = {
            let home = &self.core.lock().flushes.home;
            (home.stored, home.failures)
        };
        loop {
            let leads = || {
                if self.has_ended() {
                    return Some(Err(ENDED));
                }
                let home = &mut self.core.lock().flushes.home;
                if home.failures > failures {
                    return Some(Err(Errno::IO));
                }
                if home.durable >= wanted {
                    return Some(Ok(None));
                }
                if home.running.is_some() {
                    return None;
                }
                home.running = Some(cpu.now());
                home.unflushed.begin();
                Some(Ok(Some(home.stored)))
            };
            let Some(stored) = self.changed.until(leads).await? else { return Ok(()) };
            // Until a failure is noted: a later incarnation returns it, too.
            let performing = Performing::begin(self);
            let flushed = self.try_perform(cpu, Action::Flush).await;
            {
                let mut core = self.core.lock();
                let home = &mut core.flushes.home;
                home.running = None;
                match flushed {
                    Some(Ok(())) => {
                        home.durable = home.durable.max(stored);
                        home.unflushed.succeeded();
                    }
                    _ => home.unflushed.failed(),
                }
                if matches!(flushed, Some(Err(_))) {
                    self.note_failure(&mut core);
                }
            }
            drop(performing);
            self.changed.wake_all();
            if flushed.is_none() {
                return Err(if self.has_ended() { ENDED } else { Errno::IO });
            }
        }
    }

    /// Nobody has what a node had written. It may have been acknowledged, at that node or one that had written before: a flush
    /// of all nodes that is under way must not succeed, also if its answer is lost and it is asked for again. Others are not
    /// concerned: the device has not failed, and whoever reads the page is told.
    pub(crate) fn note_lost(&self, core: &mut Core, page: PageNo) {
        core.home.lost.insert(page);
        core.flushes.home.losses += 1;
    }

    pub(crate) fn note_failure(&self, core: &mut Core) {
        core.flushes.home.failures += 1;
        let failures = core.flushes.home.failures;
        if self.config.shards.is_some() {
            self.note_failures(core, self.me, failures);
        }
    }
}

/// A request to the storage that is under way.
struct Performing<'a>(&'a Shared);

impl<'a> Performing<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.performing.fetch_add(1, Ordering::SeqCst);
        Performing(shared)
    }
}

impl Drop for Performing<'_> {
    fn drop(&mut self) {
        if self.0.performing.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.has_ended() {
            self.0.changed.wake_all();
        }
    }
}
