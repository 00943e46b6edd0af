//! How large the cache may be now (WS-2): it takes free memory and gives it back before others suffer.
//!
//! Giving back is immediate and enough; taking is gradual. Between the two lies a band in which nothing changes, so the
//! size does not swing. Memory pressure is seen before the host swaps or kills: what is kept available is large enough
//! for what a busy program takes between two samples.

use std::time::Duration;

use crate::unit::Instant;

/// What the machine knows of memory. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    pub total: u64,
    /// What programs could still get without swapping (`MemAvailable`), not counting what Awase could give back.
    pub available: u64,
    /// The tightest control group limit above this process, and what is used of it, page cache that can be
    /// reclaimed not counted.
    pub group: Option<GroupMemory>,
}

/// A control group's memory. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    pub limit: u64,
    /// What is used and cannot be reclaimed.
    pub used: u64,
}

/// As fast as several programs take memory that is there.
const TAKEN_BYTES_A_NANOSECOND: u64 = 4;
/// Between two samples, at least: a control group may have no more than some ten megabytes in reserve, and what is seen
/// later than this is seen when the kernel has killed.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Between two samples, at most.
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_millis(50);
/// Between two samples while nothing is transferred: an idle server wakes its host no more than twice a second.
pub const SAMPLE_INTERVAL_IDLE: Duration = Duration::from_millis(500);
/// What must be available on the host for that: what a program takes meanwhile.
const IDLE_AVAILABLE_BYTES: u64 = 512 << 20;
/// What must be free in a control group for that: where a host would reclaim, a group kills.
const IDLE_GROUP_FREE_BYTES: u64 = 2 << 30;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The memory that nobody else needs.
    #[default]
    Dynamic,
    /// Always the same, as before WS-2 (there about 10 % of memory), yet never into what is kept for others.
    Fixed { bytes: u64 },
}

/// How the size follows memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub mode: Mode,
    /// The size where the mode is changed to a fixed one while running.
    pub fixed_bytes: u64,
    /// At least so many bytes of the host, and of a control group's limit, are kept available...
    pub reserve_bytes_min: u64,
    /// ...or so many thousandths of it, whichever is more...
    pub reserve_permille: u64,
    /// ...but no more than so many thousandths, so that a small host or group has a cache too. A program takes a
    /// gibibyte a second, and a processor of a shared host may stand still for some ten milliseconds.
    pub reserve_permille_max: u64,
    /// The cache never shrinks below so many bytes.
    pub floor_bytes: u64,
    /// The cache grows by at least so many bytes at a time, and leaves as much above the reserve. On small hosts a
    /// 64th of memory, when that is less.
    pub step_bytes: u64,
    /// The cache does not grow again for so long after it had to shrink.
    pub hold: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Dynamic,
            fixed_bytes: u64::MAX,
            reserve_bytes_min: 512 << 20,
            reserve_permille: 60,
            reserve_permille_max: 250,
            floor_bytes: 16 << 20,
            step_bytes: 64 << 20,
            hold: Duration::from_secs(1),
        }
    }
}

impl Config {
    /// May a cache that holds `held` bytes take `more` now, whatever was decided at the last sample? Whoever gives out
    /// memory may have taken it away since.
    pub fn may_take(&self, facts: MemoryFacts, held: u64, more: u64) -> bool {
        matches!(self.mode, Mode::Fixed { .. }) || held < self.floor_bytes || self.headroom(facts) >= i128::from(more)
    }

    /// What is left of memory above the reserve: below 0 is a shortage. The tighter one of host and group.
    fn headroom(&self, facts: MemoryFacts) -> i128 {
        let host = i128::from(facts.available) - i128::from(self.reserve(facts.total));
        match facts.group {
            None => host,
            Some(group) => {
                let free = i128::from(group.limit) - i128::from(group.used);
                host.min(free - i128::from(self.reserve(group.limit)))
            }
        }
    }

    fn reserve(&self, total: u64) -> u64 {
        let wanted = permille(total, self.reserve_permille).max(self.reserve_bytes_min);
        wanted.min(permille(total, self.reserve_permille_max)).min(total)
    }
}

