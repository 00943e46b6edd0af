//! Flushing: what this node wrote becomes durable at its homes.
//!
//! A home that returned in between may have lost what it had stored and not flushed. So each home is noted with its
//! incarnation when something is stored there, and a flush fails if that is another one by then, once: like a disk whose
//! power failed, it has lost what was in its volatile cache, and whoever wrote it is told.

use std::time::Duration;

use kernel::Processor;
use kernel::request::Action;
use machine::Errno;
use policy::coherence::{Incarnation, NodeId};
use policy::unit::Instant;

use crate::Shared;
use crate::core::Core;
use crate::wire::Word;

/// An unanswered flush is asked for again: its connection may have ended.
const AGAIN: Duration = Duration::from_secs(1);

impl Shared {
    /// Makes all that was stored for this node before durable.
    pub(crate) async fn flush(&self, cpu: &Processor) -> Result<(), Errno> {
        let deadline = cpu.now() + self.config.timeout;
        self.store_mapped(cpu, deadline).await?;
        let newest = self.core.lock().saves;
        let is_stored = |core: &Core| core.saving.values().all(|saving| saving.number > newest);
        self.until(cpu, deadline, |core| is_stored(core).then_some(())).await?;
        let touched = std::mem::take(&mut self.core.lock().flushes.touched);
        let flushes = touched.iter().map(|(home, incarnation)| self.flush_at(cpu, *home, *incarnation, deadline));
        let mut result = Ok(());
        for ((home, incarnation), flushed) in touched.iter().zip(futures_util::future::join_all(flushes).await) {
            if flushed.is_err() {
                let mut core = self.core.lock();
                if self.incarnation_of(&core, *home) == *incarnation {
                    core.flushes.touch(*home, *incarnation);
                }
                result = flushed;
            }
        }
        result
    }

    async fn flush_at(
        &self,
        cpu: &Processor,
        home: NodeId,
        incarnation: Incarnation,
        deadline: Instant,
    ) -> Result<(), Errno> {
        if home == self.me.node {
            return self.flush_home(cpu, home).await;
        }
        let number = {
            let mut core = self.core.lock();
            core.flushes.asked += 1;
            let number = core.flushes.asked;
            core.flushes.answers.insert(number, None);
            number
        };
        let mut asked = None;
        let answer = self.until(cpu, deadline, |core| {
            if self.incarnation_of(core, home) != incarnation {
                return Some(false);
            }
            let answer = core.flushes.answers.get(&number).copied().flatten();
            if answer.is_none() && asked.is_none_or(|at: Instant| cpu.now().since(at) >= AGAIN) {
                asked = Some(cpu.now());
                self.say(self.address_of(core, home), Word::Flush(number), None);
            }
            answer
        });
        let answer = answer.await;
        self.core.lock().flushes.answers.remove(&number);
        if answer? { Ok(()) } else { Err(Errno::IO) }
    }

    /// Flushes this home's storage for `from`.
    pub(crate) async fn flush_home(&self, cpu: &Processor, from: NodeId) -> Result<(), Errno> {
        let flushed = self.perform(cpu, Action::Flush).await;
        let mut core = self.core.lock();
        let flushes = &mut core.flushes;
        if flushed.is_err() {
            flushes.to_fail = (0..self.config.nodes.len() as u16).map(NodeId).collect();
        }
        let before = flushes.to_fail.len();
        flushes.to_fail.retain(|node| *node != from);
        if flushes.to_fail.len() < before { Err(flushed.err().unwrap_or(Errno::IO)) } else { flushed }
    }

    /// A flush is asked for.
    pub(crate) fn on_flush(&self, cpu: &Processor, from: NodeId, number: u64) {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            let ok = shared.flush_home(&here, from).await.is_ok();
            let to = shared.address_of(&shared.core.lock(), from);
            shared.say(to, Word::Flushed { number, ok }, None);
        });
    }

    /// Waits until `ready`, looked at whenever something was stored or answered, and with each tick.
    ///
    /// # Errors
    /// After the deadline.
    pub(crate) async fn until<T>(
        &self,
        cpu: &Processor,
        deadline: Instant,
        mut ready: impl FnMut(&Core) -> Option<T>,
    ) -> Result<T, Errno> {
        let look = || match ready(&self.core.lock()) {
            Some(value) => Some(Ok(value)),
            None => (cpu.now() >= deadline).then_some(Err(Errno::IO)),
        };
        self.changed.until(look).await
    }
}
