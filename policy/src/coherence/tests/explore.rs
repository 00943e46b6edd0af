//! Every state that a few nodes can reach, breadth first, whatever their processes request, whatever the network does
//! to messages (loses, delays, reorders, duplicates), whichever node dies.
//!
//! The network is a set of a bounded number of messages. Each may be delivered now or later, stay and be delivered
//! again, or be lost; one that exceeds the bound is lost. So reordering and duplication are bounded by that number, and
//! nothing else is: the numbers in messages and states are encoded as their ranks (`encode`), which makes the space
//! finite, and messages that can never change anything are lost at once (`stale`).
//!
//! Pages share only the network, the deaths of nodes and the survey of a home that returns. So contention is explored
//! with one page, and the interplay of these three with two; then one access waits at a time.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::io::Write;

use super::super::{Local, PageNo, Storage};
use super::encode::{Encoder, Names};
use super::stale;
use super::world::{Broken, Flaw, World};

#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub nodes: usize,
    pub pages: usize,
    pub in_flight: usize,
    /// One of these may die, and return.
    pub mortal: &'static [usize],
    /// Requests of the processes, for each page.
    pub wants: [&'static [Local]; 2],
    /// Maximum of local accesses that wait at a time.
    pub waiting: usize,
    pub flaw: Option<Flaw>,
    /// Homes are asked to have all stored, one flush at a time.
    pub flushes: bool,
    /// Pages go straight from the node that has them to the one that wants them.
    pub forwards: bool,
    /// A home whose storage has versions returns informed of who lives; others return without news of the others.
    pub storage: Storage,
    /// Limit of states; beyond it the exploration stops, and the space is not covered.
    pub states_max: usize,
}

impl Space {
    /// What may change places without a difference, besides nothing: with one page, two nodes that are not its home; with
    /// two pages, they and their homes.
    fn alike(&self) -> Option<Names> {
        let (names, changed) = match (self.nodes, self.pages) {
            (3, 1) => (Names { nodes: vec![0, 2, 1], pages: vec![0] }, [1, 2]),
            (2, 2) => (Names { nodes: vec![1, 0], pages: vec![1, 0] }, [0, 1]),
            (3, 2) => (Names { nodes: vec![1, 0, 2], pages: vec![1, 0] }, [0, 1]),
            _ => return None,
        };
        let are_as_mortal = self.mortal.contains(&changed[0]) == self.mortal.contains(&changed[1]);
        let want_the_same = self.pages == 1 || self.wants[0] == self.wants[1];
        // What a broken protocol does may depend on numbers.
        (are_as_mortal && want_the_same && self.flaw.is_none()).then_some(names)
    }

    fn encoder(&self) -> Encoder {
        Encoder::new(&begin(self), self.alike())
    }
}

#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub transitions: u64,
    /// All states were explored, and each of them can come to rest once processes request nothing more and the network
    /// loses nothing more; else what is wrong, with its history.
    pub verdict: Result<(), String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transition {
    Disturbance,
    Progress,
}

/// The keys are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

/// Calls `found` with each successor of a state.
fn successors(
    world: &World,
    space: &Space,
    mut found: impl FnMut(Transition, Result<World, Broken>, &dyn Fn() -> String),
) {
    let step = |change: &dyn Fn(&mut World) -> Result<(), Broken>| {
        let mut next = world.clone();
        change(&mut next).map(|()| next)
    };
    let (count, is_busy) = (world.nodes.len(), world.waiting() >= space.waiting);
    for (index, envelope) in world.network.iter().enumerate() {
        found(Transition::Progress, step(&|next| next.deliver(index, false)), &|| format!("delivers {envelope:?}"));
        found(Transition::Disturbance, step(&|next| next.deliver(index, true)), &|| {
            format!("delivers, and duplicates, {envelope:?}")
        });
        let lose = |next: &mut World| {
            next.network.remove(index);
            Ok(())
        };
        found(Transition::Disturbance, step(&lose), &|| format!("loses {envelope:?}"));
    }
    for node in (0..count).filter(|node| world.nodes[*node].is_some()) {
        for envelope in world.retransmissions(node) {
            let mut next = world.clone();
            if next.put(envelope) {
                found(Transition::Progress, Ok(next), &|| format!("retransmits {envelope:?}"));
            }
        }
        for page in (0..space.pages).map(|page| PageNo(page as u64)) {
            for want in space.wants[page.0 as usize] {
                if matches!(want, Local::Read | Local::Write | Local::Overwrite) && is_busy {
                    continue;
                }
                let local = step(&|next| next.local(node, *want, page));
                found(Transition::Disturbance, local, &|| format!("node {node} wants to {want:?} {page:?}"));
            }
        }
        if space.flushes && world.may_flush(node) {
            found(Transition::Disturbance, step(&|next| next.flush(node)), &|| format!("home {node} flushes"));
        }
        for of in (0..count).filter(|of| world.has_news(node, *of)) {
            found(Transition::Progress, step(&|next| next.notify(node, of)), &|| {
                format!("node {node} is notified of {of}")
            });
        }
    }
    for node in space.mortal.iter().copied() {
        let crash = |next: &mut World| {
            next.crash(node);
            Ok(())
        };
        if world.truth.iter().all(|stage| *stage == 0) {
            found(Transition::Disturbance, step(&crash), &|| format!("node {node} dies"));
        } else if world.truth[node] == 1 {
            found(Transition::Disturbance, step(&|next| next.reboot(node)), &|| format!("node {node} returns"));
        }
    }
}

