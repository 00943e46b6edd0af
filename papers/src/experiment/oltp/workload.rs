//! What the load generator replays, and the OLTP system's work for it.

use std::collections::VecDeque;

/// Sizes of a mix's transactions, as means over its types.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Calls of an application to the OLTP system.
    pub calls: f64,
    /// I/O requests, with those for the messages and the journal.
    pub ios: f64,
    /// Number of calls that follow another call at once.
    pub consecutive: f64,
    pub application_ns: f64,
}

/// Types of transactions: how many of a hundred, and size relative to the mean of the mix.
const TYPES: [(u64, f64); 5] = [(35, 0.6), (30, 0.9), (20, 1.2), (10, 1.6), (5, 2.4)];
/// I/O for the message, its answer and the journal: any transaction has them.
const FIXED_IOS: f64 = 3.0;

#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    calls: u64,
    disk_ios: u64,
    consecutive: f64,
    /// Between two calls that are not consecutive.
    pub application_ns: u64,
    calls_done: u64,
    ios_left: u64,
}

/// A transaction as the front-end processor has it on its disk.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    pub transaction: Transaction,
    /// The terminal, counted from 1.
    pub terminal: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// One more disk I/O of the present call.
    Io,
    /// The application continues, and calls.
    Call,
    /// The application's next instruction is another call.
    ConsecutiveCall,
    /// No more: the journal is written, and the answer.
    Commit,
}

impl Mix {
    /// A shuffled sequence of transactions from `terminals` terminals. `below` draws a number below another one.
    pub fn replay(&self, transactions: u64, terminals: u64, mut below: impl FnMut(u64) -> u64) -> Vec<Replayed> {
        let one = |number| Replayed { transaction: self.transaction(number % 100), terminal: 0 };
        let mut all: Vec<Replayed> = (0..transactions).map(one).collect();
        for last in (1..all.len()).rev() {
            all.swap(last, below(last as u64 + 1) as usize);
        }
        all.iter_mut().for_each(|replayed| replayed.terminal = below(terminals) + 1);
        all
    }

    /// A transaction of the type at that percentile, from 0 to 99.
    fn transaction(&self, percentile: u64) -> Transaction {
        let mut below = 0;
        let found = TYPES.iter().find(|(share, _)| {
            below += share;
            percentile < below
        });
        let size = found.map_or(1.0, |(_, size)| *size);
        let calls = ((self.calls * size + 0.5) as u64).max(1);
        let disk_ios = ((self.ios - FIXED_IOS).max(0.0) * size + 0.5) as u64;
        let own = self.calls * (1.0 - self.consecutive);
        let application_ns = (self.application_ns / own.max(1.0)) as u64;
        let consecutive = self.consecutive;
        Transaction { calls, disk_ios, consecutive, application_ns, calls_done: 0, ios_left: 0 }
    }
}

impl Transaction {
    /// The next step of the application, or after an I/O.
    pub fn next(&mut self) -> Next {
        if self.ios_left > 0 {
            self.ios_left -= 1;
            return Next::Io;
        }
        let call = self.calls_done;
        if call == self.calls {
            return Next::Commit;
        }
        self.calls_done += 1;
        // All disk I/O, spread evenly over the calls.
        self.ios_left = self.disk_ios * (call + 1) / self.calls - self.disk_ios * call / self.calls;
        let consecutive = |calls: u64| (calls as f64 * self.consecutive) as u64;
        if consecutive(call + 1) > consecutive(call) && call > 0 { Next::ConsecutiveCall } else { Next::Call }
    }
}

/// A place for one application at a time, and its transaction.
#[derive(Clone, Debug, Default)]
pub struct Region {
    pub phase: Phase,
    pub transaction: Option<Transaction>,
    pub terminal: u64,
    /// Arrival of its message, nanoseconds.
    pub since_ns: u64,
    /// Modules of the system that must be loaded before it goes on.
    pub loads: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Free,
    Reading,
    Calling,
    Journal,
    Replying,
}

/// The OLTP system: one program to the operating system, parent of all applications.
#[derive(Debug)]
pub struct Oltp {
    pub regions: Vec<Region>,
    /// Regions with work to do, in order.
    pub ready: VecDeque<usize>,
    /// Messages that the front-end processor will send.
    pub messages: VecDeque<Replayed>,
}

impl Oltp {
    /// With `regions` regions, all free and ready to read their first messages.
    pub fn new(regions: usize, messages: Vec<Replayed>) -> Self {
        Oltp { regions: vec![Region::default(); regions], ready: (0..regions).collect(), messages: messages.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_its_calls_and_ios_and_then_commits() {
        let mix = Mix { calls: 10.0, ios: 18.0, consecutive: 0.25, application_ns: 7.5e6 };
        let mut transaction = Transaction { calls: 10, disk_ios: 15, ..mix.transaction(99) };
        let (mut calls, mut consecutive, mut ios) = (0, 0, 0);
        loop {
            match transaction.next() {
                Next::Io => ios += 1,
                Next::Call => calls += 1,
                Next::ConsecutiveCall => consecutive += 1,
                Next::Commit => break,
            }
        }
        assert_eq!((calls, consecutive, ios), (8, 2, 15));
        assert_eq!(transaction.application_ns, 1_000_000);
    }

    #[test]
    fn the_types_of_a_mix_have_its_mean() {
        assert_eq!(TYPES.iter().map(|(share, _)| share).sum::<u64>(), 100);
        let mean: f64 = TYPES.iter().map(|(share, size)| *share as f64 / 100.0 * size).sum();
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
    }
}
