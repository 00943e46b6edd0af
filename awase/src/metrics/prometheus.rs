//! The counters in Prometheus' text format, version 0.0.4 (prometheus.io, "Exposition formats"), with names by its
//! conventions: base units, `_total` for what only grows.

use std::fmt::{Display, Write as _};

use kernel::counters::{Activity, Count, DiskReading, Group, RequestType, Service};
use kernel::job::JobFacts;
use policy::unit::BLOCK_BYTES;
use transactions::counters::Counted;

use super::sample::{DatabaseSample, Sample};
use super::shared::{COUNTERS, STATES, WAITS};

/// Bounds of the buckets of latencies, in seconds.
const BOUNDS: &[f64] = &[
    5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];

/// What programs ask, by name.
pub(crate) const PROGRAM_REQUESTS: [(&str, Count); 5] = [
    ("table", Count::ProgramTables),
    ("get", Count::ProgramGets),
    ("put", Count::ProgramPuts),
    ("delete", Count::ProgramDeletes),
    ("next", Count::ProgramNexts),
];

pub(super) fn text(sample: &Sample) -> String {
    let mut text = Text::default();
    server(&mut text, sample);
    requests(&mut text, sample);
    latencies(&mut text, sample);
    processors(&mut text, sample);
    modules(&mut text, sample);
    cache(&mut text, sample);
    disks(&mut text, sample);
    jobs(&mut text, sample);
    locks(&mut text, sample);
    shared(&mut text, sample);
    databases(&mut text, sample);
    text.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, about: &str) {
        let _ = writeln!(self.0, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, of)) in labels.iter().enumerate() {
            let escaped = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{escaped}\"");
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn single(&mut self, name: &str, kind: &str, about: &str, value: impl Display) {
        self.family(name, kind, about);
        self.line(name, &[], value);
    }
}