struct Graph {
    numbers: HashMap<u128, u32, BuildHasherDefault<Hashed>>,
    /// For each state: its first predecessor, and the index among the successors of that.
    origins: Vec<(u32, u16)>,
    /// Transitions that are progress: from, to.
    progress: Vec<(u32, u32)>,
    at_rest: Vec<u32>,
}

impl Graph {
    fn new(first: u128) -> Self {
        let mut numbers = HashMap::default();
        numbers.insert(first, 0);
        Graph { numbers, origins: vec![(0, 0)], progress: Vec::new(), at_rest: Vec::new() }
    }

    /// The number of a state, and whether the state is new.
    fn number(&mut self, hash: u128, from: u32, choice: u16) -> (u32, bool) {
        let fresh = self.origins.len() as u32;
        match self.numbers.entry(hash) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(free) => {
                free.insert(fresh);
                self.origins.push((from, choice));
                (fresh, true)
            }
        }
    }
}

fn begin(space: &Space) -> World {
    let world = World::new(space.nodes, space.pages, space.in_flight, space.storage);
    let mut world = if space.forwards { world.forwarding() } else { world };
    world.flaw = space.flaw;
    world
}

pub fn explore(space: Space) -> Explored {
    explore_by(&space, &mut space.encoder(), &mut |_| ())
}

/// `encoder` tells which states are equal. Calls `found` with each state.
fn explore_by(space: &Space, encoder: &mut Encoder, found: &mut dyn FnMut(&World)) -> Explored {
    let first = begin(space);
    let mut graph = Graph::new(encoder.hash(&first));
    let mut transitions = 0;
    let mut layer = vec![(0_u32, first)];
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, world) in layer.drain(..) {
            found(&world);
            if world.is_at_rest() {
                graph.at_rest.push(number);
            }
            let mut choice = 0;
            let mut broken = None;
            successors(&world, space, |kind, next, _| {
                choice += 1;
                transitions += 1;
                let mut next = match next {
                    Ok(next) => next,
                    Err(what) => {
                        broken.get_or_insert((choice, what));
                        return;
                    }
                };
                let hash = lose_stale(&mut next, space, encoder);
                let (to, is_new) = graph.number(hash, number, choice);
                if is_new {
                    next_layer.push((to, next));
                }
                if kind == Transition::Progress {
                    graph.progress.push((number, to));
                }
            });
            let states = graph.origins.len();
            let verdict = match broken {
                Some((choice, what)) => format!("{what}\n{}", story(&graph, space, number, Some(choice))),
                None if states > space.states_max => "the limit of states was reached".to_owned(),
                None => continue,
            };
            return Explored { states, transitions, verdict: Err(verdict) };
        }
        layer = next_layer;
    }
    let verdict = match stuck(&graph) {
        Some(number) => Err(format!("a request is never answered:\n{}", story(&graph, space, number, None))),
        None => Ok(()),
    };
    Explored { states: graph.origins.len(), transitions, verdict }
}

/// How a broken protocol treats stale messages is not known, so they are not dropped there. Returns the hash of the world
/// then.
fn lose_stale(world: &mut World, space: &Space, encoder: &mut Encoder) -> u128 {
    if space.flaw.is_none() { stale::lose(world, encoder) } else { encoder.hash(world) }
}

/// A state from which no sequence of progress leads to rest.
fn stuck(graph: &Graph) -> Option<u32> {
    let count = graph.origins.len();
    let mut starts = vec![0_u32; count + 1];
    graph.progress.iter().for_each(|(_, to)| starts[*to as usize + 1] += 1);
    for index in 0..count {
        starts[index + 1] += starts[index];
    }
    let mut filled = starts.clone();
    let mut from = vec![0_u32; graph.progress.len()];
    for (before, to) in &graph.progress {
        from[filled[*to as usize] as usize] = *before;
        filled[*to as usize] += 1;
    }
    let mut is_well = vec![false; count];
    let mut open = graph.at_rest.clone();
    graph.at_rest.iter().for_each(|number| is_well[*number as usize] = true);
    while let Some(number) = open.pop() {
        for before in &from[starts[number as usize] as usize..starts[number as usize + 1] as usize] {
            if !std::mem::replace(&mut is_well[*before as usize], true) {
                open.push(*before);
            }
        }
    }
    is_well.iter().position(|well| !well).map(|number| number as u32)
}

