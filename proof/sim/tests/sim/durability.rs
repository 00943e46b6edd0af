//! What survives a power cut: what must, and what may.

use policy::unit::{ByteRange, Instant, Stability};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sim::{DiskConfig, DiskFaults, Step};

use crate::rig::{Rig, stamp_of, stamped, stamps_of};

const SECTORS: u64 = 64;
const ALL: ByteRange = ByteRange::new(0, SECTORS * 512);

/// A write made by the test. Times count the test's own steps.
struct Written {
    token: u64,
    sectors: std::ops::Range<u64>,
    stable: bool,
    started: u64,
    done: Option<u64>,
    /// A flush, or the write itself, guaranteed that it is durable.
    durable: bool,
}

/// A random load that stops at a random time.
struct Load {
    rig: Rig,
    random: ChaCha8Rng,
    written: Vec<Written>,
    /// Token and start of each flush in flight.
    flushes: Vec<(u64, u64)>,
    clock: u64,
    seen: usize,
}

impl Load {
    fn new(seed: u64) -> Self {
        let config = DiskConfig { sector_bytes: 512, align: 512, ..DiskConfig::drawn(ALL.len, seed) };
        let random = ChaCha8Rng::seed_from_u64(seed);
        Load { rig: Rig::new(seed, config), random, written: Vec::new(), flushes: Vec::new(), clock: 0, seen: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn start_something(&mut self) {
        let file = self.rig.file();
        if self.below(6) == 0 {
            let token = self.rig.side.flush(file);
            self.flushes.push((token, self.clock));
            return;
        }
        let from = self.below(SECTORS);
        let to = (from + 1 + self.below(20)).min(SECTORS);
        let stable = self.below(5) == 0;
        let stability = if stable { Stability::Stable } else { Stability::Unstable };
        let stamp = self.written.len() as u64 + 1;
        let token = self.rig.side.write(file, from * 512, stamped((to - from) as usize, stamp), stability);
        let started = self.clock;
        self.written.push(Written { token, sectors: from..to, stable, started, done: None, durable: false });
    }

    /// Runs for `steps` time slices, or until nothing happens.
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.clock += 1;
            if self.below(3) == 0 {
                self.start_something();
            }
            if self.rig.world.step() == Step::Nothing {
                continue;
            }
            self.rig.side.run_slice();
            self.take_note();
        }
    }

    fn take_note(&mut self) {
        self.clock += 1;
        for token in self.rig.side.order[self.seen..].iter().copied() {
            if let Some(write) = self.written.iter_mut().find(|write| write.token == token) {
                write.done = Some(self.clock);
                write.durable |= write.stable;
            }
            if let Some(&(_, started)) = self.flushes.iter().find(|flush| flush.0 == token) {
                let covered = self.written.iter_mut().filter(|write| write.done.is_some_and(|done| done <= started));
                covered.for_each(|write| write.durable = true);
            }
        }
        self.seen = self.rig.side.order.len();
    }

    /// Whether `sector` may hold `stamp`, when all writes that `binding` picks must have taken effect.
    fn may_hold(&self, sector: u64, stamp: u64, binding: impl Fn(&Written) -> bool) -> bool {
        let ended = match stamp.checked_sub(1) {
            None => Some(0),
            Some(i) => match self.written.get(i as usize) {
                Some(write) if write.sectors.contains(&sector) => write.done,
                _ => return false,
            },
        };
        // A write that started after another ended replaces it.
        let replaces = |later: &&Written| {
            binding(later) && later.sectors.contains(&sector) && ended.is_some_and(|ended| later.started > ended)
        };
        !self.written.iter().any(|later| replaces(&later))
    }

    fn check(&self, bytes: &[u8], binding: impl Fn(&Written) -> bool) {
        for (sector, content) in bytes.chunks(512).enumerate() {
            let stamp = stamp_of(content);
            let allowed = stamp.is_some_and(|stamp| self.may_hold(sector as u64, stamp, &binding));
            assert!(allowed, "sector {sector} holds {stamp:?}: {:?}", self.rig.world);
        }
    }
}

#[test]
fn after_a_power_cut_each_sector_holds_a_version_not_older_than_the_durable_one() {
    for seed in 0..400 {
        let mut load = Load::new(seed);
        let steps = 5 + load.below(120);
        load.run(steps);
        load.check(&load.rig.world.read_disk(load.rig.disk, ALL), |write| write.done.is_some());
        load.rig.power_cut();
        let after = load.rig.world.read_disk(load.rig.disk, ALL);
        load.check(&after, |write| write.durable);
        assert_eq!(after, load.rig.world.read_durable(load.rig.disk, ALL), "seed {seed}: what survived is durable");
    }
}

#[test]
fn after_a_kill_no_completed_write_is_lost() {
    for seed in 0..200 {
        let mut load = Load::new(seed);
        let steps = 5 + load.below(60);
        load.run(steps);
        load.rig.kill();
        load.check(&load.rig.world.read_disk(load.rig.disk, ALL), |write| write.done.is_some());
    }
}

/// Number of seeds, of 200, for which `shows` is true of the stamps after a power cut.
fn some_seed(shows: impl Fn(&[Option<u64>]) -> bool, before: impl Fn(&mut Rig)) -> usize {
    let after = |seed| {
        let mut rig = Rig::new(seed, DiskConfig::new(ALL.len));
        before(&mut rig);
        rig.power_cut();
        stamps_of(&rig.world.read_disk(rig.disk, ALL))
    };
    (0..200).filter(|&seed| shows(&after(seed))).count()
}

