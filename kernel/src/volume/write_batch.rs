//! Stable writes of one client that a processor receives together are written together, by one task, and share a flush
//! like one writer: what a write costs besides its data is paid once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use machine::Errno;
use policy::unit::{BlockRange, Instant, Stability};
use smallvec::SmallVec;

use super::Volume;
use super::flush::Failures;
use super::write_out::Claims;
use crate::processor::Processor;
use crate::request::Context;
use crate::wait::WaitList;

/// Those that their tasks have not begun with.
#[derive(Default)]
struct Forming(RefCell<Vec<Rc<Batch>>>);

struct Batch {
    volume: Arc<Volume>,
    /// Of each write.
    context: Context,
    /// Before any of its data was issued.
    failures: Failures,
    writes: RefCell<Writes>,
    result: Cell<Option<Result<(), Errno>>>,
    ended: WaitList,
}

type Writes = SmallVec<[BlockRange; 8]>;
type Others = SmallVec<[BlockRange; 1]>;

impl Volume {
    /// Makes `blocks`, which the caller has just marked dirty and announced to the rendezvous, durable, together with what
    /// others write in this turn of the processor.
    pub(super) async fn write_in_batch(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
        failures: Failures,
    ) -> Result<(), Errno> {
        let context = self.with_export(context).with_stability(Stability::Unstable);
        let Some(batch) = self.join_batch(cpu, blocks, context, failures) else { return Err(Errno::IO) };
        batch.ended.until(|| batch.result.get()).await
    }

    /// `None`: the volume is closed.
    fn join_batch(
        &self,
        cpu: &Processor,
        blocks: BlockRange,
        context: Context,
        failures: Failures,
    ) -> Option<Rc<Batch>> {
        let forming = cpu.own::<Forming>();
        let mut batches = forming.0.borrow_mut();
        let same = |batch: &&Rc<Batch>| std::ptr::eq(&raw const *batch.volume, self) && batch.context == context;
        if let Some(batch) = batches.iter().find(same) {
            batch.writes.borrow_mut().push(blocks);
            return Some(Rc::clone(batch));
        }
        let batch = Rc::new(Batch {
            volume: self.this.upgrade()?,
            context,
            failures,
            writes: RefCell::new(SmallVec::from_slice(&[blocks])),
            result: Cell::new(None),
            ended: WaitList::default(),
        });
        batches.push(Rc::clone(&batch));
        drop(batches);
        // The task runs after those that are ready now, so that their writes join.
        let (own, here) = (Rc::clone(&batch), cpu.clone());
        cpu.spawn_path_of_many(context.job, async move {
            forming.0.borrow_mut().retain(|batch| !Rc::ptr_eq(batch, &own));
            let result = own.write(&here).await;
            own.result.set(Some(result));
            own.ended.wake_all();
        });
        Some(batch)
    }

    /// Writes the dirty blocks among these until no write of them is in flight and none must be repeated.
    async fn write_all_and_settle(&self, cpu: &Processor, writes: &[BlockRange], context: Context) {
        let failures = self.failures();
        loop {
            let rewrites = self.rewrites();
            let (claims, others) = self.claim_each(cpu.now(), writes);
            // Boxed: large and rare.
            let others = others.into_iter().map(|blocks| Box::pin(self.write_and_settle(cpu, blocks, context)));
            join(self.write_out_each(cpu, claims, context), join_all(others)).await;
            if self.rewrites() == rewrites || self.failures() != failures {
                return;
            }
        }
    }

    /// Claims each of these that can be written as one run; returns the others, too.
    fn claim_each(&self, now: Instant, writes: &[BlockRange]) -> (Claims, Others) {
        let (mut claims, mut others) = (Claims::with_capacity(writes.len()), Others::new());
        let mut state = self.state.lock();
        for &blocks in writes {
            match self.claim_all_in(&mut state, now, blocks) {
                Some(claim) => claims.push(claim),
                None => others.push(blocks),
            }
        }
        (claims, others)
    }
}

impl Batch {
    async fn write(&self, cpu: &Processor) -> Result<(), Errno> {
        let Batch { volume, context, failures, .. } = self;
        let writes = self.writes.take();
        let callers = writes.len() as u32;
        let announced = volume.flushes.announced(cpu, callers);
        volume.write_all_and_settle(cpu, &writes, *context).await;
        drop(announced);
        volume.flush_device_for(cpu, *context, *failures, callers).await
    }
}
