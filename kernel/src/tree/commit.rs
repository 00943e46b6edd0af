//! One commit of the host's journal for the flushes of several files (M12).
//!
//! A file's own flush commits the journal, or waits for a commit that another began, and flushes the disk, in a thread of the
//! host's of its own. Of files that are flushed at the same time the content goes to the disk first; then the journal is
//! committed, once, and one of them is flushed by itself meanwhile, because a commit that has nothing to write does not flush
//! the disk: that flush waits for the commit's, or is one more (`jbd2_trans_will_send_data_barrier`).
//!
//! A layer above the disk's queue, which bounds what is in flight: these flushes wait for each other.

use std::sync::Arc;

use machine::Errno;
use parking_lot::Mutex;
use policy::unit::ByteRange;

use super::device::GrowingFile;
use crate::device::{Device, DeviceFacts, DeviceRef, Work};
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};
use crate::wait::WaitList;

/// The flushes that take part.
#[derive(Default)]
pub(super) struct JointCommit {
    state: Mutex<State>,
    changed: WaitList,
}

#[derive(Default)]
struct State {
    /// Files that may still take part.
    missing: usize,
    /// Those whose content is on the disk.
    arrived: usize,
    committed: Option<Result<(), Errno>>,
    /// What came of the flush of the first, which covers the disk.
    flushed: Option<Result<(), Errno>>,
}

impl JointCommit {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.wake_all();
    }

    /// Waits until each file has arrived or left. Returns how many have arrived.
    pub(super) async fn until_complete(&self) -> usize {
        let complete = || {
            let state = self.state.lock();
            (state.missing == 0).then_some(state.arrived)
        };
        self.changed.until(complete).await
    }

    /// The journal was committed, or there is at most one file, which is flushed by itself.
    pub(super) fn end(&self, result: Result<(), Errno>) {
        self.change(|state| state.committed = Some(result));
    }

    async fn until_committed(&self) -> Result<(), Errno> {
        self.changed.until(|| self.state.lock().committed).await
    }

    async fn until_flushed(&self) -> Result<(), Errno> {
        self.changed.until(|| self.state.lock().flushed).await
    }
}

/// A file's place in a commit, until it arrives or leaves.
struct Place(Arc<JointCommit>);

impl Place {
    /// The content is on the disk. The first is to flush the disk, when all have arrived.
    fn arrive(self) -> (Arc<JointCommit>, Option<Flusher>) {
        let commit = Arc::clone(&self.0);
        let is_first = {
            let mut state = commit.state.lock();
            state.arrived += 1;
            state.arrived == 1
        };
        let flusher = is_first.then(|| Flusher { commit: Arc::clone(&commit), result: Err(Errno::CANCELLED) });
        (commit, flusher)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.change(|state| state.missing -= 1);
    }
}

/// Tells the others what came of the disk's flush.
struct Flusher {
    commit: Arc<JointCommit>,
    result: Result<(), Errno>,
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.commit.change(|state| state.flushed = Some(self.result));
    }
}

/// A file whose next flush may take part in a commit.
pub(super) struct Committed {
    below: DeviceRef,
    file: Arc<GrowingFile>,
    place: Mutex<Option<Place>>,
}

impl Committed {
    pub(super) fn new(below: DeviceRef, file: Arc<GrowingFile>) -> Arc<Self> {
        Arc::new(Committed { below, file, place: Mutex::default() })
    }

    /// The next flush takes part in a commit, until the result is dropped. Once in one.
    pub(super) fn join(&self, commit: &Arc<JointCommit>) -> impl Drop + '_ {
        struct Joined<'a>(&'a Committed);
        impl Drop for Joined<'_> {
            fn drop(&mut self) {
                let left = self.0.place.lock().take();
                drop(left);
            }
        }
        self.place.lock().get_or_insert_with(|| {
            commit.change(|state| state.missing += 1);
            Place(Arc::clone(commit))
        });
        Joined(self)
    }

    async fn flush(&self, cpu: &Processor, request: Request, place: Place) -> Result<Outcome, Errno> {
        let begun = self.file.begin_flush();
        if !self.file.write_back(cpu).await {
            drop(place);
            return self.below.perform(cpu, request).await;
        }
        let (commit, flusher) = place.arrive();
        let Some(mut flusher) = flusher else {
            commit.until_committed().await?;
            // The other's error says nothing of this file (M11).
            return match commit.until_flushed().await {
                Ok(()) => {
                    self.file.on_flushed(begun);
                    Ok(Outcome::Done)
                }
                Err(_) => self.below.perform(cpu, request).await,
            };
        };
        commit.until_complete().await;
        let outcome = self.below.perform(cpu, request).await;
        flusher.result = outcome.as_ref().map(drop).map_err(|errno| *errno);
        outcome
    }
}

impl Device for Committed {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        if !matches!(request.action, Action::Flush) {
            return self.below.perform(cpu, request);
        }
        let place = self.place.lock().take();
        Box::pin(async move {
            let outcome = match place {
                Some(place) => self.flush(cpu, request, place).await,
                None => self.below.perform(cpu, request).await,
            };
            self.file.take_unreported().await.map_or(outcome, Err)
        })
    }

    fn is_immediate(&self) -> bool {
        self.below.is_immediate()
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }
}