/// The history of a state, from the start.
fn story(graph: &Graph, space: &Space, number: u32, last: Option<u16>) -> String {
    let mut choices: Vec<u16> = last.into_iter().collect();
    let mut number = number;
    while number != 0 {
        let (before, choice) = graph.origins[number as usize];
        choices.push(choice);
        number = before;
    }
    let mut world = begin(space);
    let mut lines = Vec::new();
    while let Some(chosen) = choices.pop() {
        let (mut choice, mut taken) = (0, None);
        successors(&world, space, |_, next, label| {
            choice += 1;
            if choice == chosen {
                lines.push(label());
                taken = next.ok();
                if let Some(next) = &mut taken {
                    lose_stale(next, space, &mut space.encoder());
                }
            }
        });
        let Some(next) = taken else { break };
        world = next;
    }
    lines.join("\n")
}

/// Where states that differ only in the places of what is alike count as one, every other one is still found.
#[test]
fn what_is_alike_may_change_places() {
    let small = [
        Space { waiting: 1, mortal: &[0], storage: Storage::Volatile, ..SPACE },
        Space { waiting: 2, wants: [WRITES; 2], forwards: true, flushes: true, ..SPACE },
        Space { nodes: 2, pages: 2, waiting: 1, wants: [WRITES; 2], mortal: &[0, 1], ..SPACE },
        Space { pages: 2, waiting: 1, wants: [WRITES; 2], ..SPACE },
    ];
    for space in small {
        let (mut encoder, mut different) = (space.encoder(), HashSet::new());
        let all = explore_by(&space, &mut Encoder::new(&begin(&space), None), &mut |world| {
            different.insert(encoder.hash(world));
        });
        let explored = explore(space);
        assert_eq!((all.verdict, explored.verdict), (Ok(()), Ok(())));
        assert_eq!(explored.states, different.len(), "{space:?}");
        assert!(explored.states < all.states * 2 / 3, "{space:?}: {} of {}", explored.states, all.states);
    }
}

/// Explores a whole space, and prints its size.
fn covers(space: Space) {
    let began = std::time::Instant::now();
    let Explored { states, transitions, verdict } = explore(space);
    let Space { nodes, pages, in_flight, waiting, mortal, storage, flushes, forwards, .. } = space;
    let wants = &space.wants[..pages];
    // Written past the capture of printed lines: the number of states is part of the result.
    let _ = writeln!(
        std::io::stderr(),
        "coherence: {nodes} nodes, {pages} pages, {in_flight} messages in flight, {waiting} accesses waiting, {}, \
         {storage:?} storage, {wants:?}{}{}: {}, {states} states, {transitions} transitions, {:.1} s",
        if mortal.is_empty() { "no death" } else { "one death and return" },
        if flushes { " and flushes" } else { "" },
        if forwards { ", forwarded" } else { "" },
        if verdict.is_ok() { "the whole state space" } else { "not the whole state space" },
        began.elapsed().as_secs_f64(),
    );
    verdict.unwrap_or_else(|what| panic!("{what}"));
}

const ALL: &[Local] = &[Local::Read, Local::Write, Local::WriteBack, Local::Drop];
const ACCESSES: &[Local] = &[Local::Read, Local::Write];
const OVERWRITES: &[Local] = &[Local::Read, Local::Overwrite, Local::WriteBack];
const WRITES: &[Local] = &[Local::Write];

/// Page 0 has its home at node 0, page 1 at node 1.
pub const SPACE: Space = Space {
    nodes: 3,
    pages: 1,
    in_flight: 1,
    mortal: &[],
    wants: [ACCESSES; 2],
    waiting: 3,
    flaw: None,
    flushes: false,
    forwards: false,
    storage: Storage::Versioned,
    states_max: 20_000_000,
};

#[test]
fn two_nodes_with_all_requests_and_three_messages_in_flight() {
    covers(Space { nodes: 2, in_flight: 3, wants: [ALL; 2], ..SPACE });
}

#[test]
fn two_nodes_with_all_requests_survive_the_death_of_either() {
    covers(Space { nodes: 2, in_flight: 2, wants: [ALL; 2], mortal: &[0, 1], ..SPACE });
}

#[test]
fn three_nodes_contend_while_messages_are_reordered() {
    covers(Space { in_flight: 2, waiting: 2, ..SPACE });
}

#[test]
fn three_nodes_contend_and_the_home_or_another_dies() {
    covers(Space { waiting: 2, mortal: &[0, 1, 2], ..SPACE });
}

