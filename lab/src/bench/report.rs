//! The report, in Markdown.

use std::fmt::Write;
use std::path::Path;

use anyhow::bail;

use crate::bench::figure::{self, Figure};
use crate::bench::plot;
use crate::bench::results::{Bound, Result};
use crate::bench::sample::{Unit, show};

/// [`Setting::cpu`] of servers.
pub const CPU_OF_SERVER: &str =
    "server, for each request of the client (for nbdcopy: for each MiB); the client's is not in it.";

/// What the report says besides the numbers.
pub struct Setting {
    pub title: &'static str,
    pub reached: &'static str,
    /// What is compared, in the plural.
    pub peers: &'static str,
    /// Whose processor time is shown, and for what.
    pub cpu: &'static str,
    /// The command line that repeats the run.
    pub command: String,
    pub host: Vec<String>,
    pub versions: Vec<String>,
    /// Repetitions, sizes and times, in a line.
    pub scale: String,
    /// Further remarks: how the comparison is fair, what others found.
    pub notes: &'static str,
}

/// Writes the report and its plot as `name` with extensions into a directory.
///
/// # Errors
/// Also when a contender could not be measured, after everything is written.
pub fn write(
    directory: &Path,
    name: &str,
    setting: &Setting,
    comparison: &[Result],
    switches: &[Result],
) -> anyhow::Result<()> {
    let plot = format!("{name}.svg");
    figure::write(directory, &plot, &plot::svg(comparison, switches)?)?;
    figure::write(directory, &format!("{name}.md"), &markdown(setting, comparison, switches, &plot))?;
    let failed: usize = comparison.iter().chain(switches).map(|result| result.failures.iter().flatten().count()).sum();
    if failed > 0 {
        bail!("{failed} could not be measured; the report says why");
    }
    Ok(())
}

/// `switches` are those results whose contenders are on and off.
fn markdown(setting: &Setting, comparison: &[Result], switches: &[Result], plot: &str) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = compose(&mut text, setting, comparison, switches, plot);
    text
}

fn compose(
    text: &mut String,
    setting: &Setting,
    comparison: &[Result],
    switches: &[Result],
    plot: &str,
) -> std::fmt::Result {
    writeln!(text, "# {}\n", setting.title)?;
    let Setting { command, peers, cpu, .. } = setting;
    writeln!(text, "Written by `{command}`; do not edit. All {peers} were measured in the same run,")?;
    writeln!(text, "on the same files and {}.\n", setting.reached)?;
    for line in setting.host.iter().chain(&setting.versions).chain([&setting.scale]) {
        writeln!(text, "- {line}")?;
    }
    writeln!(
        text,
        "\nNumbers are medians (smallest … largest of all repetitions). CPU is the user and system time of all threads of the"
    )?;
    writeln!(text, "{cpu}\n")?;
    figures(text, comparison)?;
    beside_limit(text, comparison, peers)?;
    writeln!(text, "![The same numbers as bars]({plot})\n")?;
    writeln!(text, "## Beside other {peers}")?;
    for result in comparison {
        workload(text, result)?;
    }
    if !switches.is_empty() {
        switch_table(text, switches)?;
    }
    text.write_str(setting.notes)
}

fn figures(text: &mut String, comparison: &[Result]) -> std::fmt::Result {
    let mut figures = Vec::new();
    for result in comparison {
        let Some(awase) = result.contender("Awase") else { continue };
        for bound in &result.subject.bounds {
            let failed = result.failures[awase].as_ref().map(|_| ("failed".to_owned(), false));
            let measured = failed.or_else(|| judge(bound, result));
            figures.extend(measured.map(|it| Figure::new(&result.subject.title, bound.to_string(), Some(it))));
        }
    }
    if figures.is_empty() {
        return Ok(());
    }
    writeln!(text, "## Figures to reach\n\n{}", figure::table("workload", &figures))?;
    writeln!(
        text,
        "A ratio is that of the medians; in parentheses the smallest and the largest of the single repetitions.\n"
    )
}

/// The value that a bound is about, and whether the bound is met.
fn judge(bound: &Bound, result: &Result) -> Option<(String, bool)> {
    match *bound {
        Bound::Times(least, others) => {
            let ratio = result.ratio("Awase", others)?;
            Some((ratio.shown(two_decimals), ratio.median >= least))
        }
        Bound::Of(one, least, other) => {
            let ratio = result.ratio(one, &[other])?;
            Some((ratio.shown(two_decimals), ratio.median >= least))
        }
        Bound::TimesLimit(least) => {
            let limit = &result.subject.contenders[result.limit()?];
            let ratio = result.ratio("Awase", &[limit.label])?;
            Some((format!("{} × {}", ratio.shown(two_decimals), limit.label), ratio.median >= least))
        }
        Bound::CpuTimesLimit(most) => {
            let of = |contender| Some(result.cpu_us(contender)?.median);
            let (own, limit) = (of(result.contender("Awase")?)?, of(result.limit()?)?);
            let times = own / limit;
            Some((format!("{times:.2} ({} and {} µs)", show(own), show(limit)), times <= most))
        }
        Bound::AtMost(most) => {
            let value = result.value(result.contender("Awase")?)?;
            Some((format!("{} {}", value.shown(show), result.subject.unit.name()), value.median <= most))
        }
        Bound::OfLimit(least, limit) => {
            let value = result.value(result.contender("Awase")?)?;
            let part = value.scaled(limit.recip());
            Some((part.shown(two_decimals), part.median >= least))
        }
    }
}

