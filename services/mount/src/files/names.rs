//! Names: finding, making, removing, renaming.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{createhow3, devicedata3, mknoddata3, specdata3};
use policy::unit::Instant;

use super::attributes::NewTime;
use super::open::OpeningId;
use super::{Files, Found, LookupCache, New};
use crate::attributes::{Change, Kind, Time};
use crate::client::Made;
use crate::content::Content;
use crate::node::{Node, NodeId};

const NANOSECONDS: u64 = 1_000_000_000;

/// How a file is made that is opened at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation {
    /// Permission bits.
    pub mode: u32,
    /// It must not exist.
    pub is_exclusive: bool,
    /// If it exists, it becomes empty.
    pub truncates: bool,
}

/// An object that is neither file, directory nor symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Major and minor number.
    Block(u32, u32),
    Character(u32, u32),
    Socket,
    Fifo,
}

impl Files {
    /// Finds a name in a directory, for a thread of the host. `None`, and for how long that holds: there is none.
    ///
    /// # Errors
    /// The server's.
    pub async fn lookup(
        self: &Arc<Self>,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
        thread: u32,
    ) -> Result<Result<Found, Duration>, Errno> {
        let (directory, asked) = (self.node(directory)?, cpu.now());
        if let Some(holds) = self.known_absent(cpu, &directory, name) {
            return Ok(Err(holds));
        }
        match self.server.lookup(cpu, &directory.handle, name).await {
            Ok(made) => {
                if let Some(attributes) = made.directory.after {
                    directory.known.note(asked, attributes);
                }
                let node = self.node_made(cpu, &directory, name, (asked, made)).await?;
                // The opening for which it asks drops what is cached. A notice of that now would keep the host from the size.
                let is_to_open = node.state.lock().refused.contains(&thread);
                let found = match is_to_open {
                    true => self.found(cpu, &directory, &node),
                    false => self.found_current(cpu, &directory, &node).await?,
                };
                node.note_told(asked);
                Ok(Ok(found))
            }
            Err(Errno(libc::ENOENT)) => {
                self.nodes.lock().remove_name(directory.id, name);
                let remembers = self.options.lookup_cache == LookupCache::All;
                let holds = if remembers { directory.known.holds(cpu.now()) } else { Duration::ZERO };
                Ok(Err(holds))
            }
            Err(errno) => Err(errno),
        }
    }

    /// How long it holds that a directory does not have a name, if that is known: the directory is our own, and nobody else
    /// has changed it as far as its attributes say.
    fn known_absent(&self, cpu: &Processor, directory: &Node, name: &[u8]) -> Option<Duration> {
        let holds = directory.known.holds(cpu.now());
        let may_know = self.options.lookup_cache == LookupCache::All && !self.server.limits().is_case_insensitive;
        if !may_know || holds.is_zero() || directory.known.is_stale() {
            return None;
        }
        if name.len() > self.server.limits().name_max as usize {
            return None;
        }
        let holds = holds.min(self.options.files.min);
        self.nodes.lock().is_absent(cpu.now(), directory.id, name).then_some(holds)
    }

    /// Makes a call that changes names of the directory, and says so in its result.
    pub(super) async fn change_names<T>(
        &self,
        cpu: &Processor,
        directory: &Node,
        call: impl Future<Output = Result<T, Errno>>,
        change: impl FnOnce(&T) -> Change,
    ) -> Result<T, Errno> {
        let changing = directory.known.begin_write(cpu.now());
        let result = call.await;
        match &result {
            Ok(done) => changing.end(cpu.now(), change(done)),
            // It may have changed them nevertheless.
            Err(_) => self.nodes.lock().end_whole(directory.id),
        }
        result
    }

    /// The object that was found or made has this name.
    async fn note_made(
        &self,
        cpu: &Processor,
        directory: &Node,
        name: &[u8],
        made: (Instant, Made),
    ) -> Result<Found, Errno> {
        let node = self.node_made(cpu, directory, name, made).await?;
        Ok(self.found(cpu, directory, &node))
    }

