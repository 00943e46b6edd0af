//! Who is a member of the cluster, with which epoch, which node is the home of a shard, and when this node must stop
//! answering (DSM): the decisions of one node that asks an *arbiter*, a store with leases, ordered changes and
//! transactions (etcd).
//!
//! # Members
//! A node is a member while its key exists, which its lease removes when it ends (Gray and Cheriton, *Leases: an
//! efficient fault-tolerant mechanism for distributed file cache consistency*, SOSP 1989). The arbiter's revision at
//! which the key was created is the node's *epoch*: [`Incarnation`] of its [`Address`], carried in every message. A
//! lease counts from when the request for it was *sent*: the arbiter cannot have started it earlier. The node stops
//! answering a margin before its end ([`Config::margin`]): the clocks of node and arbiter may differ in rate by the
//! stated bound, and an answer takes a while to leave. No two clocks are ever compared. Renewed after that but before
//! the arbiter has ended the lease, the node answers again with the same epoch, since nobody has taken over.
//!
//! # Homes
//! A map at the arbiter has the home of every shard, by address. It is changed only by replacing the version that the
//! proposer has seen (compare and swap), and so that a shard leaves a node in two ways: its address is no longer a member
//! (then any member may give the shard to another), or the node itself has given it up ([`Action::Release`],
//! [`Membership::on_released`]). So a node may act on the map that it has seen, however old, as long as its lease lasts:
//! whatever newer map there is leaves it its shards. Who should have which: [`homes`].
//!
//! Rejected: homes computed by each node from the members that it sees (rendezvous hashing). Then a node that joins and
//! one that has not seen it yet both believe to be the home; that a joiner waits until all others must have seen it costs
//! a lease for every join, and a home cannot finish what is under way. Rejected, too: a key with the lease for each
//! shard, which costs as many changes as shards at each join and death.
//!
//! # An arbiter that forgets
//! Its revision never falls, nor the map's version, unless it has lost data or got older ones. So a lease is counted as
//! renewed, and a node registers, only where the arbiter has reached the revision that the node had seen before; and whoever
//! finds it behind in that, or in a view, is over for good ([`Action::Over`]): its process must end, and a new one begins
//! in what the arbiter has now. So no lease is prolonged by an arbiter that has forgotten what was done under it. And so
//! long as a lease, nodes may answer of which it knows nothing: a node that sees no other member registers a lease after its
//! own was granted ([`Action::Alone`]), which the arbiter has not forgotten since if it can register with it; all others at
//! once. The node's clock stands in for the arbiter's, so those who answer have kept the margin for it.
//!
//! Not seen is older data with which the arbiter goes on while nodes run, in two cases: its revisions have passed what a node
//! has seen before that looks, or a lease begins anew that was over. Then only what is registered, or in the map, differs.
//!
//! Rejected: random marks in the arbiter, and a wait of each node that starts. That is a lease for every join.
//!
//! # What leases cannot do
//! A process may be stopped between asking whether it may answer and the answer's departure. Such a late answer bears a
//! term that is over. Whoever has seen the newer map ignores it; whoever has not has not answered the new home's survey,
//! either, without which that one grants nothing ([`coherence`](super::coherence)).
//!
//! # Assumed of the arbiter
//! A lease never ends earlier than its time to live after it was granted or renewed, by a clock within the bound. Changes
//! are seen in order and a deleted key's epoch never returns, as long as it has its data. Nobody else deletes keys.

pub mod homes;
mod lease;
mod view;

use std::time::Duration;

use thiserror::Error;

pub use crate::coherence::{Address, Incarnation, NodeId};
use crate::unit::Instant;
use homes::{Home, Homes, Map, Release, ShardNo};
pub use lease::Config;
use lease::{Lease, Stage};
use view::View;
pub use view::{Change, Members};

/// A revision of the arbiter's store: rises with every change of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The epoch of a key that was created at this revision.
    ///
    /// # Errors
    /// Incarnations end at 2³² - 1: beyond, the cluster needs another arbiter.
    pub fn epoch(self) -> Result<Incarnation, EpochError> {
        u32::try_from(self.0).map(Incarnation).map_err(|_| EpochError(self.0))
    }

    /// The term of homes in a map that replaces the one of this version.
    ///
    /// # Errors
    /// As [`epoch`](Self::epoch).
    pub fn next_term(self) -> Result<Incarnation, EpochError> {
        Revision(self.0.saturating_add(1)).epoch()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "revision {0} is beyond the epochs that messages can carry (2^32 - 1): the cluster needs an arbiter of its own"
)]
pub struct EpochError(pub u64);

