//! A shared volume at this node: below its cache the device that asks other nodes, beside it what decides who may write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kernel::device::{Device, DeviceFacts, DeviceRef, Work};
use kernel::export::ExportNo;
use kernel::request::{Action, Outcome, Request};
use kernel::trace::Event;
use kernel::volume::{Change, Coherence, Known};
use kernel::wait::WaitList;
use kernel::{FRAME_BYTES, FrameRef, Frames, Processor, Volume};
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::{self, Address, Config, Homes, Incarnation, Local, NodeId, PageNo, Storage};
use policy::unit::{BlockNo, BlockRange, DiskNo, Instant, JobId};

use crate::core::{Core, HomeState};
use crate::counters::Counters;
use crate::deaths::Deaths;
use crate::ends::Ends;
use crate::failed::Failures;
use crate::hello::{Process, Terms};
use crate::home::Reserve;
use crate::link::Link;
use crate::mapping::Table;
use crate::member::{ENDED, Joined, Lease, joined_node};
use crate::unflushed::Flushes;
use crate::waiting::{Content, Group, Load, Pending, RETRANSMIT_AFTER, Wish};
use crate::watch::Watch;
use crate::wire::Word;

/// Adjacent pages with one home, so that what is read and written in order goes to a home in batches: 1 MiB.
pub const SHARD_PAGES: u64 = 256;

/// How long a request that needs another node waits for it, unless configured otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// What must be the same on all nodes, and this node's own.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    pub name: String,
    /// Bytes, a multiple of a page.
    pub size: u64,
    /// The names of all nodes, in order: their places are their numbers.
    pub nodes: Vec<String>,
    /// Where nodes come and go: what says which ones these may be, in place of their names.
    pub terms: Option<String>,
    /// A bit for each node, where homes do not move.
    pub homes: u64,
    /// Homes move among all nodes, in so many parts, and storage is what all nodes reach.
    pub shards: Option<u16>,
    /// At random, for this process.
    pub process: u64,
    /// This home's storage ends with the process.
    pub is_volatile: bool,
    /// A request that needs another node fails after this time.
    pub timeout: Duration,
}

