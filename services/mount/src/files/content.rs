//! Reading and writing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use kernel::{Frames, Processor};
use machine::Errno;
use policy::unit::{ByteOffset, ByteRange, Stability};

use super::Files;
use super::open::{Flushed, Open, OpeningId};
use crate::ahead::{Place, Write, held};
use crate::attributes::Kind;
use crate::content::{Content, Data};
use crate::device::RemoteFile;
use crate::node::{Node, NodeId};

/// Longest time between a close that does not commit and the commit: many files live shorter.
const COMMIT_DELAY: Duration = Duration::from_millis(500);

/// Between the write-back of a file that stays open, with `noclosecommit`, and the commit: as the journal of a local disk has it.
const OPEN_COMMIT_DELAY: Duration = Duration::from_secs(5);

/// Commits at a time.
const COMMITS_AT_ONCE_MAX: usize = 64;

/// A write that waits to be written to the cache.
pub struct WriteAhead {
    node: Arc<Node>,
    place: Place,
    is_first: bool,
}

/// A file with writes that wait.
pub struct Waiting(Arc<Node>);

impl WriteAhead {
    /// The file, if it is given to [`Files::write_waiting`] with this write.
    pub fn starts(&self) -> Option<Waiting> {
        self.is_first.then(|| Waiting(Arc::clone(&self.node)))
    }

    /// May it be answered now?
    pub fn has_room(&self) -> bool {
        self.node.ahead.has_room(self.place)
    }

    /// Until it may be answered.
    pub async fn until_room(&self) {
        self.node.ahead.until_room(self.place).await;
    }
}

impl Files {
    /// The content of a file, to be cached from now on.
    pub(super) fn content_of(&self, cpu: &Processor, node: &Arc<Node>) -> Result<Arc<Content>, Errno> {
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
        if !self.options.commits_at_close {
            content.volume.delay_flushes(OPEN_COMMIT_DELAY);
        }
        node.state.lock().content = Some(Arc::clone(&content));
        Ok(content)
    }

    /// Reads `range`, cut at the end of the file; the first byte lies `range.at % 4096` bytes into the first frame.
    ///
    /// # Errors
    /// The server's.
    pub async fn read(&self, cpu: &Processor, id: NodeId, range: ByteRange) -> Result<(ByteRange, Frames), Errno> {
        self.content_to_read(cpu, id).await?.read(cpu, range).await
    }

    /// As [`Files::read`] for a host that reads ahead and caches what comes.
    ///
    /// # Errors
    /// The server's.
    pub async fn read_past(&self, cpu: &Processor, id: NodeId, range: ByteRange) -> Result<(ByteRange, Frames), Errno> {
        self.content_to_read(cpu, id).await?.read_past(cpu, range).await
    }

    async fn content_to_read(&self, cpu: &Processor, id: NodeId) -> Result<Arc<Content>, Errno> {
        let node = self.node(id)?;
        if node.known.holds(cpu.now()).is_zero() {
            self.refresh(cpu, &node).await?;
        }
        node.ahead.until_done().await;
        node.find_longer();
        self.follow(cpu, &node, true).await?;
        self.content_of(cpu, &node)
    }

    /// The host has what was read of `range`, and caches it.
    pub fn note_delivered(&self, id: NodeId, range: ByteRange) {
        if let Some(content) = self.node(id).ok().and_then(|node| node.content()) {
            content.volume.forget_delivered(range.blocks());
        }
    }

    /// Adds a write that may be answered before the cache has it, on any thread; [`Files::write_waiting`] writes it. `Err`: it
    /// is to be written by [`Files::write`].
    ///
    /// # Errors
    /// The data.
    pub fn write_ahead(
        &self,
        id: OpeningId,
        at: ByteOffset,
        data: Data,
        stability: Stability,
    ) -> Result<WriteAhead, Data> {
        let is_within = at.0.saturating_add(data.len() as u64) <= self.server.limits().file_max;
        // After an error, whose write fails next is told at once.
        let may_wait = |open: &Arc<Open>| is_within && open.writes && !open.node.errors.is_failing();
        match (self.opening(id).ok().filter(may_wait), data) {
            (Some(open), Data::Frames(frames, len))
                if stability == Stability::Unstable
                    && !self.options.is_sync
                    && self.room_ahead.reserve(held(at, len)) =>
            {
                let node = Arc::clone(&open.node);
                let (place, is_first) = node.ahead.push(Write { at, len, frames });
                Ok(WriteAhead { node, place, is_first })
            }
            (_, data) => Err(data),
        }
    }

