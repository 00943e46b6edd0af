//! A shared volume at this node: below its cache the device that asks other nodes, beside it what decides who may write.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::request::{Action, Outcome, Request};
use kernel::volume::{Change, Coherence};
use kernel::wait::WaitList;
use kernel::{FRAME_BYTES, FrameRef, Processor, Volume};
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::{self, Address, Config, Homes, Incarnation, Local, NodeId, PageNo, Storage};
use policy::unit::{BlockNo, BlockRange, DiskNo, JobId};

use crate::core::{Core, HomeState};
use crate::counters::Counters;
use crate::hello::Terms;
use crate::home::Reserve;
use crate::link::Link;
use crate::mapping::Table;
use crate::unflushed::Flushes;
use crate::waiting::{Content, Group, Load, Pending, Wish};
use crate::wire::Word;

/// Adjacent pages with one home, so that what is read and written in order goes to a home in batches: 1 MiB.
pub const SHARD_PAGES: u64 = 256;

/// Unanswered messages are sent again after this time. A connection loses none, so this is for what a peer ignored:
/// before it knew this node, or while it did not grant anything yet.
const RETRANSMIT_AFTER: Duration = Duration::from_secs(1);

/// How long a request that needs another node waits for it, unless configured otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// What all nodes must be told alike, and this node's own.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    pub name: String,
    /// Bytes, a multiple of a page.
    pub size: u64,
    /// The names of all nodes, in order: their places are their numbers.
    pub nodes: Vec<String>,
    /// A bit for each node.
    pub homes: u64,
    /// This home's storage ends with the process.
    pub is_volatile: bool,
    /// A request that needs another node fails after this time.
    pub timeout: Duration,
}

impl SharedConfig {
    pub(crate) fn policy(&self) -> Config {
        let storage = if self.is_volatile { Storage::Volatile } else { Storage::Plain };
        Config {
            nodes: self.nodes.len() as u16,
            pages: self.size / FRAME_BYTES as u64,
            homes: Homes::Of(self.homes),
            shard: SHARD_PAGES,
            storage,
            pages_max: usize::MAX,
            timeout: RETRANSMIT_AFTER,
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        let SharedConfig { name, size, nodes, homes, .. } = self;
        Terms { size: *size, homes: *homes, nodes: nodes.join(","), volume: name.clone() }
    }
}

/// Takes lines for people.
pub type Report = Box<dyn Fn(&str) + Send + Sync>;

pub struct Shared {
    pub(crate) this: Weak<Shared>,
    pub(crate) config: SharedConfig,
    pub(crate) me: Address,
    /// Of the pages whose home this node is.
    pub(crate) storage: DeviceRef,
    pub(crate) core: Mutex<Core>,
    pub(crate) links: Vec<Link>,
    /// Something was stored, or a flush answered; also woken by each tick.
    pub(crate) changed: WaitList,
    pub(crate) counters: Counters,
    pub(crate) reserve: Reserve,
    volume: OnceLock<Weak<Volume>>,
    report: Report,
}

impl Shared {
    /// This node's part in a volume. `storage`: of the volume's size, for the pages whose home this node is.
    pub fn new(config: SharedConfig, me: Address, storage: DeviceRef, report: Report) -> Arc<Shared> {
        let nodes = config.nodes.len();
        let core = Core {
            node: coherence::Node::returning(config.policy(), me, []),
            pages: Default::default(),
            saving: Default::default(),
            saves: 0,
            due: Vec::new(),
            met: vec![None; nodes],
            home: HomeState::default(),
            flushes: Flushes::default(),
            mapped: Table::default(),
        };
        Arc::new_cyclic(|this| Shared {
            this: Weak::clone(this),
            me,
            storage,
            core: Mutex::new(core),
            links: (0..nodes).map(|_| Link::default()).collect(),
            changed: WaitList::default(),
            counters: Counters::default(),
            reserve: Reserve::default(),
            volume: OnceLock::new(),
            report,
            config,
        })
    }

