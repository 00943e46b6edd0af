//! What a simulated disk and network are like, and how a seed chooses it.

use crate::faults::DiskFaults;
use crate::random::Random;

/// A time between two bounds, drawn anew for every operation. In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub ns_min: u64,
    pub ns_max: u64,
}

impl Latency {
    /// From `ns_min` to `ns_max` nanoseconds.
    pub const fn ns(ns_min: u64, ns_max: u64) -> Self {
        Latency { ns_min, ns_max }
    }

    /// From `us_min` to `us_max` microseconds.
    pub const fn us(us_min: u64, us_max: u64) -> Self {
        Latency { ns_min: us_min * 1_000, ns_max: us_max * 1_000 }
    }

    pub(crate) fn draw(self, random: &mut Random) -> u64 {
        random.between(self.ns_min, self.ns_max)
    }
}

#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Size in bytes: a multiple of the sector. If it is none of `align`, the end is written through the page cache.
    pub size: u64,
    /// What the medium writes whole or not at all, in bytes: a power of two from 512 to 4096.
    pub sector_bytes: u32,
    /// Offsets and lengths of transfers must be multiples of this, in bytes: a power of two up to 4096. 1 is a file
    /// behind the host's page cache.
    pub align: u32,
    /// Time of a read, besides `ns_per_kib`.
    pub read: Latency,
    /// Time of a write into the disk's cache (and of a discard or zeroing), besides `ns_per_kib`.
    pub write: Latency,
    /// What a stable write takes longer.
    pub stable_extra: Latency,
    pub flush: Latency,
    /// Time to transfer 1 KiB, in nanoseconds.
    pub ns_per_kib: u64,
    /// How many operations in a thousand stall.
    pub stall_permille: u32,
    /// How long a stall is.
    pub stall: Latency,
    /// How many operations in a thousand have their effect long before their end is seen: others that end later are seen
    /// before them.
    pub late_permille: u32,
    /// How much later that is.
    pub late: Latency,
    /// Operations that the disk works on at once; the others wait in order. Flushes do not count.
    pub channels: u32,
    /// Told to the kernel: does it have moving parts?
    pub rotational: bool,
    /// Told to the kernel: the largest transfer in one piece, in bytes.
    pub transfer_bytes_max: u32,
    pub zero_supported: bool,
    pub discard_supported: bool,
    pub seek_supported: bool,
    /// What goes wrong by chance.
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
            seek_supported: true,
            faults: DiskFaults::default(),
        }
    }

    /// A faultless disk of `size` bytes, a multiple of 4096, whose timing, sectors and abilities are drawn from `seed`.
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

    /// Panics when the values contradict each other: that is a mistake in the test that made them.
    pub(crate) fn check(&self) {
        let sector = self.sector_bytes;
        assert!(sector.is_power_of_two() && (512..=4096).contains(&sector), "sector of {sector} bytes");
        assert!(self.align.is_power_of_two() && self.align <= 4096, "alignment of {} bytes", self.align);
        assert!(self.size.is_multiple_of(u64::from(sector)), "{} bytes are no multiple of {sector}", self.size);
        assert!(self.channels > 0, "a disk without channels");
    }
}

/// A range of times around `us` microseconds: sometimes narrow, sometimes so wide that everything is reordered.
fn spread(random: &mut Random, us: u64) -> Latency {
    let width = random.pick(&[1, 2, 20]);
    Latency::us(us.div_ceil(width), us * width)
}

/// The simulated network, the same between all hosts.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// From sending to arriving. Order is kept within a connection all the same.
    pub latency: Latency,
    /// Time to transfer 1 KiB, in nanoseconds.
    pub ns_per_kib: u64,
    /// Bytes that a connection holds in each direction: on the way, and arrived but not received.
    pub buffer_bytes: u32,
    /// How many receives in a thousand return only a part of what has arrived.
    pub short_receive_permille: u32,
    /// How many sends in a thousand take only a part of what there is room for.
    pub short_send_permille: u32,
    /// Connections that may wait to be accepted on one port.
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
    /// A local network that cuts one transfer in four short.
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
