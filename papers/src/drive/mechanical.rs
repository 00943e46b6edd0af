//! A mechanical disk: geometry, seek curve, rotation, skew, track buffer with read-ahead, bus.
//!
//! Ruemmler and Wilkes ("An introduction to disk drive modeling", IEEE Computer, March 1994) show what such a model
//! needs: with rotation and the buffer it is within some percent of the real disk, without them far off. This is their
//! model except for zones and spare sectors, which the modelled disks of 1990 hardly had.

mod mechanism;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use mechanism::Mechanism;

use crate::parameter::Parameters;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mechanical {
    pub rpm: u32,
    pub sector_bytes: u32,
    pub sectors_per_track: u32,
    pub heads: u32,
    pub cylinders: u32,
    /// Time from one track of a cylinder to the next.
    pub head_switch: Duration,
    /// Offset of a track's first sector from that of the track before, in sectors: those that pass in a head switch.
    pub track_skew: u32,
    /// The same from the last track of a cylinder to the first of the next one.
    pub cylinder_skew: u32,
    pub seek: SeekCurve,
    /// Controller time of a command before it moves the arm or data.
    pub overhead: Duration,
    pub bus_bytes_per_second: u64,
    pub buffer_bytes: u32,
    /// Does it read on into the buffer after a read (a track buffer)?
    pub read_ahead: bool,
    /// Passes of a write: one on a magnetic disk. A magneto-optical disk erases, then writes, since its magnetic field
    /// cannot be reversed within a bit; some verify in a third pass.
    pub write_passes: u32,
    /// Largest transfer of one command, bytes (WS-3).
    pub transfer_bytes_max: u32,
}

/// Seek time by distance, from the three numbers that data sheets have.
///
/// Between them it is `single + a √(d − 1) + b (d − 1)`, with a and b so that the mean over all random seeks and the
/// longest one are right: Lee and Katz, "An analytic performance model of disk arrays", SIGMETRICS 1993.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeekCurve {
    pub single: Duration,
    pub mean: Duration,
    pub full: Duration,
}

impl SeekCurve {
    pub fn time(&self, distance: u64, cylinders: u64) -> Duration {
        if distance == 0 {
            return Duration::ZERO;
        }
        let [single, mean, full] = [self.single, self.mean, self.full].map(|time| time.as_secs_f64());
        let cylinders = cylinders.max(2) as f64;
        let a = (15.0 * mean - 10.0 * single - 5.0 * full) / (3.0 * cylinders.sqrt());
        let b = (7.0 * single - 15.0 * mean + 8.0 * full) / (3.0 * cylinders);
        let steps = ((distance - 1) as f64).min(cylinders - 1.0);
        let seconds = single + a * steps.sqrt() + b * steps;
        Duration::from_nanos((seconds.max(0.0) * 1e9) as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    cylinder: u64,
    head: u64,
    /// Position in the rotation, counted in sectors, skew included.
    slot: u64,
}

/// Default of the largest transfer of one command (WS-3). Bytes.
const TRANSFER_BYTES_MAX: u32 = 128 << 10;

impl Mechanical {
    /// # Panics
    /// When there is no sheet of that name.
    pub fn named(name: &'static str) -> Self {
        Mechanical::of(&Parameters::of_sheet(name))
    }

    /// The disk of these parameters, formatted with the skews that its switches need.
    pub fn of(parameters: &Parameters) -> Self {
        let number = |name| parameters.get(name) as u32;
        let ms = |name| Duration::from_nanos((parameters.get(name) * 1e6) as u64);
        let model = Mechanical {
            rpm: number("disk.rpm"),
            sector_bytes: 512,
            sectors_per_track: number("disk.sectors_per_track"),
            heads: number("disk.heads"),
            cylinders: number("disk.cylinders"),
            head_switch: ms("disk.head_switch"),
            track_skew: 0,
            cylinder_skew: 0,
            seek: SeekCurve { single: ms("disk.seek_single"), mean: ms("disk.seek_mean"), full: ms("disk.seek_full") },
            overhead: ms("disk.overhead"),
            bus_bytes_per_second: (parameters.get("disk.bus") * 1e6) as u64,
            buffer_bytes: (parameters.get("disk.buffer") * 1024.0) as u32,
            read_ahead: parameters.get("disk.read_ahead") >= 0.5,
            write_passes: number("disk.write_passes"),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
        };
        model.formatted()
    }

    pub fn size(&self) -> u64 {
        self.cylinder_sectors() * u64::from(self.cylinders) * u64::from(self.sector_bytes)
    }

    pub fn rotation(&self) -> Duration {
        Duration::from_secs(60) / self.rpm.max(1)
    }

    /// Sectors that pass within that time, rounded up: the skew that a switch needs.
    pub fn sectors_within(&self, time: Duration) -> u32 {
        let sectors = time.as_nanos() * u128::from(self.sectors_per_track);
        sectors.div_ceil(self.rotation().as_nanos().max(1)) as u32
    }

    /// With the skews that its switches need. Drives are formatted so, but data sheets often omit the number.
    #[must_use]
    pub fn formatted(self) -> Self {
        Mechanical {
            track_skew: self.sectors_within(self.head_switch),
            cylinder_skew: self.sectors_within(self.seek.single),
            ..self
        }
    }

    fn cylinder_sectors(&self) -> u64 {
        u64::from(self.sectors_per_track) * u64::from(self.heads)
    }

    fn place(&self, sector: u64) -> Place {
        let per_track = u64::from(self.sectors_per_track);
        let heads = u64::from(self.heads);
        let track = sector / per_track;
        let (cylinder, head) = (track / heads, track % heads);
        let switches = track - cylinder;
        let skew = switches * u64::from(self.track_skew) + cylinder * u64::from(self.cylinder_skew);
        Place { cylinder, head, slot: (sector % per_track + skew) % per_track }
    }
}