/// Beyond this long, a fall of free memory says little about the next sample.
const FORESIGHT: Duration = Duration::from_millis(200);

/// Decides the size of the cache. Sampled every 50 ms or so.
pub struct Sizing {
    config: Config,
    /// The sample before: when, and the room for the cache that there was then.
    before: Option<(Instant, i128)>,
    shrunk: Option<Instant>,
}

impl Sizing {
    /// A policy that has seen nothing yet.
    pub const fn new(config: Config) -> Self {
        Sizing { config, before: None, shrunk: None }
    }

    /// The rules by which it decides.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Decides by other rules from now on.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// How many bytes the cache, which holds `cache_bytes` now, may hold. Less than it holds: give the rest back at
    /// once. `facts` count the cache's memory as used.
    pub fn on_sample(&mut self, now: Instant, facts: MemoryFacts, cache_bytes: u64) -> u64 {
        let ceiling = self.ceiling(facts);
        let floor = self.config.floor_bytes.min(ceiling);
        if let Mode::Fixed { bytes } = self.config.mode {
            return bytes.min(ceiling);
        }
        let headroom = self.config.headroom(facts);
        let expected = self.expected(now, headroom + i128::from(cache_bytes));
        let step = i128::from(self.step(facts));
        let change = if headroom < 0 {
            self.shrunk = Some(now);
            headroom - step - expected
        } else if headroom >= 2 * step && !self.holds(now) {
            step.max(headroom / 8).min(headroom - step)
        } else {
            0
        };
        clamp(i128::from(cache_bytes) + change, floor, ceiling)
    }

    /// When to look again, so that nobody can have taken what is left meanwhile.
    pub fn next_sample(&self, facts: MemoryFacts) -> Duration {
        let headroom = u64::try_from(self.config.headroom(facts)).unwrap_or(0);
        Duration::from_nanos(headroom / TAKEN_BYTES_A_NANOSECOND).clamp(SAMPLE_INTERVAL_MIN, SAMPLE_INTERVAL_MAX)
    }

    /// When to look again if nothing was transferred since the sample before: the cache does not grow then. In a small
    /// group as often as ever.
    pub fn next_idle_sample(&self, facts: MemoryFacts) -> Duration {
        let has_room = |group: GroupMemory| group.limit.saturating_sub(group.used) >= IDLE_GROUP_FREE_BYTES;
        if facts.available >= IDLE_AVAILABLE_BYTES && facts.group.is_none_or(has_room) {
            SAMPLE_INTERVAL_IDLE
        } else {
            self.next_sample(facts)
        }
    }

    /// What others are likely to take until memory that is given back now is there for them: twice what they took
    /// since the sample before. `room` is what they leave, whatever the cache does.
    fn expected(&mut self, now: Instant, room: i128) -> i128 {
        let before = self.before.replace((now, room));
        let Some((then, room_before)) = before else {
            return 0;
        };
        let elapsed = now.since(then);
        let taken = (room_before - room).max(0);
        if elapsed <= FORESIGHT {
            return 2 * taken;
        }
        2 * taken * FORESIGHT.as_nanos() as i128 / elapsed.as_nanos() as i128
    }

    fn holds(&self, now: Instant) -> bool {
        self.shrunk.is_some_and(|then| now.since(then) < self.config.hold)
    }

    fn ceiling(&self, facts: MemoryFacts) -> u64 {
        let host = facts.total - self.config.reserve(facts.total);
        match facts.group {
            None => host,
            Some(group) => host.min(group.limit - self.config.reserve(group.limit)),
        }
    }

    fn step(&self, facts: MemoryFacts) -> u64 {
        let memory = facts.group.map_or(facts.total, |g| g.limit.min(facts.total));
        self.config.step_bytes.min(memory / 64).max(1)
    }
}

fn permille(of: u64, permille: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(permille) / 1000).unwrap_or(u64::MAX)
}

fn clamp(bytes: i128, floor: u64, ceiling: u64) -> u64 {
    u64::try_from(bytes.clamp(i128::from(floor), i128::from(ceiling))).unwrap_or(floor)
}
