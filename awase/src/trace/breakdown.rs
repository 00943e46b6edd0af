//! The time of requests by stage, as in DSM table 1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use kernel::trace::{Event, Moment, Part};
use policy::unit::Instant;

/// The stages of requests by name. Time that none of them covers is the server's own work.
const STAGES: &[(&str, &[Event])] = &[
    ("waiting for memory", &[Event::MemoryAwaited]),
    ("waiting for another's read", &[Event::CacheLoadAwaited]),
    ("waiting for pages of shared disks", &[Event::SharedFetched, Event::SharedTaken]),
    ("in the disk's queue", &[Event::QueueWaited]),
    ("reading on the device", &[Event::DeviceRead]),
    ("writing on the device", &[Event::DeviceWrite, Event::DeviceOther]),
    ("flushing, alone or with others", &[Event::FlushGathered]),
];

/// A table of the requests that took at least `slower`, and of the stages of their clients meanwhile.
pub fn table(moments: &[Moment], slower: Duration) -> String {
    let whole = || moments.iter().filter(|moment| moment.record.part == Part::Whole);
    let mut requests: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut clients: BTreeMap<u32, Timeline> = BTreeMap::new();
    for moment in whole().filter(|moment| is_request(moment.record.event) && moment.took >= slower) {
        requests.entry(moment.record.event.facts().name).or_default().push(moment.took);
        clients.entry(moment.record.job).or_default().add(moment, None);
    }
    for moment in whole() {
        // No request waits for work without a job, such as write-back of the host's files.
        if let Some(stage) = STAGES.iter().position(|(_, events)| events.contains(&moment.record.event))
            && moment.record.job > 0
            && let Some(client) = clients.get_mut(&moment.record.job)
        {
            client.add(moment, Some(stage));
        }
    }
    let total: Duration = requests.values().flatten().sum();
    if total.is_zero() {
        let which = if slower.is_zero() { String::new() } else { format!(" that took {slower:?}") };
        return format!("no request was recorded{which}\n");
    }
    let mut stages = Stages::default();
    clients.into_values().for_each(|client| client.attribute(&mut stages));
    // A group of calls waits for the log: its writes are of no client.
    let any_calls = requests.keys().any(|name| name.starts_with("postgres."));
    let rest = if any_calls { "own work and the logs of databases" } else { "the server's own work" };
    requests_table(requests, total) + &stages_table(&stages, rest)
}

fn requests_table(mut requests: BTreeMap<&str, Vec<Duration>>, total: Duration) -> String {
    let mut text =
        format!("{:<24} {:>10} {:>12} {:>12} {:>12} {:>8}\n", "request", "count", "median", "99 %", "longest", "time");
    for (name, times) in &mut requests {
        times.sort_unstable();
        let sum: Duration = times.iter().sum();
        let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1];
        let _ = writeln!(
            text,
            "{name:<24} {:>10} {:>12} {:>12} {:>12} {:>7.1}%",
            times.len(),
            show(at(0.5)),
            show(at(0.99)),
            show(at(1.0)),
            100.0 * sum.as_secs_f64() / total.as_secs_f64()
        );
    }
    text
}

fn stages_table(stages: &Stages, rest: &str) -> String {
    let all = stages.server + stages.time.iter().sum::<f64>();
    let share = |ns: f64| if all > 0.0 { 100.0 * ns / all } else { 0.0 };
    let mut text = format!("\n{:<36} {:>10} {:>12} {:>8}\n", "where their time went", "times", "mean", "share");
    for (number, (stage, _)) in STAGES.iter().enumerate().filter(|(number, _)| stages.count[*number] > 0) {
        let count = stages.count[number];
        let mean = stages.took[number] / u32::try_from(count).unwrap_or(u32::MAX);
        let _ = writeln!(text, "{stage:<36} {count:>10} {:>12} {:>7.1}%", show(mean), share(stages.time[number]));
    }
    let name = format!("the rest: {rest}");
    let _ = writeln!(text, "{name:<44} {:>15} {:>7.1}%", "", share(stages.server));
    text
}

/// Stages of the requests of all clients.
#[derive(Default)]
struct Stages {
    /// Spans of each stage that overlap a request.
    count: [u64; STAGES.len()],
    /// Sum of their durations.
    took: [Duration; STAGES.len()],
    /// Time of the requests attributed to each stage. Nanoseconds.
    time: [f64; STAGES.len()],
    /// Time attributed to none. Nanoseconds.
    server: f64,
}

/// The requests and stages of one client over time. A record does not name the request of a stage, and one request may be
/// in several stages at once (its parts) or leave some behind (read-ahead, write-back). So at each moment the time of the
/// active requests is shared equally among the active stages, each of which takes at most the time of one request.
#[derive(Default)]
struct Timeline {
    spans: Vec<Span>,
}

#[derive(Clone, Copy)]
struct Span {
    from: Instant,
    to: Instant,
    /// `None`: a request.
    stage: Option<usize>,
}

impl Timeline {
    fn add(&mut self, moment: &Moment, stage: Option<usize>) {
        self.spans.push(Span { from: began(moment), to: moment.at, stage });
    }

