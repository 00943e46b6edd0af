//! Reading and writing.

use std::sync::Arc;

use kernel::{Frames, Processor};
use machine::Errno;
use policy::unit::{ByteOffset, ByteRange, Stability};

use super::Files;
use super::open::{Flushed, OpeningId};
use crate::attributes::Kind;
use crate::content::{Content, Data};
use crate::device::RemoteFile;
use crate::node::{Node, NodeId};

impl Files {
    /// The content of a file, to be cached from now on.
    fn content_of(&self, cpu: &Processor, node: &Arc<Node>) -> Result<Arc<Content>, Errno> {
        if let Some(content) = node.content() {
            return Ok(content);
        }
        if node.kind != Kind::File {
            return Err(Errno::INVALID);
        }
        let size = node.known.attributes().size;
        let (handle, noted) = (node.handle.clone(), (Arc::clone(&node.known), Arc::clone(&node.errors)));
        let is_writable = !self.options.read_only;
        let device = RemoteFile::new(&self.server, handle, (self.disk, self.transfers), is_writable, size, noted);
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
        id: OpeningId,
        at: ByteOffset,
        data: impl Into<Data>,
        stability: Stability,
    ) -> Result<(), Errno> {
        let data = data.into();
        let open = self.opening(id)?;
        if at.0.saturating_add(data.len() as u64) > self.server.limits().file_max {
            return Err(Errno::FILE_TOO_LARGE);
        }
        self.follow(cpu, &open.node, true).await?;
        let stability = if self.options.is_sync { Stability::Stable } else { stability };
        open.told_if_failed(self.content_of(cpu, &open.node)?.write(cpu, at, data, stability).await)
    }

    /// Makes what was written durable at every close of an opening for writing.
    pub async fn flush_closing(&self, cpu: &Processor, id: OpeningId) -> Flushed {
        match self.opening(id) {
            Ok(open) if !open.writes => Ok(()).into(),
            _ => self.flush(cpu, id).await,
        }
    }

    /// Makes what was written durable.
    pub async fn flush(&self, cpu: &Processor, id: OpeningId) -> Flushed {
        let open = match self.opening(id) {
            Ok(open) => open,
            Err(errno) => return Err(errno).into(),
        };
        let result = match open.node.content() {
            Some(content) => content.flush(cpu).await,
            None => Ok(()),
        };
        Flushed::new(open, result)
    }
}
