//! What is written goes beside, and is dropped at the end (test-update mode of the OLTP system: after a load test the
//! database is as before; nbdkit's `cow` filter for disks), unless it is kept: whoever holds the changes copies them
//! below ([`Overlay::hold`]).

use std::sync::Arc;

use machine::Errno;
use parking_lot::Mutex;
use policy::unit::{BlockNo, BlockRange, ByteOffset, ByteRange};

use super::{DATA_RUNS_MAX, Device, DeviceFacts, DeviceRef, FoundData, Work};
use crate::block_set::BlockSet;
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::{Action, Context, Outcome, Request};
use crate::wait::WaitList;

/// Two devices of one size: `below` is only read, all changes go to `above`, which is forgotten when this is dropped.
pub struct Overlay {
    below: DeviceRef,
    above: DeviceRef,
    blocks_max: u64,
    changed: Mutex<Changed>,
    /// Those who wait until changes are not held, or until none or no read is under way.
    waiting: WaitList,
}

#[derive(Default)]
struct Changed {
    /// To be read from `above`.
    all: BlockSet,
    /// Those of them that take space.
    written: BlockSet,
    /// Changes that are under way.
    changing: u32,
    is_held: bool,
    /// Reads of `above` that are under way.
    reading: u32,
}

/// Blocks that differ from those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    pub blocks: BlockRange,
    /// All of them are zero; `above` need not be read.
    pub is_zero: bool,
}

/// An overlay behind the queue of its disk, by which all changes must come. They wait here while they are held: in the
/// queue they would take the places of reads, and of all else on that disk.
pub struct Gated {
    overlay: Arc<Overlay>,
    queued: DeviceRef,
}

/// Nothing changes until it is dropped, which any thread may do; reads go on.
#[must_use]
pub struct HeldChanges(Arc<Overlay>);

/// A change that is under way.
struct Changing<'a>(&'a Overlay);

/// A read of `above` that is under way.
struct ReadingAbove<'a>(&'a Overlay);

impl Changed {
    /// The runs within `blocks`, in their order.
    fn runs_within(&self, blocks: BlockRange) -> impl Iterator<Item = ChangedRun> + '_ {
        let (mut runs, mut left) = (self.all.runs_within(blocks), blocks.start.run(0));
        std::iter::from_fn(move || {
            if left.is_empty() {
                left = runs.next()?;
            }
            let run = match self.written.first_run(left, u64::MAX) {
                Some(run) if run.start == left.start => ChangedRun { blocks: run, is_zero: false },
                Some(run) => ChangedRun { blocks: left.start.to(run.start), is_zero: true },
                None => ChangedRun { blocks: left, is_zero: true },
            };
            left.start = run.blocks.end;
            Some(run)
        })
    }
}

/// The parts within `range` of `runs`, which are in order.
fn parts_within(runs: &[ByteRange], range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let first = runs.partition_point(|run| run.end() <= range.at);
    let here = runs[first..].iter().take_while(move |run| run.at < range.end());
    here.map(move |run| run.at.max(range.at).to(run.end().min(range.end())))
}

impl Overlay {
    /// `above`: of the size of `below`, and zero. It takes `blocks_max` blocks; more fail as on a full disk.
    pub fn new(below: DeviceRef, above: DeviceRef, blocks_max: u64) -> Self {
        Overlay { below, above, blocks_max, changed: Mutex::default(), waiting: WaitList::default() }
    }

    /// The blocks that take space.
    pub fn blocks_written(&self) -> u64 {
        self.changed.lock().written.len()
    }

    /// Waits until no change that comes by [`Gated`] is under way, and lets none begin until the result is dropped.
    pub async fn hold(self: &Arc<Self>) -> HeldChanges {
        let hold = |changed: &mut Changed| !std::mem::replace(&mut changed.is_held, true);
        self.waiting.until(|| hold(&mut self.changed.lock()).then_some(())).await;
        let held = HeldChanges(Arc::clone(self));
        self.waiting.until(|| (self.changed.lock().changing == 0).then_some(())).await;
        held
    }

    /// The bytes of whole blocks, of which the last may end with the device.
    fn bytes_of(&self, blocks: BlockRange) -> ByteRange {
        blocks.start.start().to(blocks.end.start().min(ByteOffset(self.below.facts().size)))
    }

