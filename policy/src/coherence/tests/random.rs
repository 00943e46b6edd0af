//! Up to 64 nodes at random: messages lost, duplicated and delayed, nodes that die and return.

use testkit::random::Random;

use super::super::{Local, PageNo, Storage};
use super::world::{Broken, Flaw, World};

/// What a seed expands to.
#[derive(Debug)]
struct Plan {
    nodes: usize,
    pages: usize,
    steps: usize,
    in_flight: usize,
    /// Of a thousand deliveries: lost, duplicated.
    lost: u64,
    doubled: u64,
    /// Deliver in any order, or roughly in order of the messages' encoding.
    disordered: bool,
    /// Of ten thousand steps: deaths and returns.
    deaths: usize,
    /// Of a hundred requests: writes.
    writes: usize,
}

impl Plan {
    fn of(random: &mut Random) -> Self {
        let is_large = random.chance(300);
        let nodes = 2 + random.index(if is_large { 63 } else { 8 });
        Plan {
            nodes,
            pages: 1 + random.index(2 * nodes),
            steps: 1500 + random.index(1500),
            in_flight: 4 + random.index(4 * nodes),
            lost: [0, 20, 200][random.index(3)],
            doubled: [0, 50, 300][random.index(3)],
            disordered: random.chance(700),
            deaths: [0, 20, 100][random.index(3)],
            writes: [5, 40, 90][random.index(3)],
        }
    }
}

fn notify_all(world: &mut World) -> Result<(), Broken> {
    let count = world.nodes.len();
    for observer in 0..count {
        for of in 0..count {
            while world.has_news(observer, of) {
                world.notify(observer, of)?;
            }
        }
    }
    Ok(())
}

fn step(world: &mut World, plan: &Plan, random: &mut Random) -> Result<(), Broken> {
    let node = random.index(plan.nodes);
    match random.index(100) {
        0..55 if !world.network.is_empty() => {
            let index = if plan.disordered { random.index(world.network.len()) } else { 0 };
            if random.chance(plan.lost) {
                world.network.remove(index);
                return Ok(());
            }
            world.deliver(index, random.chance(plan.doubled))
        }
        0..85 => {
            // A few pages are contended.
            let page = if random.chance(700) { random.index(plan.pages.min(3)) } else { random.index(plan.pages) };
            let want = match random.index(100) {
                0..6 => Local::WriteBack,
                6..14 => Local::Drop,
                other if other % 100 < 14 + plan.writes * 86 / 100 && page % 3 == 1 => Local::Overwrite,
                other if other % 100 < 14 + plan.writes * 86 / 100 => Local::Write,
                _ => Local::Read,
            };
            world.local(node, want, PageNo(page as u64))
        }
        85..95 => {
            for envelope in world.retransmissions(node) {
                world.put(envelope);
            }
            Ok(())
        }
        95..97 => {
            let of = random.index(plan.nodes);
            if world.has_news(node, of) { world.notify(node, of) } else { Ok(()) }
        }
        97 if random.chance(100) && world.may_flush(node) => world.flush(node),
        _ if random.index(300) < plan.deaths => match world.nodes[node].is_some() {
            true => {
                world.crash(node);
                Ok(())
            }
            false => world.reboot(node),
        },
        _ => Ok(()),
    }
}

/// Without further faults all requests are answered within a few rounds.
fn heal(world: &mut World) -> Result<(), Broken> {
    for node in 0..world.nodes.len() {
        if world.nodes[node].is_none() {
            world.reboot(node)?;
        }
    }
    notify_all(world)?;
    world.in_flight_max = usize::MAX;
    // Each node waits for at most all others, each with a recall, an answer and a grant.
    for _ in 0..8 * world.nodes.len() + 16 {
        while !world.network.is_empty() {
            world.deliver(0, false)?;
        }
        if world.is_at_rest() {
            return Ok(());
        }
        for node in 0..world.nodes.len() {
            for envelope in world.retransmissions(node) {
                world.put(envelope);
            }
        }
    }
    Err("requests remain unanswered without further faults".to_owned())
}

/// Of two thirds of the seeds, nodes forward pages.
fn run(seed: u64, flaw: Option<Flaw>) -> Result<u64, Broken> {
    let mut random = Random(seed);
    let plan = Plan::of(&mut random);
    let storage = if seed.is_multiple_of(3) { Storage::Plain } else { Storage::Versioned };
    let mut all = || {
        let mut world = World::new(plan.nodes, plan.pages, plan.in_flight, storage);
        if !(seed / 3).is_multiple_of(3) {
            world = world.forwarding();
        }
        world.flaw = flaw;
        for _ in 0..plan.steps {
            step(&mut world, &plan, &mut random)?;
        }
        heal(&mut world)?;
        Ok(world.accesses)
    };
    all().map_err(|what: Broken| format!("seed {seed}, {storage:?} storage, {plan:?}: {what}"))
}

#[test]
fn many_nodes_never_read_stale_data_lose_a_page_or_wait_forever() {
    let mut accesses = 0;
    for seed in testkit::rounds::seeds(300) {
        accesses += run(seed, None).unwrap_or_else(|what| panic!("{what}\nagain: AWASE_SEED={seed}"));
    }
    println!("{accesses} accesses were done");
}

#[test]
fn each_flaw_is_found_at_random_too() {
    let flaws = [
        Flaw::InvalidationNotAwaited,
        Flaw::CopyRetained,
        Flaw::DataNotRetained,
        Flaw::NeverRetransmitted,
        Flaw::SerialsIgnored,
        Flaw::IncarnationsIgnored,
        Flaw::NoSurvey,
        Flaw::RecallAnsweredEarly,
        Flaw::NothingStored,
        Flaw::ForwardedNotRetained,
        Flaw::OrphansIgnored,
        Flaw::PromisesNotFlushed,
    ];
    for flaw in flaws {
        let found = (0..300).find(|seed| run(*seed, Some(flaw)).is_err());
        println!("{flaw:?}: {found:?}");
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}
