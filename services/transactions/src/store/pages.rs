//! Reading and writing pages through the volume's cache.

use std::sync::Arc;

use kernel::request::{Context, JobId};
use kernel::volume::Lookup;
use kernel::{FrameRef, Frames, Processor, Volume};
use policy::unit::{BlockNo, Stability};

use super::StoreError;
use super::layout::{PAGE_BYTES, PageNo};

/// Pages that one write has at most: 256 KiB.
pub(super) const RUN_PAGES_MAX: usize = 64;

#[derive(Clone)]
pub(super) struct Pages {
    pub volume: Arc<Volume>,
    pub identity: u64,
}

impl Pages {
    pub(super) async fn read(&self, cpu: &Processor, page: PageNo) -> Result<FrameRef, StoreError> {
        let mut frames = self.read_run(cpu, page, 1).await?;
        frames.pop().ok_or(StoreError::Damaged(page.0))
    }

    pub(super) async fn read_run(&self, cpu: &Processor, first: PageNo, count: u64) -> Result<Frames, StoreError> {
        let range = BlockNo(first.0).run(count).bytes();
        match self.volume.begin_read(cpu, range, Context::synchronous(JobId::default()))? {
            Lookup::Cached(frames) => Ok(frames),
            Lookup::Missing(reading) => Ok(reading.finish(cpu).await?),
        }
    }

    /// Writes to the cache; the volume writes it to the device in its own time.
    pub(super) async fn write(&self, cpu: &Processor, page: PageNo, frame: FrameRef) -> Result<(), StoreError> {
        let context = Context::asynchronous(JobId::default());
        Ok(self.volume.write(cpu, BlockNo(page.0).run(1).bytes(), Frames::from_iter([frame]), context).await?)
    }

    /// Writes neighbouring pages; with [`Stability::Stable`], all of it is durable then.
    pub(super) async fn write_run(
        &self,
        cpu: &Processor,
        first: PageNo,
        bytes: &[u8],
        stability: Stability,
    ) -> Result<(), StoreError> {
        let mut page = first;
        for piece in bytes.chunks(RUN_PAGES_MAX * PAGE_BYTES) {
            let frames = frames_of(cpu, piece).await;
            let range = BlockNo(page.0).run(frames.len() as u64).bytes();
            page.0 += frames.len() as u64;
            let context = Context::synchronous(JobId::default()).with_stability(stability);
            self.volume.write(cpu, range, frames, context).await?;
        }
        Ok(())
    }

    /// Writes what is dirty to the device. What is not urgent (nobody waits for the checkpoint, and it keeps its pace) goes
    /// as far as nobody else wants the disk.
    pub(super) async fn write_out(&self, cpu: &Processor, is_urgent: bool) {
        let class = if is_urgent { Context::synchronous } else { Context::asynchronous };
        self.volume.write_out_unflushed(cpu, class(JobId::default())).await;
    }

    pub(super) async fn flush(&self, cpu: &Processor) -> Result<(), StoreError> {
        Ok(self.volume.flush(cpu, Context::synchronous(JobId::default())).await?)
    }
}

/// Frames with these bytes, and zeroes up to the end of the last.
async fn frames_of(cpu: &Processor, bytes: &[u8]) -> Frames {
    let mut frames = cpu.kernel().allocate(cpu, bytes.len().div_ceil(PAGE_BYTES)).await;
    for (frame, piece) in frames.iter_mut().zip(bytes.chunks(PAGE_BYTES)) {
        // Just allocated: this is the only reference.
        let Some(content) = frame.bytes_mut() else { continue };
        content[..piece.len()].copy_from_slice(piece);
        content[piece.len()..].fill(0);
    }
    frames
}
