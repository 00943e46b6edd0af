//! A token ring: one frame at a time; the holder of the token may send (IEEE 802.5-1989; ANSI X3.139-1987 for 100
//! Mb/s).
//!
//! A station that wants to send waits for the token: half a rotation of it while the ring is idle; while others wait
//! too, the token passes to the next of them in the ring's order, which is taken as the order of requests. A frame
//! arrives when its last bit does; the way along the ring is part of a rotation and is not counted again.
//!
//! A network in which every station has its own line to a switch is the same without a token, each line for itself:
//! [`Switched`].

use std::time::Duration;

use policy::unit::Instant;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub bits_per_second: u64,
    pub stations: u32,
    /// Each station's delay of the token, with its cable.
    pub station: Duration,
    /// Bytes of a frame other than its data: preamble, addresses, check, status, and what its interface wastes.
    pub overhead_bytes: u64,
}

/// Carries frames between nodes. Times only: its user tracks what is sent.
pub trait Network {
    /// A node hands over a frame with `bytes` of data at `now`; returns its arrival.
    fn send(&mut self, now: Instant, from: usize, to: usize, bytes: u64) -> Instant;

    /// Busy time of the ring, or of the busiest line.
    fn busy(&self) -> Duration;
}

/// The ring, and when it is free.
#[derive(Clone, Debug)]
pub struct TokenRing {
    config: Config,
    free: Instant,
    /// Frames queued since it was idle last.
    in_line: u32,
    busy: Duration,
}

fn at_rate(bytes: u64, bits_per_second: u64) -> Duration {
    Duration::from_nanos((u128::from(bytes) * 8_000_000_000 / u128::from(bits_per_second.max(1))) as u64)
}

impl TokenRing {
    pub fn new(config: Config) -> Self {
        TokenRing { config, free: Instant::ZERO, in_line: 0, busy: Duration::ZERO }
    }

    /// One rotation of the token.
    pub fn turn(&self) -> Duration {
        self.config.station * self.config.stations
    }

    /// How long a frame with `bytes` of data is on the ring.
    pub fn frame(&self, bytes: u64) -> Duration {
        at_rate(bytes + self.config.overhead_bytes, self.config.bits_per_second)
    }
}

impl Network for TokenRing {
    fn send(&mut self, now: Instant, _from: usize, _to: usize, bytes: u64) -> Instant {
        let token = if now >= self.free {
            self.in_line = 0;
            self.turn() / 2
        } else {
            // The more stations wait, the nearer the next of them.
            self.in_line = (self.in_line + 1).min(self.config.stations);
            self.turn() / (self.in_line + 1)
        };
        let frame = self.frame(bytes);
        self.free = self.free.max(now) + token + frame;
        self.busy += frame;
        self.free
    }

    fn busy(&self) -> Duration {
        self.busy
    }
}

/// A network with a line for each node, and cut-through switches.
#[derive(Clone, Debug)]
pub struct Switched {
    bits_per_second: u64,
    latency: Duration,
    overhead_bytes: u64,
    /// Of each node: when its line out and its line in are free, and how long the latter was busy.
    out: Vec<Instant>,
    into: Vec<(Instant, Duration)>,
}

impl Switched {
    /// An idle network; `latency` is the time from memory to memory without that on the line.
    pub fn new(nodes: usize, bits_per_second: u64, latency: Duration, overhead_bytes: u64) -> Self {
        let into = vec![(Instant::ZERO, Duration::ZERO); nodes];
        Switched { bits_per_second, latency, overhead_bytes, out: vec![Instant::ZERO; nodes], into }
    }
}

impl Network for Switched {
    fn send(&mut self, now: Instant, from: usize, to: usize, bytes: u64) -> Instant {
        let frame = at_rate(bytes + self.overhead_bytes, self.bits_per_second);
        let begins = self.out[from].max(now);
        self.out[from] = begins + frame;
        let (free, busy) = &mut self.into[to];
        let begins = (begins + self.latency).max(*free);
        *free = begins + frame;
        *busy += frame;
        *free
    }

    fn busy(&self) -> Duration {
        self.into.iter().map(|(_, busy)| *busy).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn ring() -> TokenRing {
        TokenRing::new(Config { bits_per_second: 100_000_000, stations: 4, station: US, overhead_bytes: 25 })
    }

    #[test]
    fn a_frame_on_an_idle_ring_waits_for_half_a_turn_and_the_next_one_for_it() {
        let mut ring = ring();
        assert_eq!(ring.send(Instant::ZERO, 0, 1, 100), Instant::ZERO + US * 12);
        assert_eq!(ring.send(Instant::ZERO, 2, 1, 100), Instant::ZERO + US * (12 + 2 + 10));
        assert_eq!(ring.send(Instant::ZERO + US * 1000, 0, 1, 100), Instant::ZERO + US * 1012);
        assert_eq!(ring.busy(), US * 30);
    }

    #[test]
    fn lines_of_a_switched_network_are_busy_each_for_itself() {
        let mut network = Switched::new(3, 100_000_000, US * 5, 25);
        let first = network.send(Instant::ZERO, 0, 1, 100);
        assert_eq!(first, Instant::ZERO + US * 15);
        assert_eq!(network.send(Instant::ZERO, 1, 2, 100), first);
        assert_eq!(network.send(Instant::ZERO, 2, 1, 100), first + US * 10);
    }
}
