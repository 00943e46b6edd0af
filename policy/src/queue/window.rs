//! How much asynchronous work may be in flight while synchronous requests are.
//!
//! Order in the queue is not enough (WS-4 on today's disks): what the disk has accepted goes first too, and a disk
//! accepts megabytes. As in Linux (`block/blk-wbt.c`, write-back throttling), the window is halved while synchronous
//! requests take clearly longer than they do alone, and opens again when they do not or have stopped. Unlike Linux,
//! nothing is configured: the time that a request takes alone is learned, by kind and size.

use std::time::Duration;

use super::RequestKind;
use crate::unit::{Class, Instant};

/// The smallest window and the largest asynchronous request while it is narrow: 64 KiB.
pub(super) const WINDOW_MIN: u64 = 64 << 10;
/// Without a synchronous request for this long, the window opens fast.
const QUIET: Duration = Duration::from_millis(10);
/// The window is adjusted after this number of synchronous completions with concurrent asynchronous work...
const SAMPLES: u32 = 8;
/// ...or as soon as this number of them were slow.
const SAMPLES_SLOW: u32 = 4;
/// The learned time follows a shorter sample by one part in `FALL`, a longer one by one in `RISE`: it settles near the
/// tenth percentile, and follows a disk that became slower for good within some hundred requests.
const FALL: u64 = 8;
const RISE: u64 = 64;
/// Sizes up to 4 KiB, 8 KiB, ... 512 KiB and more are learned separately.
const SIZES: usize = 8;
const KINDS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    issued: Instant,
    class: Class,
    kind: RequestKind,
    bytes: u64,
    /// Whether asynchronous batches were in flight at issue, and the number of those issued before.
    is_concurrent: bool,
    asynchronous_before: u64,
}

/// The window of asynchronous requests of one disk.
pub(super) struct Window {
    bytes: u64,
    bytes_max: u64,
    in_flight: u64,
    in_flight_bytes: u64,
    issued: u64,
    synchronous_in_flight: u64,
    last_synchronous: Option<Instant>,
    samples: u32,
    slow: u32,
    /// Nanoseconds from issue to completion without concurrent asynchronous work; 0 is unknown.
    alone_ns: [[u64; SIZES]; KINDS],
}

impl Window {
    pub(super) fn new(bytes_max: u64) -> Self {
        let bytes_max = bytes_max.max(WINDOW_MIN);
        Window {
            bytes: bytes_max,
            bytes_max,
            in_flight: 0,
            in_flight_bytes: 0,
            issued: 0,
            synchronous_in_flight: 0,
            last_synchronous: None,
            samples: 0,
            slow: 0,
            alone_ns: [[0; SIZES]; KINDS],
        }
    }

    pub(super) fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max.max(WINDOW_MIN);
        self.bytes = self.bytes.min(self.bytes_max);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether a request of `bytes` may be issued. A single one always may, to bound its wait.
    pub(super) fn admits(&self, bytes: u64) -> bool {
        let requests_max = self.bytes / WINDOW_MIN;
        self.in_flight == 0 || self.in_flight < requests_max && self.in_flight_bytes.saturating_add(bytes) <= self.bytes
    }

    /// The largest batch with asynchronous members at present, in bytes: with a narrow window synchronous requests
    /// suffer, and one large transfer would occupy the disk as long as many small ones. It may exceed the remainder of
    /// the window, but not the window: filling remainders would make many small transfers.
    pub(super) fn batch_bytes_max(&self, transfer_bytes_max: u64) -> u64 {
        self.bytes.min(transfer_bytes_max)
    }

    pub(super) fn on_synchronous(&mut self, now: Instant) {
        self.last_synchronous = Some(now);
    }

    pub(super) fn on_issue(&mut self, now: Instant, class: Class, kind: RequestKind, bytes: u64) -> InFlight {
        let is_concurrent = self.in_flight > 0;
        match class {
            Class::Synchronous => self.synchronous_in_flight += 1,
            Class::Asynchronous => {
                self.issued += 1;
                self.in_flight += 1;
                self.in_flight_bytes += bytes;
            }
        }
        InFlight { issued: now, class, kind, bytes, is_concurrent, asynchronous_before: self.issued }
    }

    pub(super) fn on_completion(&mut self, now: Instant, batch: InFlight) {
        match batch.class {
            Class::Asynchronous => {
                self.in_flight -= 1;
                self.in_flight_bytes -= batch.bytes;
                if self.is_quiet(now) {
                    self.bytes = (self.bytes * 2).min(self.bytes_max);
                }
            }
            Class::Synchronous => {
                self.synchronous_in_flight -= 1;
                self.last_synchronous = Some(now);
                // What is zeroed or discarded takes a time of its own.
                if batch.kind != RequestKind::Other {
                    self.adjust(now, batch);
                }
            }
        }
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.synchronous_in_flight == 0 && self.last_synchronous.is_none_or(|then| now.since(then) >= QUIET)
    }

    /// Several slow samples decide, not one: a single slow request may have other causes.
    fn adjust(&mut self, now: Instant, batch: InFlight) {
        let took_ns = (now.since(batch.issued).as_nanos() as u64).max(1);
        let alone_ns = &mut self.alone_ns[batch.kind as usize][size_class(batch.bytes)];
        let was_alone = !batch.is_concurrent && batch.asynchronous_before == self.issued;
        if *alone_ns == 0 {
            *alone_ns = took_ns;
        } else if took_ns < *alone_ns {
            *alone_ns -= (*alone_ns - took_ns).div_ceil(FALL);
        } else if was_alone {
            *alone_ns += (took_ns - *alone_ns) / RISE;
        }
        if was_alone {
            return;
        }
        self.samples += 1;
        if took_ns > *alone_ns + *alone_ns / 2 {
            self.slow += 1;
        }
        if self.slow >= SAMPLES_SLOW {
            self.bytes = (self.bytes / 2).max(WINDOW_MIN);
        } else if self.samples >= SAMPLES {
            self.bytes = (self.bytes + WINDOW_MIN).min(self.bytes_max);
        } else {
            return;
        }
        self.samples = 0;
        self.slow = 0;
    }
}

fn size_class(bytes: u64) -> usize {
    let blocks = bytes.div_ceil(4096).max(1).next_power_of_two();
    (blocks.ilog2() as usize).min(SIZES - 1)
}
