//! Files that lose their names while they are open.
//!
//! NFSv3 has no open files: the server would forget one with its last name. So it gets another name (as the host's client
//! gives one, and servers know them), which is removed with its last closing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select;
use kernel::Processor;
use kernel::wait::WaitList;
use machine::Errno;
use parking_lot::Mutex;

use super::Files;
use crate::node::{Node, NodeId};

/// How long a directory that is to be removed waits for removals in it. Ample for a call, but not for a file with other names
/// whose data the server refuses.
const REMOVALS_TIMEOUT: Duration = Duration::from_secs(10);

/// Hidden files that are closed and being removed.
#[derive(Default)]
pub(super) struct Removals {
    /// Of each, in any order.
    directories: Mutex<Vec<NodeId>>,
    ended: WaitList,
}

impl Removals {
    fn begin(&self, directory: NodeId) -> Removal<'_> {
        self.directories.lock().push(directory);
        Removal { removals: self, directory }
    }

    fn has(&self, directory: NodeId) -> bool {
        self.directories.lock().contains(&directory)
    }
}

/// A removal, until dropped.
struct Removal<'a> {
    removals: &'a Removals,
    directory: NodeId,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut directories = self.removals.directories.lock();
        if let Some(at) = directories.iter().position(|directory| *directory == self.directory) {
            directories.swap_remove(at);
        }
        drop(directories);
        self.removals.ended.wake_all();
    }
}

/// An open file whose name another one is about to take, and which lasts by a name of its own.
pub(super) struct Kept<'a> {
    node: &'a Arc<Node>,
    directory: &'a Arc<Node>,
    name: &'a [u8],
    hidden: Vec<u8>,
    /// It has lost its name already.
    is_moved: bool,
}

