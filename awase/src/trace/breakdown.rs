//! Where the time of requests goes, by stage (as DSM table 1 does it).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use kernel::trace::{Event, Moment, Part};
use policy::unit::Instant;

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

/// A table for people, of the requests that took at least `slower`, and of what happened for their clients meanwhile.
pub fn table(moments: &[Moment], slower: Duration) -> String {
    let slow = Slow::of(moments, slower);
    let is_meant = |moment: &&Moment| match is_request(moment.record.event) {
        true => moment.took >= slower,
        false => slow.covers(moment),
    };
    let whole = || moments.iter().filter(|moment| moment.record.part == Part::Whole).filter(is_meant);
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
        let which = if slower.is_zero() { String::new() } else { format!(" that took {slower:?}") };
        return format!("no request was recorded{which}\n");
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

/// When slow requests were under way, by client. Nothing else tells to which request a stage belongs; beside a slow one,
/// others of its client may have passed that stage.
struct Slow(Option<BTreeMap<u32, Vec<(Instant, Instant)>>>);

impl Slow {
    fn of(moments: &[Moment], slower: Duration) -> Slow {
        if slower.is_zero() {
            return Slow(None);
        }
        let mut times: BTreeMap<u32, Vec<(Instant, Instant)>> = BTreeMap::new();
        for moment in moments.iter().filter(|moment| is_request(moment.record.event) && moment.took >= slower) {
            let of_client = times.entry(moment.record.job).or_default();
            of_client.push((began(moment), moment.at));
        }
        for of_client in times.values_mut() {
            of_client.sort_unstable();
            // Those that overlap are one.
            let mut joined: Vec<(Instant, Instant)> = Vec::new();
            for &(from, to) in of_client.iter() {
                match joined.last_mut() {
                    Some(last) if from <= last.1 => last.1 = last.1.max(to),
                    _ => joined.push((from, to)),
                }
            }
            *of_client = joined;
        }
        Slow(Some(times))
    }

    fn covers(&self, moment: &Moment) -> bool {
        let Some(times) = &self.0 else { return true };
        let Some(of_client) = times.get(&moment.record.job) else { return false };
        let from = began(moment);
        let at = of_client.partition_point(|(_, to)| *to < moment.at);
        of_client.get(at).is_some_and(|(begun, _)| *begun <= from)
    }
}

fn began(moment: &Moment) -> Instant {
    Instant::from_ns(moment.at.ns().saturating_sub(moment.took.as_nanos() as u64))
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
    use kernel::export::ExportNo;
    use kernel::trace::Record;

    use super::*;

    fn span(event: Event, job: u32, took_us: u64) -> Moment {
        let export = ExportNo::NONE;
        let record = Record { stamp: 0, event, part: Part::Whole, processor: 0, job, export, a: 0, b: 0, duration: 0 };
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
        let text = table(&moments, Duration::ZERO);
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
        assert_eq!(table(&[], Duration::ZERO), "no request was recorded\n");
        let fast = [span(Event::NbdRead, 1, 100)];
        assert_eq!(table(&fast, Duration::from_millis(1)), "no request was recorded that took 1ms\n");
    }

    #[test]
    fn of_slow_requests_only_the_stages_that_lie_in_their_time_count() {
        let at = |ms: u64, moment: Moment| Moment { at: Instant::from_ns(ms * 1_000_000), ..moment };
        let moments = [
            // A fast request and its stage, then a slow one from 10 to 30 ms with its own, which is short.
            at(5, span(Event::DeviceRead, 1, 500)),
            at(5, span(Event::NbdRead, 1, 900)),
            at(20, span(Event::DeviceRead, 1, 5_000)),
            at(20, span(Event::DeviceRead, 2, 5_000)),
            at(30, span(Event::NbdRead, 1, 20_000)),
        ];
        let text = table(&moments, Duration::from_millis(2));
        let line = text.lines().find(|line| line.starts_with("reading on the device")).unwrap_or_default();
        assert!(line.ends_with("25.0%") && line.contains(" 1 "), "{text}");
    }
}
