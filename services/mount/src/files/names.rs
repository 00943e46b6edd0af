//! Names: finding, making, removing, renaming.
//!
//! A file that is removed while it is open gets a name of its own instead (as the host's client does, and servers know):
//! NFSv3 has no open files, so the server would forget it. With its last closing it is removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{createhow3, createverf3, devicedata3, mknoddata3, specdata3};
use policy::unit::Instant;

use super::attributes::NewTime;
use super::open::OpeningId;
use super::{Files, Found, LookupCache, New};
use crate::attributes::Kind;
use crate::client::Made;
use crate::content::Content;
use crate::node::{Node, NodeId};

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
    /// Finds a name in a directory. `None`, and for how long that holds: there is none.
    ///
    /// # Errors
    /// The server's.
    pub async fn lookup(
        &self,
        cpu: &Processor,
        directory: NodeId,
        name: &[u8],
    ) -> Result<Result<Found, std::time::Duration>, Errno> {
        let (directory, asked) = (self.node(directory)?, cpu.now());
        match self.server.lookup(cpu, &directory.handle, name).await {
            Ok(made) => Ok(Ok(self.note_made(cpu, &directory, name, (asked, made)).await?)),
            Err(Errno(libc::ENOENT)) => {
                self.nodes.lock().remove_name(directory.id, name);
                let remembers = self.options.lookup_cache == LookupCache::All;
                let holds = if remembers { directory.known.holds(cpu.now()) } else { std::time::Duration::ZERO };
                Ok(Err(holds))
            }
            Err(errno) => Err(errno),
        }
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
        if let Some(attributes) = made.directory {
            directory.known.note(cpu.now(), asked, attributes);
        }
        let handle = match made.handle {
            Some(handle) => handle,
            None => self.server.lookup(cpu, &directory.handle, name).await?.handle.ok_or(Errno::IO)?,
        };
        let attributes = match made.attributes {
            Some(attributes) => attributes,
            None => self.server.attributes(cpu, &handle).await?,
        };
        let node = self.note_object(cpu, asked, &handle, attributes);
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
        let new = New { mode: Some(creation.mode), size: creation.truncates.then_some(0), ..New::default() };
        let how = if creation.is_exclusive {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            createhow3::EXCLUSIVE(createverf3(serial.to_be_bytes()))
        } else {
            createhow3::UNCHECKED(new.wire())
        };
        let asked = cpu.now();
        let made = self.server.create(cpu, &directory.handle, name, how).await?;
        let node = self.node_made(cpu, &directory, name, (asked, made)).await?;
        if node.kind != Kind::File {
            return Err(Errno(libc::EEXIST));
        }
        let opening = self.begin_opening(&node, true);
        if creation.is_exclusive {
            // The verifier may be stored in the times.
            let now = Some(NewTime::Now);
            let new = New { mode: Some(creation.mode), accessed: now, modified: now, ..New::default() };
            if let Err(errno) = self.set_attributes(cpu, node.id, new).await {
                self.close_file(cpu, opening).await;
                return Err(errno);
            }
        } else if let Some(content) = self.cached_before(&node, creation).await {
            // The server has truncated it: nothing that was cached or not yet sent is of it any more.
            if let Err(errno) = content.volume.resize(cpu, 0, async { Ok(()) }).await {
                self.close_file(cpu, opening).await;
                return Err(errno);
            }
            self.host.attributes_changed(node.id);
            self.host.content_changed(node.id);
        }
        Ok((self.found(cpu, &directory, &node), opening))
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
        let new = New { mode: Some(mode), ..New::default() };
        let asked = cpu.now();
        let made = self.server.make_directory(cpu, &directory.handle, name, new.wire()).await?;
        self.note_made(cpu, &directory, name, (asked, made)).await
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
        let made = self.server.make_symlink(cpu, &directory.handle, name, target).await?;
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
        let attributes = New { mode: Some(mode), ..New::default() }.wire();
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
        let made = self.server.make_node(cpu, &directory.handle, name, what).await?;
        self.note_made(cpu, &directory, name, (asked, made)).await
    }

    /// Gives an object another name.
    ///
    /// # Errors
    /// The server's.
    pub async fn link(&self, cpu: &Processor, id: NodeId, directory: NodeId, name: &[u8]) -> Result<Found, Errno> {
        let (node, directory) = (self.node(id)?, self.node(directory)?);
        let asked = cpu.now();
        let (attributes, change) = self.server.link(cpu, &node.handle, &directory.handle, name).await?;
        directory.known.on_own_change(cpu.now(), change);
        node.known.on_renamed();
        match attributes {
            Some(attributes) => node.known.note(cpu.now(), asked, attributes),
            None => self.refresh(cpu, &node).await?,
        }
        self.nodes.lock().set_name(&node, directory.id, name);
        Ok(self.found(cpu, &directory, &node))
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
        let node = self.nodes.lock().named(directory.id, name);
        if let Some(node) = node.as_ref().filter(|node| node.is_open()) {
            return self.hide(cpu, &directory, name, node).await;
        }
        let change = self.server.remove(cpu, &directory.handle, name).await?;
        directory.known.on_own_change(cpu.now(), change);
        self.nodes.lock().remove_name(directory.id, name);
        if let Some(node) = node {
            self.on_name_removed(cpu, &node).await;
        }
        Ok(())
    }

    /// # Errors
    /// The server's.
    pub async fn remove_directory(&self, cpu: &Processor, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let directory = self.node(directory)?;
        let change = self.server.remove_directory(cpu, &directory.handle, name).await?;
        directory.known.on_own_change(cpu.now(), change);
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
        let (moved, replaced) = {
            let nodes = self.nodes.lock();
            (nodes.named(from.id, name), nodes.named(to.id, new_name))
        };
        let is_other = |node: &&Arc<Node>| moved.as_ref().is_none_or(|moved| moved.id != node.id);
        let replaced = replaced.as_ref().filter(is_other).filter(|node| node.kind != Kind::Directory);
        if let Some(open) = replaced.filter(|node| node.is_open()) {
            self.hide(cpu, &to, new_name, open).await?;
        }
        let change = self.server.rename(cpu, (&from.handle, name), (&to.handle, new_name)).await?;
        from.known.on_own_change(cpu.now(), change.from);
        to.known.on_own_change(cpu.now(), change.to);
        {
            let mut nodes = self.nodes.lock();
            nodes.remove_name(from.id, name);
            nodes.remove_name(to.id, new_name);
            if let Some(moved) = &moved {
                nodes.set_name(moved, to.id, new_name);
                moved.known.on_renamed();
            }
        }
        if let Some(replaced) = replaced.filter(|node| !node.is_open()) {
            self.on_name_removed(cpu, replaced).await;
        }
        Ok(())
    }

    /// A name of a file that is not open is gone. With the last one, so is the file, and what was not written yet. Others
    /// may have given it more names than are known here.
    async fn on_name_removed(&self, cpu: &Processor, node: &Node) {
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

    /// Gives an open file a name of its own, under which it lasts until it is closed.
    async fn hide(&self, cpu: &Processor, directory: &Arc<Node>, name: &[u8], node: &Node) -> Result<(), Errno> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let hidden = format!(".nfs{:016x}{:08x}", node.known.attributes().file_id, serial as u32).into_bytes();
        let change = self.server.rename(cpu, (&directory.handle, name), (&directory.handle, &hidden)).await?;
        directory.known.on_own_change(cpu.now(), change.to);
        node.known.on_renamed();
        self.nodes.lock().remove_name(directory.id, name);
        let left = {
            let mut state = node.state.lock();
            state.hidden.push((Arc::clone(directory), hidden));
            // It may have been closed meanwhile.
            if state.opens == 0 { std::mem::take(&mut state.hidden) } else { Vec::new() }
        };
        for (directory, hidden) in left {
            self.remove_hidden(cpu, node, &directory, &hidden).await;
        }
        Ok(())
    }

    /// Removes a file that was hidden, at its last closing. What was written and not sent goes with it.
    pub(super) async fn remove_hidden(&self, cpu: &Processor, node: &Node, directory: &Node, name: &[u8]) {
        node.ahead.until_done().await;
        if node.known.attributes().links > 1
            && let Some(content) = node.content()
        {
            // It has other names.
            let _ = content.flush(cpu).await;
        }
        match self.server.remove(cpu, &directory.handle, name).await {
            Ok(change) => {
                directory.known.on_own_change(cpu.now(), change);
                self.on_name_removed(cpu, node).await;
            }
            Err(Errno(libc::ENOENT) | Errno::STALE) => self.on_name_removed(cpu, node).await,
            Err(errno) => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.host.report(&format!("{name} could not be removed: {errno}"));
            }
        }
    }
}
