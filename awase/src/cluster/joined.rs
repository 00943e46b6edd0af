//! A node whose cluster is in etcd: what membership says is passed on to the shared disks, which begin anew with each
//! incarnation of this node.
//!
//! Called by the thread of membership, in order; what it asks of a disk runs on the processor of the connections between
//! nodes, in the same order. Nothing here is waited for by a processor.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dsm::{Dsm, Joined, Lease, Shared, SharedConfig};
use kernel::device::DeviceRef;
use kernel::{Kernel, Processor, Volume};
use parking_lot::{Condvar, Mutex};
use policy::coherence::{Address, Home, Incarnation, NodeId, ShardNo};
use policy::membership::homes::Release;
use policy::unit::ProcessorId;

use super::PROCESSOR;
use super::dial::Addresses;
use super::volume::volume_of;
use crate::config::{Export, Problem};
use crate::membership::{Event, Fence, Peer, Releases};
use crate::tell::tell;

/// Parts of the pages of all shared disks whose home moves as one. With 64 nodes each has at least 4.
pub const SHARDS: u16 = 256;

/// Nodes that a cluster can number.
const NODES_MAX: usize = 64;

/// What a shared disk is at a node, in each of its incarnations.
#[derive(Clone)]
struct Disk {
    export: Export,
    kernel: Arc<Kernel>,
    storage: DeviceRef,
    /// The processor that writes back.
    home: ProcessorId,
    shared: Arc<Shared>,
    volume: Arc<Volume>,
}

/// Ends this server in order.
pub type End = Box<dyn Fn() + Send + Sync>;

/// Is told of a disk's next incarnation.
pub type Replace = Box<dyn Fn(&str, &Arc<Volume>, &Arc<Shared>) + Send + Sync>;

#[derive(Default)]
struct State {
    numbers: BTreeMap<String, NodeId>,
    /// As whom this node serves, or has served last.
    me: Option<Address>,
    is_serving: bool,
    has_problem: bool,
    is_leaving: bool,
    /// etcd has lost what this node has seen there: it is no member, for good.
    is_over: bool,
    members: BTreeMap<Address, String>,
    homes: BTreeMap<ShardNo, Home>,
    disks: Vec<Disk>,
}

pub struct Node {
    name: String,
    cluster: String,
    dsm: Arc<Dsm>,
    addresses: Addresses,
    /// That programs have of one disk at a time.
    mapped_pages_max: usize,
    fence: OnceLock<Arc<Fence>>,
    releases: OnceLock<Releases>,
    replace: OnceLock<Replace>,
    end: End,
    state: Mutex<State>,
    changed: Condvar,
}

struct EpochLease {
    fence: Arc<Fence>,
    epoch: Incarnation,
}

impl Lease for EpochLease {
    fn lasts(&self) -> bool {
        self.fence.answers(self.epoch)
    }
}

