//! What the experiment can be told, and where each number comes from.

use crate::parameter::{Origin, Parameter, Parameters};

const TABLE_1: Origin = Origin::Paper("Table 1, the machine of 1991");
const BIO: Origin = Origin::Published(
    "4.3BSD, sys/buf.h 7.1 and ufs_bio.c 7.1 (1986); described in \
     Leffler, McKusick, Karels, Quarterman (1989), section 7.4",
);

const DRIVE: Origin = Origin::Published(
    "Hitachi DK516C-16, the only 1,280 MB disk in Sony's driver: 4.4BSD sys/news3400/iodev/sddefs.c; \
     heads, switches and buffer are those of the drive hd1280",
);

/// Terse, so that the table of parameters can be read as one.
fn p(
    name: &'static str,
    unit: &'static str,
    default: f64,
    range: std::ops::RangeInclusive<f64>,
    about: &'static str,
    origin: Origin,
) -> Parameter {
    Parameter { name, about, unit, default, range, origin }
}

pub(super) fn all() -> Parameters {
    let mut all = machine();
    all.extend(cache());
    all.extend(loads());
    Parameters::new("ws-2", all)
}

fn machine() -> Vec<Parameter> {
    vec![
        p("cpu.mips", "MIPS", 25.0, 0.1..=1e6, "instructions that the processor does in a microsecond", TABLE_1),
        p("memory.size", "MB", 64.0, 4.0..=4_194_304.0, "memory of the machine (MB: 2^20 bytes)", TABLE_1),
        p("memory.access", "ns", 80.0, 1.0..=1000.0, "access time of the memory", TABLE_1),
        p("memory.rate", "MB/s", 100.0, 1.0..=1e6, "what the memory moves (MB/s: 10^6 bytes)", TABLE_1),
        p(
            "memory.resident",
            "%",
            6.0,
            0.0..=50.0,
            "of memory: the kernel and the programs that always run",
            Origin::Chosen("about 4 MB of 64: a kernel of 1 to 2 MB, daemons and a window system"),
        ),
        p("disk.access", "ms", 20.0, 0.001..=200.0, "mean seek and half a rotation", TABLE_1),
        p("disk.rate", "MB/s", 2.4, 0.1..=100_000.0, "what passes under the head", TABLE_1),
        p("disk.size", "MB", 1280.0, 100.0..=1e8, "what the disk holds", TABLE_1),
        p("disk.rpm", "rpm", 3600.0, 1000.0..=20_000.0, "rotations a minute", DRIVE),
        p(
            "disk.units",
            "",
            0.0,
            0.0..=1024.0,
            "0: a disk with an arm; else flash with so many units that work at the same time",
            Origin::Chosen("no flash in 1991"),
        ),
        p(
            "disk.overhead",
            "ms",
            2.2,
            0.0..=10.0,
            "of the controller for each command",
            Origin::Chosen("a judgement: SCSI disks of the time take 1 to 5 ms; 2.2 ms as the drive hd1280"),
        ),
    ]
}

fn cache() -> Vec<Parameter> {
    vec![
        p("buffer.size", "KB", 8.0, 1.0..=65_536.0, "a block, and a buffer", BIO),
        p("cache.fixed", "%", 10.0, 1.0..=90.0, "of memory: the fixed cache", Origin::Paper("section 2: about 10 %")),
        p(
            "cache.reserve",
            "%",
            6.0,
            0.0..=50.0,
            "of memory: what the dynamic cache leaves free",
            Origin::Chosen("what policy::sizing keeps on a large machine; its minimum of 512 MiB is left out"),
        ),
        p(
            "sync.interval",
            "s",
            30.0,
            1.0..=600.0,
            "between two runs of update",
            Origin::Paper("section 2: about 30 s"),
        ),
        p("hash.chains", "", 512.0, 1.0..=65_536.0, "hash chains of 4.3BSD's buffers (BUFHSZ)", BIO),
        p(
            "fs.rotdelay",
            "ms",
            4.0,
            0.0..=50.0,
            "gap between two blocks of a file",
            Origin::Published(
                "what newfs of 4.3BSD makes it; McKusick et al., A Fast File System for UNIX, ACM TOCS 2(3), 1984",
            ),
        ),
        p(
            "cost.call",
            "instructions",
            3300.0,
            0.0..=1e6,
            "of reading or writing a block, the copying left out",
            Origin::Derived(
                "McKusick et al. 1984, table 2a: 54 % of a VAX 11/750 (0.6 of a 780) for 466 \
                 KB/s in blocks of 8 KB, about 40 % of it copying (section 5): 9.3 ms, 5,560 instructions, less 40 %",
            ),
        ),
        p(
            "cost.step",
            "instructions",
            8.0,
            1.0..=1000.0,
            "for each buffer that a search looks at",
            Origin::Derived("getblk's loop (ufs_bio.c 7.1): next, compare block, device, flags, branch: two each"),
        ),
    ]
}

fn loads() -> Vec<Parameter> {
    vec![
        p(
            "scan.hot",
            "%",
            50.0,
            5.0..=90.0,
            "of the cache: the blocks that somebody works with while another scans",
            Origin::Chosen("so that the hot blocks fit, and a scan displaces them if it may"),
        ),
        p(
            "scan.pause",
            "ms",
            50.0,
            0.001..=10_000.0,
            "between two reads of hot blocks",
            Origin::Chosen("a person's work"),
        ),
        p(
            "storm.rate",
            "blocks/s",
            40.0,
            0.1..=100_000.0,
            "parts of new blocks written, anywhere on the disk",
            Origin::Chosen(
                "with the readers beside it four fifths of what the disk can do; small files, such as compiling makes",
            ),
        ),
        p(
            "storm.pause",
            "ms",
            250.0,
            0.01..=10_000.0,
            "between the starts of two reads",
            Origin::Chosen("a few people; a tenth of what the disk can do"),
        ),
        p(
            "storm.time",
            "s",
            150.0,
            1.0..=3600.0,
            "how long; what happens before the first sync is left out",
            Origin::Chosen("four syncs"),
        ),
        p(
            "giving.demand",
            "%",
            75.0,
            1.0..=93.0,
            "of memory: what programs need for a while",
            Origin::Chosen("most of what the cache has"),
        ),
        p("giving.hold", "s", 20.0, 1.0..=600.0, "how long they need it", Origin::Chosen("a link or a formatter")),
    ]
}

pub(super) const MODERN: &[(&str, f64)] = &[
    ("cpu.mips", 20_000.0),
    ("memory.size", 262_144.0),
    ("memory.access", 90.0),
    ("memory.rate", 100_000.0),
    ("disk.access", 0.045),
    ("disk.rate", 14_000.0),
    ("disk.size", 1_000_000.0),
    ("disk.units", 96.0),
    ("disk.overhead", 0.005),
    ("buffer.size", 16_384.0),
    ("scan.pause", 15.0),
    ("storm.rate", 100.0),
    ("storm.pause", 20.0),
];
