//! Members with leases, and homes that move: what etcd and the membership of real nodes do, as the test says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dsm::{Joined, Lease, Shared, SharedConfig};
use kernel::Volume;
use kernel::device::{Delay, DeviceRef, Fault, Faults, Operation, RamDisk};
use kernel::volume::VolumeConfig;
use kernel::{ForcedUnitAccess, Processor};
use machine::Errno;
use policy::coherence::{Address, Home, Incarnation, NodeId, ShardNo};
use policy::unit::{DiskNo, ProcessorId};

use super::device::{Handle, Medium};
use super::{Backing, Node, Scene, Setup};

pub const SHARDS: u16 = 4;

/// A change that all nodes see, in this order.
#[derive(Clone)]
enum Change {
    Joined(Address),
    Left(Address),
    Map(Vec<(ShardNo, Home)>),
}

/// The arbiter.
pub struct Members {
    medium: Arc<Medium>,
    fault: Arc<Fault>,
    changes: Vec<Change>,
    members: BTreeMap<NodeId, Address>,
    homes: BTreeMap<ShardNo, Home>,
    version: u32,
    revision: u32,
    /// Of each node: changes that it has seen, its lease, and shards that it gives up with whether that is done.
    nodes: Vec<Local>,
}

#[derive(Default)]
struct Local {
    seen: usize,
    lease: Arc<AtomicBool>,
    releasing: BTreeMap<ShardNo, Arc<AtomicBool>>,
}

struct Flag(Arc<AtomicBool>);

