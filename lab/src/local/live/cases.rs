//! The table: each switch, its values, and the load that shows its effect. A new switch is one entry.

use std::time::Duration;

use super::super::Protocol;
use super::super::clients::Clients;
use super::case::{CLIENTS, Case, DEPTH, Fixture, Measure, Value, Work, case, published, reads, value};
use crate::measure::load::{Load, Operation, Order, Sends, Stability};

const MIB: u64 = 1 << 20;

/// Enough memory to cache what is read again.
const ROOMY: Fixture = Fixture::Server { memory: 96 * MIB };

/// Little memory for what is read.
const NARROW: Fixture = Fixture::Server { memory: 32 * MIB };

/// The load for a server's highest rate.
const SMALL: Clients = reads("ram", 512, 32 * MIB, DEPTH);
const SMALL_NFS: Clients = Clients {
    protocol: Protocol::Nfs,
    load: Load { operation: Operation::ReadAndAttributes(Order::Random), file_bytes: 16 * MIB, ..SMALL.load },
};
const BLOCKS: Clients = reads("ram", 4096, 32 * MIB, DEPTH);
const BLOCKS_ONE_BY_ONE: Clients = BLOCKS.with(Load { in_flight: 1, ..BLOCKS.load });
const LARGE: Clients = reads("disk", 128 << 10, 256 * MIB, 8);

/// Read again so rarely that a scan falls between.
const HOT: Clients = reads("test", 4096, 40 * MIB, 1);
const SCAN: Clients =
    HOT.with(Load { operation: IN_ORDER, from: 48 * MIB, ..reads("test", 64 << 10, 208 * MIB, 8).load });

const IN_ORDER: Operation = Operation::Read(Order::Sequential);

const fn writes(stability: Stability) -> Operation {
    Operation::Overwrite(Order::Random, stability)
}

const SYNCHRONOUS: Clients = Clients {
    protocol: Protocol::Nfs,
    load: Load { operation: writes(Stability::FileSync), connections: CLIENTS, ..reads("", 8192, 16 * MIB, 4).load },
};

const FLUSHED: Clients = LARGE.with(Load {
    operation: writes(Stability::Flushed { writes: 1 }),
    connections: CLIENTS,
    ..reads("disk", 8192, 128 * MIB, 16).load
});

const SCATTERED: Clients =
    LARGE.with(Load { operation: writes(Stability::Flushed { writes: 0 }), ..reads("disk", 4096, 128 * MIB, 32).load });

const GATHERING: &[Value] = &[
    value("on", &[("flush_gathering", "true")]),
    published(
        value("off", &[("flush_gathering", "false")]),
        Measure::Rate,
        440.4 / 98.5,
        "WS table 4, of NFS: 98.5 and 440.4 KB/s",
    ),
];
const HOTTEST: &[Value] = &[value("on", &[("hottest_first", "true")]), value("off", &[("hottest_first", "false")])];
const AHEAD: &[Value] = &[value("on", &[("look_ahead", "true")]), value("off", &[("look_ahead", "false")])];
const BOTH: &[Value] = &[
    value("on", &[("hottest_first", "true"), ("look_ahead", "true")]),
    value("off", &[("hottest_first", "false"), ("look_ahead", "false")]),
];
const QUANTUM: &[Value] = &[
    value("adaptive", &[("quantum", "adaptive")]),
    published(
        value("off", &[("quantum", "off")]),
        Measure::Cpu,
        1.033,
        "OLTP 4 (1): 32 ms of every second are saved, of a processor that is never idle",
    ),
    value("24ms", &[("quantum", "24ms")]),
];

const TRACING: &[Value] = &[
    value("direct", &[("trace", "direct")]),
    value("off", &[("trace", "off")]),
    value("central", &[("trace", "central")]),
    published(
        value("unthinned", &[("trace", "unthinned")]),
        Measure::Cpu,
        1.0 / 0.7,
        "OLTP 3 (3): tracing took 30 % of the processor, so that no trace would be worth so much, direct nearly",
    ),
];

