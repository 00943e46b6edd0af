//! This node as a member: the thread `cluster`, which has the policy, and what the service has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use policy::membership::homes::{Home, Release, ShardNo};
use policy::membership::{Action, Actions, Address, Ask, Config, Membership, NodeId, Reply, StaleView};
use policy::unit::Instant;

use super::ask::{Asker, claim_number};
use super::etcd::Etcd;
use super::fence::{Fence, now};
use super::gateway::Gateway;
use super::keys::Keys;
use super::problem::{EtcdError, Problem};
use super::settings::Settings;
use super::watch::{Peer, Seen, Watcher};

use crate::tell::tell;

/// Pause between attempts to get this node's number.
const RETRY: Duration = Duration::from_millis(50);

/// What the service is told, in this order. It is called by one thread, which asks nothing of etcd meanwhile; it must
/// not take longer than a small part of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The numbers of this node and of those of [`Settings::others`], before all else.
    Numbered(BTreeMap<String, NodeId>),
    /// Answer as this address: see [`Action::Serve`].
    Serve(Address),
    /// Answer nothing any more; when the call returns, nothing is answered.
    Stop,
    Alive {
        address: Address,
        peer: Peer,
    },
    Dead(Address),
    /// All that one change of the map says: the homes of these shards are now these, or this node's again after it had
    /// given one up.
    Homes(Vec<(ShardNo, Home)>),
    /// Finish what is under way as the home of the shard, then call [`Releases::done`].
    Release(Release),
    /// Something stands in the way; it goes on trying.
    Problem(Problem),
    /// etcd answers again.
    Recovered,
    /// No other node is registered, so that this one waits for a lease, this long, unless another appears.
    Alone(Duration),
    /// As [`Event::Stop`], and for good: etcd has lost what this node has seen there. It is told nothing more.
    Over(StaleView),
}

enum Input {
    Seen(Seen),
    Reply(Instant, Result<Reply, Problem>),
    Released(Release),
    Leave,
    Abandon,
}

/// A node that is a member, or tries to be. Dropped, it ends without a word, and its lease ends by itself;
/// [`leave`](Self::leave) is the clean end.
pub struct Member {
    inputs: Sender<Input>,
    fence: Arc<Fence>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Begins to join. `on` is told what happens.
    ///
    /// # Errors
    /// When the settings are not allowed, or no thread can be started.
    pub fn join(settings: Settings, on: impl FnMut(Event) + Send + 'static) -> anyhow::Result<Member> {
        settings.check()?;
        let (inputs, received) = channel();
        let fence = Arc::new(Fence::default());
        let own = Own {
            settings,
            inputs: inputs.clone(),
            cluster: Arc::default(),
            fence: Arc::clone(&fence),
            membership: None,
            peers: BTreeMap::new(),
            problems: [None, None],
            is_other_told: false,
            on: Box::new(on),
        };
        let run = move || own.run(&received);
        let thread = Some(Builder::new().name("cluster".into()).spawn(run)?);
        Ok(Member { inputs, fence, thread })
    }

    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// For whoever gives up shards.
    pub fn releases(&self) -> Releases {
        Releases(self.inputs.clone())
    }

    /// Stops answering and deregisters, so that others take over at once. Takes a few timeouts (each a quarter of the
    /// lease) at most.
    pub fn leave(mut self) {
        self.end(Input::Leave);
    }

    fn end(&mut self, input: Input) {
        let _ = self.inputs.send(input);
        if let Some(thread) = self.thread.take() {
            // A panic was printed.
            let _ = thread.join();
        }
    }
}

/// Where the service says that a shard was given up.
#[derive(Clone)]
pub struct Releases(Sender<Input>);

impl Releases {
    /// What [`Event::Release`] asked for is done.
    pub fn done(&self, release: Release) {
        // Without its thread the membership has ended, and so have its shards.
        let _ = self.0.send(Input::Released(release));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end(Input::Abandon);
    }
}