/// What the arbiter has is older than what this node has seen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StaleView {
    #[error("revision {} after {}", got.0, seen.0)]
    Revision { seen: Revision, got: Revision },
    #[error("no map of homes that can follow the one of revision {}", .0.0)]
    Map(Revision),
    #[error("this node's number is not its own any more")]
    Number,
}

/// What to ask the arbiter. One question at a time; each is answered by [`Membership::on_reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Grant a lease of [`Config::lease`].
    Grant,
    /// Create this node's key with the lease, unless it exists, or the arbiter has not reached `seen`.
    Register { seen: Revision },
    /// Renew the lease, then see that the arbiter has reached `seen`.
    Renew { seen: Revision },
    /// Replace the map, if its version is `version` (none yet: 0) and this node is registered.
    Propose { version: Revision, map: Map },
    /// End the lease, and the key with it.
    Deregister,
}

/// The arbiter's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Renew` and `Register`.
    Stale(StaleView),
    /// To `Grant` and `Renew`: the time to live that was granted.
    Leased(Duration),
    /// To `Renew` and `Register`: there is no such lease (any more).
    LeaseLost,
    /// To `Register`: the epoch of the key, which has this node's lease.
    Registered(Incarnation),
    /// To `Register`: the key exists with another lease.
    Occupied,
    /// To `Propose`: the map was replaced, or had another version. The view will show it.
    Proposed,
    Deregistered,
    /// No answer: it may have been done or not.
    Failed,
}

/// What the node has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer nothing any more until `Serve`. To be carried out before what follows: others may then take over.
    Stop,
    /// A node is no member any more and answers nothing.
    Dead(Address),
    Alive(Address),
    /// The home of a shard is now this one; also this node again, after it has given up the shard.
    Home {
        shard: ShardNo,
        home: Home,
    },
    /// Answer as this address. If its epoch is new, what was held before is lost.
    Serve(Address),
    /// Stop answering as the home of the shard, finish what is under way, then call [`Membership::on_released`].
    Release(Release),
    Ask(Ask),
    /// This node's key exists with another lease: of its earlier life, or another process has its name. It goes on
    /// trying.
    Occupied,
    /// There is no other member, so that this node waits for a lease before it registers, unless one appears.
    Alone,
    /// As `Stop`, and for good: nothing more will be done.
    Over(StaleView),
    /// Deregistered: nothing more will be done.
    Left,
}

pub type Actions = Vec<Action>;

/// The membership of one node.
#[derive(Clone, Debug)]
pub struct Membership {
    config: Config,
    stage: Stage,
    view: View,
    homes: Homes,
    /// What is asked and not answered.
    asked: Option<Asked>,
    /// This node, which is no member, sees no other.
    is_alone: bool,
    /// The last answer to `Register` was `Occupied`.
    is_occupied: bool,
    is_serving: bool,
    is_leaving: bool,
    /// Questions failed in a row, and when the next may be asked.
    failures: u32,
    retry_at: Instant,
}

#[derive(Clone, Debug)]
struct Asked {
    ask: Ask,
    /// Its lease is over: the answer does not count.
    is_void: bool,
}

impl Membership {
    pub fn new(config: Config) -> Self {
        Membership {
            config,
            stage: Stage::Out,
            view: View::default(),
            homes: Homes::new(config.shards),
            asked: None,
            is_alone: false,
            is_occupied: false,
            is_serving: false,
            is_leaving: false,
            failures: 0,
            retry_at: Instant::ZERO,
        }
    }

    /// Until when this node may answer, if at all. What reads it later must compare with the clock then: this is the
    /// fence, [`Action::Stop`] only tells of it.
    pub fn until(&self) -> Option<Instant> {
        self.stage.lease().filter(|_| self.is_serving).map(|lease| lease.until)
    }