    /// The volume in whose cache the pages are. To be called once, before the first request.
    pub fn set_volume(&self, volume: &Arc<Volume>) {
        // A second one would have another cache: the first stays.
        let _ = self.volume.set(Arc::downgrade(volume));
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn config(&self) -> &SharedConfig {
        &self.config
    }

    pub fn is_read_only(&self) -> bool {
        self.volume().is_none_or(|volume| volume.read_only())
    }

    pub(crate) fn volume(&self) -> Option<Arc<Volume>> {
        self.volume.get().and_then(Weak::upgrade)
    }

    /// Tells people, of a node once until something else is to be told of it.
    pub(crate) fn report(&self, of: Option<NodeId>, what: String) {
        let name = of.and_then(|node| self.config.nodes.get(usize::from(node.0)));
        let line = match name {
            Some(peer) => format!("shared volume {:?}, node {peer:?}: {what}", self.config.name),
            None => format!("shared volume {:?}: {what}", self.config.name),
        };
        if of.is_none_or(|node| self.links[usize::from(node.0)].is_news(&line)) {
            (self.report)(&line);
        }
    }

    pub(crate) fn say(&self, to: Address, word: Word, frame: Option<FrameRef>) {
        if let Some(link) = self.links.get(usize::from(to.node.0)) {
            self.counters.messages.add(1);
            link.push(self.me.incarnation, to.incarnation, word, frame);
        }
    }

    /// A node lives, in this incarnation; from now on messages of it count.
    pub fn on_alive(&self, cpu: &Processor, address: Address) {
        let mut core = self.core.lock();
        let core = &mut *core;
        let known = &mut core.met[usize::from(address.node.0)];
        if known.is_none_or(|known| known < address.incarnation) {
            *known = Some(address.incarnation);
            self.drop_uncached(cpu, core, PageNo(0), usize::MAX, true);
            let actions = core.node.on_alive(cpu.now(), address);
            self.note(core, actions, Content::None);
        }
        self.drive(cpu, core);
        self.changed.wake_all();
    }

    /// A node was declared dead, and must not run any more.
    pub fn on_dead(&self, cpu: &Processor, address: Address) {
        let mut core = self.core.lock();
        let core = &mut *core;
        let actions = core.node.on_dead(cpu.now(), address);
        self.note(core, actions, Content::None);
        self.drive(cpu, core);
    }

    /// A connection to a node was made. `met`: the last incarnation of this node that it knows.
    pub(crate) fn on_connected(&self, cpu: &Processor, address: Address, met: Option<Incarnation>) {
        {
            let mut core = self.core.lock();
            core.home.has_lost |= met.is_some_and(|met| met < self.me.incarnation);
        }
        self.on_alive(cpu, address);
        let mut core = self.core.lock();
        let core = &mut *core;
        let actions = core.node.on_reconnected(cpu.now());
        self.note(core, actions, Content::None);
        self.drive(cpu, core);
    }

    /// The number of peers that are connected.
    pub fn connected(&self) -> usize {
        self.links.iter().filter(|link| link.is_up()).count()
    }

    /// The incarnation of a node that was met last.
    pub(crate) fn met(&self, node: NodeId) -> Option<Incarnation> {
        self.core.lock().met.get(usize::from(node.0)).copied().flatten()
    }

    /// Gives up up to `count` pages from `from` on that the cache has evicted: their holder is this node in name only.
    /// Returns the last one looked at.
    /// `even_mapped`: also those that programs may read.
    pub(crate) fn drop_uncached(
        &self,
        cpu: &Processor,
        core: &mut Core,
        from: PageNo,
        count: usize,
        even_mapped: bool,
    ) -> Option<PageNo> {
        let volume = self.volume()?;
        let held: Vec<PageNo> = core.node.held_from(from).take(count).map(|(page, _)| page).collect();
        for page in &held {
            let is_used = core.pages.contains_key(page) || core.node.is_dirty(*page) || core.node.is_saving(*page);
            let is_used = is_used || (core.mapped.is_mapped(*page) && !even_mapped);
            if is_used || volume.cached(BlockNo(page.0)).is_some() {
                continue;
            }
            if let Ok(actions) = core.node.on_local(cpu.now(), Local::Drop, *page) {
                self.note(core, actions, Content::None);
            }
        }
        self.drive(cpu, core);
        held.last().copied().filter(|_| held.len() == count)
    }

    fn check(&self, blocks: BlockRange) -> Result<(), Errno> {
        if blocks.end.0 <= self.config.policy().pages { Ok(()) } else { Err(Errno::INVALID) }
    }

    async fn read(&self, cpu: &Processor, blocks: BlockRange, frames: &[FrameRef]) -> Result<(), Errno> {
        let group = Group::new(blocks.len() as usize);
        let deadline = cpu.now() + self.config.timeout;
        {
            let mut core = self.core.lock();
            let core = &mut *core;
            for page in blocks.iter().map(|block| PageNo(block.0)) {
                core.page(page).loads.push(Load { group: Arc::clone(&group), deadline });
                core.due.push(page);
            }
            self.drive(cpu, core);
        }
        for (page, loaded) in group.all().await? {
            let Some(into) = frames.get((page.0 - blocks.start.0) as usize) else { continue };
            let bytes = loaded.bytes();
            assert_eq!(bytes.len(), FRAME_BYTES, "a page of another size");
            // SAFETY: the caller gave the frame to be filled by this read; nobody else has access to it meanwhile. Both
            // have a frame's bytes, and are different ones.
            unsafe { into.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), FRAME_BYTES) };
        }
        Ok(())
    }

