use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine::Errno;
use machine::tree::{Attributes, Node, SetAttributes, Time};
use parking_lot::MutexGuard;
use policy::unit::ByteRange;

use super::commit::{Committed, JointCommit};
use super::device::GrowingFile;
use super::known::{Asked, Known, Question, later};
use super::node_for_records;
use super::verifier::Verifier;
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::Context;
use crate::trace::Event;
use crate::volume::{ForeignFlush, Loss, Volume};
use crate::wait::TaskMutex;

/// A regular file in use, with its volume and attributes.
pub struct Vnode {
    pub(super) node: Node,
    pub(super) device: Arc<GrowingFile>,
    committed: Arc<Committed>,
    pub(super) volume: Arc<Volume>,
    /// The tree's.
    verifier: Arc<Verifier>,
    /// The volume's failed writes and flushes at the last check.
    failures: AtomicU64,
    used: AtomicBool,
    /// Held while the cache is revalidated.
    pub(super) following: TaskMutex,
    /// Held while attributes are set under a guard, from the comparison on.
    pub(super) guarded: TaskMutex,
}

impl Vnode {
    pub(super) fn new(
        node: Node,
        (device, committed): (Arc<GrowingFile>, Arc<Committed>),
        volume: Arc<Volume>,
        verifier: Arc<Verifier>,
    ) -> Arc<Self> {
        Arc::new(Vnode {
            node,
            device,
            committed,
            volume,
            verifier,
            failures: AtomicU64::new(0),
            used: AtomicBool::new(true),
            following: TaskMutex::default(),
            guarded: TaskMutex::default(),
        })
    }

    /// Its known attributes, as clients must see them.
    pub fn attributes(&self) -> Attributes {
        self.attributes_by(&self.known())
    }

    fn attributes_by(&self, known: &Known) -> Attributes {
        let size = self.volume.size();
        let unwritten = if self.is_clean() { 0 } else { size };
        Attributes {
            size,
            used: known.host.used.max(unwritten),
            modified: known.modified,
            changed: known.changed,
            ..known.host
        }
    }

    /// Are its known attributes still valid?
    pub(super) fn is_fresh(&self, cpu: &Processor) -> bool {
        let reported = self.device.reported(false);
        self.known().is_fresh(cpu.now(), reported)
    }

    /// The file's known state, if still valid.
    pub fn fresh(&self, cpu: &Processor) -> Option<Fresh<'_>> {
        let reported = self.device.reported(false);
        let known = self.known();
        known.is_fresh(cpu.now(), reported).then(|| Fresh { file: self, attributes: self.attributes_by(&known) })
    }

    /// Reads from the cache, if it has all of `range`, which must lie in the file, and the known attributes are valid.
    pub fn try_read(&self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        self.fresh(cpu)?.try_read(cpu, range)
    }

    /// Attributes were `set` on the host for a client, and are these now: clients see them from now on.
    pub(super) fn adopt(&self, cpu: &Processor, host: Attributes, set: &SetAttributes, question: Question) {
        let (until, is_watched) = (self.device.writes(), self.device.is_watched());
        self.known().adopt(cpu.now(), host, set, question, (until, is_watched));
    }

    /// The host returned these attributes; returns what clients see. `None`: it must be asked again, because clients were
    /// told of a change meanwhile, or others have made one, perhaps.
    pub(super) fn observe(&self, cpu: &Processor, host: Attributes, asked: Asked) -> Option<Attributes> {
        let reported = self.known().reported;
        let is_new = self.device.note(cpu.now(), host, Question { asked, writes: None, reported });
        (is_new && self.is_fresh(cpu)).then(|| self.attributes())
    }

    /// What is known of it may not be so any more: the host is asked again before it is told.
    pub(super) fn doubt(&self) {
        self.known().answered = None;
    }

    /// The clock of files advances in steps of milliseconds: of two writes in one step, the second is given a later time, so
    /// that a client that has seen the first notices the second.
    pub(super) fn note_write(&self, now: Time) {
        let mut known = self.known();
        known.modified = time_of_write(known.modified, now);
        known.changed = later(known.changed, now);
    }

    /// Makes its content durable.
    pub(super) async fn flush(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, context).await;
        self.look_for_failures();
        result
    }

    /// Writes what clients wrote to the disk, as far as that is possible without a flush, which then takes less time.
    pub(super) async fn write_out(&self, cpu: &Processor, context: Context) {
        self.volume.write_out_unflushed(cpu, context).await;
        self.device.write_back(cpu).await;
    }

    /// The next flush takes part in this commit, until the result is dropped.
    pub(super) fn join(&self, commit: &Arc<JointCommit>) -> impl Drop + '_ {
        self.committed.join(commit)
    }

    /// Changes the write verifier if data that clients wrote may have been lost.
    pub(super) fn look_for_failures(&self) {
        let failures = self.volume.failures_so_far();
        if failures > self.failures.swap(failures, Ordering::Relaxed) {
            self.verifier.change();
        }
    }

    /// The node is synced by a call that is not the volume's own flush, until this is dropped.
    pub(super) fn begin_sync(&self) -> ForeignFlush {
        self.volume.begin_foreign_flush()
    }

    /// Is everything on the host, and flushed?
    pub(super) fn is_clean(&self) -> bool {
        self.volume.is_clean()
    }

    /// Is everything on the host, and some of it not flushed?
    pub(super) fn awaits_flush_only(&self) -> bool {
        self.volume.awaits_flush_only()
    }

    /// Closes; unwritten data is dropped.
    pub(super) fn abandon(&self, cpu: &Processor) {
        let node = node_for_records(self.node.as_bytes());
        cpu.trace(Event::FileClosed, (cpu.job(), self.volume.export()), node, 0);
        self.volume.stop();
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.volume.loss()
    }

    /// Restores the loss of an earlier opening.
    pub(super) fn restore_loss(&self, loss: &Loss) {
        self.volume.restore_loss(loss);
    }

    pub(super) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.device.known()
    }
}

/// A file whose known attributes are valid.
pub struct Fresh<'a> {
    file: &'a Vnode,
    pub attributes: Attributes,
}

impl Fresh<'_> {
    /// Reads from the cache, if it has all of `range`, which must lie in the file. The size in the attributes is not
    /// older than what was read.
    pub fn try_read(&mut self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        let frames = self.file.volume.try_read(cpu, range)?;
        self.attributes.size = self.file.volume.size();
        Some(frames)
    }
}

/// A time further ahead than the clock's steps come to was set by somebody: then a write has its own.
fn time_of_write(before: Time, now: Time) -> Time {
    if before.seconds > now.seconds.saturating_add(1) { now } else { later(before, now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_has_a_time_of_its_own_and_the_clocks_where_somebody_had_set_one_far_ahead() {
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        let now = time(1_000, 999_999_999);
        for (before, told) in [
            (time(999, 5), now),
            (now, time(1_001, 0)),
            (time(1_001, 7), time(1_001, 8)),
            (time(1_002, 0), now),
            (time(i64::MAX, 999_999_999), now),
        ] {
            assert_eq!(time_of_write(before, now), told, "{before:?}");
        }
    }
}