#[test]
fn three_nodes_share_two_pages() {
    covers(Space { pages: 2, waiting: 1, ..SPACE });
}

/// Page 0 is read and written, page 1 written: copies to read, dirty data and two directories meet a home's death.
#[test]
fn three_nodes_share_two_pages_and_a_home_dies() {
    covers(Space { pages: 2, waiting: 1, wants: [ACCESSES, WRITES], mortal: &[0], ..SPACE });
}

#[test]
fn three_nodes_write_two_pages_and_a_home_or_another_dies() {
    covers(Space { pages: 2, waiting: 1, wants: [WRITES; 2], mortal: &[0, 1, 2], ..SPACE });
}

#[test]
fn two_nodes_share_two_pages_and_a_home_dies_while_messages_are_reordered() {
    covers(Space { nodes: 2, pages: 2, in_flight: 2, waiting: 1, mortal: &[0, 1], ..SPACE });
}

#[test]
fn two_nodes_survive_the_return_of_either_without_versions_and_news() {
    covers(Space { nodes: 2, in_flight: 2, wants: [ALL; 2], mortal: &[0, 1], storage: Storage::Plain, ..SPACE });
}

#[test]
fn three_nodes_contend_and_the_home_or_another_returns_without_versions_and_news() {
    covers(Space { waiting: 1, mortal: &[0, 1, 2], storage: Storage::Plain, ..SPACE });
}

#[test]
fn pages_written_as_a_whole_need_no_data() {
    covers(Space { nodes: 2, in_flight: 2, wants: [OVERWRITES; 2], mortal: &[0, 1], storage: Storage::Plain, ..SPACE });
    covers(Space { wants: [OVERWRITES; 2], waiting: 2, ..SPACE });
}

#[test]
fn copies_replace_what_a_home_in_memory_lost() {
    covers(Space { nodes: 2, in_flight: 2, mortal: &[0, 1], storage: Storage::Volatile, ..SPACE });
    covers(Space { waiting: 1, mortal: &[0], storage: Storage::Volatile, ..SPACE });
}

#[test]
fn a_flush_waits_for_what_others_have_written() {
    covers(Space { nodes: 2, in_flight: 2, mortal: &[0, 1], flushes: true, ..SPACE });
    covers(Space { nodes: 2, in_flight: 2, wants: [OVERWRITES; 2], flushes: true, storage: Storage::Plain, ..SPACE });
    covers(Space {
        waiting: 1,
        wants: [WRITES; 2],
        mortal: &[0, 1, 2],
        flushes: true,
        storage: Storage::Plain,
        ..SPACE
    });
}

/// The home has to be a third node.
#[test]
fn three_nodes_forward_pages_while_messages_are_reordered() {
    covers(Space { in_flight: 2, waiting: 2, forwards: true, ..SPACE });
}

#[test]
fn three_nodes_forward_pages_and_the_home_or_another_dies() {
    covers(Space { waiting: 2, mortal: &[0, 1, 2], forwards: true, ..SPACE });
    covers(Space { waiting: 1, mortal: &[0, 1, 2], forwards: true, storage: Storage::Plain, ..SPACE });
}

#[test]
fn what_is_forwarded_is_flushed_too() {
    covers(Space { wants: [WRITES; 2], in_flight: 2, waiting: 2, forwards: true, flushes: true, ..SPACE });
}

#[test]
fn larger_spaces_in_the_long_run() {
    if std::env::var_os("AWASE_SEEDS").is_none() {
        println!("coherence: larger spaces only with AWASE_SEEDS, as in make test-long");
        return;
    }
    covers(Space { nodes: 2, pages: 2, in_flight: 2, waiting: 2, mortal: &[0, 1], ..SPACE });
    covers(Space { in_flight: 2, ..SPACE });
    covers(Space { wants: [ALL; 2], ..SPACE });
    covers(Space { waiting: 3, mortal: &[0, 1, 2], ..SPACE });
    covers(Space { pages: 2, in_flight: 2, waiting: 1, wants: [WRITES; 2], ..SPACE });
    covers(Space { pages: 2, waiting: 1, wants: [ACCESSES, WRITES], mortal: &[0, 1, 2], ..SPACE });
    covers(Space { waiting: 2, mortal: &[0, 1, 2], storage: Storage::Plain, ..SPACE });
    for mortal in [&[0][..], &[1, 2]] {
        let space = Space { in_flight: 2, mortal, forwards: true, ..SPACE };
        covers(Space { waiting: 1, storage: Storage::Plain, ..space });
        covers(Space { waiting: 2, wants: [WRITES; 2], flushes: true, ..space });
        covers(Space { waiting: 1, wants: [ALL; 2], ..space });
    }
}
