//! What the experiment can be told, each number with its source.

use crate::parameter::Origin::{self, Chosen, Derived, Fitted, Paper, Published};
use crate::parameter::Parameter;

/// A number, its unit, what it is, and where it comes from.
fn parameter(
    (name, unit): (&'static str, &'static str),
    about: &'static str,
    default: f64,
    range: std::ops::RangeInclusive<f64>,
    origin: Origin,
) -> Parameter {
    Parameter { name, about, unit, default, range, origin }
}

pub(super) fn parameters() -> Vec<Parameter> {
    let mut all = board();
    all.extend(workstation());
    all.extend(others());
    all.extend(sharing());
    all
}

fn board() -> Vec<Parameter> {
    vec![
        parameter(
            ("ring.rate", "Mb/s"),
            "rate of the network",
            100.0,
            1.0..=1e6,
            Paper("section 1: 100 Mb/s token ring"),
        ),
        parameter(
            ("ring.peak", "MB/s"),
            "rate of pages from memory to memory, at best",
            11.5,
            0.1..=1e5,
            Paper("section 1: up to 11.5 MB/s; the rest of the ring's rate is framing"),
        ),
        parameter(
            ("ring.station", "us"),
            "delay of each station and its cable",
            1.0,
            0.0..=100.0,
            Chosen("a judgement: a repeater that holds ten bytes back at 100 Mb/s, and 40 m of cable; 0.5 to 2 us"),
        ),
        parameter(("ring.stations", ""), "workstations on the ring", 4.0, 2.0..=64.0, Chosen("a small laboratory")),
        parameter(
            ("network.lines", ""),
            "0: the ring. 1: a line for each node, and switches",
            0.0,
            0.0..=1.0,
            Paper("section 1: a ring"),
        ),
        parameter(
            ("network.latency", "us"),
            "from memory to memory through switches, beside the time on the lines",
            2.0,
            0.0..=1000.0,
            Chosen("for comparison with the ring: a cut-through switch and two interfaces of that rate"),
        ),
        parameter(
            ("board.page", "bytes"),
            "page of the shared memory",
            4096.0,
            512.0..=65_536.0,
            Derived("the paper: pages; those of the SPARCstation 2 (sun4c) have 4 KB"),
        ),
        parameter(
            ("board.message", "bytes"),
            "message between boards without a page",
            32.0,
            8.0..=1024.0,
            Chosen("operation, page, serial, request: 32 bytes hold the protocol's"),
        ),
        parameter(
            ("board.turnaround", "us"),
            "a board answers a message",
            10.0,
            0.0..=1000.0,
            Chosen("one or two hundred steps of a controller of the time"),
        ),
        parameter(
            ("board.fifo", "pages"),
            "room in the command FIFO",
            64.0,
            1.0..=4096.0,
            Chosen("several pages at once (section 2); more than a block of the file system needs"),
        ),
        parameter(
            ("vme.word", "us"),
            "the processor reads or writes 4 bytes on the board",
            0.8,
            0.0..=10.0,
            Chosen(
                "our estimate; no measurement of such a board is known to us. On the bus (IEEE 1014-1987) arbitration, address, \
                 strobe and acknowledge are each handed over asynchronously: 0.3 to 0.5 us with dynamic memory behind; as \
                 much again for the way there from the processor through its own bus (SBus, 20 MHz, a dozen cycles). 5 \
                 MB/s, of the 40 that the bus has for blocks",
            ),
        ),
    ]
}

fn workstation() -> Vec<Parameter> {
    vec![
        parameter(
            ("file.size", "KiB"),
            "file that is read from start to end",
            1024.0,
            128.0..=65_536.0,
            Paper("section 3: 1 MB"),
        ),
        parameter(
            ("fs.block", "bytes"),
            "block of the file system, one request to the driver",
            8192.0,
            4096.0..=65_536.0,
            Published("newfs(8) of 4.3BSD and of Solaris: 8 KB unless another size is asked for"),
        ),
        parameter(
            ("kernel.page", "ms"),
            "kernel for each page read that it does not have, beside the copy to the process: system call, page fault, \
             file system, buffer, driver, waking up",
            1.07,
            0.0..=10.0,
            Fitted("table 1, kernel's share"),
        ),
        parameter(
            ("kernel.call", "ms"),
            "kernel for each page read or written that it has",
            0.2,
            0.0..=10.0,
            Chosen("5,000 instructions at 25 to 30 MIPS, of a SPARC of 40 MHz"),
        ),
        parameter(
            ("kernel.fault", "ms"),
            "a page fault of a process that has the board mapped",
            0.35,
            0.0..=10.0,
            Chosen(
                "10,000 instructions at 25 to 30 MIPS: trap, look-up, command, switch away and back, entry in the MMU",
            ),
        ),
        parameter(
            ("cpu.copy", "MB/s"),
            "memory copied",
            16.0,
            0.1..=1e6,
            Chosen(
                "our estimate for a SPARCstation 2: 40 MHz, a cache of 64 KB with lines of 32 bytes, writes go through: about 80 \
                 cycles a line (25 to fill it, 16 to load and store by double words, 8 stores written through of 5). What \
                 is wrong with it the fitted share takes up",
            ),
        ),
    ]
}

