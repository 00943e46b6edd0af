//! `awase trace`: what a server did, while it runs or after its end.

pub mod breakdown;
pub mod file;
pub mod perfetto;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use kernel::trace::{Event, Moment, Trace};
use machine::linux::shared_memory::SharedMemory;

use crate::cli::TraceArguments;

/// Reads a trace and shows what was asked for.
///
/// # Errors
/// When there is no trace, or what is asked for cannot be written.
pub fn trace(arguments: &TraceArguments) -> anyhow::Result<()> {
    let trace = read(&arguments.file)?;
    let chosen = choose(&trace, arguments)?;
    if arguments.breakdown {
        print!("{}", breakdown::table(&chosen));
        return Ok(());
    }
    if let Some(path) = &arguments.perfetto {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut to = BufWriter::new(file);
        perfetto::write(&trace, &chosen, &mut to).with_context(|| format!("cannot write {}", path.display()))?;
        to.flush().with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}: {} events; open it at https://ui.perfetto.dev", path.display(), chosen.len());
        return Ok(());
    }
    list(&trace, &chosen)
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

/// The moments that all filters let pass.
fn choose(trace: &Trace, arguments: &TraceArguments) -> anyhow::Result<Vec<Moment>> {
    if let Some(pattern) = &arguments.event
        && !Event::all().any(|event| event.facts().name.contains(pattern.as_str()))
    {
        let names: Vec<_> = Event::all().map(|event| event.facts().name).collect();
        anyhow::bail!("no event's name contains {pattern:?}; there are {}", names.join(", "));
    }
    let end = trace.moments.last().map(|moment| moment.at).unwrap_or_default();
    let slower = arguments.slower.unwrap_or(Duration::ZERO);
    let passes = |moment: &&Moment| {
        let record = &moment.record;
        let is_recent = arguments.last.is_none_or(|last| end.since(moment.at) <= last);
        let is_named =
            arguments.event.as_ref().is_none_or(|pattern| record.event.facts().name.contains(pattern.as_str()));
        let is_of_client = arguments.client.is_none_or(|client| record.job == client);
        is_recent && is_named && is_of_client && moment.took >= slower
    };
    Ok(trace.moments.iter().filter(passes).copied().collect())
}

/// One line for each event.
fn list(trace: &Trace, moments: &[Moment]) -> anyhow::Result<()> {
    let mut to = BufWriter::new(std::io::stdout().lock());
    for moment in moments {
        match writeln!(to, "{}", line(moment)) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            result => result?,
        }
    }
    if trace.overwritten > 0 {
        writeln!(to, "({} earlier events were overwritten)", trace.overwritten)?;
    }
    to.flush()?;
    Ok(())
}

fn line(moment: &Moment) -> String {
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
    line
}

fn seconds(moment: &Moment) -> f64 {
    moment.at.ns() as f64 / 1e9
}

fn client(job: u32) -> String {
    if job == 0 { String::new() } else { format!("c{job}") }
}
