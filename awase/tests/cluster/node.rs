//! A member, what it was told and when.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use awase::membership::{Event, Member, Releases, Settings, now};
use parking_lot::{Condvar, Mutex};
use policy::membership::homes::ShardNo;
use policy::membership::{Address, NodeId};
use policy::unit::Instant;

pub const LEASE: Duration = Duration::from_secs(1);
pub const SHARDS: u16 = 8;

/// No wait of a test takes longer.
const DEADLINE: Duration = Duration::from_secs(15);

pub fn settings(name: &str, etcd: &[String]) -> Settings {
    let port = 7000 + u16::from(name.as_bytes()[0]);
    Settings {
        etcd: etcd.to_vec(),
        prefix: "/awase".into(),
        cluster: "tests".into(),
        node: name.into(),
        others: Vec::new(),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        disks: BTreeMap::new(),
        shards: SHARDS,
        lease: LEASE,
    }
}

type Log = Arc<(Mutex<Vec<(Instant, Event)>>, Condvar)>;

pub struct Node {
    member: Option<Member>,
    log: Log,
}

impl Node {
    pub fn join(name: &str, etcd: &[String]) -> Node {
        Node::with(settings(name, etcd), |_| {})
    }

    /// `also` is told, too.
    pub fn with(settings: Settings, mut also: impl FnMut(&Event) + Send + 'static) -> Node {
        let log = Log::default();
        let (told, releases) = (Arc::clone(&log), Arc::new(OnceLock::<Releases>::new()));
        let own = Arc::clone(&releases);
        let member = Member::join(settings, move |event| {
            // Nothing is under way as a home.
            if let Event::Release(release) = event {
                own.wait().done(release);
            }
            also(&event);
            told.0.lock().push((now(), event));
            told.1.notify_all();
        });
        let member = member.expect("allowed settings");
        let _ = releases.set(member.releases());
        Node { member: Some(member), log }
    }

    pub fn member(&self) -> &Member {
        self.member.as_ref().expect("it has not ended")
    }

    /// All that it was told.
    pub fn events(&self) -> Vec<Event> {
        self.log.0.lock().iter().map(|(_, event)| event.clone()).collect()
    }

    /// Waits for what was or will be told, and returns when and what.
    pub fn told<T>(&self, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> (Instant, T) {
        let deadline = std::time::Instant::now() + DEADLINE;
        let mut log = self.log.0.lock();
        loop {
            if let Some(found) = log.iter().find_map(|(at, event)| Some((*at, wanted(event)?))) {
                return found;
            }
            let is_over = self.log.1.wait_until(&mut log, deadline).timed_out();
            assert!(!is_over, "not told: {what}; but {:#?}", *log);
        }
    }

    pub fn serves(&self) -> Address {
        self.told("to serve", |event| if let Event::Serve(me) = event { Some(*me) } else { None }).1
    }

    pub fn dead(&self, address: Address) -> Instant {
        self.told("a death", |event| (*event == Event::Dead(address)).then_some(())).0
    }

    pub fn alive(&self, name: &str) -> Address {
        let expected = settings(name, &[]).address;
        let wanted = |event: &Event| match event {
            Event::Alive { address, peer } if peer.at == expected && peer.name == name => Some(*address),
            _ => None,
        };
        self.told("another node", wanted).1
    }

    pub fn problem(&self, part: &str) -> String {
        let wanted = |event: &Event| match event {
            Event::Problem(problem) => Some(problem.to_string()).filter(|text| text.contains(part)),
            _ => None,
        };
        self.told(&format!("of {part:?}"), wanted).1
    }

    /// Waits until the node of this number is the home of so many shards, as this one sees it.
    pub fn homes(&self, node: NodeId, shards: usize) {
        self.homes_in(node, shards..=shards);
    }

    pub fn homes_in(&self, node: NodeId, shards: RangeInclusive<usize>) {
        let deadline = std::time::Instant::now() + DEADLINE;
        let mut log = self.log.0.lock();
        loop {
            if shards.contains(&homes_of(&log).values().filter(|home| home.node == node).count()) {
                return;
            }
            let is_over = self.log.1.wait_until(&mut log, deadline).timed_out();
            assert!(!is_over, "node {node:?} is not the home of {shards:?}: {:#?}", *log);
        }
    }

    /// The home of each shard that has one, as this node was told.
    pub fn all_homes(&self) -> BTreeMap<ShardNo, Address> {
        homes_of(&self.log.0.lock())
    }

    pub fn until(&self) -> Instant {
        self.member().fence().until().expect("it serves")
    }

    pub fn leave(mut self) {
        self.member.take().expect("it has not ended").leave();
    }
}

/// What a node was told of homes, but for those that are no members.
fn homes_of(log: &[(Instant, Event)]) -> BTreeMap<ShardNo, Address> {
    let (mut members, mut homes) = (BTreeMap::new(), BTreeMap::new());
    for (_, event) in log {
        match event {
            Event::Serve(address) | Event::Alive { address, .. } => {
                members.insert(address.node, *address);
            }
            Event::Dead(address) => {
                members.remove(&address.node);
            }
            Event::Homes(changed) => homes.extend(changed.iter().map(|(shard, home)| (*shard, home.at))),
            _ => {}
        }
    }
    homes.retain(|_, home| members.get(&home.node) == Some(home));
    homes
}
