//! Attributes, rights, and the space of the tree.

use std::cell::Cell;
use std::sync::Arc;

use kernel::Processor;
use machine::Errno;
use nfs3_types::nfs3::{Nfs3Option, sattr3, set_atime, set_mtime};
use policy::unit::Instant;

use super::Files;
use crate::attributes::{Attributes, Change, Kind, Time};
use crate::client::{Access, NOT_SYNC, Space};
use crate::node::{Node, NodeId};

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The server's present time.
    Now,
    Given(Time),
}

/// Attributes to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct New {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<NewTime>,
    pub modified: Option<NewTime>,
}

impl New {
    pub(super) fn wire(self) -> sattr3 {
        sattr3 {
            mode: option(self.mode),
            uid: option(self.uid),
            gid: option(self.gid),
            size: option(self.size),
            atime: match self.accessed {
                None => set_atime::DONT_CHANGE,
                Some(NewTime::Now) => set_atime::SET_TO_SERVER_TIME,
                Some(NewTime::Given(time)) => set_atime::SET_TO_CLIENT_TIME(time.into()),
            },
            mtime: match self.modified {
                None => set_mtime::DONT_CHANGE,
                Some(NewTime::Now) => set_mtime::SET_TO_SERVER_TIME,
                Some(NewTime::Given(time)) => set_mtime::SET_TO_CLIENT_TIME(time.into()),
            },
        }
    }
}

fn option<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(value: Option<T>) -> Nfs3Option<T> {
    value.map_or(Nfs3Option::None, Nfs3Option::Some)
}

/// Rights, as access(2) asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub reads: bool,
    pub writes: bool,
    pub executes: bool,
}

impl Wanted {
    /// As the wire has them. Which mean something depends on the object.
    fn of(self, kind: Kind) -> Access {
        let is_directory = kind == Kind::Directory;
        let rights = [
            (self.reads, Access::READ),
            (self.writes, Access::MODIFY | Access::EXTEND),
            (self.executes, if is_directory { Access::LOOKUP } else { Access::EXECUTE }),
        ];
        let wanted = rights.into_iter().filter(|(is_wanted, _)| *is_wanted);
        wanted.fold(Access::default(), |all, (_, right)| all | right)
    }
}

impl Files {
    /// An object's attributes, and how long they hold. What was written is sent first: it decides on size and times.
    ///
    /// # Errors
    /// The server's.
    pub async fn attributes(&self, cpu: &Processor, id: NodeId) -> Result<(Attributes, std::time::Duration), Errno> {
        let (node, asked) = (self.node(id)?, cpu.now());
        node.ahead.until_done().await;
        if let Some(content) = node.content() {
            // What fails is told to those who wrote it.
            let _ = content.write_out(cpu).await;
        }
        if node.known.holds(cpu.now()).is_zero() {
            self.refresh(cpu, &node).await?;
        }
        self.until_current(cpu, &node).await?;
        node.note_told(asked);
        Ok((self.shown(&node), node.known.holds(cpu.now())))
    }

    /// Asks the server.
    pub(super) async fn refresh(&self, cpu: &Processor, node: &Node) -> Result<(), Errno> {
        let asked = cpu.now();
        let attributes = self.server.attributes(cpu, &node.handle).await?;
        node.known.note(asked, attributes);
        Ok(())
    }

    /// Until neither this nor the host has cached anything of the content that others have changed, as far as that is known:
    /// then the host may be told the file's size.
    pub(super) async fn until_current(&self, cpu: &Processor, node: &Arc<Node>) -> Result<(), Errno> {
        node.find_longer();
        self.follow(cpu, node, true).await?;
        node.notices.until_taken().await;
        Ok(())
    }

    /// Drops what is cached of the content if others have changed it. `tells`: the host's
    /// cache must go, too (at an opening it does so anyway).
    pub(super) async fn follow(&self, cpu: &Processor, node: &Arc<Node>, tells: bool) -> Result<(), Errno> {
        if !node.known.is_stale() || node.kind != Kind::File {
            return Ok(());
        }
        let _one_at_a_time = node.following.lock().await;
        // It stays so until this is done: others wait for that.
        if !node.known.is_stale() {
            return Ok(());
        }
        let (mut is_followed, followed) = (true, Cell::new(node.known.attributes().version()));
        if let Some(content) = node.content() {
            let ask = async {
                self.refresh(cpu, node).await?;
                let attributes = node.known.attributes();
                followed.set(attributes.version());
                Ok(attributes.size)
            };
            // If not: something that could not be sent is still cached, in blocks that are older otherwise.
            is_followed = content.volume.follow_host(cpu, ask).await?;
        }
        if is_followed {
            node.known.end_stale(followed.get());
        }
        node.state.lock().host_is_stale = true;
        // Its size above all: the host would not read beyond the one that it knows.
        self.host.attributes_changed(node.id);
        node.state.lock().end_changed = Some(cpu.now());
        if tells {
            self.host.content_changed(node.id, node.notices.begin());
        }
        Ok(())
    }

