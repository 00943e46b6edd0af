//! A memory bus that processors share: who moves data waits for those who came before.
//!
//! TOP-1's bus gives its turns nearly round robin (Shimizu et al., "Design choices for the TOP-1 multiprocessor
//! workstation", IBM Journal of Research and Development 35(5/6), 1991), so a server in order of coming is near to it. A
//! copy goes over it in bursts, between which the processor works by itself.

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
    /// An idle bus.
    pub fn new(time: &Virtual) -> Self {
        Bus(Rc::new(State { time: time.clone(), free_at: Cell::default(), busy: Cell::default() }))
    }

    /// A processor works for `processor`, the bus for `bus`, in `bursts` turns; the thread runs in the kernel meanwhile.
    /// How the work lies between the bursts is drawn at random, or all who began together would stay in step.
    pub async fn copy(&self, thread: &Thread, processor: Duration, bus: Duration, bursts: u32) {
        let State { time, free_at, busy } = &*self.0;
        let bursts = bursts.max(1);
        let burst = bus / bursts;
        // What is left of the work; the time of the last burst.
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

    /// How long it was busy so far.
    pub fn busy(&self) -> Duration {
        self.0.busy.get()
    }
}
