//! What a host asks of a mounted directory tree, call by call.
//!
//! Everything runs on one processor: a mount is one user's work, and its calls wait for the wire, not for a processor.

mod attributes;
mod content;
mod hidden;
mod listing;
mod names;
mod open;
mod settle;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kernel::Processor;
use kernel::queue::DiskQueue;
use machine::Errno;
use parking_lot::Mutex;
use policy::queue;
use policy::unit::{DiskNo, Instant};

use crate::ahead::Room;
use crate::attributes::{Attributes, Kind, Time};
use crate::client::Server;
use crate::device::{Transfers, transfers};
use crate::handle::Handle;
use crate::known::{Bounds, Known};
use crate::node::{Node, NodeId, Nodes};
use crate::notice::Notice;
pub use attributes::{New, NewTime, Wanted};
pub use content::{Waiting, WriteAhead};
use hidden::Removals;
use listing::Streams;
pub use listing::{Listed, Sink, StreamId};
pub use names::{Creation, Special};
use open::Openings;
pub use open::{Flushed, Opened, Opening, OpeningId};
pub use settle::Unstored;

/// Which names are remembered by the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupCache {
    #[default]
    All,
    /// Those that exist.
    Positive,
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest transfers, in bytes.
    pub read_size: u32,
    pub write_size: u32,
    pub read_only: bool,
    /// How long attributes hold.
    pub files: Bounds,
    pub directories: Bounds,
    pub lookup_cache: LookupCache,
    /// Is the server asked about a file whenever it is opened?
    pub close_to_open: bool,
    /// Is every write durable before it returns?
    pub is_sync: bool,
    /// Is what was written durable when a close returns, or only with the server?
    pub commits_at_close: bool,
}

/// What is told about a mount, from its processor.
pub trait Host: Send + Sync + 'static {
    /// The attributes that the host remembers of this file are stale. It has taken note of that when this returns.
    fn attributes_changed(&self, id: NodeId);

    /// What the host has cached of this file's content is stale. `notice` is dropped when it has taken note of that.
    fn content_changed(&self, id: NodeId, notice: Notice);

    /// The host shall forget these names of directories, and what it knows by them.
    fn forget_names(&self, names: Vec<(NodeId, Arc<[u8]>)>);

    /// The time of day.
    fn time(&self) -> Time;

    /// A line for people.
    fn report(&self, line: &str);
}

/// An object, as the host is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub id: NodeId,
    pub attributes: Attributes,
    /// How long the attributes hold, and how long the name.
    pub attributes_hold: Duration,
    pub name_holds: Duration,
}

/// A mounted tree.
pub struct Files {
    server: Arc<Server>,
    options: Options,
    transfers: Transfers,
    disk: DiskNo,
    queue: Arc<DiskQueue>,
    host: Arc<dyn Host>,
    nodes: Mutex<Nodes>,
    streams: Mutex<Streams>,
    openings: Mutex<Openings>,
    removals: Removals,
    /// Files whose content is cached, not open, in the order of their closing.
    closed: Mutex<VecDeque<NodeId>>,
    /// Files that were closed without a commit, to be committed together.
    due: Mutex<Vec<Arc<Node>>>,
    /// For writes that are answered and not in the cache.
    room_ahead: Room,
    /// Numbers names of removed files, and verifiers of exclusive creation.
    serial: AtomicU64,
}

impl Files {
    /// The tree of `server`, whose requests go through the queue of `disk`. `serial`: a number that no other mount draws.
    ///
    /// # Errors
    /// The server's.
    pub async fn open(
        cpu: &Processor,
        server: Server,
        disk: DiskNo,
        options: Options,
        serial: u64,
        host: Arc<dyn Host>,
    ) -> Result<Arc<Files>, Errno> {
        let asked = cpu.now();
        let attributes = server.attributes(cpu, server.root()).await?;
        if attributes.kind != Kind::Directory {
            return Err(Errno(libc::ENOTDIR));
        }
        let transfers = transfers(&server, options.read_size, options.write_size);
        let transfer_bytes_max = transfers.read_max.max(transfers.write_max);
        let config = queue::Config { transfer_bytes_max, ..queue::Config::default() };
        let queue = cpu.kernel().queue_of_disk(disk, || DiskQueue::new(config));
        let known = Known::new(asked, attributes, options.directories);
        let mut nodes = Nodes::default();
        nodes.insert(server.root(), known);
        Ok(Arc::new(Files {
            server: Arc::new(server),
            options,
            transfers,
            disk,
            queue,
            host,
            nodes: Mutex::new(nodes),
            streams: Mutex::default(),
            openings: Mutex::default(),
            removals: Removals::default(),
            closed: Mutex::default(),
            due: Mutex::default(),
            room_ahead: Room::default(),
            serial: AtomicU64::new(serial),
        }))
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        // The host forgets a number before it is given to another object.
        self.nodes.lock().get(id).ok_or(Errno::STALE)
    }

    fn bounds(&self, kind: Kind) -> Bounds {
        if kind == Kind::Directory { self.options.directories } else { self.options.files }
    }

    /// The object of a handle, with the attributes of an answer to what was `asked` then.
    fn note_object(&self, asked: Instant, handle: &Handle, attributes: Attributes) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.of_handle(handle).filter(|node| node.kind == attributes.kind) {
            node.known.note(asked, attributes);
            return node;
        }
        let known = Known::new(asked, attributes, self.bounds(attributes.kind));
        let node = nodes.insert(handle, known);
        let dismissed = nodes.dismiss();
        drop(nodes);
        if !dismissed.is_empty() {
            self.host.forget_names(dismissed);
        }
        node
    }

    /// The host refers to the object once more.
    fn found(&self, cpu: &Processor, directory: &Node, node: &Node) -> Found {
        node.state.lock().lookups += 1;
        self.described(cpu, directory, node)
    }

    /// As [`Files::found`], of what the host may have cached: it must not learn another size and keep what was read before.
    async fn found_current(
        self: &Arc<Self>,
        cpu: &Processor,
        directory: &Node,
        node: &Arc<Node>,
    ) -> Result<Found, Errno> {
        // From now on, or the node could be forgotten meanwhile.
        node.state.lock().lookups += 1;
        let current = self.until_current(cpu, node).await;
        if let Err(errno) = current {
            // The host is not told of the object after all.
            self.forget(cpu, node.id, 1);
            return Err(errno);
        }
        Ok(self.described(cpu, directory, node))
    }

    fn described(&self, cpu: &Processor, directory: &Node, node: &Node) -> Found {
        let name_holds = match self.options.lookup_cache {
            LookupCache::None => Duration::ZERO,
            LookupCache::Positive | LookupCache::All => directory.known.holds(cpu.now()),
        };
        // These replies have one number for both: what programs are told the host is to ask for.
        let is_told_right = node.number == node.id.0;
        let attributes_hold = if is_told_right { node.known.holds(cpu.now()) } else { Duration::ZERO };
        Found { id: node.id, attributes: self.shown(node), attributes_hold, name_holds }
    }

    /// The attributes of a node, with its number here, and with what was written and is not durable: a server that restarts may
    /// not have it any more, and gets it again.
    fn shown(&self, node: &Node) -> Attributes {
        let attributes = node.known.attributes();
        let in_cache = node.content().filter(|content| !content.volume.is_clean());
        let size = in_cache.map_or(0, |content| content.volume.size()).max(node.ahead.left().1);
        Attributes { size: attributes.size.max(size), file_id: node.number, ..attributes }
    }
}
