//! Many nodes at random whose leases end, who are paused for longer than that, leave and join, while homes move: nobody
//! who answers reads old data, and nothing that was stored or is still held by somebody who answers is lost.

use testkit::random::Random;

use super::super::{Local, PageNo, ShardNo};
use super::leased::{Flaw, Leased};
use super::world::Broken;

/// What a seed expands to.
#[derive(Debug)]
struct Plan {
    nodes: usize,
    pages: usize,
    shards: u16,
    steps: usize,
    in_flight: usize,
    /// Of a thousand deliveries: lost, duplicated.
    lost: u64,
    doubled: u64,
    /// Of a thousand steps: leases that end, releases.
    ends: u64,
    releases: u64,
    /// What is held is given to the next home, whether or not it was written.
    is_uncertain: bool,
}

impl Plan {
    fn of(random: &mut Random) -> Self {
        let most = if random.chance(200) { 31 } else { 4 };
        let nodes = 2 + random.index(most);
        Plan {
            nodes,
            pages: 1 + random.index(6),
            shards: 1 + random.index(4) as u16,
            steps: 2000 + random.index(2000),
            in_flight: 4 + random.index(4 * nodes),
            lost: [0, 20, 200][random.index(3)],
            doubled: [0, 50, 300][random.index(3)],
            ends: [0, 2, 10][random.index(3)],
            releases: [0, 5, 30][random.index(3)],
            is_uncertain: random.chance(500),
        }
    }
}

fn step(world: &mut Leased, plan: &Plan, random: &mut Random) -> Result<(), Broken> {
    let index = random.index(plan.nodes);
    if random.chance(plan.ends) {
        // A process that dies, or one that is paused and goes on after its lease.
        return if random.chance(500) { world.kill(index) } else { world.expire(index) };
    }
    if random.chance(plan.releases) {
        let shard = ShardNo(random.index(usize::from(plan.shards)) as u16);
        world.release(index, shard);
        return if random.chance(200) { world.take_back(index) } else { Ok(()) };
    }
    match random.index(100) {
        0..50 if !world.network.is_empty() => {
            let index = random.index(world.network.len());
            if random.chance(plan.lost) {
                world.network.swap_remove(index);
                return Ok(());
            }
            world.deliver(index, random.chance(plan.doubled))
        }
        0..78 => {
            let want = match random.index(100) {
                0..8 => Local::WriteBack,
                8..16 => Local::Drop,
                16..45 => Local::Write,
                45..55 => Local::Overwrite,
                _ => Local::Read,
            };
            world.local(index, want, PageNo(random.index(plan.pages) as u64))
        }
        78..86 => world.tick(index),
        86..94 => {
            if world.has_news(index) {
                world.see(index)
            } else {
                Ok(())
            }
        }
        94..97 => {
            // A lease ends at the arbiter only after it has ended at the node.
            if !world.members[index].is_leased {
                world.leave(index);
                if random.chance(300) {
                    return world.join(index);
                }
            }
            Ok(())
        }
        _ => {
            world.change_map(|bound| random.index(bound));
            Ok(())
        }
    }
}

/// Without further faults all requests are answered within a few rounds.
fn heal(world: &mut Leased) -> Result<(), Broken> {
    for index in 0..world.members.len() {
        if !world.members[index].is_leased {
            world.join(index)?;
        }
        while !world.members[index].released.is_empty() {
            world.take_back(index)?;
        }
    }
    world.change_map(|_| 0);
    world.in_flight_max = usize::MAX;
    for _ in 0..16 * world.members.len() + 32 {
        for index in 0..world.members.len() {
            while world.has_news(index) {
                world.see(index)?;
            }
        }
        while !world.network.is_empty() {
            world.deliver(0, false)?;
        }
        if world.is_at_rest() {
            return Ok(());
        }
        for index in 0..world.members.len() {
            world.tick(index)?;
        }
    }
    Err("requests remain unanswered without further faults".to_owned())
}

fn run(seed: u64, flaw: Option<Flaw>) -> Result<[u64; 2], Broken> {
    let mut random = Random(seed);
    let plan = Plan::of(&mut random);
    let mut all = || {
        let mut world = Leased::new(plan.nodes, plan.pages, plan.shards, plan.in_flight);
        (world.flaw, world.is_uncertain) = (flaw, plan.is_uncertain);
        for _ in 0..plan.steps {
            step(&mut world, &plan, &mut random)?;
        }
        heal(&mut world)?;
        Ok([world.accesses, world.moves])
    };
    all().map_err(|what: Broken| format!("seed {seed}, {plan:?}: {what}"))
}

#[test]
fn homes_move_and_leases_end_and_nobody_reads_old_data_loses_a_page_or_waits_forever() {
    let mut sums = [0; 2];
    for seed in testkit::rounds::seeds(1000) {
        let found = run(seed, None).unwrap_or_else(|what| panic!("{what}\nagain: AWASE_SEED={seed}"));
        sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
    }
    let [accesses, moves] = sums;
    println!("{accesses} accesses were done, shards moved {moves} times");
}

#[test]
fn a_defect_of_each_rule_is_found() {
    let flaws = [
        Flaw::FenceIgnored,
        Flaw::SurveySkipped,
        Flaw::SurveyAnsweredEarly,
        Flaw::TermsIgnored,
        Flaw::EpochsIgnored,
        Flaw::ReleaseIgnored,
        Flaw::StoredNotAwaited,
    ];
    for flaw in flaws {
        let found = (0..40_000).find_map(|seed| run(seed, Some(flaw)).err());
        println!("{flaw:?}: {}", found.as_deref().unwrap_or("not found"));
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}
