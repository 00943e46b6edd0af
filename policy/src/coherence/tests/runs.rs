//! A run in one step leaves a node, and what it sends, as the same messages one by one do; one that is refused changes nothing.

use std::ops::Range;
use std::time::Duration;

use testkit::random::Random;

use super::super::{
    Action, Actions, Address, Asks, Config, Copied, Envelope, Grants, Home, Homes, Incarnation, Local, Message, Mode,
    Node, NodeId, PageNo, Request, Serial, ShardNo, Storage, Version,
};
use crate::unit::Instant;

const PAGES: u64 = 150;
const NODES: u16 = 3;
const FIRST: Incarnation = Incarnation::FIRST;

/// One page in so many is cached.
const CACHED: u64 = 13;

const NOW: Instant = Instant::from_ns(7);

fn address(node: u16) -> Address {
    Address { node: NodeId(node), incarnation: FIRST }
}

fn state(node: &Node) -> String {
    format!("{node:?}")
}

fn sent(actions: impl IntoIterator<Item = Action>) -> Vec<Envelope> {
    let envelope = |action| if let Action::Send(envelope) = action { Some(envelope) } else { None };
    actions.into_iter().filter_map(envelope).collect()
}

/// Node 0 is the home of all pages, in parts of 100; messages arrive in order, some of them late.
struct World {
    nodes: Vec<Node>,
    network: Vec<Envelope>,
    /// Of the home, where homes move.
    term: Option<Incarnation>,
    /// Runs that were taken in one step: asked for, granted, arrived; and pages that were dropped before.
    taken: [u32; 4],
}

impl World {
    fn new(storage: Storage, forwarding: bool) -> World {
        World::with(Homes::Of(1), storage, forwarding)
    }

    /// Where homes move, and node 0 surveys the others.
    fn mapped() -> World {
        let mut world = World::with(Homes::Mapped { shards: 2 }, Storage::Shared, false);
        world.begin_term();
        world
    }

    fn with(homes: Homes, storage: Storage, forwarding: bool) -> World {
        let timeout = Duration::from_secs(1);
        let config = Config { nodes: NODES, pages: PAGES, homes, shard: 100, storage, pages_max: 140, timeout };
        let others = |node| (0..NODES).filter(move |other| *other != node).map(|other| (NodeId(other), Some(FIRST)));
        let mut nodes: Vec<Node> = (0..NODES).map(|node| Node::new(config, address(node), [], others(node))).collect();
        nodes.iter_mut().for_each(|node| node.set_forwarding(forwarding));
        World { nodes, network: Vec::new(), term: None, taken: [0; 4] }
    }

    /// Node 0 is the home in a new term.
    fn begin_term(&mut self) {
        let since = Incarnation(self.term.map_or(4, |term| term.0 + 1));
        self.term = Some(since);
        let homes = [0, 1].map(|shard| (ShardNo(shard), Home { at: address(0), since }));
        for node in 0..self.nodes.len() {
            let actions = self.nodes[node].on_homes(NOW, homes, [], |_| false);
            self.act(actions);
        }
    }

    fn deliver_all(&mut self) {
        while !self.network.is_empty() {
            let envelope = self.network.remove(0);
            let actions = self.deliver(envelope);
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Actions) {
        self.network.extend(sent(actions));
    }

    fn local(&mut self, node: usize, want: Local, page: PageNo) {
        if let Ok(actions) = self.nodes[node].on_local(NOW, want, page) {
            self.act(actions);
        }
    }

    fn deliver(&mut self, envelope: Envelope) -> Actions {
        self.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope)
    }

    /// What a node asks for in one step is what it asks for page by page.
    fn read_run(&mut self, node: usize, pages: Range<PageNo>) -> Option<Asks> {
        let (before, mut single) = (state(&self.nodes[node]), self.nodes[node].clone());
        let is_cached = |page: PageNo| page.0.is_multiple_of(CACHED);
        let Some((asks, dropped)) = self.nodes[node].read_run(NOW, pages.clone(), is_cached) else {
            assert_eq!(state(&self.nodes[node]), before, "it was refused");
            return None;
        };
        let (mut asked, mut all_dropped) = (Vec::new(), Vec::new());
        for page in (pages.start.0..pages.end.0).map(PageNo) {
            if single.holds(page).is_some() {
                assert!(
                    !is_cached(page) && single.copied(page) == Copied { held: Some(Mode::Read), ..Copied::default() }
                );
                let done = single.on_local(NOW, Local::Drop, page).expect("it may");
                assert_eq!(done[..], [Action::Revoke(page), Action::Discard(page), Action::Saved(page)]);
                all_dropped.push(page);
                self.taken[3] += 1;
            }
            asked.extend(sent(single.on_local(NOW, Local::Read, page).expect("it may")));
        }
        assert_eq!((asked, all_dropped), (asks.envelopes().collect(), dropped));
        assert_eq!(state(&self.nodes[node]), state(&single));
        self.taken[0] += 1;
        Some(asks)
    }

