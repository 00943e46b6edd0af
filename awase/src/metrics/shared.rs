//! The counters of shared disks.

use std::sync::Arc;
use std::time::Duration;

use dsm::{Counters, Dsm, Gauges, Shared, Waits};

/// A metric that only grows: its name and meaning, and its value.
type Count = (&'static str, &'static str, fn(&Counters) -> u64);

/// A state of blocks, and how many are in it.
type State = (&'static str, fn(&Gauges) -> usize);

pub(super) const COUNTERS: &[Count] = &[
    ("awase_shared_fetches_total", "Blocks (4 KiB) of shared disks fetched into the cache.", |of| of.fetches.get()),
    ("awase_shared_invalidations_total", "Blocks given up because other nodes wanted them.", |of| {
        of.invalidations.get()
    }),
    ("awase_shared_grants_total", "Blocks sent to other nodes by this home.", |of| of.grants.get()),
    (
        "awase_shared_forwards_total",
        "Blocks sent straight to nodes that wanted them by this node, which had them.",
        |of| of.forwards.get(),
    ),
    ("awase_shared_recalls_total", "Recalls sent by this home.", |of| of.recalls.get()),
    ("awase_shared_stores_total", "Blocks stored at this home.", |of| of.stores.get()),
    ("awase_shared_faults_total", "Faults of programs that have mapped shared disks.", |of| of.faults.get()),
    ("awase_shared_messages_total", "Messages to other nodes.", |of| of.messages.get()),
    ("awase_shared_headers_total", "Headers of them: those about adjacent pages share one.", |of| of.headers.get()),
    ("awase_shared_batches_total", "Sends in which they left.", |of| of.batches.get()),
];

/// A part of the time of misses.
pub(crate) type Wait = (&'static str, fn(&Counters) -> &Waits);

pub(crate) const WAITS: &[Wait] = &[("fetch", |of| &of.fetch), ("home", |of| &of.home), ("holder", |of| &of.holder)];

pub(super) const STATES: &[State] = &[
    ("shared", |now| now.shared),
    ("exclusive", |now| now.exclusive),
    ("saving", |now| now.saving),
    ("awaited", |now| now.awaited),
    ("mapped_read", |now| now.mapped_read),
    ("mapped_written", |now| now.mapped_written),
];

/// A shared disk in a sample.
pub(super) struct SharedSample {
    pub(super) counts: Vec<u64>,
    /// How often, and how long in all. In the order of [`WAITS`].
    pub(super) waits: Vec<(u64, Duration)>,
    /// By the names of two nodes.
    pub(super) bounces: Vec<([String; 2], u64)>,
    pub(super) now: Gauges,
}

/// Those that are still served.
pub(super) fn sample(protocol: Option<Arc<Dsm>>) -> Vec<SharedSample> {
    let of = |shared: Arc<Shared>| {
        let counts = COUNTERS.iter().map(|(_, _, value)| value(shared.counters())).collect();
        let waits = WAITS.iter().map(|(_, of)| of(shared.counters()));
        let waits = waits.map(|waits| (waits.count.get(), Duration::from_nanos(waits.ns.get()))).collect();
        SharedSample { counts, waits, bounces: shared.bounces(), now: shared.gauges() }
    };
    protocol.iter().flat_map(|protocol| protocol.volumes()).map(of).collect()
}
