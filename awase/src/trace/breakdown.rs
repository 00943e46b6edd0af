//! Where the time of requests goes, by stage (as DSM table 1 does it).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use kernel::trace::{Event, Moment, Part};

/// Stages that requests wait for, and what they are for people. What none of them covers is the server's own work.
const STAGES: &[(&str, &[Event])] = &[
    ("waiting for memory", &[Event::MemoryAwaited]),
    ("waiting for another's read", &[Event::CacheLoadAwaited]),
    ("in the disk's queue", &[Event::QueueWaited]),
    ("reading on the device", &[Event::DeviceRead]),
    ("writing on the device", &[Event::DeviceWrite, Event::DeviceOther]),
    ("flushing, alone or with others", &[Event::FlushGathered]),
];

/// Requests of a kind.
#[derive(Default)]
struct Requests {
    times: Vec<Duration>,
}

/// A table for people.
pub fn table(moments: &[Moment]) -> String {
    let whole = || moments.iter().filter(|moment| moment.record.part == Part::Whole);
    let mut requests: BTreeMap<&str, Requests> = BTreeMap::new();
    let mut stages: BTreeMap<&str, (u64, Duration)> = BTreeMap::new();
    for moment in whole() {
        let name = moment.record.event.facts().name;
        if is_request(moment.record.event) {
            requests.entry(name).or_default().times.push(moment.took);
        }
        let stage = STAGES.iter().find(|(_, events)| events.contains(&moment.record.event));
        // What is done for nobody in particular, such as write-back, no request waits for.
        if let Some((stage, _)) = stage
            && moment.record.job > 0
        {
            let entry = stages.entry(stage).or_default();
            entry.0 += 1;
            entry.1 += moment.took;
        }
    }
    let total: Duration = requests.values().flat_map(|of| &of.times).sum();
    if total.is_zero() {
        return "no request was recorded\n".to_owned();
    }
    let mut text =
        format!("{:<24} {:>10} {:>12} {:>12} {:>12} {:>8}\n", "request", "count", "median", "99 %", "longest", "time");
    for (name, of) in &mut requests {
        of.times.sort_unstable();
        let sum: Duration = of.times.iter().sum();
        let at = |part: f64| of.times[((of.times.len() as f64 * part).ceil() as usize).clamp(1, of.times.len()) - 1];
        let _ = writeln!(
            text,
            "{name:<24} {:>10} {:>12} {:>12} {:>12} {:>7.1}%",
            of.times.len(),
            show(at(0.5)),
            show(at(0.99)),
            show(at(1.0)),
            share(sum, total)
        );
    }
    let _ = writeln!(text, "\n{:<36} {:>10} {:>12} {:>8}", "where their time went", "times", "mean", "share");
    let mut rest = total;
    for (stage, _) in STAGES {
        let Some((count, time)) = stages.get(stage) else { continue };
        rest = rest.saturating_sub(*time);
        let mean = *time / u32::try_from(*count).unwrap_or(u32::MAX).max(1);
        let _ = writeln!(text, "{stage:<36} {count:>10} {:>12} {:>7.1}%", show(mean), share(*time, total));
    }
    let _ =
        writeln!(text, "{:<36} {:>10} {:>12} {:>7.1}%", "the rest: the server's own work", "", "", share(rest, total));
    text
}

fn is_request(event: Event) -> bool {
    let name = event.facts().name;
    (name.starts_with("nbd.") || name.starts_with("nfs.")) && event.facts().shape == kernel::trace::Shape::Span
}

fn share(part: Duration, of: Duration) -> f64 {
    100.0 * part.as_secs_f64() / of.as_secs_f64()
}

fn show(time: Duration) -> String {
    format!("{time:.1?}")
}

#[cfg(test)]
mod tests {
    use kernel::trace::Record;
    use policy::unit::Instant;

    use super::*;

    fn span(event: Event, job: u32, took_us: u64) -> Moment {
        let record = Record { stamp: 0, event, part: Part::Whole, processor: 0, job, a: 0, b: 0, duration: 0 };
        Moment { at: Instant::ZERO, took: Duration::from_micros(took_us), record }
    }

    #[test]
    fn shares_of_the_stages_add_up_to_all_of_the_time() {
        let moments = [
            span(Event::NbdRead, 1, 100),
            span(Event::NbdRead, 2, 300),
            span(Event::QueueWaited, 1, 40),
            span(Event::DeviceRead, 2, 260),
            // Of write-back: nobody waits for it.
            span(Event::DeviceWrite, 0, 1000),
        ];
        let text = table(&moments);
        for (line, share) in
            [("in the disk's queue", "10.0%"), ("reading on the device", "65.0%"), ("the rest", "25.0%")]
        {
            let found = text.lines().find(|text| text.starts_with(line)).unwrap_or_default();
            assert!(found.ends_with(share), "{line}: {text}");
        }
        assert!(!text.contains("writing on the device"), "{text}");
        assert!(text.contains("nbd.read"), "{text}");
    }

    #[test]
    fn nothing_recorded_is_said() {
        assert_eq!(table(&[]), "no request was recorded\n");
    }
}
