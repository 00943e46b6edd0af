//! The switches: one for each technique of the papers. README, help and reference are generated from this table.

use std::sync::LazyLock;
use std::time::Duration;

use kernel::Switches;
use kernel::trace::Mode;
use policy::delivery::Method;
use policy::unit::ProcessorId;
use policy::{access, color, pages, quantum, readahead};

use super::form::{Form, named, number, on_off, time};
use super::given::Given;
use super::key::{Entry, Key, Keys, apply, keys};
use super::problem::{Place, Problem};

pub const ACCESS: [(access::Mode, &str); 2] =
    [(access::Mode::Symmetric, "symmetric"), (access::Mode::Funnel, "funnel")];

const DELIVERY: [(Method, &str); 6] = [
    (Method::Initiator, "initiator"),
    (Method::Fixed(ProcessorId(0)), "first"),
    (Method::Fixed(ProcessorId(1)), "second"),
    (Method::Idle, "idle"),
    (Method::Busiest, "busiest"),
    (Method::All, "all"),
];

const TRACE: [(Mode, &str); 4] =
    [(Mode::Direct, "direct"), (Mode::Off, "off"), (Mode::Central, "central"), (Mode::Unthinned, "unthinned")];

pub static SWITCHES: Keys<Switches> = keys! { Switches:
    dynamic_cache: on_off(),
        "The buffer cache grows into free memory and gives it back; off: always a tenth of memory", "WS-2";
    scan_resistant: on_off(),
        "A long sequential read does not evict blocks that are used often (S3-FIFO); off: least recently used", "WS-2";
    smooth_write_back: on_off(),
        "Dirty blocks are written steadily; off: all of them every 30 s, a sync storm", "WS-2";
    block_merge: on_off(), "Neighbouring requests are merged into one", "WS-3";
    priority: on_off(), "Requests that a client waits for go to the disk first", "WS-4";
    read_ahead: read_ahead("\"adaptive\", \"off\", or a number of blocks of 4 KiB from 1 to 4096"),
        "Sequential reads are read ahead", "WS-3, WS-5";
    flush_gathering: on_off(), "Flushes that arrive while one is in flight share the next one", "WS-5";
    usage: on_off(),
        "Clients with little recent usage go first, on processors and disks; off: first come, first served", "WS-7";
    quantum: quantum("\"adaptive\", \"off\", or a time up to 100ms such as \"24ms\""),
        "Completions are gathered for a while and taken at once; adaptive: where that serves more requests; off: each is \
         taken by itself", "OLTP-1";
    access: named(ACCESS),
        "Every processor starts devices; funnel: only the first, to which the others hand over their requests",
        "MP 1a, 1b";
    delivery: named(DELIVERY),
        "Which processor does the work after a completion; idle: an idle one, else that with the least urgent work; \
         all: the first to take it", "MP 2a, 2b";
    immediate_dispatch: on_off(),
        "A short task that a completion wakes runs at once; off: after the tasks that are ready", "OLTP-3";
    hottest_first: on_off(),
        "Reads (and GETATTR) that hit in the cache, and calls of databases that are short and find all rows in memory, are \
         tried before the general path; off: on it", "OLTP-4";
    resolved_names: on_off(),
        "The functions that a statement calls and the tables of a program are looked up by name once; off: for each call",
        "OLTP-5";
    look_ahead: on_off(),
        "Requests that arrived together are served in one batch and answered in one send; off: each by itself",
        "OLTP-6";
    forwarding: on_off(),
        "Blocks of shared disks that a node has written go straight from it to the one that wants them, where their home is \
         a third node; off, and always on a shared device: through their home",
        "DSM";
    unmapped_io: on_off(),
        "Devices transfer cache frames directly; off: through a buffer mapped before and unmapped after each I/O",
        "UIO";
    huge_pages: named([(pages::Mode::Auto, "auto"), (pages::Mode::Huge, "true"), (pages::Mode::Small, "false")]),
        "Frames are in huge pages where the host has them; auto: where it provides them as cheaply as small ones",
        "UIO";
    registered_buffers: on_off(), "Frames are registered with io_uring once (Linux 6.15), not pinned for each I/O", "UIO";
    color: named([(color::Choice::Auto, "auto"), (color::Choice::On, "true"), (color::Choice::Off, "false")]),
        "Blocks get frames of their numbers' cache colours; auto: where a self-test at the start finds colours", "WS-6";
    trace: named(TRACE),
        "Events are recorded by each processor; central: all by one recorder; unthinned: also with separate \
         beginnings and ends", "OLTP-2";
};

fn read_ahead(allowed: &str) -> Form<readahead::Mode> {
    // At most 16 MiB.
    let fixed = number(1..=4096).map(
        |blocks| readahead::Mode::Fixed { blocks },
        |mode| if let readahead::Mode::Fixed { blocks } = mode { Some(*blocks) } else { None },
    );
    named([(readahead::Config::default().mode, "adaptive"), (readahead::Mode::Off, "off")]).or(fixed, allowed)
}

fn quantum(allowed: &str) -> Form<quantum::Mode> {
    let fixed = time(Duration::from_micros(1)..=Duration::from_millis(100), "").map(
        |quantum| quantum::Mode::Fixed { quantum },
        |mode| if let quantum::Mode::Fixed { quantum } = mode { Some(*quantum) } else { None },
    );
    named([(quantum::Mode::Adaptive, "adaptive"), (quantum::Mode::Off, "off")]).or(fixed, allowed)
}

/// # Errors
/// When there is no such switch or the value is not allowed.
pub fn set_switch(switches: &mut Switches, name: &str, given: &Given, place: &Place) -> Result<(), Problem> {
    let entry = Entry { key: name.to_owned(), given: given.clone(), place: place.clone() };
    apply(&SWITCHES, switches, &entry, &format!("{}{name}", super::SWITCHES_SECTION))
}

/// The switches that differ, with their new values as written in a file.
pub fn change(old: &Switches, new: &Switches) -> Vec<(&'static str, String)> {
    let shown = |key: &Key<Switches>, switches| (key.show)(switches).unwrap_or_default();
    let changed = SWITCHES.iter().filter(|key| shown(key, old) != shown(key, new));
    changed.map(|key| (key.name, shown(key, new))).collect()
}