impl Lease for Flag {
    fn lasts(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Members {
    pub fn new(nodes: usize, size: u64, seed: u64) -> Members {
        let memory = Arc::new(RamDisk::new(size, DiskNo(0)));
        let fault = Arc::new(Fault::new(memory, Faults::default()));
        // At once, or so slow that much happens meanwhile.
        let delay = Duration::from_micros([0, 300, 5000][(seed % 3) as usize]);
        let slow =
            if delay.is_zero() { fault.clone() as DeviceRef } else { Arc::new(Delay::new(fault.clone(), delay)) };
        Members {
            medium: Medium::new(slow),
            fault,
            changes: Vec::new(),
            members: BTreeMap::new(),
            homes: BTreeMap::new(),
            version: 0,
            revision: 0,
            nodes: (0..nodes).map(|_| Local::default()).collect(),
        }
    }

    fn device(&self, node: usize) -> DeviceRef {
        Arc::new(Handle { node, medium: Arc::clone(&self.medium) })
    }

    fn change(&mut self, change: Change) -> u32 {
        self.revision += 1;
        self.changes.push(change);
        self.revision
    }
}

impl Scene {
    fn arbiter(&mut self) -> &mut Members {
        self.members.as_mut().expect("homes move in this scene")
    }

    /// The next writes to the device fail.
    pub fn fail_writes(&mut self, count: u32) {
        self.arbiter().fault.fail_next(Operation::Write, count, Errno::IO);
    }

    pub fn medium(&mut self) -> &Arc<Medium> {
        &self.arbiter().medium
    }

    /// A node's process registers, and begins anew.
    pub fn register(&mut self, node: usize) {
        let me = self.enter(node);
        self.begin(node, me);
    }

    /// It registers, and has seen nothing of what has changed.
    pub fn enter(&mut self, node: usize) -> Address {
        self.deregister(node);
        let arbiter = self.arbiter();
        let me = Address { node: NodeId(node as u16), incarnation: Incarnation(arbiter.revision + 1) };
        arbiter.change(Change::Joined(me));
        arbiter.members.insert(me.node, me);
        me
    }

    /// It begins anew, with all that has changed.
    pub fn begin(&mut self, node: usize, me: Address) {
        let Setup { size, timeout, stays, homes: fixed, backing, .. } = self.setup;
        let arbiter = self.arbiter();
        let lease = Arc::new(AtomicBool::new(true));
        arbiter.nodes[node] = Local { seen: arbiter.changes.len(), lease: Arc::clone(&lease), ..Local::default() };
        let others = arbiter.members.values().filter(|other| other.node != me.node);
        let members = others.map(|other| (*other, other.node.0.to_string())).collect();
        let homes = arbiter.homes.iter().map(|(shard, home)| (*shard, *home)).collect();
        let device = arbiter.device(node);
        self.incarnations[node] = me.incarnation.0;
        let config = SharedConfig {
            name: "shared".into(),
            size,
            nodes: (0..self.nodes.len()).map(|node| node.to_string()).collect(),
            terms: Some("those of the test".into()),
            homes: if stays { fixed } else { 0 },
            shards: (!stays).then_some(SHARDS),
            process: 0,
            is_volatile: stays && backing == Backing::Memory,
            timeout,
        };
        let told = Arc::clone(&self.told);
        let report = Box::new(move |line: &str| told.lock().expect("one thread").push(format!("{node}: {line}")));
        let Some(running) = self.nodes[node].as_mut() else { return };
        let storage = if stays { Arc::clone(&running.storage) } else { device };
        let before = running.shared.take();
        before.iter().for_each(|before| before.end());
        let joined = Joined { lease: Box::new(Flag(lease)), members, homes, before };
        let shared = Shared::join(config, me, storage, report, joined);
        let config = VolumeConfig {
            name: "shared".into(),
            read_only: false,
            forced_unit_access: ForcedUnitAccess::Never,
            grows: false,
        };
        let volume = Volume::open_shared(&running.host.kernel, shared.clone(), shared.clone(), config, ProcessorId(0));
        let volume = volume.expect("a number");
        shared.set_volume(&volume);
        let (dsm, own, cpu) = (Arc::clone(&running.dsm), Arc::clone(&shared), running.host.processors[0].clone());
        let here = cpu.clone();
        cpu.spawn(async move {
            own.take_over().await;
            dsm.add(&own);
            dsm.serve(&here, &own);
        });
        self.world.kick(running.host.id, cpu.id());
        (running.shared, running.volume) = (Some(shared), Some(volume));
    }

    /// The lease ends by the node's own clock, and may begin again as long as the arbiter has not ended it.
    pub fn set_lease(&mut self, node: usize, lasts: bool) {
        self.arbiter().nodes[node].lease.store(lasts, Ordering::SeqCst);
        if let Some(Node { host, shared: Some(shared), .. }) = self.nodes[node].as_ref().filter(|_| !lasts) {
            shared.on_lease_over(&host.kernel);
        }
    }

    /// The power of a member's host fails.
    pub fn power_cut_member(&mut self, node: usize) {
        self.set_lease(node, false);
        self.power_cut(node);
    }

    /// Its process dies.
    pub fn kill_member(&mut self, node: usize) {
        self.set_lease(node, false);
        self.kill(node);
    }

    /// The lease of a node is over for all.
    pub fn deregister(&mut self, node: usize) {
        self.set_lease(node, false);
        let arbiter = self.arbiter();
        if let Some(address) = arbiter.members.remove(&NodeId(node as u16)) {
            arbiter.change(Change::Left(address));
            arbiter.medium.on_dead(node);
        }
    }

    /// A home begins to give up a shard.
    pub fn give_up(&mut self, node: usize, shard: ShardNo) {
        let has_news = self.has_news(node);
        let arbiter = self.arbiter();
        let home = arbiter.homes.get(&shard).map(|home| home.at);
        let is_own = home.is_some() && home == arbiter.members.get(&NodeId(node as u16)).copied();
        let local = &mut arbiter.nodes[node];
        if !is_own || has_news || local.releasing.contains_key(&shard) {
            return;
        }
        let done = Arc::new(AtomicBool::new(false));
        local.releasing.insert(shard, Arc::clone(&done));
        let Some(Node { host, shared: Some(shared), .. }) = &self.nodes[node] else { return };
        let (shared, cpu) = (Arc::clone(shared), host.processors[0].clone());
        let here = cpu.clone();
        cpu.spawn(async move {
            shared.release(&here, shard).await;
            done.store(true, Ordering::SeqCst);
        });
        self.world.kick(host.id, cpu.id());
    }

    /// The home of a shard by the newest map.
    pub fn home(&self, shard: ShardNo) -> usize {
        let arbiter = self.members.as_ref().expect("homes move in this scene");
        arbiter.homes.get(&shard).map_or(0, |home| usize::from(home.at.node.0))
    }

    /// Whether all that homes had begun to give up is given up.
    pub fn has_given_up(&self) -> bool {
        let nodes = self.members.iter().flat_map(|arbiter| &arbiter.nodes);
        nodes.flat_map(|node| node.releasing.values()).all(|done| done.load(Ordering::SeqCst))
    }

    /// The map changes: shards without a living home, and those that were given up, go to others.
    pub fn change_map(&mut self, mut pick: impl FnMut(usize) -> usize) {
        let arbiter = self.arbiter();
        let members: Vec<Address> = arbiter.members.values().copied().collect();
        if members.is_empty() {
            return;
        }
        let mut homes = arbiter.homes.clone();
        for shard in (0..SHARDS).map(ShardNo) {
            let home = homes.get(&shard).copied().filter(|home| arbiter.members.get(&home.at.node) == Some(&home.at));
            let releasing = home.and_then(|home| arbiter.nodes[usize::from(home.at.node.0)].releasing.get(&shard));
            let is_given_up = releasing.is_some_and(|done| done.load(Ordering::SeqCst));
            if home.is_none() || is_given_up {
                if let Some(home) = home {
                    arbiter.nodes[usize::from(home.at.node.0)].releasing.remove(&shard);
                }
                homes.insert(shard, Home { at: members[pick(members.len())], since: Incarnation(arbiter.version + 1) });
            }
        }
        if homes != arbiter.homes {
            arbiter.homes.clone_from(&homes);
            arbiter.version = arbiter.change(Change::Map(homes.into_iter().collect()));
        }
    }

    fn has_news(&self, node: usize) -> bool {
        self.members.as_ref().is_some_and(|arbiter| arbiter.nodes[node].seen < arbiter.changes.len())
    }

    /// A node sees the next change, if its process runs.
    pub fn see(&mut self, node: usize) -> bool {
        if !self.has_news(node) || self.nodes[node].is_none() {
            return false;
        }
        let arbiter = self.arbiter();
        let local = &mut arbiter.nodes[node];
        let change = arbiter.changes[local.seen].clone();
        local.seen += 1;
        let Some(Node { host, dsm, shared: Some(shared), .. }) = &self.nodes[node] else { return true };
        let cpu: &Processor = &host.processors[0];
        match change {
            Change::Joined(other) if other.node != shared.address().node => {
                shared.on_joined(cpu, other, &other.node.0.to_string());
                dsm.meet(cpu, shared, other.node);
            }
            Change::Left(other) if other.node != shared.address().node => shared.on_dead(cpu, other),
            // As membership, it names what is new.
            Change::Map(homes) => {
                let new: Vec<_> =
                    homes.into_iter().filter(|(shard, home)| shared.home_of(*shard) != Some(*home)).collect();
                shared.on_homes(cpu, &new);
            }
            Change::Joined(_) | Change::Left(_) => {}
        }
        self.world.kick(host.id, cpu.id());
        true
    }

    pub fn see_all(&mut self) {
        for node in 0..self.nodes.len() {
            while self.see(node) {}
        }
    }
}