/// The cases, in the order of the README's table.
pub(super) static CASES: &[Case] = &[
    case(
        "dynamic_cache",
        "NBD, random reads of 4 KiB, many in flight, of the first 128 MiB of an image, which were read before; on a machine \
         of 256 MiB that is played: off, the cache has a tenth of it",
        Fixture::Fresh { memory: 256 * MIB },
        reads("disk", 4096, 128 * MIB, DEPTH),
        true,
        &[
            value("on", &[("dynamic_cache", "true")]),
            Value { memory: Some(256 * MIB / 10), ..value("off", &[("dynamic_cache", "false")]) },
        ],
    ),
    Case {
        work: Work::Clients { measured: HOT, others: Some(SCAN), cached: true },
        ..case(
            "scan_resistant",
            "NBD, random reads of 4 KiB, one in flight, of 40 MiB that fit into the cache and were read three times, beside \
             a scan of 208 MiB that do not, of a device that answers after 200 us",
            ROOMY,
            HOT,
            true,
            &[value("on", &[("scan_resistant", "true")]), value("off", &[("scan_resistant", "false")])],
        )
    },
    Case {
        fixture: Fixture::Kernel { processors: 1 },
        work: Work::Storm,
        time_min: Duration::from_millis(2300),
        rounds_max: 3,
        ..case(
            "smooth_write_back",
            "the kernel alone, reads of 4 KiB that nothing caches, one every 10 ms, beside a file that grows, on the modelled \
             disk hd639 in real time; off: all dirty blocks every 2 s, in place of 30 s; without priorities",
            ROOMY,
            BLOCKS,
            false,
            &[value("on", &[("smooth_write_back", "true")]), value("off", &[("smooth_write_back", "false")])],
        )
    },
    Case {
        fixture: Fixture::Kernel { processors: 1 },
        work: Work::Appends { a_flush: 8 },
        time_min: Duration::from_millis(1500),
        rounds_max: 3,
        ..case(
            "block_merge",
            "the kernel alone, writes of 8 KiB in order, a flush after every 8, to the modelled disk scsi-1990 in real time",
            ROOMY,
            BLOCKS,
            false,
            &[
                value("on", &[("block_merge", "true")]),
                published(
                    value("off", &[("block_merge", "false")]),
                    Measure::Rate,
                    827.5 / 327.7,
                    "WS table 2, write: 327.7 and 827.5 KB/s",
                ),
            ],
        )
    },
    Case {
        work: Work::Clients {
            measured: LARGE.with(Load { from: 128 * MIB, ..reads("disk", 4096, 128 * MIB, 1).load }),
            others: Some(SCATTERED),
            cached: false,
        },
        ..case(
            "priority",
            "NBD, random reads of 4 KiB that nothing caches, one in flight, beside random writes of 4 KiB, 32 in flight, of \
             an image",
            NARROW,
            SCATTERED,
            false,
            &[
                value("on", &[("priority", "true")]),
                published(
                    value("off", &[("priority", "false")]),
                    Measure::Rate,
                    4.9 / 1.5,
                    "WS table 3: write ends after 4.9 s and after 1.5 s",
                ),
            ],
        )
    },
    case(
        "read_ahead",
        "NBD, reads of 8 KiB in order, one in flight, of a device that answers after 200 us; 2: two blocks of 4 KiB, one \
         request ahead",
        NARROW,
        HOT.with(Load { operation: IN_ORDER, ..reads("test", 8192, 256 * MIB, 1).load }),
        false,
        &[
            value("adaptive", &[("read_ahead", "adaptive")]),
            value("off", &[("read_ahead", "off")]),
            published(
                value("2", &[("read_ahead", "2")]),
                Measure::Rate,
                787.7 / 505.7,
                "WS table 5: 505.7 KB/s with one block of a request ahead, 787.7 KB/s with four",
            ),
        ],
    ),
    case(
        "flush_gathering, NBD",
        "NBD, random writes of 8 KiB, a flush after each, 16 in flight of each of several clients, to an image",
        ROOMY,
        FLUSHED,
        false,
        GATHERING,
    ),
    case(
        "flush_gathering, NFS",
        "NFS, stable random writes of 8 KiB, 4 in flight of each of several clients, to a file on this host's disk",
        ROOMY,
        SYNCHRONOUS,
        false,
        GATHERING,
    ),
    Case {
        // The policy explores for a while.
        time_min: Duration::from_secs(1),
        slices: 2,
        ..case(
            "quantum, many in flight",
            "NBD, random reads of 4 KiB that are cached, many in flight, each sent by itself, after 3 us of work \
             on the one that came (fio with libnbd: about 4 us)",
            ROOMY,
            BLOCKS.with(Load { sends: Sends::Single { work: Duration::from_micros(3) }, ..BLOCKS.load }),
            true,
            QUANTUM,
        )
    },
    Case {
        slices: 12,
        ..case(
            "quantum, 1 in flight",
            "NBD, random reads of 4 KiB that are cached, one in flight",
            ROOMY,
            BLOCKS_ONE_BY_ONE,
            true,
            QUANTUM,
        )
    },
    Case {
        work: Work::Iotest { latency: None, processes: 1, spin: Duration::ZERO },
        fixture: Fixture::Kernel { processors: 2 },
        ..case(
            "access",
            "the kernel alone, the papers' iotest: on each of two processors a process that reads 4 KiB of a RAM disk at a \
             time, past the cache",
            ROOMY,
            BLOCKS,
            false,
            &[
                value("symmetric", &[("access", "symmetric")]),
                published(
                    value("funnel", &[("access", "funnel")]),
                    Measure::Rate,
                    2.07,
                    "MP table 1 (c), ramdisk, wait 0, two processes: 107 %",
                ),
            ],
        )
    },
    Case {
        work: Work::Iotest { latency: Some(Duration::from_micros(200)), processes: 8, spin: Duration::from_micros(20) },
        fixture: Fixture::Kernel { processors: 2 },
        ..case(
            "delivery",
            "the kernel alone, iotest: on each of two processors 8 processes that read 4 KiB of a device that answers after \
             200 us, and spin for 20 us",
            ROOMY,
            BLOCKS,
            false,
            &[
                value("initiator", &[("delivery", "initiator")]),
                published(value("first", &[("delivery", "first")]), Measure::Rate, 0.999 / 1.0, DELIVERY),
                published(value("second", &[("delivery", "second")]), Measure::Rate, 0.999 / 0.98, DELIVERY),
                published(value("idle", &[("delivery", "idle")]), Measure::Rate, 0.999 / 0.998, DELIVERY),
                published(value("busiest", &[("delivery", "busiest")]), Measure::Rate, 0.999 / 0.98, DELIVERY),
                published(value("all", &[("delivery", "all")]), Measure::Rate, 0.999 / 0.967, DELIVERY),
            ],
        )
    },
    case(
        "immediate_dispatch",
        "NBD, random reads of 4 KiB that are not cached, many in flight, of a device that answers after 200 us",
        NARROW,
        reads("test", 4096, 256 * MIB, DEPTH),
        false,
        &[value("on", &[("immediate_dispatch", "true")]), value("off", &[("immediate_dispatch", "false")])],
    ),
    case("hottest_first, NBD", NBD_SMALL, ROOMY, SMALL, true, HOTTEST),
    case("hottest_first, NFS", NFS_SMALL, ROOMY, SMALL_NFS, true, HOTTEST),
    case("look_ahead, NBD", NBD_SMALL, ROOMY, SMALL, true, AHEAD),
    case("look_ahead, NFS", NFS_SMALL, ROOMY, SMALL_NFS, true, AHEAD),
    case("hottest, look-ahead, NBD", NBD_SMALL, ROOMY, SMALL, true, BOTH),
    case("hottest, look-ahead, NFS", NFS_SMALL, ROOMY, SMALL_NFS, true, BOTH),
    case(
        "unmapped_io",
        "NBD, random reads of 128 KiB, 8 in flight, of an image, past the host's page cache",
        NARROW,
        LARGE,
        false,
        &[
            value("on", &[("unmapped_io", "true")]),
            published(
                value("off", &[("unmapped_io", "false")]),
                Measure::Rate,
                1_000_000.0 / 300_000.0,
                "UIO, the gain in performance: 300 thousand and more than 1 million I/Os a second, on 40 cores",
            ),
        ],
    ),
    case(
        "huge_pages",
        "NBD, random reads of 4 KiB, many in flight, of 128 MiB that are cached",
        Fixture::Fresh { memory: 256 * MIB },
        reads("ram", 4096, 128 * MIB, DEPTH),
        true,
        &[
            value("auto", &[("huge_pages", "auto")]),
            value("true", &[("huge_pages", "true")]),
            value("false", &[("huge_pages", "false")]),
        ],
    ),
    case(
        "registered_buffers",
        "NBD, random reads of 128 KiB, 8 in flight, of an image, past the host's page cache",
        Fixture::Fresh { memory: 32 * MIB },
        LARGE,
        false,
        &[value("on", &[("registered_buffers", "true")]), value("off", &[("registered_buffers", "false")])],
    ),
    Case {
        time_min: Duration::from_millis(500),
        slices: 3,
        work: Work::Clients {
            measured: BLOCKS_ONE_BY_ONE,
            others: Some(SMALL_NFS.with(Load { connections: 8, in_flight: 64, ..SMALL_NFS.load })),
            cached: true,
        },
        ..case(
            "usage",
            "NBD over a Unix socket, a light client: random reads of 4 KiB that are cached, one in flight, beside a heavy one \
             over NFS: 8 connections, 64 small requests in flight on each",
            ROOMY,
            BLOCKS,
            true,
            &[value("on", &[("usage", "true")]), value("off", &[("usage", "false")])],
        )
    },
    Case {
        slices: 12,
        ..case(
            "trace",
            "NBD, random reads of 512 bytes that are cached, many in flight of each of several clients",
            ROOMY,
            SMALL.with(Load { connections: CLIENTS, ..SMALL.load }),
            true,
            TRACING,
        )
    },
    Case {
        work: Work::Iotest { latency: None, processes: 1, spin: Duration::ZERO },
        fixture: Fixture::Kernel { processors: 2 },
        ..case(
            "trace, two recorders",
            "the kernel alone, iotest: on each of two processors a process that reads 4 KiB of a RAM disk at a time, past the \
             cache, each of which is recorded",
            ROOMY,
            BLOCKS,
            false,
            TRACING,
        )
    },
    Case {
        slices: 3,
        ..case(
            "front end",
            NBD_SMALL,
            Fixture::Fresh { memory: 96 * MIB },
            SMALL,
            true,
            &[Value { watched: true, ..value("watched", &[]) }, value("none", &[])],
        )
    },
    case(
        "all of OLTP",
        NBD_SMALL,
        ROOMY,
        SMALL,
        true,
        &[
            value(
                "on",
                &[
                    ("quantum", "adaptive"),
                    ("immediate_dispatch", "true"),
                    ("hottest_first", "true"),
                    ("look_ahead", "true"),
                    ("trace", "direct"),
                ],
            ),
            published(
                value(
                    "off",
                    &[
                        ("quantum", "off"),
                        ("immediate_dispatch", "false"),
                        ("hottest_first", "false"),
                        ("look_ahead", "false"),
                        ("trace", "unthinned"),
                    ],
                ),
                Measure::Rate,
                24_000.0 / 10_500.0,
                "OLTP, result: 10,500 and 24,000 transactions an hour, heavy mix",
            ),
        ],
    ),
];

const NBD_SMALL: &str = "NBD, random reads of 512 bytes that are cached, many in flight";
const NFS_SMALL: &str = "NFS, GETATTR and random READs of 512 bytes that are cached in turn, many in flight";
const DELIVERY: &str = "MP table 2, scsihd, wait 100, 8 processes on 9 processors, the methods against each other";