impl Node {
    pub fn new(
        name: String,
        cluster: String,
        dsm: Arc<Dsm>,
        addresses: Addresses,
        mapped_pages_max: usize,
        end: End,
    ) -> Arc<Node> {
        Arc::new(Node {
            name,
            cluster,
            dsm,
            addresses,
            mapped_pages_max,
            fence: OnceLock::new(),
            releases: OnceLock::new(),
            replace: OnceLock::new(),
            end,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// What the membership has for those who answer. To be called once it has begun.
    pub fn begin(&self, fence: &Arc<Fence>, releases: Releases) {
        let _ = self.fence.set(Arc::clone(fence));
        let _ = self.releases.set(releases);
    }

    /// Who is to be told of disks that begin anew. To be called once.
    pub fn on_replace(&self, replace: Replace) {
        let _ = self.replace.set(replace);
    }

    /// Waits until this node serves, or something stands in the way, which was said.
    pub fn until_serving(&self, most: Duration) {
        let end = std::time::Instant::now() + most;
        let mut state = self.state.lock();
        while !state.is_serving && !state.has_problem && !self.changed.wait_until(&mut state, end).timed_out() {}
    }

    /// Programs that have mapped a disk lose it, and map it anew.
    pub fn end_mappings(&self) {
        self.state.lock().end_mappings();
    }

    pub fn on_event(self: &Arc<Self>, event: Event) {
        let mut state = self.state.lock();
        match event {
            Event::Numbered(numbers) => state.numbers = numbers,
            Event::Serve(me) => {
                (state.is_serving, state.has_problem) = (true, false);
                if state.me.replace(me) != Some(me) {
                    self.begin_anew(&mut state, me);
                }
                tell(format_args!(
                    "this node serves as a member of the cluster {:?} (epoch {})",
                    self.cluster, me.incarnation.0
                ));
            }
            // The fence is shut already: nothing is answered.
            Event::Stop => {
                // Programs that have mapped a disk ask no fence.
                state.end_mappings();
                let is_news = std::mem::take(&mut state.is_serving) && !state.is_leaving;
                print_if(
                    is_news,
                    "this node's lease is over: clients of shared disks get errors until it has a new one",
                );
            }
            Event::Alive { address, peer } => self.on_alive(&mut state, address, peer),
            Event::Dead(address) => {
                state.members.remove(&address);
                state.on_disks(move |cpu, shared| shared.on_dead(cpu, address));
            }
            Event::Homes(homes) => {
                state.homes.extend(homes.iter().copied());
                state.on_disks(move |cpu, shared| shared.on_homes(cpu, &homes));
            }
            Event::Release(release) => self.release(&state, release),
            Event::Problem(problem) => {
                // An earlier process of this node is one for at most a lease: that is worth waiting for.
                state.has_problem |= !matches!(problem, crate::membership::Problem::Occupied(_));
                tell(problem);
            }
            Event::Recovered => tell("etcd answers again"),
            Event::Alone(lease) => tell(format_args!(
                "no other node of the cluster {:?} is registered in etcd: this one serves {lease:?} later (cluster.lease), since \
                 so long nodes may serve of which etcd has lost what it knew",
                self.cluster
            )),
            // It has nothing of them any more.
            Event::Over(_) if state.is_leaving => {}
            Event::Over(stale) => {
                (state.is_serving, state.is_over, state.has_problem) = (false, true, true);
                state.end_mappings();
                state.disks.iter().for_each(|disk| disk.shared.end());
                tell(format_args!(
                    "etcd has lost data, or has older data than this node has seen there ({stale}): it serves no shared disks \
                     any more, what was not flushed there may be lost, and it ends. Start all nodes of the cluster {:?} anew",
                    self.cluster
                ));
                (self.end)();
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn on_alive(self: &Arc<Self>, state: &mut State, address: Address, Peer { name, at }: Peer) {
        self.addresses.set(address.node, at.to_string());
        state.members.insert(address, name.clone());
        let dsm = Arc::clone(&self.dsm);
        state.on_disks(move |cpu, shared| {
            shared.on_joined(cpu, address, &name);
            dsm.meet(cpu, shared, address.node);
        });
    }

    fn release(&self, state: &State, release: Release) {
        let disks: Vec<Arc<Shared>> = state.disks.iter().map(|disk| Arc::clone(&disk.shared)).collect();
        let releases = self.releases.wait().clone();
        let Some(kernel) = state.disks.first().map(|disk| Arc::clone(&disk.kernel)) else {
            return releases.done(release);
        };
        kernel.mailbox(PROCESSOR).start(move |cpu| {
            let here = cpu.clone();
            cpu.spawn(async move {
                for shared in disks {
                    shared.release(&here, release.shard).await;
                }
                releases.done(release);
            });
        });
    }

    /// All disks end, and begin as those of this incarnation, which holds nothing.
    fn begin_anew(self: &Arc<Self>, state: &mut State, me: Address) {
        let disks = std::mem::take(&mut state.disks);
        disks.iter().for_each(|disk| disk.shared.end());
        for disk in disks {
            match self.open_as(state, &disk, Some(me)) {
                Ok(next) => state.disks.push(next),
                Err(problem) => {
                    tell(problem);
                    state.disks.push(disk);
                }
            }
        }
    }

    /// Opens a shared disk, as that of this node's present incarnation; without one it refuses everything.
    ///
    /// # Errors
    /// When too many volumes are open.
    pub fn open(
        self: &Arc<Self>,
        kernel: &Arc<Kernel>,
        export: &Export,
        storage: DeviceRef,
        home: ProcessorId,
    ) -> Result<Arc<Volume>, Problem> {
        let mut state = self.state.lock();
        let nobody = Address { node: NodeId(0), incarnation: Incarnation(0) };
        let none = self.shared(&state, export, &storage, nobody, None);
        none.end();
        let (export, kernel, shared) = (export.clone(), Arc::clone(kernel), none);
        let volume = volume_of(&kernel, &export, &shared, home)?;
        let mut disk = Disk { export, kernel, storage, home, shared, volume };
        if let Some(me) = state.me {
            disk = self.open_as(&state, &disk, Some(me))?;
        }
        let volume = Arc::clone(&disk.volume);
        state.disks.push(disk);
        Ok(volume)
    }

    fn open_as(self: &Arc<Self>, state: &State, before: &Disk, me: Option<Address>) -> Result<Disk, Problem> {
        let me = me.unwrap_or_default();
        let first = before.shared.address().incarnation == Incarnation(0);
        let earlier = (!first).then(|| Arc::clone(&before.shared));
        let shared = self.shared(state, &before.export, &before.storage, me, earlier);
        let volume = volume_of(&before.kernel, &before.export, &shared, before.home)?;
        volume.set_export(before.kernel.number_export(&before.export.name));
        let next = Disk { shared: Arc::clone(&shared), volume: Arc::clone(&volume), ..before.clone() };
        let (own, name) = (Arc::clone(self), before.export.name.clone());
        before.kernel.mailbox(PROCESSOR).start(move |cpu| {
            let here = cpu.clone();
            cpu.spawn(async move {
                shared.take_over().await;
                own.dsm.add(&shared);
                own.dsm.serve(&here, &shared);
                if let Some(replace) = own.replace.get() {
                    replace(&name, &volume, &shared);
                }
            });
        });
        Ok(next)
    }

    fn shared(
        &self,
        state: &State,
        export: &Export,
        storage: &DeviceRef,
        me: Address,
        before: Option<Arc<Shared>>,
    ) -> Arc<Shared> {
        let is_on_device = export.is_on_device();
        let numbers = export.homes.iter().filter_map(|home| state.numbers.get(home));
        let name = |number: usize| {
            let named = state.numbers.iter().find(|(_, node)| usize::from(node.0) == number);
            named.map_or_else(|| number.to_string(), |(name, _)| name.clone())
        };
        let mut nodes: Vec<String> = (0..NODES_MAX).map(name).collect();
        if let Some(own) = nodes.get_mut(usize::from(me.node.0)) {
            own.clone_from(&self.name);
        }
        let size = export.shared_size().unwrap_or(storage.facts().size);
        let config = SharedConfig {
            name: export.name.clone(),
            size,
            nodes,
            terms: Some(format!("those of cluster {:?} in etcd", self.cluster)),
            homes: numbers.fold(0, |all, node| all | 1 << node.0),
            process: 0,
            shards: is_on_device.then_some(SHARDS),
            is_volatile: !is_on_device && export.path().is_none(),
            timeout: dsm::TIMEOUT,
        };
        let members = state.members.iter().filter(|(member, _)| member.node != me.node);
        let joined = Joined {
            lease: Box::new(EpochLease { fence: Arc::clone(self.fence.wait()), epoch: me.incarnation }),
            members: members.map(|(member, name)| (*member, name.clone())).collect(),
            homes: state.homes.iter().filter(|_| is_on_device).map(|(shard, home)| (*shard, *home)).collect(),
            before,
        };
        let shared = Shared::join(config, me, Arc::clone(storage), Box::new(|line| tell(line)), joined);
        shared.limit_mapped(self.mapped_pages_max);
        shared
    }

    /// As whom this node serves now.
    pub fn serves_as(&self) -> Option<Address> {
        let state = self.state.lock();
        state.me.filter(|_| state.is_serving)
    }

    /// The last one as whom it has served.
    pub fn address(&self) -> Option<Address> {
        self.state.lock().me
    }

    /// A disk as it is to this node as that address, if it has begun as no other since.
    pub fn volume_as(&self, address: Address, name: &str) -> Option<Arc<Volume>> {
        let state = self.state.lock();
        let disk = state.disks.iter().find(|disk| disk.export.name == name);
        disk.filter(|_| state.me == Some(address)).map(|disk| Arc::clone(&disk.volume))
    }

    /// Waits until the membership may have changed.
    pub fn until_changed(&self, most: Duration) {
        self.changed.wait_for(&mut self.state.lock(), most);
    }

    /// A disk as it is now; `None` before it is served, as which it must not be used.
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        let state = self.state.lock();
        let disk = state.disks.iter().find(|disk| disk.export.name == name)?;
        let is_served = self.dsm.volumes().iter().any(|shared| Arc::ptr_eq(shared, &disk.shared));
        is_served.then(|| Arc::clone(&disk.volume))
    }

    /// Whether this node can be no member any more before it is started anew.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// From now on it is no news that the lease ends.
    pub fn on_leaving(&self) {
        self.state.lock().is_leaving = true;
    }
}

impl State {
    fn end_mappings(&self) {
        self.disks.iter().for_each(|disk| disk.shared.on_lease_over(&disk.kernel));
    }

    fn on_disks(&self, change: impl Fn(&Processor, &Arc<Shared>) + Clone + Send + 'static) {
        for disk in &self.disks {
            let (shared, change) = (Arc::clone(&disk.shared), change.clone());
            disk.kernel.mailbox(PROCESSOR).start(move |cpu| change(&cpu, &shared));
        }
    }
}

fn print_if(is_news: bool, line: &str) {
    if is_news {
        tell(line);
    }
}