    fn attribute(self, stages: &mut Stages) {
        let mut edges: Vec<(Instant, i64, Option<usize>)> = Vec::with_capacity(2 * self.spans.len());
        for span in &self.spans {
            edges.push((span.from, 1, span.stage));
            edges.push((span.to, -1, span.stage));
        }
        edges.sort_unstable_by_key(|(at, change, _)| (*at, *change));
        let (mut requests, mut active) = (0, [0i64; STAGES.len()]);
        let mut before = Instant::ZERO;
        // At each moment, for how long any request was active before it: from this follows whether a span overlaps one.
        let mut busy: Vec<(Instant, u64)> = vec![(Instant::ZERO, 0)];
        let mut busy_ns = 0;
        for (at, change, stage) in edges {
            let ns = at.ns() - before.ns();
            if requests > 0 && ns > 0 {
                stages.share(ns as f64, requests, &active);
                busy_ns += ns;
                busy.push((at, busy_ns));
            } else if ns > 0 {
                busy.push((at, busy_ns));
            }
            match stage {
                None => requests += change,
                Some(stage) => active[stage] += change,
            }
            before = at;
        }
        let busy_until = |at: Instant| busy[busy.partition_point(|(when, _)| *when <= at) - 1].1;
        for span in self.spans {
            if let Some(stage) = span.stage
                && busy_until(span.to) > busy_until(span.from)
            {
                stages.count[stage] += 1;
                stages.took[stage] += span.to.since(span.from);
            }
        }
    }
}

impl Stages {
    /// Attributes `ns` during which `requests` were active, and `active` spans of each stage.
    fn share(&mut self, ns: f64, requests: i64, active: &[i64; STAGES.len()]) {
        let spans: i64 = active.iter().sum();
        let each = ns * requests as f64 / spans.max(requests) as f64;
        for (time, spans) in self.time.iter_mut().zip(active) {
            *time += each * *spans as f64;
        }
        self.server += each * (requests - spans).max(0) as f64;
    }
}

fn began(moment: &Moment) -> Instant {
    Instant::from_ns(moment.at.ns().saturating_sub(moment.took.as_nanos() as u64))
}

fn is_request(event: Event) -> bool {
    let name = event.facts().name;
    let is_of_clients = ["nbd.", "nfs.", "postgres."].iter().any(|service| name.starts_with(service));
    is_of_clients && event.facts().shape == kernel::trace::Shape::Span
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
        Moment { at: Instant::from_ns(1_000_000), took: Duration::from_micros(took_us), record }
    }

    #[test]
    fn shares_of_the_stages_add_up_to_all_of_the_time() {
        let moments = [
            span(Event::NbdRead, 1, 100),
            span(Event::NbdRead, 2, 300),
            span(Event::QueueWaited, 1, 40),
            span(Event::DeviceRead, 2, 260),
            // Write-back, for which no request waits.
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
    fn calls_of_databases_are_requests() {
        let moments = [span(Event::PostgresCall, 1, 100), span(Event::CacheLoadAwaited, 1, 30)];
        let text = table(&moments, Duration::ZERO);
        assert!(text.contains("postgres.call"), "{text}");
        let rest = text.lines().find(|line| line.starts_with("the rest: own work and the logs of databases"));
        assert!(rest.is_some_and(|line| line.ends_with(" 70.0%")), "{text}");
    }

    #[test]
    fn an_empty_trace_is_reported() {
        assert_eq!(table(&[], Duration::ZERO), "no request was recorded\n");
        let fast = [span(Event::NbdRead, 1, 100)];
        assert_eq!(table(&fast, Duration::from_millis(1)), "no request was recorded that took 1ms\n");
    }

    #[test]
    fn parts_and_after_effects_of_a_request_take_no_more_than_its_time() {
        let mut moments = vec![span(Event::NbdWrite, 1, 100)];
        moments.extend((0..300).map(|_| span(Event::DeviceWrite, 1, 900)));
        let text = table(&moments, Duration::ZERO);
        let line = text.lines().find(|line| line.starts_with("writing on the device")).unwrap_or_default();
        assert!(line.ends_with(" 100.0%") && line.contains(" 300 "), "{text}");
        let rest = text.lines().find(|line| line.starts_with("the rest")).unwrap_or_default();
        assert!(rest.ends_with(" 0.0%"), "{text}");
    }

    #[test]
    fn many_concurrent_parts_weigh_no_more_than_one() {
        // In the second half of a request.
        let mut moments = vec![span(Event::NbdWrite, 1, 100)];
        moments.extend((0..300).map(|_| span(Event::DeviceWrite, 1, 50)));
        let text = table(&moments, Duration::ZERO);
        for line in ["writing on the device", "the rest"] {
            let found = text.lines().find(|text| text.starts_with(line)).unwrap_or_default();
            assert!(found.ends_with(" 50.0%"), "{line}: {text}");
        }
    }

    #[test]
    fn only_stages_that_overlap_slow_requests_count() {
        let at = |ms: u64, moment: Moment| Moment { at: Instant::from_ns(ms * 1_000_000), ..moment };
        let moments = [
            // A fast request and its stage, then a slow one from 10 to 30 ms with a short stage.
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
