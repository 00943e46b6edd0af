//! Opening, reading, writing, closing.

use std::sync::Arc;

use kernel::{Frames, Processor};
use machine::Errno;
use policy::unit::{ByteOffset, ByteRange, Stability};

use super::Files;
use crate::attributes::Kind;
use crate::client::Access;
use crate::content::{Content, Data};
use crate::device::RemoteFile;
use crate::node::{Node, NodeId};

/// Files that are not open and whose content stays cached, at most.
const CLOSED_MAX: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub reads: bool,
    pub writes: bool,
}

impl Files {
    /// Opens a file. Returns whether what the host has cached of its content is still good.
    ///
    /// # Errors
    /// The server's, or `EACCES`.
    pub async fn open_file(&self, cpu: &Processor, id: NodeId, opening: Opening) -> Result<bool, Errno> {
        let node = self.node(id)?;
        if opening.writes && self.options.read_only {
            return Err(Errno::READ_ONLY);
        }
        let granted = node.state.lock().granted.filter(|(_, until)| cpu.now() < *until);
        let granted = match granted {
            Some((granted, _)) if !self.options.close_to_open => granted,
            _ => self.ask_access(cpu, &node).await?,
        };
        // Who may only execute a file must read it for that.
        let may_read = granted.includes(Access::READ) || granted.includes(Access::EXECUTE);
        let may_write = granted.includes(Access::MODIFY);
        if (opening.reads && !may_read) || (opening.writes && !may_write) {
            return Err(Errno(libc::EACCES));
        }
        node.state.lock().opens += 1;
        if let Err(errno) = self.follow(cpu, &node, false).await {
            self.close_file(cpu, id).await;
            return Err(errno);
        }
        Ok(!std::mem::take(&mut node.state.lock().host_is_stale))
    }

    /// The content of a file, to be cached from now on.
    fn content_of(&self, cpu: &Processor, node: &Arc<Node>) -> Result<Arc<Content>, Errno> {
        if let Some(content) = node.content() {
            return Ok(content);
        }
        if node.kind != Kind::File {
            return Err(Errno::INVALID);
        }
        let size = node.known.attributes().size;
        let (handle, known) = (node.handle.clone(), Arc::clone(&node.known));
        let is_writable = !self.options.read_only;
        let device = RemoteFile::new(&self.server, handle, (self.disk, self.transfers), is_writable, size, known);
        let content = Content::open(cpu, device, &self.queue, self.options.read_only)?;
        node.state.lock().content = Some(Arc::clone(&content));
        Ok(content)
    }

    /// Reads `range`, cut at the end of the file; the first byte lies `range.at % 4096` bytes into the first frame.
    ///
    /// # Errors
    /// The server's.
    pub async fn read(&self, cpu: &Processor, id: NodeId, range: ByteRange) -> Result<(ByteRange, Frames), Errno> {
        let node = self.node(id)?;
        if node.known.holds(cpu.now()).is_zero() {
            self.refresh(cpu, &node).await?;
        }
        self.follow(cpu, &node, true).await?;
        self.content_of(cpu, &node)?.read(cpu, range).await
    }

    /// The host has what was read of `range`, and caches it.
    pub fn note_delivered(&self, id: NodeId, range: ByteRange) {
        if let Some(content) = self.node(id).ok().and_then(|node| node.content()) {
            content.volume.forget_delivered(range.blocks());
        }
    }

    /// Writes `data` at `at`.
    ///
    /// # Errors
    /// The server's, as far as it is known by now.
    pub async fn write(
        &self,
        cpu: &Processor,
        id: NodeId,
        at: ByteOffset,
        data: impl Into<Data>,
        stability: Stability,
    ) -> Result<(), Errno> {
        let data = data.into();
        let node = self.node(id)?;
        if at.0.saturating_add(data.len() as u64) > self.server.limits().file_max {
            return Err(Errno::FILE_TOO_LARGE);
        }
        self.follow(cpu, &node, true).await?;
        let stability = if self.options.is_sync { Stability::Stable } else { stability };
        self.content_of(cpu, &node)?.write(cpu, at, data, stability).await
    }

    /// Sends what was written to the server, as at every close.
    ///
    /// # Errors
    /// The server's.
    pub async fn write_out(&self, cpu: &Processor, id: NodeId) -> Result<(), Errno> {
        match self.node(id)?.content() {
            Some(content) => content.write_out(cpu).await,
            None => Ok(()),
        }
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The server's.
    pub async fn flush(&self, cpu: &Processor, id: NodeId) -> Result<(), Errno> {
        match self.node(id)?.content() {
            Some(content) => content.flush(cpu).await,
            None => Ok(()),
        }
    }

    /// The last use of an open file has ended.
    pub async fn close_file(&self, cpu: &Processor, id: NodeId) {
        let Ok(node) = self.node(id) else { return };
        let hidden = {
            let mut state = node.state.lock();
            state.opens = state.opens.saturating_sub(1);
            if state.opens > 0 {
                return;
            }
            std::mem::take(&mut state.hidden)
        };
        for (directory, name) in hidden {
            self.remove_hidden(cpu, &node, &directory, &name).await;
        }
        if node.content().is_some() {
            self.note_closed(id);
        }
        self.forget_unused(&node);
    }

    /// Bounds the files that are cached without being open.
    fn note_closed(&self, id: NodeId) {
        let mut closed = self.closed.lock();
        closed.retain(|other| *other != id);
        closed.push_back(id);
        let oldest = if closed.len() > CLOSED_MAX { closed.pop_front() } else { None };
        drop(closed);
        if let Some(node) = oldest.and_then(|id| self.nodes.lock().get(id)) {
            let mut state = node.state.lock();
            let is_idle = state.opens == 0 && !state.is_settling;
            state.content.take_if(|content| is_idle && content.volume.is_clean());
            let stays = state.content.is_some();
            drop(state);
            if stays {
                self.closed.lock().push_back(node.id);
            }
        }
    }
}
