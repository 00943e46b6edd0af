//! The speed of virtual time: a mix of what the models do, for a benchmark.

use std::time::Duration;

use crate::model::wait::{Mailbox, Resource};
use crate::model::{Handler, Signals, Simulation, Virtual};

pub const TASKS: u64 = 1000;

/// A model without a task: a periodic timer.
struct Timer {
    time: Virtual,
    signals: Signals,
}

impl Handler for Timer {
    fn on_signal(&self, token: u64) {
        self.signals.at(self.time.now() + Duration::from_nanos(20_000 + token * 10), token);
    }
}

/// Runs the mix until at least `events` events happened; returns their number. A quarter of the tasks sleep for random
/// times, a quarter share a resource, half exchange messages in pairs; a hundred timers signal a model.
pub fn mix(events: u64, seed: u64) -> u64 {
    let run = Simulation::new(seed);
    for _ in 0..TASKS / 4 {
        run.spawn(sleeper(run.clone()));
    }
    let bus = Resource::new(&run, 4);
    for _ in 0..TASKS / 4 {
        run.spawn(user(run.clone(), bus.clone()));
    }
    for _ in 0..TASKS / 4 {
        let (requests, replies) = (Mailbox::new(&run), Mailbox::new(&run));
        run.spawn(client(run.clone(), requests.clone(), replies.clone()));
        run.spawn(server(requests, replies));
    }
    let timer = run.handled(|signals| Timer { time: run.clone(), signals });
    for token in 0..100 {
        timer.signals.at(run.now() + Duration::from_nanos(token), token);
    }
    run.run_while(|| run.events() < events);
    run.events()
}

async fn sleeper(time: Virtual) {
    loop {
        let pause = time.below(100_000);
        time.sleep(Duration::from_nanos(pause)).await;
    }
}

async fn user(time: Virtual, bus: Resource) {
    loop {
        let (think, use_ns) = (time.below(50_000), time.below(1000));
        time.sleep(Duration::from_nanos(think)).await;
        bus.serve(Duration::from_nanos(use_ns)).await;
    }
}

async fn client(time: Virtual, requests: Mailbox<u64>, replies: Mailbox<u64>) {
    for number in 0.. {
        requests.send(number);
        let answer = replies.receive().await;
        time.sleep(Duration::from_nanos(20_000 + (answer & 1023))).await;
    }
}

async fn server(requests: Mailbox<u64>, replies: Mailbox<u64>) {
    loop {
        let number = requests.receive().await;
        replies.send(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_runs_the_given_number_of_events_and_is_the_same_again() {
        let first = mix(50_000, 1);
        assert!(first >= 50_000);
        assert_eq!(first, mix(50_000, 1));
    }
}