    /// Sets attributes; returns all of them and how long they hold.
    ///
    /// # Errors
    /// The server's.
    pub async fn set_attributes(
        &self,
        cpu: &Processor,
        id: NodeId,
        new: New,
    ) -> Result<(Attributes, std::time::Duration), Errno> {
        let node = self.node(id)?;
        if new.size.is_some_and(|size| size > self.server.limits().file_max) {
            return Err(Errno::FILE_TOO_LARGE);
        }
        node.ahead.until_done().await;
        let content = match new.size {
            // Who begins to read it meanwhile must not cache what is cut off.
            Some(_) if node.kind == Kind::File => Some(self.content_of(cpu, &node)?),
            _ => node.content(),
        };
        if let Some(content) = &content {
            // Sent later, it would change the times again, or be refused.
            let _ = content.write_out(cpu).await;
        }
        let change = async {
            let (asked, change) = self.set_guarded(cpu, &node, new).await?;
            // Of what may be shorter now the clock does not decide. Nothing of ours was written meanwhile.
            let asked = if new.size.is_some() { cpu.now() } else { asked };
            node.known.on_own_change(cpu.now(), asked, change);
            Ok(())
        };
        let changed = match (&content, new.size) {
            (Some(content), Some(size)) => content.volume.resize(cpu, size, change).await,
            _ => change.await,
        };
        if content.is_some() && !node.is_open() {
            drop(content);
            self.note_closed(id);
        }
        changed?;
        node.state.lock().granted = None;
        // Who may look into a directory is the server's to say.
        self.nodes.lock().end_whole(id);
        if node.known.holds(cpu.now()).is_zero() {
            self.refresh(cpu, &node).await?;
        }
        Ok((self.shown(&node), node.known.holds(cpu.now())))
    }

    /// Has the server set attributes; returns when it was asked. Of the file that results nobody could say whether others had
    /// written it before: so the server does it only to the one that is known, or it is asked first.
    async fn set_guarded(&self, cpu: &Processor, node: &Node, new: New) -> Result<(Instant, Change), Errno> {
        let (asked, wire) = (cpu.now(), new.wire());
        let guard = (node.kind == Kind::File).then(|| node.known.attributes().changed);
        match self.server.set_attributes(cpu, &node.handle, wire.clone(), guard).await {
            Err(NOT_SYNC) => {
                self.refresh(cpu, node).await?;
                Ok((cpu.now(), self.server.set_attributes(cpu, &node.handle, wire, None).await?))
            }
            result => Ok((asked, result?)),
        }
    }

    /// Has the user the rights `wanted`? The server says so, at the latest when attributes would be asked for again.
    ///
    /// # Errors
    /// `EACCES` if not, or the server's.
    pub async fn check_access(&self, cpu: &Processor, id: NodeId, wanted: Wanted) -> Result<(), Errno> {
        let node = self.node(id)?;
        let granted = node.state.lock().granted;
        let granted = match granted {
            Some((granted, until)) if cpu.now() < until => granted,
            _ => self.ask_access(cpu, &node).await?,
        };
        if granted.includes(wanted.of(node.kind)) { Ok(()) } else { Err(Errno(libc::EACCES)) }
    }

    /// Asks the server for all rights, and notes the attributes that come with them.
    pub(super) async fn ask_access(&self, cpu: &Processor, node: &Node) -> Result<Access, Errno> {
        let asked = cpu.now();
        let (granted, attributes) = self.server.access(cpu, &node.handle, Access::ALL).await?;
        match attributes {
            Some(attributes) => node.known.note(asked, attributes),
            None => self.refresh(cpu, node).await?,
        }
        node.state.lock().granted = Some((granted, cpu.now() + node.known.holds(cpu.now())));
        Ok(granted)
    }

    /// # Errors
    /// The server's.
    pub async fn space(&self, cpu: &Processor) -> Result<Space, Errno> {
        self.server.space(cpu).await
    }
}
