//! The connections and what each does, for clients of the control socket. Names are looked up here, off the I/O path.

use kernel::Kernel;
use kernel::connection::{ConnectionReading, Uses};
use serde_json::{Value, json};

/// All connections, oldest first. `export` is null for none and for several.
pub(super) fn connected(kernel: &Kernel) -> Value {
    kernel.connections().read().iter().map(|connection| row(kernel, connection)).collect()
}

fn row(kernel: &Kernel, connection: &ConnectionReading) -> Value {
    let introduction = connection.introduction.as_ref();
    let export = if let Uses::One(export) = connection.uses { kernel.export_name(export) } else { None };
    json!({
        "number": connection.number.0,
        "protocol": introduction.map(|introduction| introduction.protocol),
        "client": introduction.map(|introduction| &introduction.client),
        "job": connection.job.0,
        "export": export,
        "several_exports": connection.uses == Uses::Several,
        "processor": connection.processor.map(|processor| processor.0),
        "age_s": introduction.map(|introduction| introduction.at.elapsed().as_secs_f64()),
        "requests": connection.requests,
        "in_flight": connection.under_way,
        "received_bytes": connection.received,
        "sent_bytes": connection.sent,
    })
}