impl SharedConfig {
    pub(crate) fn policy(&self) -> Config {
        let storage = match self.shards {
            Some(_) => Storage::Shared,
            None if self.is_volatile => Storage::Volatile,
            None => Storage::Plain,
        };
        Config {
            nodes: self.nodes.len() as u16,
            pages: self.size / FRAME_BYTES as u64,
            homes: self.shards.map_or(Homes::Of(self.homes), |shards| Homes::Mapped { shards }),
            shard: SHARD_PAGES,
            storage,
            pages_max: usize::MAX,
            timeout: RETRANSMIT_AFTER,
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        let SharedConfig { name, size, nodes, homes, .. } = self;
        let nodes = self.terms.clone().unwrap_or_else(|| nodes.join(","));
        Terms { size: *size, homes: *homes, nodes, volume: name.clone() }
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
    /// Something was stored ([`Core::has_changed`]), or a flush answered; also woken by each tick.
    pub(crate) changed: WaitList,
    /// All mappings of programs were stopped, or one has ended.
    pub(crate) stopped: WaitList,
    pub(crate) counters: Counters,
    pub(crate) reserve: Reserve,
    /// As long as it lasts this node is a member; without one it is for good.
    pub(crate) lease: Option<Box<dyn Lease>>,
    pub(crate) ended: AtomicBool,
    /// Its peers may connect, and are connected to.
    pub(crate) is_served: AtomicBool,
    /// Requests to the storage under way.
    pub(crate) performing: AtomicU64,
    /// The first incarnation of this process: its storage has all that was stored since.
    pub(crate) first: Incarnation,
    /// The one before of this process, until it is taken over from.
    pub(crate) before: Mutex<Option<Arc<Shared>>>,
    /// Names of members, where those come and go.
    pub(crate) names: Mutex<BTreeMap<NodeId, String>>,
    /// Why something could not be stored, as people were told last, and when.
    pub(crate) store_failure: Mutex<Option<(Errno, Instant)>>,
    volume: OnceLock<(Weak<Volume>, ExportNo)>,
    report: Report,
}

impl Shared {
    /// This node's part in a volume. `storage`: of the volume's size, for the pages whose home this node is.
    pub fn new(config: SharedConfig, me: Address, storage: DeviceRef, report: Report) -> Arc<Shared> {
        Shared::start(config, me, storage, report, None)
    }

    /// The same of a node that is a member as long as it has a lease.
    pub fn join(config: SharedConfig, me: Address, storage: DeviceRef, report: Report, joined: Joined) -> Arc<Shared> {
        Shared::start(config, me, storage, report, Some(joined))
    }

    fn start(
        config: SharedConfig,
        me: Address,
        storage: DeviceRef,
        report: Report,
        joined: Option<Joined>,
    ) -> Arc<Shared> {
        let nodes = config.nodes.len();
        let node = match &joined {
            Some(joined) => joined_node(config.policy(), me, joined),
            None => coherence::Node::returning(config.policy(), me, []),
        };
        let first = joined.as_ref().and_then(|joined| joined.before.as_ref()).map_or(me.incarnation, |old| old.first);
        let members: Vec<(Address, String)> = joined.iter().flat_map(|joined| joined.members.clone()).collect();
        let mut core = Core {
            node,
            pages: Default::default(),
            saving: Default::default(),
            saves: 0,
            has_changed: false,
            forwarded: Default::default(),
            due: Default::default(),
            met: vec![None; nodes],
            first_met: BTreeMap::new(),
            processes: BTreeMap::new(),
            deaths: Deaths::default(),
            ends: Ends::default(),
            answers: Vec::new(),
            home: joined.as_ref().map_or_else(HomeState::default, Joined::home),
            flushes: Flushes::default(),
            watch: Watch::default(),
            mapped: Table::default(),
            stopped: Vec::new(),
            filling: Vec::new(),
        };
        core.flushes.meet(me, first);
        if let Some(before) = joined.as_ref().and_then(|joined| joined.before.as_ref()) {
            let before = before.core.lock();
            core.flushes.failures = Failures::inherit(&before.flushes.failures);
            core.first_met.clone_from(&before.first_met);
            if config.shards.is_none() {
                core.flushes.inherit(&before.flushes);
            }
        }
        core.flushes.failures.on_told(me, 0);
        members.iter().for_each(|(member, _)| core.met[usize::from(member.node.0)] = Some(member.incarnation));
        let homes = joined.as_ref().map_or_else(Vec::new, |joined| joined.homes.clone());
        // What it asks of the others it asks again when they are connected.
        let _ = core.node.on_homes(Instant::ZERO, homes, [], |_| false);
        Arc::new_cyclic(|this| Shared {
            this: Weak::clone(this),
            me,
            storage,
            core: Mutex::new(core),
            links: (0..nodes).map(|_| Link::default()).collect(),
            changed: WaitList::default(),
            stopped: WaitList::default(),
            counters: Counters::default(),
            reserve: Reserve::default(),
            before: Mutex::new(joined.as_ref().and_then(|joined| joined.before.clone())),
            lease: joined.map(|joined| joined.lease),
            ended: AtomicBool::new(false),
            is_served: AtomicBool::new(false),
            performing: AtomicU64::new(0),
            first,
            names: Mutex::new(members.into_iter().map(|(member, name)| (member.node, name)).collect()),
            store_failure: Mutex::default(),
            volume: OnceLock::new(),
            report,
            config,
        })
    }

    /// The volume in whose cache the pages are. To be called once, before the first request.
    pub fn set_volume(&self, volume: &Arc<Volume>) {
        // A second one would have another cache: the first stays.
        let _ = self.volume.set((Arc::downgrade(volume), volume.export()));
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
        self.volume.get().and_then(|(volume, _)| volume.upgrade())
    }

    /// Whose records of the trace are those of this volume.
    pub(crate) fn whose(&self) -> (JobId, ExportNo) {
        (JobId::default(), self.volume.get().map_or(ExportNo::NONE, |(_, export)| *export))
    }

    /// Tells people, of a node once until something else is to be told of it.
    pub(crate) fn report(&self, of: Option<NodeId>, what: String) {
        let (name, what) = (of.map(|node| self.name_of(node)), on_one_line(&what));
        let line = match name {
            Some(peer) => format!("shared volume {:?}, node {peer:?}: {what}", self.config.name),
            None => format!("shared volume {:?}: {what}", self.config.name),
        };
        if of.is_none_or(|node| self.links[usize::from(node.0)].is_news(&line)) {
            (self.report)(&line);
        }
    }

    /// The steps of a page are done: bytes that its home has are not retained.
    pub(crate) fn settle(&self, core: &mut Core, page: PageNo) {
        self.settle_forwarded(core, page);
        core.pages.get_mut(page).into_iter().for_each(|entry| entry.unwritten = None);
        if !core.saving.contains_key(&page) {
            return;
        }
        if !core.node.is_saving(page) {
            core.saving.remove(&page);
            core.has_changed = true;
        }
    }

    pub(crate) fn process(&self) -> Process {
        Process { incarnation: self.me.incarnation, id: self.config.process }
    }

    pub(crate) fn incarnation_of(&self, core: &Core, node: NodeId) -> Incarnation {
        let own = (node == self.me.node).then_some(self.me.incarnation);
        own.or(core.met[usize::from(node.0)]).unwrap_or_default()
    }

    pub(crate) fn address_of(&self, core: &Core, node: NodeId) -> Address {
        Address { node, incarnation: self.incarnation_of(core, node) }
    }

    pub(crate) fn name_of(&self, node: NodeId) -> String {
        let name = self.names.lock().get(&node).cloned();
        name.or_else(|| self.config.nodes.get(usize::from(node.0)).cloned()).unwrap_or_default()
    }

    pub(crate) fn send_word(&self, to: Address, word: Word, frame: Option<FrameRef>) {
        if let Some(link) = self.links.get(usize::from(to.node.0)) {
            self.counters.messages.add(1);
            link.push(self.me.incarnation, to.incarnation, word, frame);
        }
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
            let is_used = core.pages.contains(*page) || core.node.is_dirty(*page) || core.node.is_saving(*page);
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

    /// Reads pages: each into a frame of its own if it comes in one, else into one of `spare`.
    async fn read_pages(&self, cpu: &Processor, blocks: BlockRange, spare: Frames) -> Result<Frames, Errno> {
        let group = Group::new(spare.len().min(blocks.len() as usize));
        let since = cpu.now();
        let deadline = since + self.config.timeout;
        let whose = (cpu.job(), self.whose().1);
        let began = cpu.begin(Event::SharedFetched, whose);
        {
            let mut core = self.core.lock();
            let core = &mut *core;
            // With the lock: what has ended fails those that wait once.
            if self.has_ended() {
                return Err(ENDED);
            }
            let left = self.ask_in_runs(cpu, core, blocks, |_, _| ());
            core.due.extend(left.into_iter().flat_map(BlockRange::iter).map(|block| PageNo(block.0)));
            for (block, spare) in blocks.iter().zip(spare) {
                core.page(PageNo(block.0)).loads.push(Load { group: Arc::clone(&group), spare, since, deadline });
            }
            self.drive(cpu, core);
        }
        let pages = group.all().await;
        cpu.end(began, Event::SharedFetched, whose, blocks.start.0, blocks.len());
        let mut pages = pages?;
        pages.sort_unstable_by_key(|(page, _)| *page);
        Ok(pages.into_iter().map(|(_, frame)| frame).collect())
    }

    /// Stores what is dirty among `blocks` at the homes.
    async fn write_back(&self, cpu: &Processor, blocks: BlockRange) -> Result<(), Errno> {
        let pages = || blocks.iter().map(|block| PageNo(block.0));
        let again: Vec<PageNo> = {
            let mut core = self.core.lock();
            let core = &mut *core;
            // What this node may write, and has not: the volume writes it again since a flush failed.
            // What its home does meanwhile for other nodes makes no difference.
            let is_again = |page: &PageNo| !core.is_saving(*page) && !core.node.is_dirty(*page);
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
        let all: Vec<PageNo> = pages().collect();
        self.until_stored(cpu, &all, Core::is_stored).await
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
        let since = cpu.now();
        let deadline = since + self.config.timeout;
        let whose = (job, self.whose().1);
        let (first, count) = (wishes.first().map_or(0, |(page, _)| page.0), wishes.len() as u64);
        {
            let mut core = self.core.lock();
            let core = &mut *core;
            if self.has_ended() {
                return Err(ENDED);
            }
            for (page, wish) in wishes {
                let group = Arc::clone(&group);
                core.page(page).changes.push_back(Pending { wish, job, group, since, deadline });
                core.due.push_back(page);
            }
            self.drive(cpu, core);
        }
        let began = group.is_pending().then(|| cpu.begin(Event::SharedTaken, whose));
        let done = group.all().await.map(drop);
        began.into_iter().for_each(|began| cpu.end(began, Event::SharedTaken, whose, first, count));
        done
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
            may_be_sparse: false,
            disk: DiskNo(0),
        }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match request.action {
                Action::Write(range, _) => {
                    self.check(range.blocks())?;
                    self.write_back(cpu, range.blocks()).await?;
                }
                Action::Flush => self.flush_own(cpu).await?,
                // What is read is asked for as a `Coherence`.
                Action::Read(..) | Action::Zero { .. } | Action::Discard(_) => return Ok(Outcome::Unsupported),
            }
            Ok(Outcome::Done)
        })
    }
}

impl Coherence for Shared {
    fn read<'a>(&'a self, cpu: &'a Processor, blocks: BlockRange, spare: Frames) -> Work<'a, Frames> {
        Box::pin(async move {
            self.check(blocks)?;
            self.read_pages(cpu, blocks, spare).await
        })
    }

