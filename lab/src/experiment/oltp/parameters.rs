//! What the OLTP experiment can be told, and whence it is known.

use crate::parameter::Origin::{Chosen, Derived, Fitted, Paper, Published};
use crate::parameter::{Origin, Parameter};

const KEPT_IN_ORDER: &str = "3 (2) orders the calls by number (B >= C > A >= D) and by time (B > D > A > C), and 3 (5) \
     calls sub-dispatch short: hundreds of steps each, so that sums of time lie as close as the order lets them";

pub fn all() -> Vec<Parameter> {
    [load(), io(), supervisor(), trace(), devices()].concat()
}

fn parameter(
    name: &'static str,
    about: &'static str,
    unit: &'static str,
    default: f64,
    range: std::ops::RangeInclusive<f64>,
    origin: Origin,
) -> Parameter {
    Parameter { name, about, unit, default, range, origin }
}

fn load() -> Vec<Parameter> {
    vec![
        parameter("transactions", "transactions replayed", "", 3000.0, 100.0..=100_000.0, Paper("1.1: 3,000")),
        parameter(
            "tx.heavy.ios",
            "I/O requests of a heavy transaction",
            "",
            56.0,
            3.0..=1000.0,
            Derived("3 (4): more than 160 a second, over 10,500 transactions an hour"),
        ),
        parameter(
            "tx.heavy.calls",
            "times that its application asks the OLTP system",
            "",
            36.0,
            1.0..=1000.0,
            Derived("3 (5): more than 100 sub-dispatches a second, over 10,500 transactions an hour"),
        ),
        parameter(
            "tx.heavy.user",
            "its time in user mode",
            "us",
            68_600.0,
            0.0..=1e7,
            Derived("3 (1): 8:2 leaves 200 ms of a second, over 10,500 transactions an hour"),
        ),
        parameter(
            "tx.light.ios",
            "I/O requests of a light transaction",
            "",
            29.0,
            3.0..=1000.0,
            Derived("160 a second, over 20,000 transactions an hour"),
        ),
        parameter(
            "tx.light.calls",
            "times that its application asks the OLTP system",
            "",
            19.0,
            1.0..=1000.0,
            Derived("as many for an I/O as in a heavy one"),
        ),
        parameter(
            "tx.light.user",
            "its time in user mode",
            "us",
            36_000.0,
            0.0..=1e7,
            Derived("8:2 leaves 200 ms of a second, over 20,000 transactions an hour"),
        ),
        parameter(
            "tx.consecutive",
            "part of the calls that follow a call at once",
            "",
            0.25,
            0.0..=1.0,
            Chosen("4 (6) says sometimes: one of four"),
        ),
        parameter(
            "tx.others",
            "calls of the four rare types for a transaction",
            "",
            6.0,
            0.0..=1000.0,
            Chosen("3 (2): few; one or two of each type"),
        ),
        parameter(
            "oltp.edit",
            "editing of a message, in user mode",
            "us",
            5000.0,
            0.0..=1e6,
            Chosen("10,000 steps for a screen of 80 x 24, the same in any transaction; it is part of tx.*.user"),
        ),
        parameter(
            "regions",
            "applications that run at once",
            "",
            32.0,
            1.0..=10_000.0,
            Derived("3: enough that the processor is never idle"),
        ),
    ]
}

fn io() -> Vec<Parameter> {
    vec![
        parameter("quantum", "time quantum", "us", 24_000.0, 1.0..=1e6, Paper("4 (1): 24 ms")),
        parameter(
            "io.request",
            "processor time of an I/O request",
            "us",
            2300.0,
            0.1..=1e5,
            Paper("3 (4): about 2.3 ms"),
        ),
        parameter(
            "io.pass",
            "of that: one pass over the channels, which stacked requests share",
            "us",
            1050.0,
            0.0..=1e5,
            Fitted("rate of the heavy mix after"),
        ),
        parameter(
            "io.completion.min",
            "processor time of an I/O completion, least (tape)",
            "us",
            400.0,
            0.0..=1e5,
            Paper("3 (4): 0.4 to 0.7 ms; which device takes how much is not told, disks take the mean"),
        ),
        parameter(
            "io.completion.max",
            "processor time of an I/O completion, most (front-end processor)",
            "us",
            700.0,
            0.0..=1e5,
            Paper("3 (4): 0.4 to 0.7 ms"),
        ),
        parameter(
            "io.save",
            "of that: to save the state of the program that runs",
            "us",
            200.0,
            0.0..=1e5,
            Paper("4 (1): about 200 us"),
        ),
    ]
}

