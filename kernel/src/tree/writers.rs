//! Files open for writing: no longer than somebody writes, for meanwhile the host cannot execute them ("Text file busy").

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use machine::Errno;
use machine::tree::OpenNode;

use super::FileTree;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::request::Context;

/// How often they are looked at, while there are any.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Looks without a write after which what was written is made durable, so that the file need not be open for writing any
/// more, though nobody asked for that.
const LOOKS_UNTIL_WRITTEN: u32 = 4;

/// The files of a tree that are open for writing.
#[derive(Default)]
pub(super) struct Writers {
    files: Vec<(Weak<Vnode>, u32)>,
    /// Is there a task that looks at them?
    is_watched: bool,
}

impl Vnode {
    /// The file for writing. As long as somebody has this, it stays open for that.
    ///
    /// # Errors
    /// The host's: `ETXTBSY` as long as the host executes it.
    pub(super) async fn writing(&self, cpu: &Processor) -> Result<Arc<OpenNode>, Errno> {
        self.is_written.store(true, Ordering::Relaxed);
        let Some(tree) = self.tree.upgrade() else { return Err(Errno::IO) };
        let open = async || tree.open_on_host(cpu, self.node, true).await;
        let (writing, is_new) = self.device.writing(open).await?;
        if is_new {
            tree.watch_writer(cpu, Weak::clone(&self.this));
        }
        Ok(writing)
    }

    /// Ends its being open for writing if it can, for which it is flushed after some `looks` without a write. Did it end?
    async fn end_writing(&self, cpu: &Processor, looks: &mut u32) -> bool {
        if self.is_written.swap(false, Ordering::Relaxed) {
            *looks = 0;
            return false;
        }
        *looks += 1;
        if looks.is_multiple_of(LOOKS_UNTIL_WRITTEN) && !self.is_clean() {
            // Who wrote learns of a failure as of any other.
            let _ = self.commit(cpu, Context::asynchronous(cpu.job())).await;
        }
        self.device.end_writing(|| self.is_clean())
    }
}

impl FileTree {
    fn watch_writer(&self, cpu: &Processor, file: Weak<Vnode>) {
        let mut writers = self.writers();
        writers.files.push((file, 0));
        if !std::mem::replace(&mut writers.is_watched, true) {
            let (here, tree) = (cpu.clone(), Weak::clone(&self.this));
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

    /// False when there are none left.
    async fn look_at_writers(&self, cpu: &Processor) -> bool {
        let files = std::mem::take(&mut self.writers().files);
        for (file, mut looks) in files {
            if let Some(open) = file.upgrade()
                && !open.end_writing(cpu, &mut looks).await
            {
                self.writers().files.push((file, looks));
            }
        }
        let mut writers = self.writers();
        writers.is_watched = !writers.files.is_empty();
        writers.is_watched
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
