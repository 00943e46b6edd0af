//! What is written goes beside, and is dropped at the end (test-update mode of the OLTP system: after a load test the
//! database is as before; nbdkit's `cow` filter for disks).

use machine::Errno;
use parking_lot::Mutex;
use policy::unit::{BlockRange, ByteOffset, ByteRange};

use super::{Device, DeviceFacts, DeviceRef, SeekTarget, Work};
use crate::block_set::BlockSet;
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};

/// Two devices of one size: `below` is only read, all changes go to `above`, which is forgotten when this is dropped.
pub struct Overlay {
    below: DeviceRef,
    above: DeviceRef,
    blocks_max: u64,
    changed: Mutex<Changed>,
}

#[derive(Default)]
struct Changed {
    /// To be read from `above`.
    all: BlockSet,
    /// Those of them that take space.
    written: BlockSet,
}

impl Overlay {
    /// `above`: of the size of `below`, and zero. It takes `blocks_max` blocks; more fail as on a full disk.
    pub fn new(below: DeviceRef, above: DeviceRef, blocks_max: u64) -> Self {
        Overlay { below, above, blocks_max, changed: Mutex::default() }
    }

    /// The blocks that take space.
    pub fn blocks_written(&self) -> u64 {
        self.changed.lock().written.len()
    }

    /// The first run of `blocks` that one of the two has, and whether that is `above`.
    fn first_run(&self, blocks: BlockRange) -> (BlockRange, bool) {
        let changed = self.changed.lock();
        match changed.all.first_run(blocks, u64::MAX) {
            Some(run) if run.start == blocks.start => (run, true),
            Some(run) => (blocks.start.to(run.start), false),
            None => (blocks, false),
        }
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames, request: &Request) -> Result<(), Errno> {
        let (mut left, mut frames) = (range.blocks(), frames.into_iter());
        while !left.is_empty() {
            let (run, is_above) = self.first_run(left);
            left.start = run.end;
            let bytes = run.start.start().to(run.end.start().min(range.end()));
            let action = Action::Read(bytes, frames.by_ref().take(run.len() as usize).collect());
            let device = if is_above { &self.above } else { &self.below };
            device.perform(cpu, Request { action, context: request.context }).await?.required()?;
        }
        Ok(())
    }

    /// Reserves the space of `blocks`.
    ///
    /// # Errors
    /// [`Errno::NO_SPACE`] if they are too many.
    fn reserve(&self, blocks: BlockRange) -> Result<(), Errno> {
        let mut changed = self.changed.lock();
        let new = blocks.iter().filter(|block| !changed.written.contains(*block)).count() as u64;
        if changed.written.len() + new > self.blocks_max {
            return Err(Errno::NO_SPACE);
        }
        changed.written.insert(blocks);
        Ok(())
    }

    async fn change(&self, cpu: &Processor, range: ByteRange, request: Request) -> Result<Outcome, Errno> {
        let blocks = range.blocks();
        let is_write = matches!(request.action, Action::Write(..));
        if is_write {
            self.reserve(blocks)?;
        }
        let request = match request.action {
            // Beside, it reads as zeroes; below it would not.
            Action::Discard(range) => Request { action: Action::Zero { range, may_release: true }, ..request },
            _ => request,
        };
        let outcome = self.above.perform(cpu, request).await?;
        if outcome == Outcome::Done {
            let mut changed = self.changed.lock();
            changed.all.insert(blocks);
            if !is_write {
                changed.written.remove(blocks);
            }
        }
        Ok(outcome)
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

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        Box::pin(async move {
            let end = ByteOffset(self.facts().size);
            let mut at = at;
            while at < end {
                let (run, is_above) = self.first_run(at.to(end).blocks());
                let run_end = run.end.start().min(end);
                let device = if is_above { &self.above } else { &self.below };
                if let Some(found) = device.seek(cpu, at, target).await?.filter(|found| *found < run_end) {
                    return Ok(Some(found));
                }
                at = run_end;
            }
            // The end counts as a hole.
            Ok(matches!(target, SeekTarget::Hole).then_some(end))
        })
    }
}
