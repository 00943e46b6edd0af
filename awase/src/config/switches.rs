//! The switches: one for each technique of the papers. README, help and reference are generated from this table.

use kernel::Switches;
use kernel::trace::Mode;
use std::time::Duration;

use policy::delivery::Method;
use policy::unit::ProcessorId;
use policy::{access, pages, quantum, readahead};

use super::given::{Given, Refusal, show_duration};
use super::key::{Entry, Key, apply};
use super::problem::{Place, Problem};

/// 16 MiB.
const READ_AHEAD_BLOCKS_MAX: u64 = 4096;

const TRACE_MODES: [(Mode, &str); 4] =
    [(Mode::Direct, "direct"), (Mode::Off, "off"), (Mode::Central, "central"), (Mode::Unthinned, "unthinned")];

pub(super) const ACCESS_MODES: [(access::Mode, &str); 2] =
    [(access::Mode::Symmetric, "symmetric"), (access::Mode::Funnel, "funnel")];

const DELIVERY_METHODS: [(Method, &str); 6] = [
    (Method::Initiator, "initiator"),
    (Method::Fixed(ProcessorId(0)), "first"),
    (Method::Fixed(ProcessorId(1)), "second"),
    (Method::Idle, "idle"),
    (Method::Busiest, "busiest"),
    (Method::All, "all"),
];

macro_rules! on_off {
    ($name:ident, $paper:literal, $about:literal) => {
        Key {
            name: stringify!($name),
            allowed: "true, false",
            about: $about,
            paper: $paper,
            set: |switches, given| {
                switches.$name = given.boolean()?;
                Ok(())
            },
            show: |switches| Some(switches.$name.to_string()),
        }
    };
}

pub static SWITCHES: &[Key<Switches>] = &[
    on_off!(
        dynamic_cache,
        "WS-2",
        "The buffer cache grows into free memory and gives it back; off: always a tenth of memory"
    ),
    on_off!(
        scan_resistant,
        "WS-2",
        "A long sequential read does not evict blocks that are used often (S3-FIFO); off: least recently used"
    ),
    on_off!(smooth_write_back, "WS-2", "Dirty blocks are written steadily; off: all of them every 30 s, a sync storm"),
    on_off!(block_merge, "WS-3", "Neighbouring requests are merged into one"),
    on_off!(priority, "WS-4", "Requests that a client waits for go to the disk first"),
    Key {
        name: "read_ahead",
        allowed: "\"adaptive\", \"off\", or a number of blocks of 4 KiB from 1 to 4096",
        about: "Sequential reads are read ahead",
        paper: "WS-3, WS-5",
        set: |switches, given| {
            switches.read_ahead = read_ahead(given)?;
            Ok(())
        },
        show: |switches| {
            Some(match switches.read_ahead {
                readahead::Mode::Adaptive { .. } => "\"adaptive\"".into(),
                readahead::Mode::Off => "\"off\"".into(),
                readahead::Mode::Fixed { blocks } => blocks.to_string(),
            })
        },
    },
    on_off!(flush_gathering, "WS-5", "Flushes that arrive while one is in flight share the next one"),
    on_off!(
        usage,
        "WS-7",
        "Clients with little recent usage go first, on processors and disks; off: first come, first served"
    ),
    Key {
        name: "quantum",
        allowed: "\"adaptive\", \"off\", or a time up to 100ms such as \"24ms\"",
        about: "Completions are gathered for a while and taken at once; adaptive: where that serves more requests",
        paper: "OLTP-1",
        set: |switches, given| {
            switches.quantum = match given {
                Given::Text(text) if text == "adaptive" => quantum::Mode::Adaptive,
                Given::Text(text) if text == "off" => quantum::Mode::Off,
                Given::Boolean(false) => quantum::Mode::Off,
                _ => {
                    let range = Duration::from_micros(1)..=Duration::from_millis(100);
                    quantum::Mode::Fixed { quantum: given.duration(range)? }
                }
            };
            Ok(())
        },
        show: |switches| {
            Some(match switches.quantum {
                quantum::Mode::Adaptive => "\"adaptive\"".into(),
                quantum::Mode::Off => "\"off\"".into(),
                quantum::Mode::Fixed { quantum } => format!("{:?}", show_duration(quantum)),
            })
        },
    },
    Key {
        name: "access",
        allowed: "\"symmetric\", \"funnel\"",
        about: "Every processor starts devices; funnel: only the first, to which the others hand over their requests",
        paper: "MP 1a, 1b",
        set: |switches, given| {
            switches.access = named(given, &ACCESS_MODES)?;
            Ok(())
        },
        show: |switches| name_of(switches.access, &ACCESS_MODES),
    },
    Key {
        name: "delivery",
        allowed: "\"initiator\", \"first\", \"second\", \"idle\", \"busiest\", \"all\"",
        about: "Which processor does the work after a completion; idle: an idle one, else that with the least urgent work; all: the first to take it",
        paper: "MP 2a, 2b",
        set: |switches, given| {
            switches.delivery = named(given, &DELIVERY_METHODS)?;
            Ok(())
        },
        show: |switches| name_of(switches.delivery, &DELIVERY_METHODS),
    },
    on_off!(
        immediate_dispatch,
        "OLTP-3",
        "A short task that a completion wakes runs at once; off: after the tasks that are ready"
    ),
    on_off!(
        hottest_first,
        "OLTP-4",
        "Reads (and GETATTR) that hit in the cache are answered before the general path; off: on it"
    ),
    on_off!(
        look_ahead,
        "OLTP-6",
        "Requests that arrived together are served in one batch and answered in one send; off: each by itself"
    ),
    on_off!(
        unmapped_io,
        "UIO",
        "Devices transfer cache frames directly; off: through a buffer mapped before and unmapped after each I/O"
    ),
    Key {
        name: "huge_pages",
        allowed: "\"auto\", true, false",
        about: "Frames are in huge pages where the host has them; auto: where it provides them as cheaply as small ones",
        paper: "UIO",
        set: |switches, given| {
            switches.huge_pages = match given {
                Given::Text(text) if text == "auto" => pages::Mode::Auto,
                _ => {
                    if given.boolean()? {
                        pages::Mode::Huge
                    } else {
                        pages::Mode::Small
                    }
                }
            };
            Ok(())
        },
        show: |switches| {
            Some(match switches.huge_pages {
                pages::Mode::Auto => "\"auto\"".into(),
                pages::Mode::Huge => "true".into(),
                pages::Mode::Small => "false".into(),
            })
        },
    },
    on_off!(registered_buffers, "UIO", "Frames are registered with io_uring once, not pinned for each I/O"),
    Key {
        name: "trace",
        allowed: "\"direct\", \"off\", \"central\", \"unthinned\"",
        about: "Events are recorded by each processor; central: all by one recorder; unthinned: also with separate beginnings and ends",
        paper: "OLTP-2",
        set: |switches, given| {
            switches.trace = match given {
                Given::Boolean(false) => Mode::Off,
                Given::Text(text) => {
                    let named = TRACE_MODES.iter().find(|(_, name)| name == text);
                    named.ok_or(Refusal::NotAllowed)?.0
                }
                _ => return Err(Refusal::NotAllowed),
            };
            Ok(())
        },
        show: |switches| {
            let name = TRACE_MODES.iter().find(|(mode, _)| *mode == switches.trace);
            Some(format!("{:?}", name.map_or("off", |(_, name)| name)))
        },
    },
];

