//! Filters of a trace. Names are resolved once, here; records are compared by numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use kernel::trace::{Event, Mode, Moment, Name, Trace};
use policy::unit::Instant;

use crate::cli::TraceArguments;

/// The filters, all of which a record must pass.
pub(super) struct Filters {
    /// Numbers of event types; `None` passes all, also in the fields below.
    events: Option<BTreeSet<u16>>,
    clients: Option<BTreeSet<u32>>,
    exports: Option<BTreeSet<u32>>,
    slower: Duration,
    from: Instant,
}

impl Filters {
    /// # Errors
    /// When nothing can pass: there is no such event, client or export.
    pub(super) fn of(trace: &Trace, arguments: &TraceArguments) -> anyhow::Result<Filters> {
        let slower = arguments.slower.unwrap_or(Duration::ZERO);
        if trace.mode == Mode::Unthinned && (!slower.is_zero() || arguments.breakdown) {
            bail!("with trace = \"unthinned\" beginnings and ends are separate records, so no durations are known");
        }
        let end = trace.moments.last().map(|moment| moment.at).unwrap_or_default();
        let last_ns = arguments.last.map(|last| u64::try_from(last.as_nanos()).unwrap_or(u64::MAX));
        Ok(Filters {
            events: arguments.event.as_deref().map(events).transpose()?,
            clients: arguments.client.as_deref().map(|client| clients(trace, client)).transpose()?,
            exports: arguments.export.as_deref().map(|export| exports(trace, export)).transpose()?,
            slower,
            from: Instant::from_ns(last_ns.map_or(0, |last| end.ns().saturating_sub(last))),
        })
    }

    /// True if it passes all filters but [`Filters::is_slow`].
    pub(super) fn concerns(&self, moment: &Moment) -> bool {
        let record = &moment.record;
        moment.at >= self.from
            && self.events.as_ref().is_none_or(|events| events.contains(&(record.event as u16)))
            && self.clients.as_ref().is_none_or(|clients| clients.contains(&record.job))
            && self.exports.as_ref().is_none_or(|exports| exports.contains(&u32::from(record.export.0)))
    }

    pub(super) fn is_slow(&self, moment: &Moment) -> bool {
        moment.took >= self.slower
    }
}

fn events(pattern: &str) -> anyhow::Result<BTreeSet<u16>> {
    let found: BTreeSet<u16> =
        Event::all().filter(|event| event.facts().name.contains(pattern)).map(|event| event as u16).collect();
    if found.is_empty() {
        let names: Vec<_> = Event::all().map(|event| event.facts().name).collect();
        bail!("no event's name contains {pattern:?}; there are {}", names.join(", "));
    }
    Ok(found)
}

/// By number, as events show it (`c17` or `17`), or by name.
fn clients(trace: &Trace, wanted: &str) -> anyhow::Result<BTreeSet<u32>> {
    let mut found = named(&trace.clients, wanted);
    let number: Option<u32> = wanted.strip_prefix('c').unwrap_or(wanted).parse().ok();
    let is_recorded = |number: &u32| trace.moments.iter().any(|moment| moment.record.job == *number);
    found.extend(number.filter(|number| *number > 0 && is_recorded(number)));
    if found.is_empty() {
        let numbers: BTreeSet<u32> =
            trace.moments.iter().map(|moment| moment.record.job).filter(|job| *job > 0).collect();
        let shown = numbers.iter().map(|number| match trace.clients.get(number) {
            Some(name) => format!("c{number} ({name})"),
            None => format!("c{number}"),
        });
        bail!("nothing was recorded of a client {wanted:?}; there are {}", list(shown));
    }
    Ok(found)
}

/// By name: of a disk, or the path by which a directory is mounted, with or without its slash.
fn exports(trace: &Trace, wanted: &str) -> anyhow::Result<BTreeSet<u32>> {
    let mut found = named(&trace.exports, wanted);
    if found.is_empty() {
        found = named(&trace.exports, &format!("/{wanted}"));
    }
    if found.is_empty() {
        bail!(
            "no export {wanted:?} was served; there are {}",
            list(trace.exports.values().map(|name| format!("\"{name}\"")))
        );
    }
    Ok(found)
}

fn named(names: &BTreeMap<u32, Name>, wanted: &str) -> BTreeSet<u32> {
    names.iter().filter(|(_, name)| name.is(wanted)).map(|(number, _)| *number).collect()
}

fn list(of: impl Iterator<Item = String>) -> String {
    const MOST: usize = 20;
    let all: Vec<String> = of.collect();
    match all.len() {
        0 => "none".to_owned(),
        number if number > MOST => format!("{} and {} more", all[..MOST].join(", "), number - MOST),
        _ => all.join(", "),
    }
}
