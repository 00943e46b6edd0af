//! The processor's time stamp counter: the cheapest clock, for event stamps.

use std::sync::OnceLock;
use std::time::Instant;

use super::TickSource;

/// Ticks of the processor's counter. 0 on a processor without one.
#[inline]
pub fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; where user programs may not use it, the clock is used.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// The present time in ticks of the host's machines, for threads that have none.
pub fn ticks(source: TickSource) -> u64 {
    match source {
        TickSource::Counter => counter(),
        TickSource::Clock => u64::try_from(clock_origin().elapsed().as_nanos()).unwrap_or(u64::MAX),
    }
}

/// When the clock of all machines of this process was zero.
pub(crate) fn clock_origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// The counter, if it has a constant rate on all cores and never stops (`constant_tsc` and `nonstop_tsc` of
/// `/proc/cpuinfo`); else the clock.
pub(crate) fn tick_source() -> TickSource {
    static SOURCE: OnceLock<TickSource> = OnceLock::new();
    *SOURCE.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        let even = cfg!(target_arch = "x86_64") && has("constant_tsc") && has("nonstop_tsc");
        if even { TickSource::Counter } else { TickSource::Clock }
    })
}