pub(super) fn named<T: Copy>(given: &Given, all: &[(T, &str)]) -> Result<T, Refusal> {
    let Given::Text(text) = given else { return Err(Refusal::NotAllowed) };
    all.iter().find(|(_, name)| name == text).map(|(value, _)| *value).ok_or(Refusal::NotAllowed)
}

pub(super) fn name_of<T: PartialEq>(value: T, all: &[(T, &str)]) -> Option<String> {
    all.iter().find(|(other, _)| *other == value).map(|(_, name)| format!("{name:?}"))
}

fn read_ahead(given: &Given) -> Result<readahead::Mode, Refusal> {
    match given {
        Given::Text(text) if text == "adaptive" => Ok(readahead::Config::default().mode),
        Given::Text(text) if text == "off" => Ok(readahead::Mode::Off),
        Given::Boolean(false) => Ok(readahead::Mode::Off),
        _ => Ok(readahead::Mode::Fixed { blocks: given.number(1..=READ_AHEAD_BLOCKS_MAX)? }),
    }
}

/// # Errors
/// When there is no such switch or the value is not allowed.
pub fn set_switch(switches: &mut Switches, name: &str, given: &Given, place: &Place) -> Result<(), Problem> {
    let entry = Entry { key: name.to_owned(), given: given.clone(), place: place.clone() };
    apply(SWITCHES, switches, &entry, &format!("{}{name}", super::SWITCHES_SECTION))
}

/// The switches that differ, with their new values as written in a file.
pub fn change(old: &Switches, new: &Switches) -> Vec<(&'static str, String)> {
    let shown = |key: &Key<Switches>, switches| (key.show)(switches).unwrap_or_default();
    let changed = SWITCHES.iter().filter(|key| shown(key, old) != shown(key, new));
    changed.map(|key| (key.name, shown(key, new))).collect()
}