    /// Writes what waits for it to the cache.
    pub async fn write_waiting(&self, cpu: &Processor, file: Waiting) {
        let Waiting(node) = file;
        while let Some(write) = node.ahead.take() {
            let held = write.held();
            let Write { at, len, frames } = write;
            let data = Data::Frames(frames, len);
            let written = async {
                self.follow(cpu, &node, true).await?;
                self.content_of(cpu, &node)?.write(cpu, at, data, Stability::Unstable).await
            };
            if let Err(errno) = written.await {
                // What the server does not have any more nobody will open.
                node.state.lock().is_lost |= errno != Errno::STALE;
                node.errors.note_lost(errno);
                self.host.report(&format!("{len} bytes written to {} are lost: {errno}", node.description()));
            }
            node.ahead.on_done(held);
            self.room_ahead.release(held);
        }
    }

    /// Writes `data` at `at`. An error is one of the server's, as far as it is known by now.
    pub async fn write(
        &self,
        cpu: &Processor,
        id: OpeningId,
        at: ByteOffset,
        data: impl Into<Data>,
        stability: Stability,
    ) -> Flushed {
        let open = match self.opening(id) {
            Ok(open) => open,
            Err(errno) => return Err(errno).into(),
        };
        match self.write_now(cpu, &open, at, data.into(), stability).await {
            Ok(()) => Ok(()).into(),
            result => Flushed::new(open, result),
        }
    }

    async fn write_now(
        &self,
        cpu: &Processor,
        open: &Open,
        at: ByteOffset,
        data: Data,
        stability: Stability,
    ) -> Result<(), Errno> {
        if at.0.saturating_add(data.len() as u64) > self.server.limits().file_max {
            return Err(Errno::FILE_TOO_LARGE);
        }
        open.node.ahead.until_done().await;
        self.follow(cpu, &open.node, true).await?;
        let stability = if self.options.is_sync { Stability::Stable } else { stability };
        self.content_of(cpu, &open.node)?.write(cpu, at, data, stability).await
    }

    /// Makes what was written durable at every close of an opening for writing, or has the server have it, as the options
    /// say.
    pub async fn flush_closing(self: &Arc<Self>, cpu: &Processor, id: OpeningId) -> Flushed {
        match self.opening(id) {
            Ok(open) if !open.writes => Ok(()).into(),
            Ok(open) if !self.options.commits_at_close => {
                open.node.ahead.until_done().await;
                let result = match open.node.content() {
                    Some(content) => content.write_out(cpu).await,
                    None => Ok(()),
                };
                self.commit_later(cpu, &open.node);
                Flushed::new(open, result)
            }
            _ => self.flush(cpu, id).await,
        }
    }

    /// Makes what was written durable in a while, with what other files have got until then: of commits that come together
    /// a server makes one flush. What fails is told to who opens the file next.
    pub(super) fn commit_later(self: &Arc<Self>, cpu: &Processor, node: &Arc<Node>) {
        if std::mem::replace(&mut node.state.lock().commits_later, true) {
            return;
        }
        let is_first = {
            let mut due = self.due.lock();
            due.push(Arc::clone(node));
            due.len() == 1
        };
        if !is_first {
            return;
        }
        let (files, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            here.sleep(COMMIT_DELAY).await;
            let due = std::mem::take(&mut *files.due.lock());
            let due = stream::iter(due);
            due.for_each_concurrent(COMMITS_AT_ONCE_MAX, |node| files.commit_now(&here, node)).await;
        });
    }

    async fn commit_now(&self, cpu: &Processor, node: Arc<Node>) {
        node.state.lock().commits_later = false;
        node.ahead.until_done().await;
        if let Some(content) = node.content() {
            // The error is kept for the next opening, and the data to be written again.
            let _ = content.flush(cpu).await;
        }
        self.forget_unused(&node);
    }

    /// Makes what was written durable.
    pub async fn flush(&self, cpu: &Processor, id: OpeningId) -> Flushed {
        let open = match self.opening(id) {
            Ok(open) => open,
            Err(errno) => return Err(errno).into(),
        };
        open.node.ahead.until_done().await;
        let result = match open.node.content() {
            Some(content) => content.flush(cpu).await,
            None => Ok(()),
        };
        Flushed::new(open, result)
    }
}