    async fn begin_change(&self) -> Changing<'_> {
        let begin = || {
            let mut changed = self.changed.lock();
            changed.changing += u32::from(!changed.is_held);
            (!changed.is_held).then_some(())
        };
        self.waiting.until(begin).await;
        Changing(self)
    }

    /// The first run of `blocks` that one of the two has. If it is `above`, nothing is discarded there meanwhile.
    fn first_run(&self, blocks: BlockRange) -> (BlockRange, Option<ReadingAbove<'_>>) {
        let mut changed = self.changed.lock();
        match changed.all.first_run(blocks, u64::MAX) {
            Some(run) if run.start == blocks.start => {
                changed.reading += 1;
                (run, Some(ReadingAbove(self)))
            }
            Some(run) => (blocks.start.to(run.start), None),
            None => (blocks, None),
        }
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames, request: &Request) -> Result<(), Errno> {
        let (mut left, mut frames) = (range.blocks(), frames.into_iter());
        while !left.is_empty() {
            let (run, above) = self.first_run(left);
            left.start = run.end;
            let bytes = run.start.start().to(run.end.start().min(range.end()));
            let action = Action::Read(bytes, frames.by_ref().take(run.len() as usize).collect());
            let device = if above.is_some() { &self.above } else { &self.below };
            device.perform(cpu, Request { action, context: request.context }).await?.required()?;
        }
        Ok(())
    }

    /// Reserves the space of `blocks`. Returns those of them that had it before.
    ///
    /// # Errors
    /// [`Errno::NO_SPACE`] if they are too many.
    fn reserve(&self, blocks: BlockRange) -> Result<Vec<BlockRange>, Errno> {
        let mut changed = self.changed.lock();
        let before: Vec<BlockRange> = changed.written.runs_within(blocks).collect();
        let known: u64 = before.iter().map(|run| run.len()).sum();
        if changed.written.len() + blocks.len() - known > self.blocks_max {
            return Err(Errno::NO_SPACE);
        }
        changed.written.insert(blocks);
        Ok(before)
    }

    async fn change(&self, cpu: &Processor, range: ByteRange, request: Request) -> Result<Outcome, Errno> {
        let blocks = range.blocks();
        // Zeroes that must stay allocated are: what is written in their place later must not find the space gone.
        let is_write = matches!(request.action, Action::Write(..));
        let takes_space = is_write || matches!(request.action, Action::Zero { may_release: false, .. });
        let before = if takes_space { self.reserve(blocks)? } else { Vec::new() };
        let request = match request.action {
            // Beside, it reads as zeroes; below it would not.
            Action::Discard(range) => Request { action: Action::Zero { range, may_release: true }, ..request },
            _ => request,
        };
        let outcome = self.above.perform(cpu, request).await;
        let is_done = outcome == Ok(Outcome::Done);
        let mut changed = self.changed.lock();
        if is_done {
            changed.all.insert(blocks);
        }
        // A write that failed may have taken it.
        let keeps_space = if takes_space { is_done || is_write } else { !is_done };
        if !keeps_space {
            changed.written.remove(blocks);
            for run in before {
                changed.written.insert(run);
            }
        }
        drop(changed);
        outcome
    }
}

impl HeldChanges {
    /// In the order of their blocks.
    pub fn runs(&self) -> Vec<ChangedRun> {
        self.0.changed.lock().runs_within(BlockNo(0).to(BlockNo::MAX)).collect()
    }

    /// What differed is below now: it is read from there, and takes no space beside.
    pub async fn forget(self, cpu: &Processor, context: Context) {
        let overlay = &*self.0;
        let forgotten = std::mem::take(&mut overlay.changed.lock().all);
        overlay.waiting.until(|| (overlay.changed.lock().reading == 0).then_some(())).await;
        for run in forgotten.runs() {
            let range = overlay.bytes_of(run);
            // Where that fails, space is taken until the end.
            let _ = overlay.above.perform(cpu, Request { action: Action::Discard(range), context }).await;
        }
        overlay.changed.lock().written = BlockSet::default();
    }
}

impl Drop for HeldChanges {
    fn drop(&mut self) {
        self.0.changed.lock().is_held = false;
        self.0.waiting.wake_all();
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.changed.lock().changing -= 1;
        self.0.waiting.wake_all();
    }
}

impl Drop for ReadingAbove<'_> {
    fn drop(&mut self) {
        self.0.changed.lock().reading -= 1;
        self.0.waiting.wake_all();
    }
}

impl Device for Overlay {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { size: self.below.facts().size, writable: true, ..self.above.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match &request.action {
                Action::Read(range, frames) => {
                    self.read(cpu, *range, frames.clone(), &request).await?;
                    Ok(Outcome::Done)
                }
                // Nothing of it outlives a crash.
                Action::Flush => Ok(Outcome::Done),
                Action::Write(range, _) | Action::Discard(range) | Action::Zero { range, .. } => {
                    self.change(cpu, *range, request).await
                }
            }
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.above.expedite(cpu, range);
        self.below.expedite(cpu, range);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        Box::pin(async move {
            // Runs that touch are joined: it may take more of them to have as many.
            let wanted = runs_max.max(DATA_RUNS_MAX);
            // Before it is looked at below: what is forgotten after that is there already.
            let changed: Vec<ChangedRun> = self.changed.lock().runs_within(within.blocks()).take(wanted).collect();
            let known = match changed.last() {
                Some(last) if changed.len() == wanted => within.at.to(last.blocks.end.start().min(within.end())),
                _ => within,
            };
            let below_max = runs_max.saturating_add(changed.len()).min(wanted);
            let FoundData { runs: below, end } = self.below.find_data(cpu, known, below_max).await?;
            let (mut runs, mut at) = (Vec::new(), within.at);
            for ChangedRun { blocks, is_zero } in changed {
                let bytes = blocks.start.start().max(at).min(end).to(blocks.end.start().min(end));
                runs.extend(parts_within(&below, at.to(bytes.at)));
                runs.extend((!is_zero).then_some(bytes));
                at = bytes.end();
            }
            runs.extend(parts_within(&below, at.to(end)));
            runs.retain(|run| run.len > 0);
            runs.dedup_by(|next, run| {
                let touches = run.end() == next.at;
                run.len += if touches { next.len } else { 0 };
                touches
            });
            let is_all = runs.len() <= runs_max;
            runs.truncate(runs_max);
            let end = runs.last().filter(|_| !is_all).map_or(end, |last| last.end());
            Ok(FoundData { runs, end })
        })
    }
}

impl Gated {
    /// `queued`: leads to `overlay`.
    pub fn new(overlay: Arc<Overlay>, queued: DeviceRef) -> Self {
        Gated { overlay, queued }
    }
}

impl Device for Gated {
    fn facts(&self) -> DeviceFacts {
        self.queued.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        if matches!(request.action, Action::Read(..) | Action::Flush) {
            return self.queued.perform(cpu, request);
        }
        Box::pin(async move {
            let _changing = self.overlay.begin_change().await;
            self.queued.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.queued.expedite(cpu, range);
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.queued.find_data(cpu, within, runs_max)
    }
}
