//! Opening and closing. Every opening has a number of its own, so that it is told what failed since (`errors.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use kernel::Processor;
use machine::Errno;
use parking_lot::Mutex;

use super::Files;
use crate::client::Access;
use crate::content::Content;
use crate::errors::Told;
use crate::node::{Node, NodeId};

/// Files that are not open and whose content stays cached, at most.
const CLOSED_MAX: usize = 4096;

/// Threads that were refused and have not tried again yet, of one file. More at a time are refused twice.
const REFUSED_MAX: usize = 64;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub reads: bool,
    pub writes: bool,
    /// Of the host, by number: which of them tries again is known by that.
    pub thread: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpeningId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub id: OpeningId,
    /// What the host has cached of the content is still good.
    pub keeps_cache: bool,
}

/// What a flush or a write has come to. An error of write-back that nobody takes is told later.
#[must_use]
pub struct Flushed {
    open: Option<Arc<Open>>,
    result: Result<(), Errno>,
}

impl Flushed {
    pub(super) fn new(open: Arc<Open>, result: Result<(), Errno>) -> Flushed {
        Flushed { open: Some(open), result }
    }

    /// Tells who uses the opening.
    ///
    /// # Errors
    /// The server's.
    pub fn tell(self) -> Result<(), Errno> {
        self.open.map_or(self.result, |open| open.told(self.result))
    }
}

impl From<Result<(), Errno>> for Flushed {
    fn from(result: Result<(), Errno>) -> Flushed {
        Flushed { open: None, result }
    }
}

/// The host's openings: it bounds them, as it does open files.
#[derive(Default)]
pub(super) struct Openings {
    open: HashMap<OpeningId, Arc<Open>>,
    next: u64,
}

pub(super) struct Open {
    pub node: Arc<Node>,
    pub writes: bool,
    told: Mutex<Told>,
}

impl Open {
    /// What is returned to who uses the opening: an error of write-back that it was not told yet, or else this result.
    pub fn told(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        self.node.errors.take(&mut self.told.lock()).map_or(result, Err)
    }
}

impl Files {
    /// Opens a file.
    ///
    /// # Errors
    /// The server's, or `EACCES`. `ESTALE`: the host is to look the file up before.
    pub async fn open_file(&self, cpu: &Processor, id: NodeId, opening: Opening) -> Result<Opened, Errno> {
        let node = self.node(id)?;
        if opening.writes && self.options.read_only {
            return Err(Errno::READ_ONLY);
        }
        // Who takes the file's name away, from before the server is asked: a file that is open gets another one.
        let id = {
            let _not_meanwhile = node.losing_name.lock().await;
            self.begin_opening(&node, opening.writes)
        };
        let permitted = async {
            self.check_opening(cpu, &node, opening).await?;
            node.find_longer();
            self.follow(cpu, &node, false).await?;
            check_end(&node, opening.thread)
        };
        if let Err(errno) = permitted.await {
            self.end_opening(cpu, id).await;
            return Err(errno);
        }
        Ok(Opened { id, keeps_cache: !std::mem::take(&mut node.state.lock().host_is_stale) })
    }

    async fn check_opening(&self, cpu: &Processor, node: &Node, opening: Opening) -> Result<(), Errno> {
        let granted = node.state.lock().granted.filter(|(_, until)| cpu.now() < *until);
        let granted = match granted {
            Some((granted, _)) if !self.options.close_to_open => granted,
            _ => self.ask_access(cpu, node).await?,
        };
        // Who may only execute a file must read it for that.
        let may_read = granted.includes(Access::READ) || granted.includes(Access::EXECUTE);
        let may_write = granted.includes(Access::MODIFY);
        if (opening.reads && !may_read) || (opening.writes && !may_write) {
            return Err(Errno(libc::EACCES));
        }
        Ok(())
    }

    /// Closes what nobody was given.
    pub async fn undo_opening(&self, cpu: &Processor, opened: Opened) {
        if !opened.keeps_cache
            && let Ok(open) = self.opening(opened.id)
        {
            open.node.state.lock().host_is_stale = true;
        }
        self.end_opening(cpu, opened.id).await;
    }

