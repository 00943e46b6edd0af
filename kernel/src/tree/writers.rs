//! Files open for writing: no longer than needed, since the host cannot execute them meanwhile ("Text file busy").

use std::sync::{Arc, Weak};
use std::time::Duration;

use machine::Errno;
use machine::tree::OpenNode;

use super::FileTree;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::request::Context;

/// Interval of checks while there are any.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Checks without a write after which the file is flushed unasked, so that it can be closed for writing.
const LOOKS_UNTIL_WRITTEN: u32 = 4;

#[derive(Default)]
pub(super) struct Writers {
    files: Vec<(Weak<Vnode>, u32)>,
    /// Is the checking task running?
    is_watched: bool,
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

    /// Closes a file for writing if possible; flushes it after some `looks` without a write. Returns whether it is
    /// closed.
    async fn end_writing(self: &Arc<Self>, cpu: &Processor, file: &Arc<Vnode>, looks: &mut u32) -> bool {
        if file.device.take_written() {
            *looks = 0;
            return false;
        }
        *looks += 1;
        if looks.is_multiple_of(LOOKS_UNTIL_WRITTEN) && !file.is_clean() {
            // An error is reported to writers by the verifier, as any other.
            let _ = self.commit(cpu, file, Context::asynchronous(cpu.job())).await;
        }
        file.device.end_writing(|| file.is_clean())
    }

    fn watch_writer(self: &Arc<Self>, cpu: &Processor, file: Weak<Vnode>) {
        let mut writers = self.writers.lock();
        writers.files.push((file, 0));
        if !std::mem::replace(&mut writers.is_watched, true) {
            let (here, tree) = (cpu.clone(), Arc::downgrade(self));
            cpu.spawn(async move {
                loop {
                    here.sleep(LOOK_INTERVAL).await;
                    let Some(tree) = tree.upgrade() else { return };
                    if !tree.look_at_writers(&here).await {
                        return;
                    }
                }
            });
        }
    }

    /// Returns false if there are none left.
    async fn look_at_writers(self: &Arc<Self>, cpu: &Processor) -> bool {
        let files = std::mem::take(&mut self.writers.lock().files);
        for (file, mut looks) in files {
            if let Some(open) = file.upgrade()
                && !self.end_writing(cpu, &open, &mut looks).await
            {
                self.writers.lock().files.push((file, looks));
            }
        }
        let mut writers = self.writers.lock();
        writers.is_watched = !writers.files.is_empty();
        writers.is_watched
    }
}