    async fn node_made(
        &self,
        cpu: &Processor,
        directory: &Node,
        name: &[u8],
        (asked, made): (Instant, Made),
    ) -> Result<Arc<Node>, Errno> {
        if made.handle.is_none() || made.attributes.is_none() {
            // It may not be found any more.
            self.nodes.lock().end_whole(directory.id);
        }
        let handle = match made.handle {
            Some(handle) => handle,
            None => self.server.lookup(cpu, &directory.handle, name).await?.handle.ok_or(Errno::IO)?,
        };
        let attributes = match made.attributes {
            Some(attributes) => attributes,
            None => self.server.attributes(cpu, &handle).await?,
        };
        let node = self.note_object(asked, &handle, attributes);
        self.nodes.lock().set_name(&node, directory.id, name);
        Ok(node)
    }

    /// Makes a file and opens it, for writing, too.
    ///
    /// # Errors
    /// The server's.
    pub async fn create(
        &self,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
        creation: Creation,
    ) -> Result<(Found, OpeningId), Errno> {
        let directory = self.node(directory)?;
        let asked = cpu.now();
        let (made, needs_attributes) = self.create_file(cpu, &directory, name, creation).await?;
        // Of what may be shorter now the server's clock does not decide.
        let asked = if creation.truncates { cpu.now() } else { asked };
        let node = self.node_made(cpu, &directory, name, (asked, made)).await?;
        if node.kind != Kind::File {
            return Err(Errno(libc::EEXIST));
        }
        let opening = self.begin_opening(&node, true);
        if needs_attributes {
            // The verifier may be stored in the times.
            let now = Some(NewTime::Now);
            let new = New { mode: Some(creation.mode), accessed: now, modified: now, ..New::default() };
            if let Err(errno) = self.set_attributes(cpu, node.id, new).await {
                self.end_opening(cpu, opening).await;
                return Err(errno);
            }
        } else if let Some(content) = self.cached_before(&node, creation).await {
            // The server has truncated it: nothing that was cached or not yet sent is of it any more.
            if let Err(errno) = content.volume.resize(cpu, 0, async { Ok(()) }).await {
                self.end_opening(cpu, opening).await;
                return Err(errno);
            }
            self.host.attributes_changed(node.id);
            self.host.content_changed(node.id, node.notices.begin());
        }
        Ok((self.found(cpu, &directory, &node), opening))
    }

    /// Makes or finds a file. Also returns whether it does not have its attributes yet.
    ///
    /// An EXCLUSIVE creation is safe to repeat, but a second call must set the attributes, which the server makes durable
    /// like the first. So where the server keeps times as they are given, a new file is made by a GUARDED one, with a time of
    /// access that tells it from another client's: the present second, and nanoseconds that are drawn. The two could be
    /// confused only if both draw the same number within a second and the server restarts before it has replied.
    async fn create_file(
        &self,
        cpu: &Processor,
        directory: &Node,
        name: &[u8],
        creation: Creation,
    ) -> Result<(Made, bool), Errno> {
        let new = New { mode: Some(creation.mode), size: creation.truncates.then_some(0), ..New::default() };
        let handle = &directory.handle;
        let change = |made: &Made| made.directory;
        if !creation.is_exclusive {
            let call = self.server.create(cpu, handle, name, createhow3::UNCHECKED(new.wire()));
            return Ok((self.change_names(cpu, directory, call, change).await?, false));
        }
        if let Some(mark) = self.mark() {
            let new = New { accessed: Some(NewTime::Given(mark)), ..new }.wire();
            let call = self.server.create_new(cpu, handle, name, (new, mark));
            return Ok((self.change_names(cpu, directory, call, change).await?, false));
        }
        let verifier = self.serial.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let call = self.server.create_exclusive(cpu, handle, name, (new.wire(), verifier));
        self.change_names(cpu, directory, call, |(made, _)| made.directory).await
    }