fn workload(text: &mut String, result: &Result) -> std::fmt::Result {
    writeln!(text, "\n### {}\n", result.subject.title)?;
    if !result.subject.about.is_empty() {
        writeln!(text, "{}\n", result.subject.about)?;
    }
    let memory = is_memory(result);
    let more = if memory { "" } else { " of the limit | of the best peer | CPU µs | latency µs: median, 99 % |" };
    writeln!(text, "| | {} |{more}", result.subject.unit.name())?;
    writeln!(text, "|---|---|{}", if memory { "" } else { "---|---|---|---|" })?;
    for (index, contender) in result.subject.contenders.iter().enumerate() {
        let Some(value) = result.value(index) else {
            if let Some(reason) = &result.failures[index] {
                writeln!(text, "| {} | failed: {} |", contender.label, one_line(reason))?;
            }
            continue;
        };
        write!(text, "| {} | {} |", contender.label, value.shown(show))?;
        if !memory {
            let latency = result.latency_us(index);
            let latency = latency.map_or("".into(), |(half, most)| format!("{}, {}", show(half), show(most)));
            let [limit, peer] = [result.limit(), result.best_peer()].map(|other| times(result, index, other));
            write!(text, " {limit} | {peer} | {} | {latency} |", cpu(result, index))?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn is_memory(result: &Result) -> bool {
    matches!(result.subject.unit, Unit::Mib | Unit::Percent)
}

/// How many times better a contender is than another one.
fn times(result: &Result, of: usize, with: Option<usize>) -> String {
    with.and_then(|with| result.compared(of, with)).map_or(String::new(), |times| format!("{times:.2}"))
}

/// A contender's processor time for each request.
fn cpu(result: &Result, of: usize) -> String {
    result.cpu_us(of).map_or(String::new(), |cpu| show(cpu.median))
}

/// Awase in every workload, as a part of the limit and of the best peer.
fn beside_limit(text: &mut String, comparison: &[Result], peers: &str) -> std::fmt::Result {
    let rows: Vec<(&Result, usize)> = comparison
        .iter()
        .filter(|result| !is_memory(result))
        .filter_map(|result| Some((result, result.contender("Awase").filter(|awase| result.value(*awase).is_some())?)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(text, "## Beside the limit and the best peer\n")?;
    writeln!(
        text,
        "How many times better Awase is than the limit (below 1: what is left to gain) and than the best of the other"
    )?;
    writeln!(text, "{peers}, and the processor time of each for a request, in microseconds.\n")?;
    writeln!(text, "| workload | of the limit | of the best peer | CPU: Awase | the limit | the peer |")?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for (result, awase) in rows {
        let named = |other: Option<usize>| match other {
            Some(index) => format!("{} × {}", times(result, awase, other), result.subject.contenders[index].label),
            None => String::new(),
        };
        let (limit, peer) = (result.limit(), result.best_peer());
        let of = |other: Option<usize>| other.map_or(String::new(), |index| cpu(result, index));
        let title = &result.subject.title;
        let own = cpu(result, awase);
        writeln!(text, "| {title} | {} | {} | {own} | {} | {} |", named(limit), named(peer), of(limit), of(peer))?;
    }
    writeln!(text)
}

fn switch_table(text: &mut String, switches: &[Result]) -> std::fmt::Result {
    writeln!(text, "\n## Each technique on and off\n")?;
    writeln!(
        text,
        "Awase alone, each switch on a workload where it should matter. Better means more requests or MiB a second, or less"
    )?;
    writeln!(text, "time.\n")?;
    writeln!(text, "| switch | workload | unit | on | off | on is better by | CPU µs on | CPU µs off |")?;
    writeln!(text, "|---|---|---|---|---|---|---|---|")?;
    for result in switches {
        let name = result.subject.name.trim_start_matches("switch_");
        if let Some(reason) = result.failures.iter().flatten().next() {
            writeln!(text, "| `{name}` | {} | | failed: {} |", result.subject.title, one_line(reason))?;
        }
        let (Some(on), Some(off)) = (result.value(0), result.value(1)) else { continue };
        let (title, about) = (&result.subject.title, result.subject.about);
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.trim_end_matches('.')) };
        let unit = result.subject.unit.name();
        let doubt = if on.overlaps(off) { " (not certain)" } else { "" };
        let better = result.gain().map_or("".into(), |gain| format!("{gain:.2} ×{doubt}"));
        let (on, off, cpu_on, cpu_off) = (on.shown(show), off.shown(show), cpu(result, 0), cpu(result, 1));
        writeln!(text, "| `{name}` | {title}{about} | {unit} | {on} | {off} | {better} | {cpu_on} | {cpu_off} |")?;
    }
    Ok(())
}

/// A message that fits into a table cell.
fn one_line(message: &str) -> String {
    message.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}
