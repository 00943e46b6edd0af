//! A modelled mechanical disk in real (or virtual) time: seek, rotation, transfer, one request after another.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use policy::unit::{ByteOffset, ByteRange, Instant};

use super::{Device, DeviceFacts, DeviceRef, SeekTarget, Work};
use crate::processor::Processor;
use crate::request::Request;

/// What a mechanical disk does with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MechanicalModel {
    /// Name in configurations.
    pub name: &'static str,
    /// Rotations a minute.
    pub rpm: u32,
    /// Bytes that pass under the head in one rotation.
    pub track_bytes: u64,
    /// Tracks in one cylinder.
    pub heads: u32,
    /// Cylinders; with the above, the capacity of the real disk. A larger device stretches the seek curve.
    pub cylinders: u32,
    /// Seek to the next cylinder.
    pub seek_min: Duration,
    /// Seek across the whole disk.
    pub seek_max: Duration,
    /// Controller and command overhead of each request.
    pub overhead: Duration,
    /// Largest transfer of one command, bytes (WS-3).
    pub transfer_bytes_max: u32,
}

/// A 5.25-inch SCSI disk of about 1990: 3,600 rpm, 48 sectors of 512 bytes a track, 16 ms mean seek
/// (class of the Seagate ST4766N; its data sheet).
pub const SCSI_1990: MechanicalModel = MechanicalModel {
    name: "scsi-1990",
    rpm: 3600,
    track_bytes: 48 * 512,
    heads: 15,
    cylinders: 1632,
    seek_min: Duration::from_micros(4000),
    seek_max: Duration::from_micros(34_000),
    overhead: Duration::from_micros(1000),
    transfer_bytes_max: 128 << 10,
};

/// A 5.25-inch magneto-optical disk of about 1990: 2,400 rpm, 31 sectors of 512 bytes a track, 95 ms mean seek (class
/// of the Sony SMO-D501; ISO 10089 format).
pub const MAGNETO_OPTICAL_1990: MechanicalModel = MechanicalModel {
    name: "mo-1990",
    rpm: 2400,
    track_bytes: 31 * 512,
    heads: 1,
    cylinders: 18_751,
    seek_min: Duration::from_micros(7000),
    seek_max: Duration::from_micros(190_000),
    overhead: Duration::from_micros(2000),
    transfer_bytes_max: 128 << 10,
};

impl MechanicalModel {
    /// The models that a configuration can name.
    pub const ALL: [MechanicalModel; 2] = [SCSI_1990, MAGNETO_OPTICAL_1990];

    /// The model of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name == name)
    }

    fn rotation(&self) -> Duration {
        Duration::from_secs(60) / self.rpm
    }

    fn cylinder_bytes(&self) -> u64 {
        self.track_bytes * u64::from(self.heads)
    }

    /// Seek time over `distance` of `cylinders` cylinders: it grows with the square root of the distance.
    fn seek(&self, distance: u64, cylinders: u64) -> Duration {
        if distance == 0 {
            return Duration::ZERO;
        }
        let part = ((distance - 1) as f64 / cylinders.saturating_sub(2).max(1) as f64).min(1.0).sqrt();
        self.seek_min + (self.seek_max - self.seek_min).mul_f64(part)
    }

    /// When a transfer that begins at `now` with the head at `head` (a byte) is done.
    fn finish(&self, now: Instant, head: u64, range: ByteRange, size: u64) -> Instant {
        let cylinders = size.div_ceil(self.cylinder_bytes()).max(u64::from(self.cylinders));
        let distance = (range.at.0 / self.cylinder_bytes()).abs_diff(head / self.cylinder_bytes());
        let arrived = now + self.overhead + self.seek(distance, cylinders);
        let rotation_ns = self.rotation().as_nanos() as u64;
        let wanted_ns = range.at.0 % self.track_bytes * rotation_ns / self.track_bytes;
        let passing_ns = arrived.ns() % rotation_ns;
        let wait_ns = (wanted_ns + rotation_ns - passing_ns) % rotation_ns;
        let transfer_ns = (u128::from(range.len) * u128::from(rotation_ns) / u128::from(self.track_bytes)) as u64;
        arrived + Duration::from_nanos(wait_ns) + Duration::from_nanos(transfer_ns)
    }
}

/// A device that takes the time of a mechanical disk; its content is that of the device below.
pub struct Mechanical {
    below: DeviceRef,
    model: MechanicalModel,
    arm: Mutex<Arm>,
}

#[derive(Default)]
struct Arm {
    /// The byte after the last one transferred.
    head: u64,
    /// When the disk has done all that it was asked.
    idle_at: Instant,
}

impl Mechanical {
    /// A disk of that model with the content of `below`.
    pub fn new(below: DeviceRef, model: MechanicalModel) -> Self {
        Mechanical { below, model, arm: Mutex::default() }
    }

    /// Reserves the arm for a request and tells when it will be done.
    fn reserve(&self, now: Instant, range: Option<ByteRange>) -> Instant {
        let mut arm = self.arm.lock().unwrap_or_else(PoisonError::into_inner);
        let start = arm.idle_at.max(now);
        let end = match range {
            Some(range) => {
                let end = self.model.finish(start, arm.head, range, self.below.facts().size);
                arm.head = range.end().0;
                end
            }
            None => start + self.model.overhead,
        };
        arm.idle_at = end;
        end
    }
}

impl Device for Mechanical {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { rotational: true, transfer_bytes_max: self.model.transfer_bytes_max, ..self.below.facts() }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        Box::pin(async move {
            let end = self.reserve(cpu.now(), request.action.range());
            cpu.sleep_until(end).await;
            self.below.perform(cpu, request).await
        })
    }

    fn expedite(&self, cpu: &Processor, range: ByteRange) {
        self.below.expedite(cpu, range);
    }

    fn seek<'a>(&'a self, cpu: &'a Processor, at: ByteOffset, target: SeekTarget) -> Work<'a, Option<ByteOffset>> {
        self.below.seek(cpu, at, target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_follows_the_last_one_pays_no_seek_and_one_too_late_pays_a_rotation() {
        let model = SCSI_1990;
        let size = 600 << 20;
        let first = model.finish(Instant::ZERO, 0, ByteRange::new(0, 8192), size);
        let second = model.finish(first, 8192, ByteRange::new(8192, 8192), size);
        let gap = second - first;
        assert!(gap > model.rotation() && gap < model.rotation() * 2, "{gap:?}");
        let whole = model.finish(first, 8192, ByteRange::new(8192, 128 << 10), size);
        assert!(whole - first < gap * 16 / 2, "merging is worth the rotations saved");
    }

    #[test]
    fn seeks_grow_with_distance_up_to_the_maximum() {
        let model = SCSI_1990;
        let times: Vec<_> = [0, 1, 10, 100, 1000, 1631].iter().map(|&d| model.seek(d, 1632)).collect();
        assert!(times.is_sorted());
        assert_eq!(times[1], model.seek_min);
        assert!(times[5] <= model.seek_max);
    }
}
