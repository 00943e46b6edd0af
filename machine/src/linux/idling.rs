//! What a processor with io_uring does while it has nothing to do: how long it polls, whether others' cores are kept awake
//! meanwhile, and on which core it is.

use std::ops::RangeInclusive;
use std::time::Duration;

use policy::awake::KeepAwake;
use policy::idle::{Awaited, Config, IdlePolling};
use policy::trial::Trial;
use policy::unit::{Instant, ProcessorId};

use super::Shared;
use super::alone::Alone;
use crate::Park;

/// The waits of a lone request that tell of the core: what completes sooner was hardly waited for, and of what takes longer the
/// disk's time is most.
const LONE_WAITS: RangeInclusive<Duration> = Duration::from_micros(10)..=Duration::from_micros(500);

/// A processor that has not been idle for so long has more to do than a lone request.
const BUSY_AFTER: Duration = Duration::from_millis(1);

/// What a processor has learnt from its waits.
pub(super) struct Idling {
    processor: ProcessorId,
    alone: Alone,
    /// When it was idle last.
    idle_until: Instant,
    polling: IdlePolling,
    awake: KeepAwake,
    /// Whether another processor's core is better than that where it was when this was last decided.
    moved: Trial,
}

impl Idling {
    pub(super) fn new(processor: ProcessorId, config: Config) -> Idling {
        Idling {
            processor,
            alone: Alone::default(),
            idle_until: Instant::ZERO,
            polling: IdlePolling::new(config),
            awake: KeepAwake::default(),
            moved: Trial::default(),
        }
    }

    /// It becomes idle. `has_calls`: other threads make calls for it that are answered from memory, mostly. Returns what it
    /// waits for.
    pub(super) fn begin(&mut self, shared: &Shared, park: Park, now: Instant, has_calls: bool) -> Awaited {
        match park {
            Park::Until { requests, .. } if requests > 0 => {
                let is_alone = self.alone.is_alone(&shared.last_waiter, self.processor, requests, now);
                match is_alone {
                    true if has_calls => Awaited::LoneCall,
                    true => Awaited::LoneRequest,
                    false => Awaited::Requests,
                }
            }
            _ => Awaited::Client,
        }
    }

    /// Has it nothing to do but what one request of late wants, nor has another processor?
    pub(super) fn is_alone(&self, shared: &Shared, now: Instant) -> bool {
        now.since(self.idle_until) < BUSY_AFTER && self.alone.was_alone(&shared.last_waiter, self.processor, now)
    }

    /// How long it polls before it sleeps.
    pub(super) fn polls_for(&self, awaited: Awaited) -> Duration {
        self.polling.duration(awaited)
    }

    /// Another thread used its time slice on the core, to which polling had yielded.
    pub(super) fn on_preempted(&mut self, shared: &Shared, now: Instant) {
        self.polling.on_preempted();
        shared.awake.decline(self.processor, now);
    }

    /// So many completions arrived `waited` after it became idle.
    pub(super) fn end(
        &mut self,
        shared: &Shared,
        now: Instant,
        awaited: Awaited,
        waited: Duration,
        completions: usize,
    ) {
        self.idle_until = now;
        let is_worth_polling = self.polling.on_work(awaited, waited);
        match awaited {
            Awaited::Client if shared.awake.is_possible() => {
                self.awake.on_work(waited, completions, shared.idle.longest);
                if self.awake.is_on() {
                    shared.awake.keep(self.processor, now, now + self.polling.duration(awaited));
                }
            }
            Awaited::LoneRequest => {
                if !is_worth_polling {
                    self.awake.on_long_request();
                }
                if LONE_WAITS.contains(&waited) {
                    self.try_another_core(shared, waited);
                }
            }
            Awaited::Client | Awaited::LoneCall | Awaited::Requests => {}
        }
    }

    /// Changes cores with another processor if that shortens waits such as this one.
    fn try_another_core(&mut self, shared: &Shared, waited: Duration) {
        if !self.moved.is_running() && shared.placement.take_preferred(self.processor) {
            self.moved = Trial::settled();
            return;
        }
        let had_moved = self.moved.is_on();
        let is_decided = self.moved.on_wait(waited);
        if self.moved.is_on() != had_moved && !shared.placement.toggle(self.processor) {
            self.moved = Trial::settled();
        } else if is_decided {
            shared.placement.prefer(self.processor);
        }
    }
}