    /// Also of messages that no node has sent.
    fn ask(&mut self, asks: &Asks) -> Option<Grants> {
        let home = &mut self.nodes[0];
        let (before, mut single) = (state(home), home.clone());
        let may = home.may_grant(asks);
        assert_eq!(state(home), before);
        let Some(grants) = home.on_asks(asks) else {
            assert!(!may);
            assert_eq!(state(home), before, "it was refused");
            return None;
        };
        assert!(may);
        let granted: Vec<_> = asks.envelopes().flat_map(|envelope| sent(single.on_message(NOW, envelope))).collect();
        assert_eq!(granted, grants.envelopes().collect::<Vec<_>>());
        assert_eq!(state(home), state(&single));
        assert!(asks.pieces(7).flat_map(|some| some.envelopes().collect::<Vec<_>>()).eq(asks.envelopes()));
        self.taken[1] += 1;
        Some(grants)
    }

    fn grant(&mut self, node: usize, grants: &Grants) -> bool {
        let (before, mut single) = (state(&self.nodes[node]), self.nodes[node].clone());
        if !self.nodes[node].on_grants(grants) {
            assert_eq!(state(&self.nodes[node]), before, "it was refused");
            return false;
        }
        for (envelope, (_, version)) in grants.envelopes().zip(&grants.granted) {
            let page = envelope.message.page().expect("it is about one");
            let access = Action::Access { page, mode: Mode::Read, version: *version };
            assert_eq!(single.on_message(NOW, envelope)[..], [access]);
        }
        assert_eq!(state(&self.nodes[node]), state(&single));
        self.taken[2] += 1;
        true
    }

    /// A run that is asked for, granted and arrives, each in one step where that is possible, while other messages may come
    /// between.
    fn run(&mut self, random: &mut Random) {
        let (node, start) = (1 + random.index(2), random.below(PAGES));
        let pages = PageNo(start)..PageNo(start + random.below(40));
        let Some(asks) = self.read_run(node, pages) else { return };
        self.some(random);
        let Some(mut grants) = self.ask(&asks) else {
            self.network.extend(asks.envelopes());
            return;
        };
        self.some(random);
        if random.chance(100) {
            spoil(&mut grants, random);
        }
        if !self.grant(node, &grants) {
            self.network.extend(grants.envelopes());
        }
    }

    /// Other messages, and requests for single pages.
    fn some(&mut self, random: &mut Random) {
        if self.term.is_some() && random.chance(30) {
            let shard = ShardNo(random.below(2) as u16);
            match random.below(3) {
                0 => self.nodes[0].release(shard),
                1 => {
                    let actions = self.nodes[0].take_back(NOW, shard);
                    self.act(actions);
                }
                _ => self.begin_term(),
            }
        }
        for _ in 0..random.below(6) {
            let (node, page) = (random.index(self.nodes.len()), PageNo(random.below(PAGES)));
            match random.below(10) {
                0..2 => self.local(node, Local::Read, page),
                2..4 => self.local(node, *random.pick(&[Local::Write, Local::Overwrite]), page),
                4 => self.local(node, *random.pick(&[Local::WriteBack, Local::Drop]), page),
                _ if !self.network.is_empty() => {
                    let envelope = self.network.remove(random.index(self.network.len().min(4)));
                    let actions = self.deliver(envelope);
                    self.act(actions);
                }
                _ => {}
            }
        }
    }
}

/// Grants that the home has not made so.
fn spoil(grants: &mut Grants, random: &mut Random) {
    let serial = |incarnation| Serial { incarnation: Incarnation(incarnation), count: 3 };
    match random.below(7) {
        0 => grants.first = Request(grants.first.0 + 1),
        1 => grants.from = address(2),
        2 => grants.to = address(0),
        3 => grants.pages.end = PageNo(grants.pages.end.0 + 1),
        4 => grants.granted.push((serial(1), Version::default())),
        5 => {
            let index = random.index(grants.granted.len());
            grants.granted[index].0.incarnation = Incarnation(3);
        }
        _ => grants.from.incarnation = Incarnation(9),
    }
}

