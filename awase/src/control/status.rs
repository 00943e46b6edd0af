//! The status of a server, from counters that its parts have anyway.

use dsm::{Shared, Waits};
use kernel::counters::{Activity, Count, Reading};
use policy::unit::{BLOCK_BYTES, DiskNo};
use serde_json::{Value, json};
use transactions::Monitor;
use transactions::counters::CountedFunction;

use super::{ControlPanel, ExportInfo};
use crate::metrics::{JOBS_SHOWN, PROGRAM_REQUESTS, SHARED_WAITS, disk_name, live_job};

impl ControlPanel {
    pub(super) fn status(&self) -> Value {
        let connections: Vec<u32> = self.acceptor.connections();
        let requests = self.kernel.requests();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "process": std::process::id(),
            "machine": self.machine,
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "connections": connections.iter().sum::<u32>(),
            "requests": requests.iter().sum::<u64>(),
            "processors": self.processors(&connections, &requests),
            "cache": self.cache(),
            "disks": self.disks(),
            "connected": super::connected::connected(&self.kernel),
            "jobs": self.kernel.jobs().most_used(JOBS_SHOWN).iter().map(live_job).collect::<Value>(),
            "programs": self.programs(),
            "databases": self.terminals.databases().iter().map(|monitor| database(monitor)).collect::<Value>(),
            "latencies": self.latencies.latencies(),
            "exports": self.exports.lock().iter().map(export).collect::<Value>(),
        })
    }

    fn processors(&self, connections: &[u32], requests: &[u64]) -> Value {
        let counted = self.kernel.counters().read();
        let each = self.acceptor.cores().zip(connections).zip(requests).zip(counted).enumerate();
        each.map(|(id, (((core, connections), requests), counted))| {
            json!({
                "id": id, "core": core, "connections": connections, "requests": requests,
                "kernel_entries": counted.count(Count::KernelEntries),
                "dispatches": counted.count(Count::Dispatches),
                "immediate_dispatches": counted.count(Count::ImmediateDispatches),
                "quantum_waits": counted.count(Count::QuantumWaits),
                "sends": counted.count(Count::Sends),
                "activities": activities(&counted),
            })
        })
        .collect()
    }

    /// What programs have asked of their tables.
    fn programs(&self) -> Value {
        let sum = Reading::sum(&self.kernel.counters().read());
        PROGRAM_REQUESTS.iter().map(|(name, count)| ((*name).to_owned(), Value::from(sum.count(*count)))).collect()
    }

    fn cache(&self) -> Value {
        json!({
            "bytes": self.kernel.frames().bytes_held(),
            "target_bytes": self.kernel.cache_blocks() * BLOCK_BYTES,
            "used_bytes": self.kernel.cache().len() as u64 * BLOCK_BYTES,
            "dirty_bytes": self.kernel.dirty_blocks() * BLOCK_BYTES,
        })
    }

    fn disks(&self) -> Value {
        let disk = |(number, queue): (DiskNo, std::sync::Arc<kernel::queue::DiskQueue>)| {
            let counters = queue.counters();
            json!({ "disk": disk_name(number), "requests": counters.requests, "transfers": counters.batches })
        };
        self.kernel.disk_queues().into_iter().map(disk).collect()
    }
}

/// Time by activity. Ticks.
fn activities(counted: &Reading) -> Value {
    Activity::ALL.iter().map(|activity| (activity.name().to_owned(), Value::from(counted.time(*activity)))).collect()
}

fn export(shown: &ExportInfo) -> Value {
    let volume = shown.volume.upgrade();
    json!({
        "name": shown.name,
        "kind": shown.kind,
        "medium": shown.medium,
        "read_only": shown.read_only,
        "bytes": volume.as_ref().map(|volume| volume.size()),
        "dirty_bytes": volume.as_ref().map(|volume| volume.dirty_blocks() * BLOCK_BYTES),
        "shared": shown.shared.upgrade().map(|shared| self::shared(&shared)),
    })
}

fn database(monitor: &Monitor) -> Value {
    let (counted, store) = (monitor.counters().read(), monitor.database().reading());
    let function = |function: CountedFunction| {
        let CountedFunction { name, calls, failures, at_once } = function;
        json!({ "name": name, "calls": calls, "failures": failures, "at_once": at_once })
    };
    json!({
        "name": monitor.name(),
        "commits": counted.commits,
        "conflicts": counted.conflicts,
        "aborts": counted.aborts,
        "function_lookups": counted.lookups,
        "table_lookups": counted.table_lookups,
        "functions": counted.functions.into_iter().map(function).collect::<Value>(),
        "checkpoints": store.checkpoints,
        "is_checkpointing": store.is_checkpointing,
        "log_bytes": store.log_bytes,
        "tree_bytes": store.tree_bytes,
        "free_bytes": store.free_bytes,
    })
}

fn waits(of: &Waits) -> Value {
    json!({ "count": of.count.get(), "ns": of.ns.get() })
}

fn shared(shared: &Shared) -> Value {
    let (now, counters, bounces) = (shared.gauges(), shared.counters(), shared.bounces());
    let most = bounces.iter().max_by_key(|(_, count)| *count);
    json!({
        "peers": now.peers,
        "of_peers": shared.config().nodes.len() - 1,
        "shared_bytes": now.shared as u64 * BLOCK_BYTES,
        "exclusive_bytes": now.exclusive as u64 * BLOCK_BYTES,
        "saving_bytes": now.saving as u64 * BLOCK_BYTES,
        "awaited": now.awaited,
        "mappings": now.mappings,
        "mapped_read_bytes": now.mapped_read as u64 * BLOCK_BYTES,
        "mapped_written_bytes": now.mapped_written as u64 * BLOCK_BYTES,
        "faults": counters.faults.get(),
        "fetches": counters.fetches.get(),
        "invalidations": counters.invalidations.get(),
        "grants": counters.grants.get(),
        "forwards": counters.forwards.get(),
        "stores": counters.stores.get(),
        "messages": counters.messages.get(),
        "headers": counters.headers.get(),
        "batches": counters.batches.get(),
        "waits": SHARED_WAITS.iter().map(|(part, of)| (part.to_string(), waits(of(counters)))).collect::<Value>(),
        "bounces": bounces.iter().map(|(_, count)| count).sum::<u64>(),
        "most_bounces": most.map(|([one, other], _)| format!("{one}, {other}")),
    })
}
