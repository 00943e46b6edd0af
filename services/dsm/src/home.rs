//! The storage of the pages whose home this node is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::wait::WaitList;
use kernel::{FrameRef, Frames, Processor};
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::PageNo;

use crate::Shared;
use crate::core::{Core, Progress, block};
use crate::member::ENDED;
use crate::waiting::{Content, Durability, Loaded};

/// After a write to the home's storage failed. Whoever gave up the page retains it until it is stored.
const RETRY: Duration = Duration::from_secs(1);

/// Between looks at a lease that is over.
const LEASE_RETRY: Duration = Duration::from_millis(50);

/// Frames that are only for [`Shared::store_bytes`].
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

    async fn take(&self) -> FrameRef {
        self.given_back.until(|| self.frames.lock().pop()).await
    }

    fn give_back(&self, frame: FrameRef) {
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

    /// Reads a page of this home's storage, then does `then`.
    pub(crate) fn read_home(
        &self,
        cpu: &Processor,
        core: &mut Core,
        page: PageNo,
        then: impl FnOnce(&Shared, &Processor, &mut Core, Content) + 'static,
    ) -> Progress {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return Progress::Done };
        let mut frames = Frames::new();
        if !cpu.kernel().try_allocate(1, &mut frames) {
            cpu.spawn(async move {
                let frames = here.kernel().allocate(&here, 1).await;
                let content = shared.read_into(&here, page, frames).await;
                shared.go_on(&here, page, |core| then(&shared, &here, core, content));
            });
            return Progress::Running;
        }
        let (own, its) = (Arc::clone(&shared), here.clone());
        match at_once(async move { own.read_into(&its, page, frames).await }) {
            Ok(content) => {
                then(self, cpu, core, content);
                Progress::Done
            }
            Err(read) => {
                cpu.spawn(async move {
                    let content = read.await;
                    shared.go_on(&here, page, |core| then(&shared, &here, core, content));
                });
                Progress::Running
            }
        }
    }

    /// What storage cannot read is lost to whoever asks, as long as it cannot. While the lease does not last nothing is known
    /// of that: it is read when the lease is renewed.
    async fn read_into(&self, cpu: &Processor, page: PageNo, mut frames: Frames) -> Content {
        let result = loop {
            let lasted = self.answers();
            let read = self.perform(cpu, Action::Read(block(page).run(1).bytes(), frames.clone())).await;
            if read.is_ok() || (lasted && self.answers()) || self.has_ended() {
                break read;
            }
            cpu.sleep(LEASE_RETRY).await;
        };
        match (result, frames.pop()) {
            (Ok(()), Some(frame)) => Content::Page(Loaded::Frame(frame), Durability::Known),
            _ => Content::Lost,
        }
    }

    /// Stores the page's last copy.
    pub(crate) fn store(&self, cpu: &Processor, core: &mut Core, page: PageNo, content: Content) -> Progress {
        let frame = match content {
            Content::Page(Loaded::Frame(frame), _) => frame,
            Content::Page(Loaded::Bytes(bytes), _) => return self.store_bytes(cpu, page, bytes),
            Content::Lost => {
                // In a survey others may have it, and what nobody has is lost without being named.
                if !(self.config.is_volatile && core.node.is_surveying()) {
                    core.home.lost.insert(page);
                }
                return Progress::Done;
            }
            // This node's own. It was not changed if it is not cached.
            Content::None => {
                core.flushes.touch(self.me.node, self.me.incarnation);
                match core.saving.get(&page).and_then(|saving| saving.frame.clone()) {
                    Some(frame) => frame,
                    None => return Progress::Done,
                }
            }
        };
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return Progress::Done };
        let (own, its) = (Arc::clone(&shared), here.clone());
        match at_once(async move { own.write_home(&its, page, &frame).await }) {
            // It gives up only at the end.
            Ok(()) if self.has_ended() => Progress::Running,
            Ok(()) => {
                self.note_stored(core, page);
                Progress::Done
            }
            Err(write) => {
                cpu.spawn(async move {
                    write.await;
                    shared.go_on(&here, page, |core| shared.note_stored(core, page));
                });
                Progress::Running
            }
        }
    }

    /// Stores a page that arrived when no frame was free. For this a few are reserved: memory may be short because of
    /// what waits to be stored at another home, which may wait for the same.
    fn store_bytes(&self, cpu: &Processor, page: PageNo, bytes: Arc<[u8]>) -> Progress {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return Progress::Done };
        cpu.spawn(async move {
            let mut frame = shared.reserve.take().await;
            if let Some(into) = frame.bytes_mut() {
                into.copy_from_slice(&bytes);
            }
            shared.write_home(&here, page, &frame).await;
            shared.reserve.give_back(frame);
            shared.go_on(&here, page, |core| shared.note_stored(core, page));
        });
        Progress::Running
    }

    /// Writes a page to this home's storage, however often that takes.
    async fn write_home(&self, cpu: &Processor, page: PageNo, frame: &FrameRef) {
        while let Err(errno) = self.perform(cpu, write(page, frame)).await {
            if self.has_ended() {
                return;
            }
            self.report(None, format!("a page could not be stored: {errno}; it is tried again every second"));
            cpu.sleep(RETRY).await;
        }
    }

    fn note_stored(&self, core: &mut Core, page: PageNo) {
        self.counters.stores.add(1);
        core.flushes.home.stored += 1;
        if self.config.shards.is_some() {
            core.flushes.home.unflushed.since_mut().insert(page);
        }
        core.home.lost.remove(page);
        if self.config.is_volatile {
            core.home.stored.insert(page);
        }
    }

    /// Ends a step that waited.
    pub(crate) fn go_on(&self, cpu: &Processor, page: PageNo, end: impl FnOnce(&mut Core)) {
        let mut core = self.core.lock();
        let core = &mut *core;
        if self.has_ended() {
            return;
        }
        end(core);
        let entry = core.page(page);
        entry.is_running = false;
        let store = entry.store.take();
        self.end_store(core, store);
        core.due.push_back(page);
        self.drive(cpu, core);
    }

    pub(crate) async fn perform(&self, cpu: &Processor, action: Action) -> Result<(), Errno> {
        // The lease may be renewed in time.
        self.try_perform(cpu, action).await.unwrap_or(Err(if self.has_ended() { ENDED } else { Errno::IO }))
    }

    /// `None`: the storage was not asked, since others may store what this node stored before, once its lease is over.
    async fn try_perform(&self, cpu: &Processor, action: Action) -> Option<Result<(), Errno>> {
        let context = Context::synchronous(JobId::default());
        if !self.answers() {
            return None;
        }
        let _performing = Performing::begin(self);
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
            self.changed.wake_all();
            if flushed.is_none() {
                return Err(if self.has_ended() { ENDED } else { Errno::IO });
            }
        }
    }

    fn note_failure(&self, core: &mut Core) {
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

fn write(page: PageNo, frame: &FrameRef) -> Action {
    Action::Write(block(page).run(1).bytes(), Frames::from_iter([frame.clone()]))
}

/// Begins what storage does, with the volume's state locked: memory is done at once, which needs no task. `Err`: the rest,
/// for a task.
fn at_once<T>(work: impl Future<Output = T> + 'static) -> Result<T, Pin<Box<dyn Future<Output = T>>>> {
    let mut work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
    work.as_mut().now_or_never().ok_or(work)
}