fn write_twice_apart(rig: &mut Rig) {
    rig.write(0, stamped(8, 1)).unwrap();
    rig.write(16 * 512, stamped(8, 2)).unwrap();
}

#[test]
fn unflushed_writes_are_sometimes_lost_and_sometimes_survive() {
    assert!(some_seed(|stamps| stamps[..8] == [Some(0); 8], write_twice_apart) > 20);
    assert!(some_seed(|stamps| stamps[..8] == [Some(1); 8], write_twice_apart) > 20);
}

#[test]
fn unflushed_writes_reach_the_medium_in_any_order() {
    let later_only = |stamps: &[Option<u64>]| stamps[..8] == [Some(0); 8] && stamps[16..24] == [Some(2); 8];
    let earlier_only = |stamps: &[Option<u64>]| stamps[..8] == [Some(1); 8] && stamps[16..24] == [Some(0); 8];
    assert!(some_seed(later_only, write_twice_apart) > 5);
    assert!(some_seed(earlier_only, write_twice_apart) > 5);
}

#[test]
fn unflushed_writes_are_sometimes_torn_between_sectors_but_never_within() {
    let torn = |stamps: &[Option<u64>]| stamps[..8].contains(&Some(0)) && stamps[..8].contains(&Some(1));
    assert!(some_seed(torn, write_twice_apart) > 5);
    assert_eq!(some_seed(|stamps| stamps.contains(&None), write_twice_apart), 0);
}

#[test]
fn of_two_versions_of_a_sector_any_may_survive() {
    let write_over = |rig: &mut Rig| {
        rig.write(0, stamped(8, 1)).unwrap();
        rig.write(0, stamped(8, 2)).unwrap();
    };
    for version in 0..3 {
        assert!(some_seed(|stamps| stamps[..8] == [Some(version); 8], write_over) > 5, "version {version}");
    }
}

#[test]
fn writes_in_flight_may_or_may_not_land() {
    let start_only = |rig: &mut Rig| {
        rig.run();
        let file = rig.file();
        rig.side.write(file, 0, stamped(8, 1), Stability::Stable);
        rig.side.run_slice();
        assert_eq!(rig.world.step_until(Instant::from_ns(5_000)), Step::Nothing);
    };
    for version in 0..2 {
        assert!(some_seed(|stamps| stamps[..8] == [Some(version); 8], start_only) > 5, "version {version}");
    }
    let torn = |stamps: &[Option<u64>]| stamps[..8].contains(&Some(0)) && stamps[..8].contains(&Some(1));
    assert!(some_seed(torn, start_only) > 5, "not even a stable one is atomic");
}

#[test]
fn a_flush_does_not_cover_writes_that_were_not_complete_when_it_started() {
    let concurrently = |rig: &mut Rig| {
        let file = rig.file();
        let write = rig.side.write(file, 0, stamped(8, 1), Stability::Unstable);
        let flush = rig.side.flush(file);
        rig.run();
        assert_eq!(rig.side.outcomes[&write], Ok(4096));
        assert_eq!(rig.side.outcomes[&flush], Ok(0));
    };
    assert!(some_seed(|stamps| stamps[..8] == [Some(0); 8], concurrently) > 20);
}

#[test]
fn a_discard_is_durable_only_after_a_flush() {
    let discard = |rig: &mut Rig| {
        rig.write(0, stamped(8, 1)).unwrap();
        rig.flush().unwrap();
        rig.perform(|side, file| side.discard(file, 0, 4096)).0.unwrap();
    };
    let config = |seed| Rig::new(seed, DiskConfig::new(ALL.len));
    let seen = |version| some_seed(move |stamps| stamps[..8] == [Some(version); 8], discard);
    assert!(seen(0) > 5 && seen(1) > 5);
    let mut rig = config(1);
    discard(&mut rig);
    rig.flush().unwrap();
    rig.power_cut();
    assert_eq!(rig.world.read_disk(rig.disk, ByteRange::new(0, 4096)), vec![0; 4096]);
}

fn with_faults(faults: DiskFaults, before: impl Fn(&mut Rig)) -> impl Fn(&mut Rig) {
    move |rig| {
        rig.world.set_faults(rig.disk, faults);
        before(rig);
    }
}

#[test]
fn a_disk_configured_to_tear_sectors_does() {
    let tears = DiskFaults { sector_tear_permille: 1000, ..DiskFaults::default() };
    assert!(some_seed(|stamps| stamps.contains(&None), with_faults(tears, write_twice_apart)) > 5);
}

#[test]
fn a_disk_configured_to_lie_about_flushes_loses_what_they_covered() {
    let flushed = |rig: &mut Rig| {
        rig.write(0, stamped(8, 1)).unwrap();
        rig.flush().unwrap();
    };
    assert_eq!(some_seed(|stamps| stamps[0] == Some(0), flushed), 0);
    let lies = DiskFaults { flush_lie_permille: 1000, ..DiskFaults::default() };
    assert!(some_seed(|stamps| stamps[0] == Some(0), with_faults(lies, flushed)) > 20);
}

#[test]
fn a_disk_configured_to_lie_about_stable_writes_loses_them() {
    let stable = |rig: &mut Rig| {
        rig.perform(|side, file| side.write(file, 0, stamped(8, 1), Stability::Stable)).0.unwrap();
    };
    assert_eq!(some_seed(|stamps| stamps[0] == Some(0), stable), 0);
    let lies = DiskFaults { stable_lie_permille: 1000, ..DiskFaults::default() };
    assert!(some_seed(|stamps| stamps[0] == Some(0), with_faults(lies, stable)) > 20);
}
