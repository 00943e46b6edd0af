//! What the bench can be told, each number with its source.

use crate::experiment::workstation::{disk_parameters, parameter};
use crate::parameter::{Origin, Parameter};

/// The parameters that both tables have.
pub(in crate::experiment) fn parameters() -> Vec<Parameter> {
    let mut all = disk_parameters("hd1280", (4.0, Origin::Published(BUS)));
    all.extend([
        parameter(("ethernet.rate", "Mb/s"), "rate of the Ethernet", 10.0, 1.0..=400_000.0, ETHERNET),
        parameter(("ethernet.mtu", "bytes"), "data of the largest frame", 1500.0, 576.0..=9000.0, ETHERNET),
        parameter(
            ("cpu.processors", ""),
            "processors of each machine",
            1.0,
            1.0..=1024.0,
            Origin::Paper("table 1: one R3000"),
        ),
        parameter(
            ("cpu.rpc", "ms"),
            "one call, on each side: RPC, XDR, UDP, file system entry, process switch",
            1.0,
            0.0..=100.0,
            RPC,
        ),
        parameter(
            ("cpu.frame", "ms"),
            "one frame sent or received: interrupt, driver, IP fragment",
            0.2,
            0.0..=10.0,
            FRAME,
        ),
        parameter(("cpu.copy", "MB/s"), "memory copied", 11.0, 0.1..=1_000_000.0, COPY),
        parameter(
            ("cpu.interface", "MB/s"),
            "copied to and from the Ethernet interface's own memory",
            6.0,
            0.1..=1_000_000.0,
            INTERFACE,
        ),
        parameter(
            ("cpu.checksum", "MB/s"),
            "summed for the UDP checksum; 0: it is not computed",
            0.0,
            0.0..=1_000_000.0,
            CHECKSUM,
        ),
        parameter(
            ("cpu.disk", "ms"),
            "one disk access: driver, interrupt, process switch",
            0.5,
            0.0..=10.0,
            DISK_ACCESS,
        ),
        parameter(("cpu.syscall", "ms"), "read or write of the process, for each block", 0.2, 0.0..=10.0, DISK_ACCESS),
        parameter(
            ("server.readahead", ""),
            "blocks that the server reads ahead on its disk",
            1.0,
            0.0..=64.0,
            Origin::Paper("section 3: what 4.3BSD does"),
        ),
        parameter(
            ("file.size", "MB"),
            "size of the file",
            4.0,
            0.25..=64.0,
            Origin::Chosen("long enough that start and end don't count"),
        ),
        parameter(
            ("file.spread", ""),
            "part of the disk over which inode and data are scattered",
            1.0,
            0.0..=1.0,
            SPREAD,
        ),
    ]);
    all
}

const ETHERNET: Origin = Origin::Published("IEEE 802.3-1985, 10BASE5");
const RPC: Origin = Origin::Chosen(
    "within what was published: a call without data took a few milliseconds at least on machines of 27 MIPS (Macklem, \
     Not Quite NFS, USENIX Winter 1994, introduction), both sides and the wire together: 2.5 ms here",
);
const FRAME: Origin = Origin::Chosen(
    "5,000 instructions at the 25 MIPS of table 1. Bounded from above: NetBSD's le(4) says that machines of this class \
     (DECstation 5000/200, same processor and interface) keep up with 10 Mb/s, 1.2 ms a frame, copying included",
);
const COPY: Origin = Origin::Derived(
    "R3000 of 25 MHz with memory of 80 ns (table 1): about 9 cycles for a word of 4 bytes, of which 4 are its share of \
     a missed cache line of 16 bytes and 5 the store that is written through",
);
const INTERFACE: Origin = Origin::Chosen(
    "NetBSD sys/arch/newsmips/dev/if_le.c: the Am7990 of these machines has 16 KB of memory of its own, and the processor \
     copies every frame; its width of 16 bits at about the same cycle gives half of the rate of memory",
);
const CHECKSUM: Origin = Origin::Published(
    "Macklem, The 4.4BSD NFS Implementation (4.4BSD SMM:6), note 14: some implementations run with UDP checksums disabled; \
     those from Sun's reference port did",
);
const DISK_ACCESS: Origin =
    Origin::Chosen("some 10,000 (5,000 for a system call) instructions at the 25 MIPS of table 1");
const BUS: &str = "Sony's driver table, 4.4BSD sys/news3400/iodev/sddefs.c: synchronous SCSI with a period of 248 ns";
const SPREAD: Origin = Origin::Derived(
    "table 1 gives the mean access of the disk (20 ms), which is one over random places, and nothing says where the file \
     lies: so inode, pointers and data lie anywhere. A fresh Berkeley file system would lay them close",
);

/// What to set for a machine of 2026.
pub(in crate::experiment) const MODERN: &[(&str, f64)] = &[
    ("ethernet.rate", 25_000.0),
    ("ethernet.mtu", 9000.0),
    ("cpu.processors", 64.0),
    ("cpu.rpc", 0.005),
    ("cpu.frame", 0.001),
    ("cpu.copy", 10_000.0),
    // The interface reaches into memory by itself.
    ("cpu.interface", 1_000_000.0),
    ("cpu.disk", 0.003),
    ("cpu.syscall", 0.001),
    ("disk.nvme", 1.0),
    ("queue.depth", 64.0),
    ("file.size", 16.0),
];