impl Files {
    fn hidden_name(&self, node: &Node) -> Vec<u8> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!(".nfs{:016x}{:08x}", node.known.attributes().file_id, serial as u32).into_bytes()
    }

    /// Takes the name of an open file away.
    pub(super) async fn hide(
        &self,
        cpu: &Processor,
        directory: &Arc<Node>,
        name: &[u8],
        node: &Node,
    ) -> Result<(), Errno> {
        let hidden = self.hidden_name(node);
        self.move_away(cpu, (directory, name), &hidden, node).await?;
        self.note_hidden(cpu, node, directory, hidden).await;
        Ok(())
    }

    async fn move_away(
        &self,
        cpu: &Processor,
        (directory, name): (&Node, &[u8]),
        hidden: &[u8],
        node: &Node,
    ) -> Result<(), Errno> {
        let call = self.server.rename(cpu, Some(node.object()), (&directory.handle, name), (&directory.handle, hidden));
        self.change_names(cpu, directory, call, |change| change.to).await?;
        node.known.on_renamed();
        let mut nodes = self.nodes.lock();
        nodes.remove_name(directory.id, name);
        nodes.end_whole(directory.id);
        Ok(())
    }

    /// Gives an open file that is about to be replaced a name beside its own, so that it keeps that if it is not. `None`: the
    /// server does not have it any more.
    pub(super) async fn keep<'a>(
        &self,
        cpu: &Processor,
        (directory, name): (&'a Arc<Node>, &'a [u8]),
        node: &'a Arc<Node>,
    ) -> Result<Option<Kept<'a>>, Errno> {
        let hidden = self.hidden_name(node);
        let is_moved = match self.add_name(cpu, node, directory, &hidden).await {
            Ok(()) => {
                self.nodes.lock().end_whole(directory.id);
                false
            }
            Err(Errno::STALE) => return Ok(None),
            // Not every server gives a file two names, nor every file.
            Err(_) => {
                self.move_away(cpu, (directory, name), &hidden, node).await?;
                true
            }
        };
        Ok(Some(Kept { node, directory, name, hidden, is_moved }))
    }

    /// It was replaced, or not.
    pub(super) async fn end_keeping(&self, cpu: &Processor, kept: Kept<'_>, replaced: Result<(), Errno>) {
        let Kept { node, directory, ref hidden, is_moved, .. } = kept;
        match replaced {
            Ok(()) if !is_moved => _ = node.known.on_name_removed(),
            Ok(()) => {}
            Err(_) if is_moved => return self.give_back(cpu, &kept).await,
            // It may have been replaced nevertheless.
            Err(Errno::TIMED_OUT | Errno::IO) => {}
            Err(_) => {
                let call = self.server.remove(cpu, &directory.handle, hidden);
                if self.change_names(cpu, directory, call, |change| *change).await.is_ok() {
                    node.known.on_name_removed();
                    return;
                }
            }
        }
        self.note_hidden(cpu, node, directory, kept.hidden).await;
    }

    /// Gives a file that was not replaced its name again, unless somebody else has it by now.
    async fn give_back(&self, cpu: &Processor, kept: &Kept<'_>) {
        let Kept { node, directory, name, hidden, .. } = kept;
        let given = match self.server.lookup(cpu, &directory.handle, name).await {
            Err(Errno(libc::ENOENT)) => {
                let call = self.server.rename(
                    cpu,
                    Some(node.object()),
                    (&directory.handle, hidden),
                    (&directory.handle, name),
                );
                self.change_names(cpu, directory, call, |change| change.to).await.map(|_| ())
            }
            Ok(_) => Err(Errno(libc::EEXIST)),
            Err(errno) => Err(errno),
        };
        node.known.on_renamed();
        match given {
            Ok(()) => self.nodes.lock().set_name(node, directory.id, name),
            Err(errno) => {
                let (name, hidden) = (String::from_utf8_lossy(name), String::from_utf8_lossy(hidden));
                self.host.report(&format!("{name} was not replaced, and is {hidden} from now on: {errno}"));
            }
        }
    }

    async fn note_hidden(&self, cpu: &Processor, node: &Node, directory: &Arc<Node>, hidden: Vec<u8>) {
        let left = {
            let mut state = node.state.lock();
            state.hidden.push((Arc::clone(directory), hidden));
            // It may have been closed meanwhile.
            if state.opens == 0 { std::mem::take(&mut state.hidden) } else { Vec::new() }
        };
        self.remove_hidden(cpu, node, left).await;
    }

    /// Removes a file that was hidden, at its last closing. What was written and not sent goes with it.
    pub(super) async fn remove_hidden(&self, cpu: &Processor, node: &Node, names: Vec<(Arc<Node>, Vec<u8>)>) {
        let begin = |(directory, name): (Arc<Node>, _)| (self.removals.begin(directory.id), directory, name);
        // All begin at once: who removes a directory is to wait for the last one, too.
        let removals: Vec<_> = names.into_iter().map(begin).collect();
        for (_until_removed, directory, name) in removals {
            self.remove_hidden_name(cpu, node, &directory, &name).await;
        }
    }

    async fn remove_hidden_name(&self, cpu: &Processor, node: &Node, directory: &Node, name: &[u8]) {
        node.ahead.until_done().await;
        if node.known.attributes().links > 1
            && let Some(content) = node.content()
        {
            // It has other names.
            let _ = content.flush(cpu).await;
        }
        let call = self.server.remove(cpu, &directory.handle, name);
        match self.change_names(cpu, directory, call, |change| *change).await {
            Ok(_) | Err(Errno(libc::ENOENT) | Errno::STALE) => self.on_name_removed(cpu, node).await,
            Err(errno) => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.host.report(&format!("{name} could not be removed: {errno}"));
            }
        }
    }

    /// Waits for removals under way in the directory of this name, which is to be removed or replaced, but not for long. They
    /// begin when the host tells of the last closing, for whose end it does not let close(2) wait.
    pub(super) async fn until_removed(&self, cpu: &Processor, directory: NodeId, name: &[u8]) {
        if self.removals.directories.lock().is_empty() {
            return;
        }
        let Some(node) = self.nodes.lock().named(directory, name) else { return };
        let removed = self.removals.ended.until(|| (!self.removals.has(node.id)).then_some(()));
        select(pin!(removed), pin!(cpu.sleep(REMOVALS_TIMEOUT))).await;
    }
}
