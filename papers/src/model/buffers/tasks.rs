//! The daemons of the cache: one follows the machine's memory, one writes back.

use std::time::Duration;

use policy::sizing::Mode;
use policy::writeback::Admission;

use super::Buffers;

/// Intervals of write-back: normally; when it is behind; and when writers wait. As in the kernel of Awase.
const TICK: Duration = Duration::from_millis(100);
const TICK_HURRIED: Duration = Duration::from_millis(10);
const TICK_AWAITED: Duration = Duration::from_millis(1);

/// Writes in flight with smooth write-back, as in the kernel of Awase. 4.3BSD queues all at once.
const UNDER_WAY_MAX: u64 = 64;

/// Follows the machine's memory: returns at once what the policy wants returned.
pub(super) async fn follow_memory(buffers: Buffers) {
    loop {
        let shared = &buffers.0;
        let facts = shared.memory.facts();
        let pause = {
            let mut sizing = shared.sizing.borrow_mut();
            shared.target.set(sizing.on_sample(shared.time.now(), facts, buffers.bytes_held()));
            sizing.next_sample(facts)
        };
        shared.is_short.set(!buffers.shrink());
        shared.changed.open();
        shared.time.sleep(pause).await;
    }
}

pub(super) async fn write_back(buffers: Buffers) {
    let shared = &buffers.0;
    loop {
        let blocks = shared.write_back.borrow_mut().on_tick(shared.time.now(), buffers.dirty_facts());
        let is_smooth = shared.config.write_back.smooth;
        let mut left = if shared.is_short.get() { buffers.pool().to_write() } else { blocks };
        while left > 0 && buffers.start_next_write() {
            left -= 1;
            shared.changed.until(|| !is_smooth || buffers.pool().under_way() < UNDER_WAY_MAX).await;
        }
        buffers.pause().await;
    }
}

impl Buffers {
    /// Takes the cache's permanent memory, as at boot: all of a fixed one, the floor of a dynamic one.
    pub(super) fn take_first(&self) {
        let shared = &self.0;
        let sizing = &shared.config.sizing;
        let bytes = match sizing.mode {
            Mode::Fixed { bytes } => bytes,
            Mode::Dynamic => sizing.floor_bytes,
        };
        shared.target.set(bytes);
        let each = shared.config.buffer_bytes;
        while self.bytes_held() + each <= bytes && shared.memory.lend(each) {
            self.pool().add();
        }
    }

    /// Returns memory above the target. False when that is impossible before something is written.
    fn shrink(&self) -> bool {
        let shared = &self.0;
        while self.bytes_held() > shared.target.get() {
            if !self.pool().has_unused() && !self.evict() {
                return false;
            }
            self.pool().give_up();
            shared.memory.on_returned(shared.config.buffer_bytes);
        }
        true
    }

    /// Waits for the next tick, which is early if a waiter needs it.
    async fn pause(&self) {
        let shared = &self.0;
        let facts = self.dirty_facts();
        let (is_behind, is_full) = {
            let policy = shared.write_back.borrow();
            (policy.is_behind(facts), policy.admit(facts) == Admission::Wait)
        };
        let is_awaited = shared.is_short.get() || is_full || shared.held_up.get() > 0;
        let tick = match () {
            () if is_awaited => TICK_AWAITED,
            () if is_behind && shared.config.write_back.smooth => TICK_HURRIED,
            () => TICK,
        };
        shared.time.sleep(tick).await;
    }
}