fn others() -> Vec<Parameter> {
    vec![
        parameter(
            ("disk.sectors", ""),
            "sectors on a track of the SCSI disk",
            44.0,
            8.0..=512.0,
            Fitted(
                "figure 3, remote over SCSI: the paper does not name its disk. The rest is the data sheet of a common one \
                 of the time (CDC Wren VI), which has 54",
            ),
        ),
        parameter(
            ("disk.nvme", ""),
            "1: a flash drive of 2026 in its place",
            0.0,
            0.0..=1.0,
            Paper("section 3: a SCSI hard disk"),
        ),
        parameter(
            ("cpu.disk", "ms"),
            "one disk access: driver, interrupt",
            0.35,
            0.0..=10.0,
            Chosen("10,000 instructions at 25 to 30 MIPS"),
        ),
        parameter(("ethernet.rate", "Mb/s"), "rate of the Ethernet", 10.0, 1.0..=1e6, Published("IEEE 802.3-1985")),
        parameter(
            ("cpu.frame", "ms"),
            "one frame sent or received, copies to and from the interface included",
            0.4,
            0.0..=10.0,
            Chosen(
                "Papadopoulos and Parulkar, Experimental Evaluation of SunOS IPC and TCP/IP Protocol Implementation, \
                 INFOCOM '93: up to 7.5 Mb/s on SPARCstations 1, limited by the driver: 1.56 ms for a TCP segment of 1,460 \
                 bytes; some 0.7 ms on a SPARCstation 2, judged twice as fast or a little more. An NFS fragment has no TCP, no checksum and no \
                 copy to the process (0.16 ms for these two at the speed of memory), and no acknowledgements (every other \
                 segment): 0.4 ms is our judgement of what is left",
            ),
        ),
        parameter(
            ("cpu.rpc", "ms"),
            "one call, on each side: RPC, XDR, UDP, switch to the daemon",
            1.0,
            0.0..=100.0,
            Chosen(
                "within what was published: a call without data took a few milliseconds at least on machines of 27 MIPS \
                 (Macklem, Not Quite NFS, USENIX Winter 1994), both sides and the wire together: about 4 ms here",
            ),
        ),
        parameter(
            ("nfs.ahead", "blocks"),
            "blocks that client and server read ahead",
            1.0,
            0.0..=15.0,
            Chosen("one block, as 4.3BSD reads ahead (WS, section 3)"),
        ),
    ]
}

fn sharing() -> Vec<Parameter> {
    vec![
        parameter(
            ("share.think", "ms"),
            "between accesses of a node",
            10.0,
            0.0..=1000.0,
            Chosen("a process that computes on what it read: 280,000 instructions"),
        ),
        parameter(
            ("share.accesses", ""),
            "accesses of all nodes in each run, at least 16 a node",
            8000.0,
            100.0..=1e6,
            Chosen("long enough that another seed changes the means by a few percent"),
        ),
        parameter(
            ("share.nodes", ""),
            "the largest number of nodes",
            4096.0,
            2.0..=4096.0,
            Chosen("far beyond what one home, or one ring, can serve"),
        ),
    ]
}

/// RDMA between servers of 2026 in place of the boards: the memory is the processor's own.
pub(super) const MODERN: &[(&str, f64)] = &[
    // 400 Gb/s Ethernet or InfiniBand NDR: adapter and switch take 1 to 2 us from memory to memory.
    ("ring.rate", 400_000.0),
    ("ring.peak", 48_000.0),
    ("network.lines", 1.0),
    ("network.latency", 1.5),
    ("board.message", 64.0),
    ("board.turnaround", 0.3),
    ("vme.word", 0.0002),
    ("kernel.page", 0.001),
    ("kernel.call", 0.0003),
    ("kernel.fault", 0.001),
    ("cpu.copy", 12_000.0),
    ("disk.nvme", 1.0),
    ("cpu.disk", 0.003),
    ("ethernet.rate", 25_000.0),
    ("cpu.frame", 0.0005),
    ("cpu.rpc", 0.005),
    ("share.think", 0.02),
];
