//! A trace in the Trace Event Format (JSON) for Perfetto, one track for each processor and one for each client.

use std::collections::BTreeSet;
use std::io::{self, Write};

use kernel::trace::{Moment, Part, Shape, Trace};
use serde_json::json;

/// Perfetto's process of the processors, which are its threads; likewise of the clients.
const PROCESSORS: u32 = 1;
const CLIENTS: u32 = 2;

/// # Errors
/// When `to` cannot be written.
pub fn write(trace: &Trace, moments: &[Moment], to: &mut impl Write) -> io::Result<()> {
    write!(to, "{{\"otherData\":{{\"server\":\"awase\",\"process\":\"{}\"}},\"traceEvents\":[", trace.process)?;
    name(to, "process_name", PROCESSORS, 0, "processors")?;
    write!(to, ",")?;
    name(to, "process_name", CLIENTS, 0, "clients")?;
    let processors: BTreeSet<u16> = moments.iter().map(|moment| moment.record.processor).collect();
    for processor in processors {
        write!(to, ",")?;
        name(to, "thread_name", PROCESSORS, u32::from(processor), &format!("processor {processor}"))?;
    }
    let clients: BTreeSet<u32> = moments.iter().map(|moment| moment.record.job).filter(|job| *job > 0).collect();
    for client in clients {
        write!(to, ",")?;
        let named = trace.clients.get(&client).map(|name| format!(" ({name})")).unwrap_or_default();
        name(to, "thread_name", CLIENTS, client, &format!("client {client}{named}"))?;
    }
    for (number, moment) in moments.iter().enumerate() {
        event(to, trace, number, moment)?;
    }
    writeln!(to, "]}}")
}

fn name(to: &mut impl Write, what: &str, process: u32, thread: u32, name: &str) -> io::Result<()> {
    write!(
        to,
        "\n{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{thread},\"args\":{{\"name\":{}}}}}",
        json!(name)
    )
}

/// Names of events and arguments are constants that need no escaping.
fn event(to: &mut impl Write, trace: &Trace, number: usize, moment: &Moment) -> io::Result<()> {
    let record = &moment.record;
    let facts = record.event.facts();
    let (process, thread) =
        if record.job > 0 { (CLIENTS, record.job) } else { (PROCESSORS, u32::from(record.processor)) };
    let category = facts.name.split('.').next().unwrap_or_default();
    let head = format!(
        "\"name\":\"{}\",\"cat\":\"{category}\",\"pid\":{process},\"tid\":{thread},\"args\":{{{}}}",
        facts.name,
        arguments(trace, moment)
    );
    let end_us = moment.at.ns() as f64 / 1e3;
    match (facts.shape, record.part) {
        (Shape::Span, Part::Whole) if record.job > 0 => {
            // Requests of a client overlap: asynchronous slices, one for each.
            let begin_us = end_us - moment.took.as_nanos() as f64 / 1e3;
            write!(to, ",\n{{\"ph\":\"b\",\"id\":{number},\"ts\":{begin_us:.3},{head}}}")?;
            write!(to, ",\n{{\"ph\":\"e\",\"id\":{number},\"ts\":{end_us:.3},{head}}}")
        }
        (Shape::Span, Part::Whole) => {
            let took_us = moment.took.as_nanos() as f64 / 1e3;
            write!(to, ",\n{{\"ph\":\"X\",\"ts\":{:.3},\"dur\":{took_us:.3},{head}}}", end_us - took_us)
        }
        // On a processor they nest; of a client they overlap, and the records do not say which begin belongs to which end.
        (_, Part::Begin) if record.job == 0 => write!(to, ",\n{{\"ph\":\"B\",\"ts\":{end_us:.3},{head}}}"),
        (_, Part::End) if record.job == 0 => write!(to, ",\n{{\"ph\":\"E\",\"ts\":{end_us:.3},{head}}}"),
        _ => write!(to, ",\n{{\"ph\":\"i\",\"s\":\"t\",\"ts\":{end_us:.3},{head}}}"),
    }
}

fn arguments(trace: &Trace, moment: &Moment) -> String {
    let record = &moment.record;
    let values = [record.a, u64::from(record.b)];
    let facts = record.event.facts();
    let named = facts.arguments.iter().zip(values).filter(|(name, _)| !name.is_empty());
    let mut shown: Vec<String> = named.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    shown.extend(super::export(trace, record.export).map(|export| format!("\"export\":{}", json!(export))));
    shown.join(",")
}
