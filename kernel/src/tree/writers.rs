//! Files open for writing: no longer than needed, since the host cannot execute them meanwhile ("Text file busy").
//!
//! What was written to them and nobody has asked to be durable is flushed by the same checks, together: write-back, which knows
//! one file alone, made a commit of the host's journal for each, a tenth of a second after it was written. By then many
//! clients have not asked for theirs, and many files are not removed again (of a `git clone` and build all commits but a few
//! were of this kind).

use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use machine::Errno;
use machine::tree::OpenNode;
use policy::unit::Instant;

use super::FileTree;
use super::vnode::Vnode;
use crate::Kernel;
use crate::processor::Processor;
use crate::request::Context;

/// Interval of checks while there are any.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Shortest interval, while memory is short: what is not flushed cannot be evicted.
const LOOK_INTERVAL_SHORT: Duration = Duration::from_millis(10);

/// Checks that find a file written back and not flushed after which it is flushed unasked: a second to one and a half.
const LOOKS_UNTIL_FLUSHED: u32 = 3;

/// Checks without a write after which the file is written back and flushed unasked, so that it can be closed for writing.
const LOOKS_UNTIL_WRITTEN: u32 = 4;

#[derive(Default)]
pub(super) struct Writers {
    files: Vec<Writer>,
    /// Is the checking task running?
    is_watched: bool,
}

struct Writer {
    file: Weak<Vnode>,
    /// Checks since the last write.
    idle: u32,
    /// Checks since it was found written back and not flushed.
    unflushed: u32,
}

impl Writer {
    /// A check; returns whether the file is to be flushed.
    fn look(&mut self, file: &Vnode) -> bool {
        self.idle = if file.device.take_written() { 0 } else { self.idle + 1 };
        self.unflushed = if file.awaits_flush_only() { self.unflushed + 1 } else { 0 };
        let is_left = self.idle > 0 && self.idle.is_multiple_of(LOOKS_UNTIL_WRITTEN) && !file.is_clean();
        let is_due = self.unflushed == LOOKS_UNTIL_FLUSHED || is_left;
        self.unflushed = if is_due { 0 } else { self.unflushed };
        is_due
    }

    /// Closes the file for writing if possible; returns whether it is closed.
    async fn close(&self, cpu: &Processor, file: &Vnode) -> bool {
        if self.idle == 0 {
            return false;
        }
        if file.is_clean() && file.device.is_to_be_asked() {
            // An error will be returned to who asks for the content.
            let _ = file.device.ask_host(cpu).await;
        }
        file.device.end_writing(|| file.is_clean())
    }
}

impl FileTree {
    /// A file open for writing; it stays so while a caller has this.
    ///
    /// # Errors
    /// The host's: `ETXTBSY` while the host executes it.
    pub(super) async fn open_for_writing(
        self: &Arc<Self>,
        cpu: &Processor,
        file: &Arc<Vnode>,
    ) -> Result<Arc<OpenNode>, Errno> {
        // Boxed: large and rare.
        let open = async || Box::pin(self.open_on_host(cpu, file.node, true)).await;
        let (writing, is_new) = file.device.writing(open).await?;
        if is_new {
            self.watch_writer(cpu, Arc::downgrade(file));
        }
        Ok(writing)
    }

    fn watch_writer(self: &Arc<Self>, cpu: &Processor, file: Weak<Vnode>) {
        let mut writers = self.writers.lock();
        writers.files.push(Writer { file, idle: 0, unflushed: 0 });
        if !std::mem::replace(&mut writers.is_watched, true) {
            let (here, kernel, tree) = (cpu.clone(), Arc::clone(&self.kernel), Arc::downgrade(self));
            cpu.spawn(async move {
                let mut next = here.now() + LOOK_INTERVAL;
                loop {
                    let is_early = until_look(&here, &kernel, next).await;
                    let Some(tree) = tree.upgrade() else { return };
                    if !tree.look_at_writers(&here, is_early).await {
                        return;
                    }
                    if !is_early {
                        next = here.now() + LOOK_INTERVAL;
                    }
                }
            });
        }
    }

    /// `is_early`: only because memory is short. Returns false if there are none left.
    async fn look_at_writers(self: &Arc<Self>, cpu: &Processor, is_early: bool) -> bool {
        let (mut due, files) = (Vec::new(), std::mem::take(&mut self.writers.lock().files));
        for mut writer in files {
            let Some(file) = writer.file.upgrade() else { continue };
            let is_due = if is_early { file.awaits_flush_only() } else { writer.look(&file) };
            if is_due {
                due.push((writer, file));
            } else if is_early || !writer.close(cpu, &file).await {
                self.writers.lock().files.push(writer);
            }
        }
        // An error is reported to writers by the verifier, as any other. Names that were answered before are left to those
        // who report their errors.
        let context = Context::asynchronous(cpu.job());
        let _ = self.flush_all(cpu, due.iter().map(|(_, file)| file), context).await;
        for (writer, file) in due {
            if !writer.close(cpu, &file).await {
                self.writers.lock().files.push(writer);
            }
        }
        let mut writers = self.writers.lock();
        writers.is_watched = !writers.files.is_empty();
        writers.is_watched
    }
}

/// Waits for the next check, which is early while memory is short. Returns whether it is.
async fn until_look(cpu: &Processor, kernel: &Kernel, next: Instant) -> bool {
    let early = cpu.now() + LOOK_INTERVAL_SHORT;
    let mut timers = Some([early, next]);
    std::future::poll_fn(|cx| {
        timers.take().into_iter().flatten().for_each(|at| cpu.wake_at(at, cx.waker().clone()));
        Poll::Ready(())
    })
    .await;
    let memory = kernel.memory();
    let is_over = || cpu.now() >= next || cpu.now() >= early && memory.is_memory_short();
    memory.write_back_wait().until(|| is_over().then_some(())).await;
    cpu.now() < next
}
