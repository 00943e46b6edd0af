//! A memory bus that processors share: a transfer waits for those requested before it.
//!
//! TOP-1's bus is nearly round robin (Shimizu et al., "Design choices for the TOP-1 multiprocessor workstation", IBM
//! Journal of Research and Development 35(5/6), 1991), so a first-come first-served server is close to it. A copy
//! crosses the bus in bursts, between which the processor works by itself.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use policy::unit::Instant;

use super::Virtual;
use super::processors::Thread;

/// A memory bus. Clones are the same bus.
#[derive(Clone)]
pub struct Bus(Rc<State>);

struct State {
    time: Virtual,
    free_at: Cell<Instant>,
    busy: Cell<Duration>,
}

impl Bus {
    pub fn new(time: &Virtual) -> Self {
        Bus(Rc::new(State { time: time.clone(), free_at: Cell::default(), busy: Cell::default() }))
    }

    /// A processor works for `processor`, the bus for `bus`, in `bursts` bursts; the thread runs in the kernel
    /// meanwhile. The work between bursts is distributed at random, or copies that begin at the same time would stay in
    /// step.
    pub async fn copy(&self, thread: &Thread, processor: Duration, bus: Duration, bursts: u32) {
        let State { time, free_at, busy } = &*self.0;
        let bursts = bursts.max(1);
        let burst = bus / bursts;
        // Remaining work; time to wait for the last burst.
        let (mut left, mut waits) = (processor, Duration::ZERO);
        for turn in 1..=bursts {
            let part =
                if turn == bursts { left } else { (processor / bursts).mul_f64(2.0 * time.fraction()).min(left) };
            left -= part;
            thread.run_in_kernel(waits + part).await;
            free_at.set(free_at.get().max(time.now()) + burst);
            busy.set(busy.get() + burst);
            waits = free_at.get() - time.now();
        }
        thread.run_in_kernel(waits).await;
    }

    pub fn busy(&self) -> Duration {
        self.0.busy.get()
    }
}

#[cfg(test)]
mod tests {
    use super::super::processors::tests::{Scene, ms};
    use super::*;

    #[test]
    fn copies_at_the_same_time_wait_for_each_other_only_on_the_bus() {
        let took = |copies: u16| {
            let scene: Scene<()> = Scene::of_mach(8, false);
            let bus = Bus::new(&scene.run);
            for _ in 0..copies {
                let bus = bus.clone();
                scene.processors.start(|thread| async move { bus.copy(&thread, ms(3), ms(1), 10).await });
            }
            scene.run.run();
            assert_eq!(bus.busy(), ms(copies.into()));
            scene.run.now() - Instant::ZERO
        };
        assert_eq!(took(1), ms(4));
        assert!(took(2) < ms(5), "{:?}", took(2));
        assert!(took(8) > ms(8), "{:?}", took(8));
    }
}