fn server(text: &mut Text, sample: &Sample) {
    text.family("awase_build_info", "gauge", "The version that runs.");
    text.line("awase_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let start = sample.start.as_secs_f64();
    text.single("awase_start_time_seconds", "gauge", "When the server started, since 1970.", start);
    text.family("awase_connections", "gauge", "Connected clients.");
    for (processor, count) in sample.connections.iter().enumerate() {
        text.line("awase_connections", &[("processor", &processor.to_string())], count);
    }
    let (received, sent) = (sample.sum.count(Count::BytesReceived), sample.sum.count(Count::BytesSent));
    text.single("awase_received_bytes_total", "counter", "Bytes received from clients.", received);
    text.single("awase_sent_bytes_total", "counter", "Bytes sent to clients.", sent);
}

fn requests(text: &mut Text, sample: &Sample) {
    let labels = |request: RequestType| [("service", request.service().name()), ("request", request.name())];
    text.family("awase_requests_total", "counter", "Requests answered.");
    for request in RequestType::all() {
        text.line("awase_requests_total", &labels(request), sample.sum.requests(request).0);
    }
    text.family("awase_request_seconds_total", "counter", "Total time of requests.");
    for request in RequestType::all() {
        let seconds = sample.sum.requests(request).1 as f64 * sample.seconds_per_tick;
        text.line("awase_request_seconds_total", &labels(request), seconds);
    }
}

fn latencies(text: &mut Text, sample: &Sample) {
    const NAME: &str = "awase_request_duration_seconds";
    text.family(NAME, "histogram", "Time of requests, from the last byte of the request to the reply.");
    let (bucket, sum, count) = (format!("{NAME}_bucket"), format!("{NAME}_sum"), format!("{NAME}_count"));
    for service in Service::ALL {
        for group in Group::ALL {
            let histogram = sample.sum.latency(service, group);
            let labels = [("service", service.name()), ("class", group.name())];
            let with = |bound: &str, text: &mut Text, value: u64| {
                text.line(&bucket, &[labels[0], labels[1], ("le", bound)], value);
            };
            for bound in BOUNDS {
                with(&bound.to_string(), text, histogram.below(bound / sample.seconds_per_tick));
            }
            let total = histogram.total();
            with("+Inf", text, total);
            let of = RequestType::all().filter(|request| request.service() == service && request.group() == group);
            let ticks: u64 = of.map(|request| sample.sum.requests(request).1).sum();
            text.line(&sum, &labels, ticks as f64 * sample.seconds_per_tick);
            text.line(&count, &labels, total);
        }
    }
}

fn processors(text: &mut Text, sample: &Sample) {
    text.family("awase_processor_seconds_total", "counter", "Time of processors, by activity.");
    for (number, reading) in sample.processors.iter().enumerate() {
        for activity in Activity::ALL {
            let labels = [("processor", &*number.to_string()), ("activity", activity.name())];
            let seconds = reading.time(activity) as f64 * sample.seconds_per_tick;
            text.line("awase_processor_seconds_total", &labels, seconds);
        }
    }
    text.family("awase_dispatches_total", "counter", "Dispatches of tasks, by kind.");
    for (number, reading) in sample.processors.iter().enumerate() {
        for (kind, count) in [("normal", Count::Dispatches), ("immediate", Count::ImmediateDispatches)] {
            let labels = [("processor", &*number.to_string()), ("kind", kind)];
            text.line("awase_dispatches_total", &labels, reading.count(count));
        }
    }
    const RECORDS: &str = "awase_trace_records_total";
    text.family(RECORDS, "counter", "Records of the trace (OLTP-2), by where they were recorded.");
    for (ring, count) in sample.trace_records.iter().enumerate() {
        let by = if ring < sample.processors.len() { ring.to_string() } else { "central".to_owned() };
        text.line(RECORDS, &[("recorder", &by)], count);
    }
    for (name, count, about) in [
        ("awase_tasks_started_total", Count::TasksStarted, "Tasks started."),
        ("awase_completions_total", Count::Completions, "Completions taken from the machine."),
        ("awase_parks_total", Count::Parks, "Times that a processor became idle."),
        ("awase_quantum_waits_total", Count::QuantumWaits, "Waits for more completions (OLTP-1)."),
        ("awase_sends_total", Count::Sends, "Sends to clients."),
        ("awase_kernel_entries_total", Count::KernelEntries, "System calls, and wake-ups that took one."),
        (
            "awase_regions_declined_total",
            Count::RegionsDeclined,
            "Memory regions that the host did not register for transfers.",
        ),
    ] {
        text.family(name, "counter", about);
        for (number, reading) in sample.processors.iter().enumerate() {
            text.line(name, &[("processor", &number.to_string())], reading.count(count));
        }
    }
}

fn modules(text: &mut Text, sample: &Sample) {
    let count = |what| sample.sum.count(what);
    let of_databases = |of: fn(&Counted) -> u64| sample.counted.iter().map(|(_, counted)| of(counted)).sum();
    let queued: u64 = sample.disks.iter().map(|disk| disk.reading.requests).sum();
    text.family(
        "awase_module_calls_total",
        "counter",
        "Calls of the modules of the I/O path and of the transaction monitor.",
    );
    for (module, calls) in [
        ("cache", count(Count::CacheReads) + count(Count::CacheWrites)),
        ("read_ahead", count(Count::ReadAheads)),
        ("write_back", count(Count::WriteOuts)),
        ("queue", queued),
        ("gather", count(Count::Gathers)),
        ("transaction", of_databases(|counted| counted.commits + counted.conflicts + counted.aborts)),
        ("program", of_databases(|counted| counted.functions.iter().map(|function| function.calls).sum())),
        ("tree", count(Count::TreeSearches)),
        ("log", count(Count::LogGroups)),
    ] {
        text.line("awase_module_calls_total", &[("module", module)], calls);
    }
    let blocks = count(Count::ReadAheadBlocks);
    text.single("awase_read_ahead_blocks_total", "counter", "Blocks (4 KiB) read ahead.", blocks);
    let blocks = count(Count::WriteOutBlocks);
    text.single("awase_write_back_blocks_total", "counter", "Blocks (4 KiB) written back to disks.", blocks);
    text.single("awase_flushes_total", "counter", "Flushes of volumes.", count(Count::Flushes));
}

fn cache(text: &mut Text, sample: &Sample) {
    let cache = &sample.cache;
    for (name, about, blocks) in [
        (
            "awase_cache_hits_total",
            "Blocks (4 KiB) that readers found in the cache.",
            sample.sum.count(Count::CacheHits),
        ),
        ("awase_cache_misses_total", "Blocks that readers had to wait for.", sample.sum.count(Count::CacheMisses)),
        ("awase_cache_evictions_total", "Blocks evicted.", cache.evicted),
    ] {
        text.single(name, "counter", about, blocks);
    }
    for (name, about, bytes) in [
        ("awase_cache_limit_bytes", "Current limit of the cache's size.", cache.limit),
        ("awase_cache_memory_bytes", "Memory of the cache.", cache.memory),
        ("awase_cache_used_bytes", "Memory of the cache that holds blocks or data in transit.", cache.used),
        ("awase_cache_dirty_bytes", "Dirty blocks, in bytes.", cache.dirty),
        ("awase_cache_colors", "Colours of the processor's cache that frames are chosen by; 1: none.", cache.colors),
    ] {
        text.single(name, "gauge", about, bytes);
    }
}

fn disks(text: &mut Text, sample: &Sample) {
    text.family("awase_disk_operations_total", "counter", "Operations of disks.");
    for disk in &sample.disks {
        let of = &disk.reading;
        for (operation, count) in
            [("read", of.reads), ("write", of.writes), ("flush", of.flushes), ("other", of.others)]
        {
            let labels = [("disk", disk.name.as_str()), ("operation", operation)];
            text.line("awase_disk_operations_total", &labels, count);
        }
    }
    let mut family = |name, kind, about, value: &dyn Fn(&DiskReading) -> f64| {
        text.family(name, kind, about);
        for disk in &sample.disks {
            text.line(name, &[("disk", &disk.name)], value(&disk.reading));
        }
    };
    family("awase_disk_read_bytes_total", "counter", "Bytes read from disks.", &|of| of.bytes_read as f64);
    family("awase_disk_written_bytes_total", "counter", "Bytes written to disks.", &|of| of.bytes_written as f64);
    family("awase_disk_errors_total", "counter", "Failed operations of disks.", &|of| of.failed as f64);
    let seconds = |of: &DiskReading| of.ticks as f64 * sample.seconds_per_tick;
    family("awase_disk_operation_seconds_total", "counter", "Total time of disk operations.", &seconds);
    family("awase_disk_requests_total", "counter", "Requests that entered the queue.", &|of| of.requests as f64);
    family("awase_disk_queue_depth", "gauge", "Requests queued or in flight on the disk.", &|of| of.depth as f64);
}

fn jobs(text: &mut Text, sample: &Sample) {
    let names: Vec<String> = sample.jobs.iter().map(|facts| facts.client.to_string()).collect();
    let mut family = |name, kind, about, value: fn(&JobFacts) -> f64| {
        text.family(name, kind, about);
        for (facts, job) in sample.jobs.iter().zip(&names) {
            text.line(name, &[("job", job)], value(facts));
        }
    };
    family("awase_job_seconds_total", "counter", "Processor time used for clients.", |facts| facts.used.as_secs_f64());
    family(
        "awase_job_usage_seconds",
        "gauge",
        "Recent processor time, decayed: the client with the least is served first.",
        |facts| facts.recent.as_secs_f64(),
    );
    family("awase_job_requests_total", "counter", "Requests of clients answered.", |facts| facts.requests as f64);
    family("awase_job_connections", "gauge", "Connections of clients.", |facts| f64::from(facts.connections));
    family("awase_job_dirty_bytes", "gauge", "Dirty blocks written by clients, in bytes.", |facts| {
        (facts.dirty_blocks * BLOCK_BYTES) as f64
    });
}

/// By number, since metrics have no names of exports.
fn shared(text: &mut Text, sample: &Sample) {
    for (place, (name, about, _)) in COUNTERS.iter().enumerate() {
        text.family(name, "counter", about);
        for (number, shared) in sample.shared.iter().enumerate() {
            text.line(name, &[("volume", &number.to_string())], shared.counts[place]);
        }
    }
    text.family("awase_shared_blocks", "gauge", "Blocks of shared disks at this node, by state.");
    for (number, shared) in sample.shared.iter().enumerate() {
        for (state, value) in STATES {
            let labels = [("volume", &*number.to_string()), ("state", state)];
            text.line("awase_shared_blocks", &labels, value(&shared.now));
        }
    }
    let waits = || {
        sample.shared.iter().enumerate().flat_map(|(number, shared)| {
            WAITS.iter().zip(&shared.waits).map(move |((part, _), wait)| (number.to_string(), part, wait))
        })
    };
    text.family("awase_shared_wait_seconds_total", "counter", "Time of misses in shared disks, by part.");
    for (volume, part, (_, time)) in waits() {
        text.line("awase_shared_wait_seconds_total", &[("volume", &volume), ("part", part)], time.as_secs_f64());
    }
    text.family("awase_shared_waits_total", "counter", "Misses in shared disks, by part.");
    for (volume, part, (count, _)) in waits() {
        text.line("awase_shared_waits_total", &[("volume", &volume), ("part", part)], count);
    }
    text.family("awase_shared_bounces_total", "counter", "Blocks of this home that two nodes took from each other.");
    for (number, shared) in sample.shared.iter().enumerate() {
        for ([one, other], count) in &shared.bounces {
            let labels = [("volume", &*number.to_string()), ("one", one), ("other", other)];
            text.line("awase_shared_bounces_total", &labels, count);
        }
    }
    text.family("awase_shared_mappings", "gauge", "Programs that have mapped a shared disk.");
    for (number, shared) in sample.shared.iter().enumerate() {
        text.line("awase_shared_mappings", &[("volume", &number.to_string())], shared.now.mappings);
    }
    text.family("awase_shared_peers", "gauge", "Nodes that are connected.");
    for (number, shared) in sample.shared.iter().enumerate() {
        text.line("awase_shared_peers", &[("volume", &number.to_string())], shared.now.peers);
    }
}

fn databases(text: &mut Text, sample: &Sample) {
    const ENDS: &str = "awase_transactions_total";
    text.family(ENDS, "counter", "Transactions, by how they ended; those that conflict are executed again.");
    for (database, counted) in &sample.counted {
        for (end, count) in [("commit", counted.commits), ("conflict", counted.conflicts), ("abort", counted.aborts)] {
            text.line(ENDS, &[("database", database), ("end", end)], count);
        }
    }
    let functions: Vec<_> = sample
        .counted
        .iter()
        .flat_map(|(database, counted)| counted.functions.iter().map(move |function| (&**database, function)))
        .collect();
    text.family("awase_program_calls_total", "counter", "Executions of functions.");
    for (database, function) in functions.iter().copied() {
        let labels = [("database", database), ("function", &*function.name)];
        text.line("awase_program_calls_total", &labels, function.calls);
    }
    text.family("awase_program_failures_total", "counter", "Executions of functions that returned no result.");
    for (database, function) in functions.iter().copied() {
        let labels = [("database", database), ("function", &*function.name)];
        text.line("awase_program_failures_total", &labels, function.failures);
    }
    text.family(
        "awase_program_at_once_total",
        "counter",
        "Executions of functions that were executed at once (OLTP-4).",
    );
    for (database, function) in functions.iter().copied() {
        let labels = [("database", database), ("function", &*function.name)];
        text.line("awase_program_at_once_total", &labels, function.at_once);
    }
    const REQUESTS: &str = "awase_program_requests_total";
    text.family(REQUESTS, "counter", "What programs asked of their tables.");
    for (request, count) in PROGRAM_REQUESTS {
        text.line(REQUESTS, &[("request", request)], sample.sum.count(count));
    }
    const LOOKUPS: &str = "awase_name_lookups_total";
    text.family(LOOKUPS, "counter", "Functions and tables that were looked up by name (OLTP-5).");
    for (database, counted) in &sample.counted {
        for (of, count) in [("function", counted.lookups), ("table", counted.table_lookups)] {
            text.line(LOOKUPS, &[("database", database), ("of", of)], count);
        }
    }
    let mut family = |name, kind, about, value: fn(&DatabaseSample) -> u64| {
        text.family(name, kind, about);
        for database in &sample.databases {
            text.line(name, &[("database", &database.name)], value(database));
        }
    };
    family("awase_checkpoints_total", "counter", "Checkpoints of databases.", |of| of.store.checkpoints);
    family("awase_database_log_bytes", "gauge", "Log that a start would replay.", |of| of.store.log_bytes);
    family("awase_database_tree_bytes", "gauge", "Pages of tables.", |of| of.store.tree_bytes);
    family("awase_database_free_bytes", "gauge", "What is free on the volume.", |of| of.store.free_bytes);
}

fn locks(text: &mut Text, sample: &Sample) {
    let disks = sample.disks.iter().map(|disk| ("queue", disk.name.as_str(), disk.reading.lock));
    let locks: Vec<_> = [("cache", "", sample.cache.locks)].into_iter().chain(disks).collect();
    text.family("awase_lock_acquisitions_total", "counter", "Acquisitions of locks.");
    for (lock, disk, reading) in &locks {
        text.line("awase_lock_acquisitions_total", &[("lock", lock), ("disk", disk)], reading.taken);
    }
    text.family("awase_lock_contentions_total", "counter", "Acquisitions that found the lock taken.");
    for (lock, disk, reading) in &locks {
        text.line("awase_lock_contentions_total", &[("lock", lock), ("disk", disk)], reading.contended);
    }
}