fn supervisor() -> Vec<Parameter> {
    vec![
        parameter(
            "cpu.speed",
            "steps (instructions) in a microsecond",
            "/us",
            2.0,
            0.1..=100_000.0,
            Chosen("a mainframe of middle size of the 1980s; only how the trace falls into records depends on it"),
        ),
        parameter(
            "dispatch",
            "processor time of a dispatch",
            "us",
            575.0,
            0.0..=1e5,
            Derived(
                "what 8:2 leaves: 800 ms of a second, less I/O, calls and names, over two dispatches for an interrupt",
            ),
        ),
        parameter(
            "exit",
            "processor time of an exit routine",
            "us",
            50.0,
            0.0..=1e5,
            Chosen("4 (3): few steps and simple; a hundred"),
        ),
        parameter("call.ask", "an application asks the OLTP system", "us", 360.0, 0.0..=1e5, Chosen(KEPT_IN_ORDER)),
        parameter("call.subdispatch", "sub-dispatch", "us", 450.0, 0.0..=1e5, Chosen(KEPT_IN_ORDER)),
        parameter("call.mode", "change to supervisor mode", "us", 200.0, 0.0..=1e5, Chosen(KEPT_IN_ORDER)),
        parameter(
            "call.mode.first",
            "the same where it is looked for first",
            "steps",
            40.0,
            0.0..=1e5,
            Derived("4 (4): entry, type, task number compared, return; ten steps each"),
        ),
        parameter("call.other", "one of the rare calls", "us", 500.0, 0.0..=1e5, Chosen("as a dispatch")),
        parameter(
            "look.ahead",
            "to look whether a call follows",
            "steps",
            20.0,
            0.0..=1e5,
            Chosen("the instruction is fetched and compared"),
        ),
        parameter(
            "names.terminals",
            "terminals",
            "",
            500.0,
            1.0..=100_000.0,
            Chosen("1.1: hundreds to thousands; five hundred"),
        ),
        parameter(
            "names.compare",
            "to compare a name; half of the table is gone through, two or three times for a message (4 (5))",
            "steps",
            20.0,
            0.0..=1000.0,
            Chosen("a loop of five instructions, one of them a long comparison of characters"),
        ),
    ]
}

fn trace() -> Vec<Parameter> {
    vec![
        parameter(
            "trace.spacing",
            "steps of the system from record to record",
            "steps",
            286.0,
            1.0..=1e5,
            Derived("2 (5): some 20,000 steps were studied and have more than 70 types of records"),
        ),
        parameter(
            "trace.central",
            "to make a record with the central routine",
            "steps",
            200.0,
            0.0..=1e5,
            Derived("3 (3): 300 ms of each second, over the records in the 732 ms of paths that leave some"),
        ),
        parameter(
            "trace.direct",
            "to make a record in place",
            "steps",
            20.0,
            0.0..=1e5,
            Chosen("8 words stored and a pointer moved that wraps, without lock, call and saved registers"),
        ),
    ]
}

fn devices() -> Vec<Parameter> {
    vec![
        parameter("disks", "disks", "", 30.0, 1.0..=10_000.0, Paper("1.2 (5): about 30")),
        parameter(
            "disk.seek",
            "mean seek",
            "us",
            16_000.0,
            0.0..=1e6,
            Published("IBM archives, IBM 3380 (1980): 16 ms"),
        ),
        parameter(
            "disk.rotation",
            "a rotation",
            "us",
            16_600.0,
            0.0..=1e6,
            Chosen("a judgement: disks of the time turn some 60 times a second (IBM archives, IBM 3350: 59.5)"),
        ),
        parameter(
            "disk.transfer",
            "transfer of a block",
            "us",
            1400.0,
            0.0..=1e6,
            Derived("4 KB at the 3 MB/s of an IBM 3380 (IBM archives)"),
        ),
        parameter(
            "frontend.message",
            "a message over the channel to the front-end processor",
            "us",
            5000.0,
            0.0..=1e6,
            Chosen("1.1: it gives far more than the mainframe takes"),
        ),
        parameter(
            "tape.record",
            "a record of the journal",
            "us",
            8000.0,
            0.0..=1e6,
            Chosen(
                "a judgement: 3.3 ms for 4 KB at the 1.25 MB/s of a reel of the time (IBM archives), as much for gap, start, stop",
            ),
        ),
    ]
}

/// A server of 2026: one of its cores, NVMe disks, everything in memory that the mainframe went to tape for.
pub const MODERN: &[(&str, f64)] = &[
    ("cpu.speed", 8000.0),
    ("quantum", 20.0),
    ("io.request", 2.0),
    ("io.pass", 0.6),
    ("io.completion.min", 0.6),
    ("io.completion.max", 1.2),
    ("io.save", 0.2),
    ("dispatch", 0.8),
    ("exit", 0.05),
    ("call.ask", 0.2),
    ("call.subdispatch", 0.25),
    ("call.mode", 0.1),
    ("call.other", 0.3),
    ("oltp.edit", 2.0),
    ("tx.heavy.user", 68.0),
    ("tx.light.user", 36.0),
    ("disk.seek", 0.0),
    ("disk.rotation", 0.0),
    ("disk.transfer", 70.0),
    ("frontend.message", 5.0),
    ("tape.record", 15.0),
];
