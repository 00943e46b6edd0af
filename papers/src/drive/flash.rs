//! A flash device: no mechanics, but latency, many parallel units, and a bus.

use std::time::Duration;

use policy::unit::{ByteRange, Instant};

use super::{Access, Timing};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flash {
    /// Source of the numbers.
    pub source: &'static str,
    /// Capacity, bytes.
    pub size: u64,
    /// Units that work in parallel: dies, or planes of them.
    pub units: u32,
    /// What one unit reads or writes at a time, bytes. Adjacent stripes lie on different units.
    pub stripe_bytes: u32,
    /// Time of a unit to read a stripe.
    pub read: Duration,
    /// Time of a unit to write a stripe: into the device's write cache that survives power cuts, or to the cells.
    pub write: Duration,
    /// Time of host interface and controller for each command.
    pub overhead: Duration,
    pub bus_bytes_per_second: u64,
}

/// A fast NVMe device of a desktop machine in 2026.
pub const NVME_2026: Flash = Flash {
    source: "Samsung 9100 PRO 1 TB (2025), data sheet: PCIe 5.0, 14.7 GB/s read, 13.3 GB/s written, 1.85 M random reads \
             and 2.6 M random writes a second of 4 KiB. Units and their times are chosen so that these follow",
    size: 1_000_000_000_000,
    units: 96,
    stripe_bytes: 4096,
    read: Duration::from_micros(45),
    write: Duration::from_micros(10),
    overhead: Duration::from_micros(5),
    bus_bytes_per_second: 14_000_000_000,
};

/// A flash device in operation.
#[derive(Clone, Debug)]
pub struct Channels {
    model: Flash,
    free_at: Vec<Instant>,
    bus_free_at: Instant,
}

impl Channels {
    pub fn new(model: Flash) -> Self {
        let units = model.units.max(1) as usize;
        Channels { model, free_at: vec![Instant::ZERO; units], bus_free_at: Instant::ZERO }
    }

    /// Starts a command at `now`; others may be in flight.
    pub fn serve(&mut self, now: Instant, access: Access, range: ByteRange) -> Timing {
        let model = self.model;
        let stripe = u64::from(model.stripe_bytes.max(1));
        let unit_time = if access == Access::Read { model.read } else { model.write };
        let accepted = now + model.overhead;
        let mut done = accepted;
        let mut at = range.at.0;
        while at < range.end().0 {
            let end = (at / stripe + 1) * stripe;
            let bytes = end.min(range.end().0) - at;
            let unit = (at / stripe % self.free_at.len() as u64) as usize;
            let read = self.free_at[unit].max(accepted) + unit_time;
            self.free_at[unit] = read;
            let bus = Duration::from_nanos(bytes * 1_000_000_000 / model.bus_bytes_per_second.max(1));
            // Written data cross the bus before the unit works, read data after it; they share it in either case.
            self.bus_free_at = self.bus_free_at.max(accepted) + bus;
            done = done.max(read + bus).max(self.bus_free_at);
            at = end;
        }
        Timing { began: now, done, transfer: done - accepted, ..Timing::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Flash = Flash {
        source: "",
        size: 1 << 30,
        units: 4,
        stripe_bytes: 4096,
        read: Duration::from_micros(50),
        write: Duration::from_micros(10),
        overhead: Duration::from_micros(5),
        bus_bytes_per_second: 4_096_000_000,
    };

    #[test]
    fn stripes_of_different_units_are_read_at_the_same_time_and_those_of_one_after_another() {
        let at =
            |at: u64, len: u64| Channels::new(MODEL).serve(Instant::ZERO, Access::Read, ByteRange::new(at, len)).done;
        assert_eq!(at(0, 4096).ns(), 56_000);
        assert_eq!(at(0, 4 * 4096).ns(), 56_000);
        assert_eq!(at(0, 5 * 4096).ns(), 106_000);
        let mut device = Channels::new(MODEL);
        device.serve(Instant::ZERO, Access::Read, ByteRange::new(0, 4096));
        let second = device.serve(Instant::ZERO, Access::Read, ByteRange::new(4 * 4096, 4096));
        assert_eq!(second.done.ns(), 106_000);
    }

    #[test]
    fn no_more_passes_the_bus_than_it_can_take() {
        let mut device = Channels::new(MODEL);
        let megabyte = device.serve(Instant::ZERO, Access::Write, ByteRange::new(0, 4_096_000));
        assert!(megabyte.done.ns() >= 1_000_000, "{megabyte:?}");
    }
}
