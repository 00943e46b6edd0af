//! The counters as JSON for the page with live plots, as totals: each client takes differences at its own rate.

use std::time::Duration;

use kernel::connection::ConnectionReading;
use kernel::counters::{Activity, Count, Group, Histogram, RequestType, Service, upper_bound};
use kernel::job::JobFacts;
use policy::unit::BLOCK_BYTES;
use serde_json::{Map, Value, json};

use super::sample::{Sample, View};
use super::shared::{SharedSample, WAITS, Wait};

pub(super) fn json(sample: &Sample) -> String {
    let count = |what| sample.sum.count(what);
    let value = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime": sample.uptime.as_secs_f64(),
        "received": count(Count::BytesReceived),
        "sent": count(Count::BytesSent),
        "connections": sample.connections.iter().sum::<u32>(),
        "requests": requests(sample),
        "latency": latencies(sample),
        "processors": processors(sample),
        "cache": {
            "hits": count(Count::CacheHits),
            "misses": count(Count::CacheMisses),
            "evictions": sample.cache.evicted,
            "limit": sample.cache.limit,
            "memory": sample.cache.memory,
            "used": sample.cache.used,
            "dirty": sample.cache.dirty,
            "locks": { "taken": sample.cache.locks.taken, "contended": sample.cache.locks.contended },
        },
        "disks": disks(sample),
        "shared": sample.shared.iter().map(shared).collect::<Value>(),
        "connected": connected(sample),
        "jobs": sample.jobs.iter().map(job).collect::<Value>(),
    });
    value.to_string()
}

impl View {
    /// Groups of requests that have occurred: `service`, `class`, and `buckets`.
    pub fn latencies(&self) -> Vec<Value> {
        self.sample().map_or_else(Vec::new, |sample| latencies(&sample))
    }
}

/// Types of requests that have occurred.
fn requests(sample: &Sample) -> Vec<Value> {
    let counted = RequestType::all().map(|request| (request, sample.sum.requests(request)));
    let some = counted.filter(|(_, (count, _))| *count > 0);
    let row = |(request, (count, ticks)): (RequestType, (u64, u64))| {
        let seconds = ticks as f64 * sample.seconds_per_tick;
        json!({ "service": request.service().name(), "request": request.name(), "count": count, "seconds": seconds })
    };
    some.map(row).collect()
}

/// Groups of requests that have occurred: upper bounds in seconds and counts of nonempty buckets.
fn latencies(sample: &Sample) -> Vec<Value> {
    let groups = Service::ALL.into_iter().flat_map(|service| Group::ALL.map(|group| (service, group)));
    let read = groups.map(|(service, group)| (service, group, sample.sum.latency(service, group)));
    let row = |(service, group, histogram): (Service, Group, Histogram)| {
        let filled = histogram.buckets().iter().enumerate().filter(|(_, count)| **count > 0);
        let pair = |(at, count): (usize, &u64)| json!([upper_bound(at) as f64 * sample.seconds_per_tick, count]);
        json!({ "service": service.name(), "class": group.name(), "buckets": filled.map(pair).collect::<Vec<_>>() })
    };
    read.filter(|(.., histogram)| histogram.total() > 0).map(row).collect()
}

fn processors(sample: &Sample) -> Vec<Value> {
    let row = |(reading, connections): (&kernel::counters::Reading, &u32)| {
        let seconds = |activity| json!(reading.time(activity) as f64 * sample.seconds_per_tick);
        let mut row: Map<String, Value> =
            Activity::ALL.into_iter().map(|activity| (activity.name().to_owned(), seconds(activity))).collect();
        row.insert(
            "dispatches".into(),
            json!(reading.count(Count::Dispatches) + reading.count(Count::ImmediateDispatches)),
        );
        row.insert("connections".into(), json!(connections));
        Value::Object(row)
    };
    sample.processors.iter().zip(&sample.connections).map(row).collect()
}

/// Also for the control socket.
pub(crate) fn job(facts: &JobFacts) -> Value {
    json!({
        "id": facts.id.0,
        "name": facts.client.to_string(),
        "connections": facts.connections,
        "requests": facts.requests,
        "used_ns": facts.used.as_nanos() as u64,
        "recent_ns": facts.recent.as_nanos() as u64,
        "dirty_bytes": facts.dirty_blocks * BLOCK_BYTES,
    })
}

fn disks(sample: &Sample) -> Vec<Value> {
    let row = |disk: &super::sample::Disk| {
        let of = &disk.reading;
        json!({
            "name": disk.name,
            "reads": of.reads,
            "writes": of.writes,
            "flushes": of.flushes,
            "read_bytes": of.bytes_read,
            "written_bytes": of.bytes_written,
            "errors": of.failed,
            "depth": of.depth,
        })
    };
    sample.disks.iter().map(row).collect()
}

/// A shared disk: how often was waited for its blocks by part, and how long in all.
fn shared(of: &SharedSample) -> Value {
    let part = |((part, _), (count, time)): (&Wait, &(u64, Duration))| {
        ((*part).to_owned(), json!({ "count": count, "seconds": time.as_secs_f64() }))
    };
    WAITS.iter().zip(&of.waits).map(part).collect()
}

/// Most connections in one answer, the oldest: a client may ask twice a second.
const CONNECTED_MAX: usize = 2048;

/// Without the client's name and its export, which only the control socket reveals.
fn connected(sample: &Sample) -> Vec<Value> {
    let row = |connection: &ConnectionReading| {
        let introduction = connection.introduction.as_ref();
        json!({
            "number": connection.number.0,
            "protocol": introduction.map(|introduction| introduction.protocol),
            "age": introduction.map(|introduction| introduction.at.elapsed().as_secs_f64()),
            "processor": connection.processor.map(|processor| processor.0),
            "requests": connection.requests,
            "in_flight": connection.under_way,
            "received": connection.received,
            "sent": connection.sent,
        })
    };
    sample.connected.iter().take(CONNECTED_MAX).map(row).collect()
}
