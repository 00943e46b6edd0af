//! Properties of a simulated disk and network, and how a seed chooses them.

use crate::faults::DiskFaults;
use crate::random::Random;

/// A duration between two bounds, drawn for each operation. In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub ns_min: u64,
    pub ns_max: u64,
}

impl Latency {
    pub const fn ns(ns_min: u64, ns_max: u64) -> Self {
        Latency { ns_min, ns_max }
    }

    pub const fn us(us_min: u64, us_max: u64) -> Self {
        Latency { ns_min: us_min * 1_000, ns_max: us_max * 1_000 }
    }

    pub(crate) fn draw(self, random: &mut Random) -> u64 {
        random.between(self.ns_min, self.ns_max)
    }
}

#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// In bytes, a multiple of the sector. If not a multiple of `align`, the end is written through the page cache.
    pub size: u64,
    /// What the medium writes completely or not at all, in bytes: a power of two from 512 to 4096.
    pub sector_bytes: u32,
    /// Offsets and lengths of transfers must be multiples of this, in bytes: a power of two up to 4096. 1 is a file
    /// behind the host's page cache.
    pub align: u32,
    /// Time of a read, besides `ns_per_kib`.
    pub read: Latency,
    /// Time of a write into the disk's cache (and of a discard or zeroing), besides `ns_per_kib`.
    pub write: Latency,
    /// Additional time of a stable write.
    pub stable_extra: Latency,
    pub flush: Latency,
    /// Time to transfer 1 KiB, in nanoseconds.
    pub ns_per_kib: u64,
    /// Operations in a thousand that stall.
    pub stall_permille: u32,
    pub stall: Latency,
    /// Operations in a thousand, in a tree of its calls, too, that take effect long before their completion is seen: later
    /// ones may be seen first.
    pub late_permille: u32,
    /// The time between effect and completion.
    pub late: Latency,
    /// Operations that the disk works on concurrently; others wait in order. Flushes do not count.
    pub channels: u32,
    /// Reported by the kernel: it has moving parts.
    pub rotational: bool,
    /// Reported by the kernel: the largest transfer in one request, in bytes.
    pub transfer_bytes_max: u32,
    pub zero_supported: bool,
    pub discard_supported: bool,
    pub find_data_supported: bool,
    /// Random faults.
    pub faults: DiskFaults,
}

impl DiskConfig {
    /// A faultless flash disk of `size` bytes: sectors of 512 bytes, some tens of microseconds.
    pub fn new(size: u64) -> Self {
        DiskConfig {
            size,
            sector_bytes: 512,
            align: 512,
            read: Latency::us(60, 120),
            write: Latency::us(10, 40),
            stable_extra: Latency::us(20, 400),
            flush: Latency::us(200, 1_000),
            ns_per_kib: 300,
            stall_permille: 0,
            stall: Latency::us(5_000, 20_000),
            late_permille: 0,
            late: Latency::us(10, 2_000),
            channels: 8,
            rotational: false,
            transfer_bytes_max: 512 * 1024,
            zero_supported: true,
            discard_supported: true,
            find_data_supported: true,
            faults: DiskFaults::default(),
        }
    }

    /// As `new`, but what was never written is data, as on a block device.
    pub fn without_holes(size: u64) -> Self {
        DiskConfig { find_data_supported: false, ..DiskConfig::new(size) }
    }

    /// A faultless disk of `size` bytes, a multiple of 4096, whose timing, sectors and features are drawn from `seed`.
    pub fn drawn(size: u64, seed: u64) -> Self {
        let mut random = Random::new(seed, u64::MAX);
        let base = DiskConfig::new(size);
        let sector_bytes = random.pick(&[512, 512, 4096]);
        let slow = random.pick(&[1, 1, 10]);
        DiskConfig {
            sector_bytes,
            align: random.pick(&[sector_bytes, 512, 4096]),
            read: spread(&mut random, 80 * slow),
            write: spread(&mut random, 20 * slow),
            stable_extra: spread(&mut random, 200 * slow),
            flush: spread(&mut random, 500 * slow),
            stall_permille: random.pick(&[0, 0, 10]),
            channels: random.pick(&[1, 2, 8, 32]),
            transfer_bytes_max: random.pick(&[128 * 1024, 512 * 1024]),
            zero_supported: random.permille(750),
            discard_supported: random.permille(750),
            late_permille: random.pick(&[0, 100, 300]),
            ..base
        }
    }

    /// Panics when the values are inconsistent, which is a bug of the test.
    pub(crate) fn check(&self) {
        let sector = self.sector_bytes;
        assert!(sector.is_power_of_two() && (512..=4096).contains(&sector), "sector of {sector} bytes");
        assert!(self.align.is_power_of_two() && self.align <= 4096, "alignment of {} bytes", self.align);
        assert!(self.size.is_multiple_of(u64::from(sector)), "{} bytes are no multiple of {sector}", self.size);
        assert!(self.channels > 0, "a disk without channels");
    }
}

/// Durations around `us` microseconds: sometimes narrow, sometimes so wide that everything is reordered.
fn spread(random: &mut Random, us: u64) -> Latency {
    let width = random.pick(&[1, 2, 20]);
    Latency::us(us.div_ceil(width), us * width)
}

/// The simulated network, the same between all hosts.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// From sending to arrival. A connection preserves order all the same.
    pub latency: Latency,
    /// Time to transfer 1 KiB, in nanoseconds.
    pub ns_per_kib: u64,
    /// Bytes that a connection buffers in each direction: in flight, and arrived but not received.
    pub buffer_bytes: u32,
    /// Receives in a thousand that return only a part of what has arrived.
    pub short_receive_permille: u32,
    /// Sends in a thousand that take only a part of what fits.
    pub short_send_permille: u32,
    /// Connections waiting to be accepted on one port, at most.
    pub backlog_max: usize,
}

impl NetworkConfig {
    /// A network whose behaviour is drawn from `seed`.
    pub fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed, u64::MAX - 1);
        NetworkConfig {
            latency: spread(&mut random, 50),
            ns_per_kib: random.pick(&[0, 100, 10_000]),
            buffer_bytes: random.pick(&[4 * 1024, 64 * 1024, 256 * 1024]),
            short_receive_permille: random.pick(&[0, 200, 900]),
            short_send_permille: random.pick(&[0, 200, 900]),
            ..NetworkConfig::default()
        }
    }
}

impl Default for NetworkConfig {
    /// A local network that shortens one transfer in four.
    fn default() -> Self {
        NetworkConfig {
            latency: Latency::us(10, 100),
            ns_per_kib: 100,
            buffer_bytes: 256 * 1024,
            short_receive_permille: 250,
            short_send_permille: 250,
            backlog_max: 128,
        }
    }
}