    /// A time of access by which what is made is told from what others made.
    fn mark(&self) -> Option<Time> {
        let nanoseconds = || (self.serial.fetch_add(1, Ordering::Relaxed) % NANOSECONDS) as u32;
        self.server.keeps_times().then(|| Time { nanoseconds: nanoseconds(), ..self.host.time() })
    }

    /// What is cached of a file that was truncated.
    async fn cached_before(&self, node: &Node, creation: Creation) -> Option<Arc<Content>> {
        if !creation.truncates {
            return None;
        }
        node.ahead.until_done().await;
        node.content()
    }

    /// # Errors
    /// The server's.
    pub async fn make_directory(
        &self,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Found, Errno> {
        let directory = self.node(directory)?;
        let mark = self.mark();
        let new = New { mode: Some(mode), accessed: mark.map(NewTime::Given), ..New::default() };
        let asked = cpu.now();
        let call = self.server.make_directory(cpu, &directory.handle, name, (new.wire(), mark));
        let made = self.change_names(cpu, &directory, call, |made| made.directory).await?;
        // One that the server may not have made now may have names.
        let is_empty = made.directory.before.is_some();
        let found = self.note_made(cpu, &directory, name, (asked, made)).await?;
        if is_empty {
            // Others' files in it must be found soon, too.
            self.nodes.lock().begin_whole(found.id, cpu.now() + self.options.files.min);
        }
        Ok(found)
    }

    /// # Errors
    /// The server's.
    pub async fn make_symlink(
        &self,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Found, Errno> {
        let directory = self.node(directory)?;
        let asked = cpu.now();
        let call = self.server.make_symlink(cpu, &directory.handle, name, target);
        let made = self.change_names(cpu, &directory, call, |made| made.directory).await?;
        self.note_made(cpu, &directory, name, (asked, made)).await
    }

    /// # Errors
    /// The server's.
    pub async fn make_special(
        &self,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
        what: Special,
        mode: u32,
    ) -> Result<Found, Errno> {
        let directory = self.node(directory)?;
        let mark = self.mark();
        let attributes = New { mode: Some(mode), accessed: mark.map(NewTime::Given), ..New::default() }.wire();
        let device = |specdata1, specdata2| devicedata3 {
            dev_attributes: attributes.clone(),
            spec: specdata3 { specdata1, specdata2 },
        };
        let what = match what {
            Special::Block(major, minor) => mknoddata3::NF3BLK(device(major, minor)),
            Special::Character(major, minor) => mknoddata3::NF3CHR(device(major, minor)),
            Special::Socket => mknoddata3::NF3SOCK(attributes),
            Special::Fifo => mknoddata3::NF3FIFO(attributes),
        };
        let asked = cpu.now();
        let call = self.server.make_node(cpu, &directory.handle, name, (what, mark));
        let made = self.change_names(cpu, &directory, call, |made| made.directory).await?;
        self.note_made(cpu, &directory, name, (asked, made)).await
    }

    /// Gives an object another name.
    ///
    /// # Errors
    /// The server's.
    pub async fn link(
        self: &Arc<Self>,
        cpu: &Processor,
        id: NodeId,
        directory: NodeId,
        name: &[u8],
    ) -> Result<Found, Errno> {
        let (node, directory) = (self.node(id)?, self.node(directory)?);
        self.add_name(cpu, &node, &directory, name).await?;
        if node.known.holds(cpu.now()).is_zero() {
            self.refresh(cpu, &node).await?;
        }
        self.nodes.lock().set_name(&node, directory.id, name);
        self.found_current(cpu, &directory, &node).await
    }

    /// As [`Files::link`], for a name that the host does not know.
    pub(super) async fn add_name(
        &self,
        cpu: &Processor,
        node: &Node,
        directory: &Node,
        name: &[u8],
    ) -> Result<(), Errno> {
        let asked = cpu.now();
        let call = self.server.link(cpu, node.object(), &directory.handle, name);
        let (attributes, _) = self.change_names(cpu, directory, call, |(_, change)| *change).await?;
        node.known.on_renamed();
        if let Some(attributes) = attributes {
            node.known.note(asked, attributes);
        }
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The server's.
    pub async fn read_link(&self, cpu: &Processor, id: NodeId) -> Result<Vec<u8>, Errno> {
        self.server.read_link(cpu, &self.node(id)?.handle).await
    }

    /// Removes the name of an object that is no directory.
    ///
    /// # Errors
    /// The server's.
    pub async fn unlink(&self, cpu: &Processor, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.node(directory)?;
        let named = self.nodes.lock().named(directory.id, name);
        let node = named.as_ref();
        let _not_opened_meanwhile = match node {
            Some(node) => Some(node.losing_name.lock().await),
            None => None,
        };
        if let Some(node) = node.filter(|node| node.is_open()) {
            return self.hide(cpu, &directory, name, node).await;
        }
        self.change_names(cpu, &directory, self.server.remove(cpu, &directory.handle, name), |change| *change).await?;
        self.nodes.lock().remove_name(directory.id, name);
        if let Some(node) = node {
            self.on_name_removed(cpu, node).await;
        }
        Ok(())
    }

    /// # Errors
    /// The server's.
    pub async fn remove_directory(&self, cpu: &Processor, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.node(directory)?;
        self.until_removed(cpu, directory.id, name).await;
        let call = self.server.remove_directory(cpu, &directory.handle, name);
        self.change_names(cpu, &directory, call, |change| *change).await?;
        self.nodes.lock().remove_name(directory.id, name);
        Ok(())
    }

    /// Renames; what has the new name is replaced.
    ///
    /// # Errors
    /// The server's.
    pub async fn rename(
        &self,
        cpu: &Processor,
        (from, name): (NodeId, &[u8]),
        (to, new_name): (NodeId, &[u8]),
    ) -> Result<(), Errno> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        self.until_removed(cpu, to.id, new_name).await;
        let (moved, replaced) = {
            let nodes = self.nodes.lock();
            (nodes.named(from.id, name), nodes.named(to.id, new_name))
        };
        let is_other = |node: &&Arc<Node>| moved.as_ref().is_none_or(|moved| moved.id != node.id);
        let replaced = replaced.as_ref().filter(is_other).filter(|node| node.kind != Kind::Directory);
        let _not_opened_meanwhile = match replaced {
            Some(replaced) => Some(replaced.losing_name.lock().await),
            None => None,
        };
        let kept = match replaced.filter(|node| node.is_open()) {
            Some(open) => self.keep(cpu, (&to, new_name), open).await?,
            None => None,
        };
        let call =
            self.server.rename(cpu, moved.as_deref().map(Node::object), (&from.handle, name), (&to.handle, new_name));
        let call = self.change_names(cpu, &from, call, |change| change.from);
        let renamed = self.change_names(cpu, &to, call, |change| change.to).await.map(|_| ());
        let was_kept = kept.is_some();
        if let Some(kept) = kept {
            self.end_keeping(cpu, kept, renamed).await;
        }
        renamed?;
        {
            let mut nodes = self.nodes.lock();
            nodes.remove_name(from.id, name);
            nodes.remove_name(to.id, new_name);
            match &moved {
                Some(moved) => {
                    nodes.set_name(moved, to.id, new_name);
                    moved.known.on_renamed();
                }
                None => nodes.end_whole(to.id),
            }
        }
        if let Some(replaced) = replaced.filter(|node| !was_kept && !node.is_open()) {
            self.on_name_removed(cpu, replaced).await;
        }
        Ok(())
    }

    /// A name of a file that is not open is gone. With the last one, so is the file, and what was not written yet. Others
    /// may have given it more names than are known here.
    pub(super) async fn on_name_removed(&self, cpu: &Processor, node: &Node) {
        // Who opens it by another name asks the server whether it is there.
        node.state.lock().granted = None;
        if !node.known.on_name_removed() {
            return;
        }
        node.ahead.until_done().await;
        node.state.lock().is_lost = false;
        let Some(content) = node.content() else { return };
        if content.volume.is_clean() || self.refresh(cpu, node).await == Err(Errno::STALE) {
            node.state.lock().content = None;
            content.volume.stop();
        }
    }
}