#[test]
fn runs_are_taken_as_their_messages_one_by_one() {
    let mut taken = [0; 4];
    for seed in testkit::rounds::seeds(45) {
        let mut random = Random(seed);
        let storage = *random.pick(&[Storage::Plain, Storage::Versioned, Storage::Volatile, Storage::Shared]);
        let mut world = if random.chance(300) { World::mapped() } else { World::new(storage, random.chance(500)) };
        for _ in 0..200 {
            world.run(&mut random);
            world.some(&mut random);
            // Of a node that has made its numbers up.
            let start = random.below(PAGES);
            let pages = PageNo(start)..PageNo(start + random.below(20));
            let (from, to) = (address(random.below(4) as u16), address(random.below(2) as u16));
            let first = Request(random.below(50));
            if let Some(grants) = world.ask(&Asks { from, to, pages, first }) {
                world.network.extend(grants.envelopes());
            }
            if random.chance(300) {
                // Room for more.
                (0..PAGES).for_each(|page| world.local(1, Local::Drop, PageNo(page)));
            }
        }
        (0..4).for_each(|step| taken[step] += world.taken[step]);
    }
    assert!(taken.iter().all(|count| *count > 300), "{taken:?}");
}

#[test]
fn a_recall_that_comes_before_a_run_of_grants_is_answered_page_by_page() {
    let mut world = World::new(Storage::Plain, false);
    let asks = world.read_run(1, PageNo(0)..PageNo(8)).expect("nothing is held");
    let grants = world.ask(&asks).expect("nothing is granted");
    world.local(2, Local::Write, PageNo(5));
    let ask = world.network.remove(0);
    let recall = sent(world.deliver(ask))[0];
    assert!(matches!(recall.message, Message::Recall { page: PageNo(5), .. }));
    let nothing = world.deliver(recall);
    assert!(nothing.is_empty() && !world.grant(1, &grants), "{nothing:?}");
    let answers: Vec<_> = grants.envelopes().flat_map(|envelope| sent(world.deliver(envelope))).collect();
    assert!(matches!(answers[..], [Envelope { message: Message::GaveUp { page: PageNo(5), .. }, .. }]));
}

#[test]
fn a_run_in_two_parts_of_the_pages_or_beyond_them_is_refused() {
    let mut world = World::new(Storage::Plain, false);
    let runs = [(90, 110), (100, 100), (140, PAGES + 1), (9, 2), (u64::MAX - 1, u64::MAX)];
    for (start, end) in runs {
        assert_eq!(world.read_run(1, PageNo(start)..PageNo(end)), None);
        let (from, to, pages) = (address(1), address(0), PageNo(start)..PageNo(end));
        assert_eq!(world.ask(&Asks { from, to, pages, first: Request(u64::MAX) }), None);
    }
    let own = world.read_run(0, PageNo(0)..PageNo(4));
    assert_eq!(own, None, "of its own pages it asks nobody");
    assert!(world.read_run(1, PageNo(100)..PageNo(PAGES)).is_some());
}

#[test]
fn a_home_grants_no_run_while_it_surveys_or_has_released_it_and_none_of_an_earlier_term_is_taken() {
    let mut world = World::mapped();
    let asks = world.read_run(1, PageNo(0)..PageNo(8)).expect("nothing is held");
    assert!(world.nodes[0].is_surveying());
    assert_eq!(world.ask(&asks), None);
    world.deliver_all();
    assert!(!world.nodes[0].is_surveying());
    let asks = world.read_run(1, PageNo(20)..PageNo(28)).expect("nothing is held");
    world.nodes[0].release(ShardNo(0));
    assert_eq!(world.ask(&asks), None);
    let actions = world.nodes[0].take_back(NOW, ShardNo(0));
    world.act(actions);
    let grants = world.ask(&asks).expect("it is the home");
    for index in 0..grants.granted.len() {
        let mut spoiled = grants.clone();
        spoiled.granted[index].0.incarnation = Incarnation(3);
        assert!(!world.grant(1, &spoiled), "page {index}");
    }
    assert!(world.grant(1, &grants));
}
