//! Litmus tests of programs at two to four nodes: what they see is what sequential consistency allows, and all of that.

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sim::NetworkConfig;
use testkit::litmus::{ALL, Litmus, Outcome};
use testkit::random::Random;

use crate::programs::scene;
use crate::scene::{Scene, Setup};
use run::Run;

/// Of each test, with one seed.
const ROUNDS: u64 = 6;

/// Of a test with more outcomes than these, so many may be left unseen.
const MANY: usize = 30;

/// No access fails because it takes long.
const NEVER: Duration = Duration::from_secs(600);

/// What is done to nodes and connections meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faults {
    /// Messages are late, lost with their connection and sent again; nodes are slow, and stopped for a while.
    Network,
    /// In addition shards move, and leases end and are renewed in time.
    Moving,
    /// In addition nodes die and return. Pages are on a path, in memory, or on a device that all reach.
    Deaths,
}

fn cluster(seed: u64, faults: Faults, random: &mut Random) -> Scene {
    let moves = faults == Faults::Moving || (faults == Faults::Deaths && seed.is_multiple_of(3));
    let network = NetworkConfig { backlog_max: usize::MAX, ..NetworkConfig::drawn(seed) };
    let nodes = 2 + random.index(3);
    let mut scene = scene(Setup { moves, network, timeout: NEVER, ..Setup::new(seed, nodes) });
    if moves {
        scene.change_map(|bound| random.index(bound));
        scene.see_all();
    }
    scene.until_connected();
    scene
}

/// Runs all tests with all seeds, each as `judge` sees it. Returns whether they were at least `few`.
fn with_seeds(faults: Faults, few: u64, mut judge: impl FnMut(&'static Litmus, &Run, &str)) -> bool {
    let mut seeds = testkit::rounds::seeds(few);
    for seed in seeds.by_ref() {
        let mut random = Random(seed);
        let mut scene = cluster(seed, faults, &mut random);
        for round in 0..ROUNDS {
            for (number, test) in ALL.iter().enumerate() {
                let mut run = Run::new(&mut scene, &mut random, faults, test, round * ALL.len() as u64 + number as u64);
                run.run();
                judge(test, &run, &format!("seed {seed}, round {round}, {}, {}", test.name, run.describe()));
                run.end();
            }
        }
    }
    seeds.have_been(few)
}

/// All that a test allows without a crash.
fn allowed() -> BTreeMap<&'static str, BTreeSet<Outcome>> {
    ALL.iter().map(|test| (test.name, test.outcomes())).collect()
}

#[test]
fn programs_see_what_sequential_consistency_allows_and_all_of_it() {
    let allowed = allowed();
    let mut unseen = allowed.clone();
    let are_enough = with_seeds(Faults::Network, 80, |test, run, whose| {
        let outcome = run.outcome();
        assert!(allowed[test.name].contains(&outcome), "{whose}: {outcome:?}");
        assert!(!run.is_stale, "{whose}: something old was read: {outcome:?}");
        unseen.get_mut(test.name).expect("a test").remove(&outcome);
    });
    // Of the one that has many, not each by chance.
    unseen.retain(|name, outcomes| outcomes.len() > if allowed[name].len() > MANY { MANY } else { 0 });
    assert!(unseen.is_empty() || !are_enough, "never seen: {unseen:?}");
}

#[test]
fn programs_see_what_sequential_consistency_allows_while_homes_move_and_leases_end_and_are_renewed() {
    let allowed = allowed();
    with_seeds(Faults::Moving, 40, |test, run, whose| {
        let outcome = run.outcome();
        assert!(allowed[test.name].contains(&outcome), "{whose}: {outcome:?}");
        assert!(!run.is_stale, "{whose}: something old was read: {outcome:?}");
    });
}

#[test]
fn nodes_that_die_take_with_them_what_no_other_has_seen_and_nothing_else() {
    let allowed = allowed();
    let mut undone = 0;
    let are_enough = with_seeds(Faults::Deaths, 40, |test, run, whose| {
        let (read, last, crash) = (run.read(), run.last(), run.crash());
        let fits = |outcome: &Outcome| {
            let are_last = last.iter().zip(outcome.last).all(|(last, allowed)| last.is_none_or(|last| last == allowed));
            outcome.read == read && are_last
        };
        assert!(
            test.outcomes_after(&crash).iter().any(fits),
            "{whose}: {read:?}, at last {last:?}, {:?}",
            crash.undone
        );
        let is_whole = crash.done.iter().zip(test.threads).all(|(done, accesses)| *done == accesses.len());
        undone += u64::from(is_whole && !allowed[test.name].iter().any(fits));
    });
    assert!(undone > 0 || !are_enough, "nothing was ever lost");
}