/// What the thread has.
struct Own {
    settings: Settings,
    inputs: Sender<Input>,
    /// etcd's number of its cluster.
    cluster: Arc<OnceLock<String>>,
    fence: Arc<Fence>,
    /// There is none before this node has its number.
    membership: Option<Membership>,
    peers: BTreeMap<Address, Peer>,
    /// What stands in the way of questions, and of watching.
    problems: [Option<Problem>; 2],
    /// Was it said that an endpoint is of another etcd?
    is_other_told: bool,
    on: Box<dyn FnMut(Event) + Send>,
}

impl Own {
    fn run(mut self, inputs: &Receiver<Input>) {
        let Some(node) = self.number(inputs) else { return };
        let config = Config::new(node, self.settings.shards, self.settings.lease);
        self.membership = Some(Membership::new(config));
        let (questions, asked) = channel();
        // Dropped at the end, it ends the thread that watches.
        let (_watching, end) = channel();
        match self.start(node, asked, end) {
            Ok(()) => self.serve(inputs, &questions),
            Err(error) => tell(format_args!("cluster: cannot start a thread: {error}")),
        }
        self.fence.shut();
    }

    /// A quarter of the lease: two endpoints may be silent, and it is still renewed in time.
    fn timeout(&self) -> Duration {
        self.settings.lease / 4
    }

    fn gateway(&self) -> Gateway {
        Gateway::new(&self.settings.etcd, &self.cluster, self.timeout())
    }

