//! A board with memory on a VME bus that copies pages from other boards by itself (DSM: PUMA-II).
//!
//! The processor writes commands, one for each page, into the board's command FIFO, as many as fit; the board fetches
//! the pages one after another over its network and puts an answer for each into the response FIFO. The processor reads
//! the board's memory word by word over the VME bus (IEEE 1014-1987): that bus is separate from the processor's own
//! memory, and the processor waits for each word's transaction.

use std::time::Duration;

use policy::unit::Instant;

use super::token_ring::Network;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// One word of 4 bytes read or written by the processor over the bus.
    pub word: Duration,
    pub commands: u32,
    /// Words of a command: the operation, and the page's address in the shared space.
    pub command_words: u32,
    pub response_words: u32,
    /// From the arrival of a frame until the board answers it: finding the page, starting its copy.
    pub turnaround: Duration,
    /// Bytes of a message to another board that carries no page.
    pub message_bytes: u64,
    pub page_bytes: u64,
    /// Are all requests sent before the first page comes?
    pub overlaps: bool,
}

/// Time to fetch pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// On the bus, for commands and responses.
    pub bus: Duration,
    pub network: Duration,
}

impl Config {
    /// The processor copies `bytes` out of the board's memory, or into it.
    pub fn copy(&self, bytes: u64) -> Duration {
        self.word * bytes.div_ceil(4) as u32
    }

    /// Fetches pages from the board `from` to the board `to`: requested by a processor at `now`, which waits for all.
    pub fn fetch(&self, network: &mut dyn Network, now: Instant, from: usize, to: usize, pages: u32) -> Fetched {
        let mut fetched = Fetched::default();
        let mut left = pages;
        while left > 0 {
            let together = left.min(self.commands.max(1));
            fetched.bus += self.word * (self.command_words + self.response_words) * together;
            let begun = now + fetched.bus + fetched.network;
            let mut done = begun;
            let mut requested = Vec::new();
            if self.overlaps {
                requested.extend((0..together).map(|_| network.send(begun, to, from, self.message_bytes)));
            }
            for page in 0..together as usize {
                let arrived = match requested.get(page) {
                    Some(arrived) => *arrived,
                    None => network.send(done, to, from, self.message_bytes),
                };
                done = network.send((arrived + self.turnaround).max(done), from, to, self.page_bytes);
            }
            fetched.network += done - begun;
            left -= together;
        }
        fetched
    }
}

#[cfg(test)]
mod tests {
    use super::super::token_ring::{self, TokenRing};
    use super::*;

    #[test]
    fn each_page_takes_its_time_on_the_ring_and_words_on_the_bus() {
        let us = Duration::from_micros;
        let ring = token_ring::Config { bits_per_second: 100_000_000, stations: 0, station: us(1), overhead_bytes: 0 };
        let board = Config {
            word: us(1),
            commands: 2,
            command_words: 2,
            response_words: 1,
            turnaround: us(10),
            message_bytes: 25,
            page_bytes: 1250,
            overlaps: false,
        };
        let fetched = board.fetch(&mut TokenRing::new(ring), Instant::ZERO, 0, 1, 3);
        assert_eq!(fetched, Fetched { bus: us(9), network: us(3 * (2 + 10 + 100)) });
        assert_eq!(board.copy(4096), us(1024));
        // The second of two pages is requested while the first one comes.
        let overlapping = Config { overlaps: true, ..board };
        let fetched = overlapping.fetch(&mut TokenRing::new(ring), Instant::ZERO, 0, 1, 2);
        assert_eq!(fetched, Fetched { bus: us(6), network: us(2 + 10 + 2 * 100) });
    }
}
