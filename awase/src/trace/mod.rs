//! `awase trace`: what a server did, while it runs or after its end.

pub mod breakdown;
mod choose;
pub mod file;
pub mod perfetto;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use kernel::export::ExportNo;
use kernel::trace::{Moment, Trace};
use machine::linux::shared_memory::SharedMemory;

use crate::cli::TraceArguments;
use crate::tell::{print, print_by};
use choose::Filters;

/// # Errors
/// When there is no trace, or the output cannot be written.
pub fn trace(arguments: &TraceArguments) -> anyhow::Result<()> {
    let trace = read(&arguments.file)?;
    let filters = Filters::of(&trace, arguments)?;
    let concerned = trace.moments.iter().filter(|moment| filters.concerns(moment));
    if arguments.breakdown {
        let concerned: Vec<Moment> = concerned.copied().collect();
        let slower = arguments.slower.unwrap_or_default();
        return print(breakdown::table(&concerned, slower));
    }
    let chosen: Vec<Moment> = concerned.filter(|moment| filters.is_slow(moment)).copied().collect();
    if let Some(path) = &arguments.perfetto {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut to = BufWriter::new(file);
        perfetto::write(&trace, &chosen, &mut to).with_context(|| format!("cannot write {}", path.display()))?;
        to.flush().with_context(|| format!("cannot write {}", path.display()))?;
        let events = chosen.len();
        return print(format!("{}: {events} events; open it at https://ui.perfetto.dev\n", path.display()));
    }
    print_by(|output| list(&trace, &chosen, output))
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let memory = SharedMemory::open(path).with_context(|| {
        format!(
            "cannot read a trace at {}; a server with trace = \"direct\" makes one in its data directory",
            path.display()
        )
    })?;
    Trace::read(memory.words()).with_context(|| path.display().to_string())
}

/// One line for each event.
fn list(trace: &Trace, moments: &[Moment], to: &mut impl Write) -> io::Result<()> {
    for moment in moments {
        writeln!(to, "{}", line(trace, moment))?;
    }
    if trace.overwritten > 0 {
        writeln!(to, "({} earlier events were overwritten)", trace.overwritten)?;
    }
    let clients = moments.iter().filter_map(|moment| trace.clients.get_key_value(&moment.record.job));
    let clients: BTreeMap<_, _> = clients.collect();
    if !clients.is_empty() {
        let names: Vec<String> = clients.iter().map(|(number, name)| format!("c{number} is {name}")).collect();
        writeln!(to, "({})", names.join(", "))?;
    }
    Ok(())
}

fn line(trace: &Trace, moment: &Moment) -> String {
    let record = &moment.record;
    let facts = record.event.facts();
    let mut line =
        format!("{:14.6}  p{:<3} {:<5} {:<24}", seconds(moment), record.processor, client(record.job), facts.name);
    if !moment.took.is_zero() {
        line += &format!(" {:>12}", format!("{:.1?}", moment.took));
    }
    let values = [record.a, u64::from(record.b)];
    for (name, value) in facts.arguments.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
        line += &format!("  {name} {value}");
    }
    if let Some(export) = export(trace, record.export) {
        line += &format!("  export {export}");
    }
    line
}

/// The export's name, or its number if it has none.
fn export(trace: &Trace, export: ExportNo) -> Option<String> {
    let name = || trace.exports.get(&u32::from(export.0));
    (export != ExportNo::NONE).then(|| name().map_or_else(|| format!("#{}", export.0), ToString::to_string))
}

fn seconds(moment: &Moment) -> f64 {
    moment.at.ns() as f64 / 1e9
}

fn client(job: u32) -> String {
    if job == 0 { String::new() } else { format!("c{job}") }
}