    /// This node's number; `None` if it ends before.
    fn number(&mut self, inputs: &Receiver<Input>) -> Option<NodeId> {
        let (mut etcd, keys) = (Etcd(self.gateway()), Keys::new(&self.settings));
        let names: BTreeSet<String> = self.settings.others.iter().chain([&self.settings.node]).cloned().collect();
        loop {
            let claim = |name: &String| Ok((name.clone(), claim_number(&mut etcd, &keys, name)?));
            match names.iter().map(claim).collect::<Result<BTreeMap<_, _>, _>>() {
                Ok(numbers) => {
                    self.recovered(Source::Questions);
                    let own = numbers.get(&self.settings.node).copied();
                    (self.on)(Event::Numbered(numbers));
                    return own;
                }
                Err(problem) => self.report(Source::Questions, problem),
            }
            match inputs.recv_timeout(RETRY) {
                Ok(Input::Leave | Input::Abandon) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn start(&self, node: NodeId, asked: Receiver<Ask>, end: Receiver<()>) -> std::io::Result<()> {
        let mut asker = Asker::new(Etcd(self.gateway()), self.settings.clone(), node);
        let inputs = self.inputs.clone();
        Builder::new().name("cluster-ask".into()).spawn(move || {
            for ask in asked {
                let (sent, reply) = asker.answer(ask);
                if inputs.send(Input::Reply(sent, reply)).is_err() {
                    return;
                }
            }
        })?;
        let (timeout, silence) = (self.timeout(), self.settings.lease / 2);
        let streamed = Gateway::streaming(&self.settings.etcd, &self.cluster, timeout, silence);
        let keys = Keys::new(&self.settings);
        let mut watcher = Watcher::new(Etcd(self.gateway()), Etcd(streamed), keys, self.settings.shards);
        let inputs = self.inputs.clone();
        let watch = move || watcher.run(&end, |seen| inputs.send(Input::Seen(seen)).is_ok());
        Builder::new().name("cluster-watch".into()).spawn(watch).map(drop)
    }

    fn serve(&mut self, inputs: &Receiver<Input>, questions: &Sender<Ask>) {
        let mut actions = self.decide(|membership| membership.on_tick(now()));
        loop {
            let mut todo = actions.into_iter().peekable();
            while let Some(action) = todo.next() {
                match action {
                    Action::Ask(ask) => drop(questions.send(ask)),
                    Action::Left => return,
                    Action::Over(stale) => return (self.on)(Event::Over(stale)),
                    Action::Home { shard, home } => {
                        let mut homes = vec![(shard, home)];
                        while let Some(Action::Home { shard, home }) =
                            todo.next_if(|next| matches!(next, Action::Home { .. }))
                        {
                            homes.push((shard, home));
                        }
                        (self.on)(Event::Homes(homes));
                    }
                    action => self.tell(action),
                }
            }
            let next = self.membership.as_ref().and_then(Membership::next);
            let input = match next {
                Some(next) => inputs.recv_timeout(next - now()),
                None => inputs.recv().map_err(RecvTimeoutError::from),
            };
            actions = match input {
                Ok(Input::Abandon) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => self.decide(|membership| membership.on_tick(now())),
            };
        }
    }

    fn take(&mut self, input: Input) -> Actions {
        match input {
            Input::Reply(sent, Ok(reply)) => {
                self.recovered(Source::Questions);
                self.decide(|membership| membership.on_reply(now(), sent, reply))
            }
            Input::Reply(sent, Err(problem)) => {
                self.report(Source::Questions, problem);
                self.decide(|membership| membership.on_reply(now(), sent, Reply::Failed))
            }
            Input::Released(release) => self.decide(|membership| membership.on_released(now(), release)),
            Input::Leave => self.decide(|membership| membership.on_leave(now())),
            Input::Seen(Seen::Problem(problem)) => {
                self.report(Source::Watch, problem);
                Actions::new()
            }
            Input::Seen(Seen::Changes { changes, peers }) => {
                self.recovered(Source::Watch);
                self.peers.extend(peers);
                let last = changes.iter().map(|(at, _)| *at).max().unwrap_or_default();
                self.decide(|membership| membership.on_changes(now(), last, changes))
            }
            Input::Seen(Seen::All { revision, members, peers, map }) => {
                self.peers = peers.into_iter().collect();
                self.decide(|membership| membership.on_snapshot(now(), revision, members, map))
            }
            Input::Abandon => Actions::new(),
        }
    }

    /// The policy decides, and the fence follows before anybody is told.
    fn decide(&mut self, decide: impl FnOnce(&mut Membership) -> Actions) -> Actions {
        let Some(membership) = &mut self.membership else { return Actions::new() };
        let actions = decide(membership);
        match (membership.until(), membership.address()) {
            (Some(until), Some(me)) => self.fence.open(me.incarnation, until),
            _ => self.fence.shut(),
        }
        actions
    }

    fn tell(&mut self, action: Action) {
        let event = match action {
            Action::Serve(me) => Event::Serve(me),
            Action::Stop => Event::Stop,
            Action::Dead(address) => {
                self.peers.remove(&address);
                Event::Dead(address)
            }
            Action::Alive(address) => match self.peers.get(&address).cloned() {
                Some(peer) => Event::Alive { address, peer },
                // Of a batch in which it has died.
                None => return,
            },
            Action::Release(release) => Event::Release(release),
            Action::Occupied => Event::Problem(Problem::Occupied(self.settings.node.clone())),
            Action::Alone => Event::Alone(self.settings.lease),
            Action::Home { .. } | Action::Ask(_) | Action::Left | Action::Over(_) => return,
        };
        (self.on)(event);
    }

    /// Reports a problem that is new: that etcd does not answer is one, whatever the reasons of its endpoints.
    fn report(&mut self, of: Source, problem: Problem) {
        let is_etcd = |problem: &Option<Problem>| matches!(problem, Some(Problem::Etcd(_)));
        let before = self.problems[of as usize].replace(problem.clone());
        let other = &self.problems[1 - of as usize];
        let is_known = match problem {
            // The others come and go with it.
            Problem::Etcd(EtcdError::OtherCluster { .. }) => std::mem::replace(&mut self.is_other_told, true),
            Problem::Etcd(_) => is_etcd(&before) || is_etcd(other),
            _ => before.as_ref() == Some(&problem),
        };
        if !is_known {
            (self.on)(Event::Problem(problem));
        }
    }

    fn recovered(&mut self, of: Source) {
        let is_etcd = |problem: &Option<Problem>| matches!(problem, Some(Problem::Etcd(_)));
        if is_etcd(&self.problems[of as usize]) {
            self.problems[of as usize] = None;
            self.is_other_told = false;
            if !is_etcd(&self.problems[1 - of as usize]) {
                (self.on)(Event::Recovered);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Source {
    Questions,
    Watch,
}
