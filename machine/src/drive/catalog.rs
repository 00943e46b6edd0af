//! The drives that are known, each with its source.
//!
//! Geometry of the drives that Sony's workstations had is that of the table in their own SCSI disk driver, as it was
//! given to Berkeley: 4.4BSD, `sys/news3400/iodev/sddefs.c` (`from: sddefs.c,v 4.300 91/06/09`, NEWS-OS 4.1).

use std::time::Duration;

use super::Drive;
use super::flash::Flash;
use super::mechanical::{Mechanical, SeekCurve};

pub(super) const ALL: [Drive; 5] = [
    Drive::Mechanical(WREN_VI),
    Drive::Mechanical(DK515C),
    Drive::Mechanical(DK516C),
    Drive::Mechanical(SMO_S501),
    Drive::Flash(NVME_2026),
];

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Sectors that pass during a switch, rounded up.
const fn skew(switch_us: u64, rpm: u64, sectors_per_track: u64) -> u32 {
    (switch_us * rpm * sectors_per_track).div_ceil(60_000_000) as u32
}

/// A common SCSI disk of 1989, 5.25 inches: CDC (Imprimis, Seagate) Wren VI, ST4766N.
pub(super) const WREN_VI: Mechanical = Mechanical {
    name: "scsi-1990",
    source: "Seagate ST4766N (CDC 94191-766, Wren VI), product manual 77765353-L: 1,632 cylinders, 15 heads, 54 sectors \
             of 512 bytes, 3,597 rpm, seek 15.5 ms mean and 3.0 ms to the next track, 32 KB look-ahead buffer, \
             synchronous SCSI at 4.7 MB/s; longest seek (twice the mean), head switch and command (1 ms each) are judged",
    rpm: 3597,
    sector_bytes: 512,
    sectors_per_track: 54,
    heads: 15,
    cylinders: 1632,
    head_switch: us(1000),
    track_skew: skew(1000, 3597, 54),
    cylinder_skew: skew(3000, 3597, 54),
    seek: SeekCurve { single: us(3000), mean: us(15_500), full: us(31_000) },
    overhead: us(1000),
    bus_bytes_per_second: 4_700_000,
    buffer_bytes: 32 << 10,
    read_ahead: true,
    write_passes: 1,
    transfer_bytes_max: 128 << 10,
};

/// The largest disk of Sony's workstations in 1989 and 1990: Hitachi DK515C-78, `hd639`.
pub(super) const DK515C: Mechanical = Mechanical {
    name: "hd639",
    source: "Hitachi DK515C-78 (hd639) in Sony's driver table, 4.4BSD sys/news3400/iodev/sddefs.c: 69 sectors of 512 \
             bytes, 14 heads, 1,356 cylinders, 60 rotations a second, prefetch of up to 48 KB; asynchronous SCSI, \
             judged to give 1.5 MB/s at most; mean seek as of another disk of its year and class (Wren VI: 15.5 ms); longest \
             seek, switches and command are judged",
    rpm: 3600,
    sector_bytes: 512,
    sectors_per_track: 69,
    heads: 14,
    cylinders: 1356,
    head_switch: us(1600),
    track_skew: skew(1600, 3600, 69),
    cylinder_skew: skew(3200, 3600, 69),
    seek: SeekCurve { single: us(3200), mean: us(15_500), full: us(31_000) },
    overhead: us(2200),
    bus_bytes_per_second: 1_500_000,
    buffer_bytes: 64 << 10,
    read_ahead: true,
    write_passes: 1,
    transfer_bytes_max: 128 << 10,
};

/// The disk of the workstation paper's table 1, 1991: 1,280 MB, 2.4 MB/s. Only one drive that Sony's workstations knew
/// is that: the Hitachi DK516C-16, `hd1280`.
pub(super) const DK516C: Mechanical = Mechanical {
    name: "hd1280",
    source: "Hitachi DK516C-16 (hd1280) in Sony's driver table, 4.4BSD sys/news3400/iodev/sddefs.c: 81 sectors of 512 \
             bytes, 15 heads, 2,165 cylinders, 60 rotations a second, synchronous SCSI with a period of 248 ns, prefetch \
             of up to 64 KB; 20 ms mean access of the paper's table 1 less half a rotation is the mean seek; longest seek, \
             switches and command are judged",
    sectors_per_track: 81,
    heads: 15,
    cylinders: 2165,
    track_skew: skew(1600, 3600, 81),
    cylinder_skew: skew(3200, 3600, 81),
    seek: SeekCurve { single: us(3200), mean: us(11_700), full: us(24_000) },
    bus_bytes_per_second: 4_000_000,
    ..DK515C
};

/// A magneto-optical disk of 1989, 5.25 inches: Sony SMO-S501 (drive SMO-D501, controller SMO-C501), ISO format.
pub(super) const SMO_S501: Mechanical = Mechanical {
    name: "mo-1990",
    source: "Sony SMO-S501 in Sony's driver table, 4.4BSD sys/news3400/iodev/sddefs.c: 31 sectors of 512 bytes, one head, \
             18,646 cylinders, 40 rotations a second, asynchronous SCSI, judged to give 1.5 MB/s at \
             most; its manual: 2,400 rpm, mean seek 95 ms. Longest seek, buffer and command are judged. It erases and \
             then writes; with verification (a flag of Sony's driver) there is a third pass",
    rpm: 2400,
    sector_bytes: 512,
    sectors_per_track: 31,
    heads: 1,
    cylinders: 18_646,
    head_switch: us(0),
    // The track is one spiral: the head follows it from one rotation to the next.
    track_skew: 0,
    cylinder_skew: 0,
    seek: SeekCurve { single: us(0), mean: us(95_000), full: us(190_000) },
    overhead: us(2000),
    bus_bytes_per_second: 1_500_000,
    buffer_bytes: 64 << 10,
    read_ahead: false,
    write_passes: 2,
    transfer_bytes_max: 128 << 10,
};

/// A fast NVMe device of a desk machine in 2026.
pub(super) const NVME_2026: Flash = Flash {
    name: "nvme-2026",
    source: "Samsung 9100 PRO 1 TB (2025), data sheet: PCIe 5.0, 14.7 GB/s read, 13.3 GB/s written, 1.85 M random reads \
             and 2.6 M random writes a second of 4 KiB. Units and their times are chosen so that these follow",
    size: 1_000_000_000_000,
    units: 96,
    stripe_bytes: 4096,
    read: us(45),
    write: us(10),
    overhead: us(5),
    bus_bytes_per_second: 14_000_000_000,
};