    pub fn answers(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    /// Whether this node answers as the home of the shard.
    pub fn is_home(&self, now: Instant, shard: ShardNo) -> bool {
        self.answers(now) && self.homes.holds(shard, self.stage.address())
    }

    /// This node, while it is registered.
    pub fn address(&self) -> Option<Address> {
        self.stage.address()
    }

    /// When [`on_tick`](Self::on_tick) has to be called next.
    pub fn next(&self) -> Option<Instant> {
        let stop = self.until();
        let ask = if self.asked.is_none() { self.next_ask() } else { None };
        stop.into_iter().chain(ask).min()
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Instant) -> Actions {
        self.end(now, Actions::new())
    }

    /// The answer to what was asked. `sent`: when the request was sent, by the clock of `now`: its end, by the arbiter's
    /// clock, is counted from later.
    pub fn on_reply(&mut self, now: Instant, sent: Instant, reply: Reply) -> Actions {
        let mut actions = Actions::new();
        let Some(Asked { ask, is_void }) = self.asked.take() else { return actions };
        if reply == Reply::Failed {
            self.retry_at = now + self.config.backoff(self.failures);
            self.failures = self.failures.saturating_add(1);
            self.homes.on_failed();
        } else {
            self.failures = 0;
        }
        if !is_void {
            self.take(now, sent.min(now), ask, reply, &mut actions);
        }
        self.end(now, actions)
    }

    fn take(&mut self, now: Instant, sent: Instant, ask: Ask, reply: Reply, actions: &mut Actions) {
        match (ask, reply) {
            (Ask::Grant, Reply::Leased(ttl)) => {
                self.stage = Stage::Leased(Lease::new(&self.config, sent, ttl, now + ttl));
                self.is_occupied = false;
            }
            (Ask::Renew { .. }, Reply::Leased(ttl)) => self.stage.renew(&self.config, sent, ttl),
            (_, Reply::Stale(stale)) => self.go_over(stale, actions),
            (Ask::Register { .. }, Reply::Registered(epoch)) => {
                self.is_occupied = false;
                self.stage.register(Address { node: self.config.me, incarnation: epoch });
            }
            (Ask::Register { .. }, Reply::Occupied) => {
                if !std::mem::replace(&mut self.is_occupied, true) {
                    actions.push(Action::Occupied);
                }
                self.retry_at = now + self.config.lease / 8;
            }
            (Ask::Renew { .. } | Ask::Register { .. }, Reply::LeaseLost) => self.lose(actions),
            // Not answered, the lease ends by itself.
            (Ask::Deregister, _) => {
                self.stage = Stage::Left;
                actions.push(Action::Left);
            }
            _ => {}
        }
    }

    /// All that exists at `revision`.
    pub fn on_snapshot(
        &mut self,
        now: Instant,
        revision: Revision,
        members: Members,
        map: Option<(Revision, Map)>,
    ) -> Actions {
        let mut actions = Actions::new();
        let taken = self.view.on_snapshot(revision, members, &mut actions);
        match taken.and_then(|()| self.homes.check(map.as_ref())) {
            Ok(()) => map.into_iter().for_each(|(version, map)| self.homes.on_map(version, map, &mut actions)),
            Err(stale) => self.go_over(stale, &mut actions),
        }
        self.end(now, actions)
    }

    /// What changed since, up to `revision`. Those changes that this node has seen already are ignored.
    pub fn on_changes(
        &mut self,
        now: Instant,
        revision: Revision,
        changes: impl IntoIterator<Item = (Revision, Change)>,
    ) -> Actions {
        let mut actions = Actions::new();
        let seen = self.view.seen();
        for (at, change) in changes.into_iter().filter(|(at, _)| *at > seen) {
            match change {
                Change::Joined(address) => self.view.on_joined(address, &mut actions),
                Change::Left(node) => self.view.on_left(node, &mut actions),
                Change::Map(map) => self.homes.on_map(at, map, &mut actions),
            }
            self.view.reach(at);
        }
        self.view.reach(revision);
        self.end(now, actions)
    }

    /// The service answers no more as the home of this shard, and what it had answered has left.
    pub fn on_released(&mut self, now: Instant, release: Release) -> Actions {
        self.homes.on_released(release);
        self.end(now, Actions::new())
    }

    /// A clean end: stop, then deregister.
    pub fn on_leave(&mut self, now: Instant) -> Actions {
        self.is_leaving = true;
        self.end(now, Actions::new())
    }

    /// Is this node in the view where it must be?
    fn follow(&mut self, actions: &mut Actions) {
        if let Some(me) = self.stage.address()
            && self.view.seen() >= Revision(me.incarnation.0.into())
            && !self.view.has(me)
        {
            self.lose(actions);
        }
    }

    /// The lease is over: a new one, and a new epoch.
    fn lose(&mut self, actions: &mut Actions) {
        self.stop(actions);
        self.stage = Stage::Out;
        self.homes.on_lost();
        if let Some(asked) = &mut self.asked {
            asked.is_void = asked.ask != Ask::Deregister;
        }
    }

    /// The arbiter has forgotten what this node has seen: nothing that it knows counts any more.
    fn go_over(&mut self, stale: StaleView, actions: &mut Actions) {
        if !matches!(self.stage, Stage::Left) {
            self.is_serving = false;
            self.lose(actions);
            self.stage = Stage::Left;
            *actions = vec![Action::Over(stale)];
        }
    }

    /// Whether this node, which has a lease, may register, or when it may: others may answer before of which nothing is known.
    fn register_at(&self, lease: Lease) -> Instant {
        if self.has_others() { Instant::ZERO } else { lease.alone_until }
    }

    fn has_others(&self) -> bool {
        self.view.members().any(|member| member.node != self.config.me)
    }

    fn note_alone(&mut self, actions: &mut Actions) {
        let is_out = matches!(self.stage, Stage::Out | Stage::Leased(_));
        let is_alone = is_out && self.view.seen() > Revision(0) && !self.has_others();
        if !std::mem::replace(&mut self.is_alone, is_alone) && is_alone {
            actions.push(Action::Alone);
        }
    }

    fn stop(&mut self, actions: &mut Actions) {
        if std::mem::take(&mut self.is_serving) {
            actions.insert(0, Action::Stop);
        }
    }

    /// What follows from the state after every event.
    fn end(&mut self, now: Instant, mut actions: Actions) -> Actions {
        self.follow(&mut actions);
        self.note_alone(&mut actions);
        let me = self.stage.address().filter(|me| self.view.has(*me));
        let is_leased = self.stage.lease().is_some_and(|lease| now < lease.until);
        match me {
            Some(me) if is_leased && !self.is_leaving => {
                if !std::mem::replace(&mut self.is_serving, true) {
                    actions.push(Action::Serve(me));
                }
            }
            _ => self.stop(&mut actions),
        }
        // A view tells of this node's own key, too.
        let own = self.config.me;
        actions.retain(|action| !matches!(action, Action::Alive(of) | Action::Dead(of) if of.node == own));
        if let Some(me) = me {
            self.homes.plan(me, &self.view.members().collect::<Vec<_>>(), &mut actions);
        }
        if self.asked.is_none()
            && self.next_ask().is_some_and(|at| at <= now)
            && let Some(ask) = self.ask(now, me)
        {
            self.asked = Some(Asked { ask: ask.clone(), is_void: false });
            actions.push(Action::Ask(ask));
        }
        actions
    }

    /// When something can be asked.
    fn next_ask(&self) -> Option<Instant> {
        let renew = self.stage.lease().map(|lease| lease.renew_at);
        let due = match self.stage {
            Stage::Left => return None,
            _ if self.is_leaving => Some(Instant::ZERO),
            Stage::Out => Some(Instant::ZERO),
            Stage::Leased(lease) => Some(self.register_at(lease)),
            Stage::Member(..) => self.homes.has_proposal().then_some(Instant::ZERO),
        };
        due.into_iter().chain(renew).min().map(|at| at.max(self.retry_at))
    }

    fn ask(&mut self, now: Instant, me: Option<Address>) -> Option<Ask> {
        let renew_at = self.stage.lease().map(|lease| lease.renew_at);
        let seen = self.view.seen();
        match self.stage {
            Stage::Left => None,
            _ if self.is_leaving => Some(Ask::Deregister),
            Stage::Out => Some(Ask::Grant),
            _ if renew_at.is_some_and(|at| at <= now) => Some(Ask::Renew { seen }),
            Stage::Leased(lease) => (self.register_at(lease) <= now).then_some(Ask::Register { seen }),
            Stage::Member(..) => me.and_then(|me| self.homes.propose(me)),
        }
    }
}