    /// Stores what is dirty among `blocks` at the homes.
    async fn write_back(&self, cpu: &Processor, blocks: BlockRange) -> Result<(), Errno> {
        let deadline = cpu.now() + self.config.timeout;
        let pages = || blocks.iter().map(|block| PageNo(block.0));
        let again: Vec<PageNo> = {
            let mut core = self.core.lock();
            let core = &mut *core;
            // What this node may write, and has not: the volume writes it again since a flush failed.
            let is_again = |page: &PageNo| core.is_stored(*page) && !core.node.is_dirty(*page);
            let again = pages().filter(|page| is_again(page) && core.node.holds(*page).is_some()).collect();
            self.store_dirty(cpu, core, pages());
            again
        };
        if !again.is_empty() {
            let wishes = again.iter().map(|page| (*page, Wish::Again)).collect();
            self.wish(cpu, wishes, JobId::default()).await?;
            let mut core = self.core.lock();
            self.store_dirty(cpu, &mut core, again.into_iter());
        }
        let are_stored = |core: &Core| blocks.iter().all(|block| core.is_stored(PageNo(block.0)));
        self.until(cpu, deadline, |core| are_stored(core).then_some(())).await
    }

    pub(crate) fn store_dirty(&self, cpu: &Processor, core: &mut Core, pages: impl Iterator<Item = PageNo>) {
        for page in pages {
            if core.node.is_dirty(page)
                && let Ok(actions) = core.node.on_local(cpu.now(), Local::WriteBack, page)
            {
                self.note(core, actions, Content::None);
            }
        }
        self.drive(cpu, core);
    }

    async fn wish(&self, cpu: &Processor, wishes: Vec<(PageNo, Wish)>, job: JobId) -> Result<(), Errno> {
        let group = Group::new(wishes.len());
        let deadline = cpu.now() + self.config.timeout;
        {
            let mut core = self.core.lock();
            let core = &mut *core;
            for (page, wish) in wishes {
                let group = Arc::clone(&group);
                core.page(page).changes.push_back(Pending { wish, job, group, deadline });
                core.due.push(page);
            }
            self.drive(cpu, core);
        }
        group.all().await.map(drop)
    }
}

impl Device for Shared {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            size: self.config.size,
            writable: true,
            rotational: false,
            transfer_bytes_max: 256 << 10,
            fast_zero: false,
            disk: DiskNo(0),
        }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match request.action {
                Action::Read(range, frames) => {
                    self.check(range.blocks())?;
                    self.read(cpu, range.blocks(), &frames).await?;
                }
                Action::Write(range, _) => {
                    self.check(range.blocks())?;
                    self.write_back(cpu, range.blocks()).await?;
                }
                Action::Flush => self.flush(cpu).await?,
                Action::Zero { .. } | Action::Discard(_) => return Ok(Outcome::Unsupported),
            }
            Ok(Outcome::Done)
        })
    }
}

impl Coherence for Shared {
    fn write<'a>(&'a self, cpu: &'a Processor, changes: Vec<(BlockNo, Change)>, job: JobId) -> Work<'a, ()> {
        let wishes = changes.into_iter().map(|(block, change)| (PageNo(block.0), Wish::Change(change))).collect();
        Box::pin(self.wish(cpu, wishes, job))
    }
}