    pub(super) fn begin_opening(&self, node: &Arc<Node>, writes: bool) -> OpeningId {
        node.state.lock().opens += 1;
        let open = Open { node: Arc::clone(node), writes, told: Mutex::new(node.errors.begin()) };
        let mut openings = self.openings.lock();
        openings.next += 1;
        let id = OpeningId(openings.next);
        openings.open.insert(id, Arc::new(open));
        id
    }

    pub(super) fn opening(&self, id: OpeningId) -> Result<Arc<Open>, Errno> {
        self.openings.lock().open.get(&id).cloned().ok_or(Errno(libc::EBADF))
    }

    /// The last use of an opening has ended. What no close has flushed is made durable in a while: a host does not pass on
    /// those of users whom it refuses, and what is written to a mapping may come after all of them.
    pub async fn close_file(self: &Arc<Self>, cpu: &Processor, id: OpeningId) {
        if let Some(open) = self.opening(id).ok().filter(|open| open.writes && !open.node.is_clean()) {
            self.commit_later(cpu, &open.node);
        }
        self.end_opening(cpu, id).await;
    }

    pub(super) async fn end_opening(&self, cpu: &Processor, id: OpeningId) {
        let Some(open) = self.openings.lock().open.remove(&id) else { return };
        let node = &open.node;
        let hidden = {
            let mut state = node.state.lock();
            state.opens = state.opens.saturating_sub(1);
            if state.opens > 0 {
                return;
            }
            std::mem::take(&mut state.hidden)
        };
        self.remove_hidden(cpu, node, hidden).await;
        if node.content().is_some() || node.ahead.left().0 > 0 {
            self.note_closed(node.id);
        }
        self.forget_unused(node);
    }

    /// Bounds the files that are cached without being open.
    pub(super) fn note_closed(&self, id: NodeId) {
        let mut closed = self.closed.lock();
        closed.retain(|other| *other != id);
        closed.push_back(id);
        let oldest = if closed.len() > CLOSED_MAX { closed.pop_front() } else { None };
        drop(closed);
        if let Some(node) = oldest.and_then(|id| self.nodes.lock().get(id)) {
            let mut state = node.state.lock();
            let is_waiting = node.ahead.left().0 > 0;
            let is_idle = state.opens == 0 && !state.is_settling && !is_waiting;
            // Whoever uses it still is to find it again.
            let is_unused = |content: &Arc<Content>| Arc::strong_count(content) == 1 && content.volume.is_clean();
            state.content.take_if(|content| is_idle && is_unused(content));
            let stays = state.content.is_some() || is_waiting;
            drop(state);
            if stays {
                self.closed.lock().push_back(node.id);
            }
        }
    }
}

/// Does the host know where the file ends? There it appends, and ends what it copies without a read (`sendfile`,
/// `copy_file_range`). It learns that from what it looks up or asks for, and not from an opening: refused so, it looks the file
/// up and opens it again, in the same thread, and is not refused a second time. Some openings have no name to look up, and others
/// may change the file again meanwhile, as they may after it was opened.
fn check_end(node: &Node, thread: u32) -> Result<(), Errno> {
    let mut state = node.state.lock();
    if let Some(at) = state.refused.iter().position(|refused| *refused == thread) {
        state.refused.remove(at);
        return Ok(());
    }
    if state.end_changed.is_none() {
        return Ok(());
    }
    if state.refused.len() == REFUSED_MAX {
        state.refused.remove(0);
    }
    state.refused.push(thread);
    Err(Errno::STALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Kind;
    use crate::node::Nodes;
    use crate::node::tests::insert;

    #[test]
    fn a_flush_whose_result_nobody_takes_tells_nothing() {
        let node = insert(&mut Nodes::default(), 1, Kind::File);
        let told = Mutex::new(node.errors.begin());
        let open = Arc::new(Open { node: Arc::clone(&node), writes: true, told });
        let flushed = || Flushed::new(Arc::clone(&open), Ok(()));
        node.errors.note(Errno::IO);
        drop(flushed());
        assert_eq!(flushed().tell(), Err(Errno::IO));
        assert_eq!(flushed().tell(), Ok(()));
    }
}