    fn write<'a>(&'a self, cpu: &'a Processor, changes: Vec<(BlockNo, Change)>, job: JobId) -> Work<'a, ()> {
        let wishes = changes.into_iter().map(|(block, change)| (PageNo(block.0), Wish::Change(change))).collect();
        Box::pin(self.wish(cpu, wishes, job))
    }

    fn known(&self) -> Known {
        let core = self.core.lock();
        Known { deaths: core.deaths.count, failures: core.flushes.failures.returned }
    }

    fn flush<'a>(&'a self, cpu: &'a Processor) -> Work<'a, ()> {
        Box::pin(self.flush_all(cpu))
    }

    fn end_flush(&self, known: Known) -> Result<(), Errno> {
        if self.take_lost(known) { Err(Errno::IO) } else { Ok(()) }
    }

    fn answers(&self) -> bool {
        Shared::answers(self)
    }
}

/// Longest message that is reported, in characters.
const REPORTED_MAX: usize = 300;

/// Some of it may be a peer's words: those neither begin lines of their own nor control a terminal.
fn on_one_line(what: &str) -> String {
    let shown = what.chars().map(|of| if of.is_control() { char::REPLACEMENT_CHARACTER } else { of });
    let mut line: String = shown.take(REPORTED_MAX).collect();
    if what.chars().nth(REPORTED_MAX).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_is_reported_on_one_short_line() {
        assert_eq!(on_one_line("its peers are a,ü"), "its peers are a,ü");
        assert_eq!(on_one_line("a\nawase: all is well\x1b[2J"), "a\u{fffd}awase: all is well\u{fffd}[2J");
        assert_eq!(on_one_line(&"ü".repeat(301)), "ü".repeat(300) + "…");
    }
}
