//! How large the cache may be now (WS-2): it takes free memory and returns it before others suffer.
//!
//! Shrinking is immediate and sufficient; growing is gradual. Between the two lies a band without change, so the size
//! does not oscillate. Memory pressure is seen before the host swaps or kills: the reserve is as large as what a busy
//! program takes between two samples.

use std::time::Duration;

use crate::unit::Instant;

/// The host's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    pub total: u64,
    /// What programs could still get without swapping (`MemAvailable`), not counting what the cache could return.
    pub available: u64,
    /// The tightest control group limit of this process, and what is used of it without reclaimable page cache.
    pub group: Option<GroupMemory>,
}

/// A control group's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    pub limit: u64,
    /// Memory in use that cannot be reclaimed.
    pub used: u64,
}

/// The rate at which several programs take available memory.
const TAKEN_BYTES_A_NANOSECOND: u64 = 4;
/// Minimum interval of samples: a control group may have only some ten megabytes in reserve, and a later sample comes
/// after the kernel has killed.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(10);
const SAMPLE_INTERVAL_MAX: Duration = Duration::from_millis(50);
/// Interval of samples while nothing is transferred: an idle server wakes its host at most twice a second.
pub const SAMPLE_INTERVAL_IDLE: Duration = Duration::from_millis(500);
/// Memory available on the host for the idle interval: what a program takes meanwhile.
const IDLE_AVAILABLE_BYTES: u64 = 512 << 20;
/// Memory free in a control group for the idle interval: where a host would reclaim, a group kills.
const IDLE_GROUP_FREE_BYTES: u64 = 2 << 30;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// All memory that others do not need.
    #[default]
    Dynamic,
    /// Constant, as before WS-2 (there about 10 % of memory), but never into the reserve.
    Fixed { bytes: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub mode: Mode,
    /// The size when the mode changes to a fixed one at run time.
    pub fixed_bytes: u64,
    /// The reserve of the host, and of a control group's limit, in bytes...
    pub reserve_bytes_min: u64,
    /// ...or in thousandths of it, whichever is more...
    pub reserve_permille: u64,
    /// ...but at most this, so that a small host or group has a cache too. A program takes a gibibyte a second, and a
    /// processor of a shared host may be descheduled for some ten milliseconds.
    pub reserve_permille_max: u64,
    /// The cache never shrinks below this.
    pub floor_bytes: u64,
    /// The cache grows by at least this at a time, and leaves as much above the reserve. On small hosts a 64th of
    /// memory, when that is less.
    pub step_bytes: u64,
    /// The cache does not grow for this long after it had to shrink.
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
    /// Whether a cache of `held` bytes may take `more` now, whatever was decided at the last sample: others may have
    /// taken memory since.
    pub fn may_take(&self, facts: MemoryFacts, held: u64, more: u64) -> bool {
        matches!(self.mode, Mode::Fixed { .. }) || held < self.floor_bytes || self.headroom(facts) >= i128::from(more)
    }

    /// Memory above the reserve, the lesser of host and group; negative in a shortage.
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

/// Over a longer time, a fall of free memory says little about the next sample.
const FORESIGHT: Duration = Duration::from_millis(200);

/// Decides the size of the cache. Sampled every 50 ms or so.
pub struct Sizing {
    config: Config,
    /// The previous sample: its time, and the memory that the cache could have used then.
    before: Option<(Instant, i128)>,
    shrunk: Option<Instant>,
}

impl Sizing {
    pub const fn new(config: Config) -> Self {
        Sizing { config, before: None, shrunk: None }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// How many bytes the cache may hold; it holds `cache_bytes` now, which `facts` count as used. If the result is
    /// less, the difference is to be returned at once.
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

    /// Time until the next sample, short enough that others cannot have taken the headroom meanwhile.
    pub fn next_sample(&self, facts: MemoryFacts) -> Duration {
        let headroom = u64::try_from(self.config.headroom(facts)).unwrap_or(0);
        Duration::from_nanos(headroom / TAKEN_BYTES_A_NANOSECOND).clamp(SAMPLE_INTERVAL_MIN, SAMPLE_INTERVAL_MAX)
    }

    /// Time until the next sample if nothing was transferred since the last one: the cache does not grow then. Not
    /// extended in a small control group.
    pub fn next_idle_sample(&self, facts: MemoryFacts) -> Duration {
        let has_room = |group: GroupMemory| group.limit.saturating_sub(group.used) >= IDLE_GROUP_FREE_BYTES;
        if facts.available >= IDLE_AVAILABLE_BYTES && facts.group.is_none_or(has_room) {
            SAMPLE_INTERVAL_IDLE
        } else {
            self.next_sample(facts)
        }
    }

    /// What others are likely to take until memory returned now is available to them: twice what they took since the
    /// last sample. `room` is what they leave, whatever the cache holds.
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
