//! The report, in Markdown.

use std::fmt::Write;

use crate::results::{Bound, FIGURES, Result};
use crate::sample::{Summary, Unit, show};
use crate::workload::ON_OFF;

/// What the report says besides the numbers.
pub struct Setting {
    /// How to do it again.
    pub command: String,
    /// The machine.
    pub host: Vec<String>,
    /// The programs.
    pub versions: Vec<String>,
    /// Repetitions, sizes and times, in a line.
    pub scale: String,
}

/// Writes the report. `switches` are those results whose contenders are on and off.
pub fn markdown(setting: &Setting, comparison: &[Result], switches: &[Result], plot: &str) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(&mut text, setting, comparison, switches, plot);
    text
}

fn write(
    text: &mut String,
    setting: &Setting,
    comparison: &[Result],
    switches: &[Result],
    plot: &str,
) -> std::fmt::Result {
    writeln!(text, "# Benchmarks\n")?;
    writeln!(text, "Written by `{}`; do not edit. All servers were measured in the same run,", setting.command)?;
    writeln!(text, "on the same files and over Unix sockets.\n")?;
    for line in setting.host.iter().chain(&setting.versions).chain([&setting.scale]) {
        writeln!(text, "- {line}")?;
    }
    writeln!(
        text,
        "\nNumbers are medians (smallest … largest of all repetitions). CPU is the user and system time of all threads of the"
    )?;
    writeln!(text, "server, for each request of the client (for nbdcopy: for each MiB); the client's is not in it.\n")?;
    figures(text, comparison)?;
    writeln!(text, "![The same numbers as bars]({plot})\n")?;
    writeln!(text, "## Beside other servers")?;
    for result in comparison {
        workload(text, result)?;
    }
    if !switches.is_empty() {
        switch_table(text, switches)?;
    }
    how(text)
}

fn figures(text: &mut String, comparison: &[Result]) -> std::fmt::Result {
    let mut rows = String::new();
    for figure in FIGURES {
        let Some(result) = comparison.iter().find(|result| result.workload.name == figure.workload) else { continue };
        let Some(awase) = result.contender("Awase") else { continue };
        if result.failures[awase].is_some() {
            writeln!(rows, "| {} | | failed | **no** |", result.workload.title)?;
        }
        let Some((target, measured, met)) = judge(&figure.bound, result) else { continue };
        let met = if met { "yes" } else { "**no**" };
        writeln!(rows, "| {} | {target} | {measured} | {met} |", result.workload.title)?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(text, "## Figures to reach\n\n| workload | target | measured | met |\n|---|---|---|---|\n{rows}")?;
    writeln!(
        text,
        "A ratio is that of the medians; in parentheses the smallest and the largest of the single repetitions.\n"
    )
}

fn judge(bound: &Bound, result: &Result) -> Option<(String, String, bool)> {
    match bound {
        Bound::Times(least, others) => {
            let ratio = result.ratio("Awase", others)?;
            let whom =
                if others.len() > 1 { format!("the better of {}", others.join(" and ")) } else { others.join("") };
            let measured = format!("{:.2} ({:.2} … {:.2})", ratio.median, ratio.min, ratio.max);
            Some((format!("at least {least} × {whom}"), measured, ratio.median >= *least))
        }
        Bound::AtMost(most) => {
            let value = result.value(result.contender("Awase")?)?;
            let unit = result.workload.unit.name();
            Some((format!("at most {most} {unit}"), format!("{} {unit}", spread(value)), value.median <= *most))
        }
    }
}

fn workload(text: &mut String, result: &Result) -> std::fmt::Result {
    writeln!(text, "\n### {}\n", result.workload.title)?;
    if !result.workload.about.is_empty() {
        writeln!(text, "{}\n", result.workload.about)?;
    }
    let memory = matches!(result.workload.unit, Unit::Mib | Unit::Percent);
    let more = if memory { "" } else { " CPU µs | latency µs: median, 99 % |" };
    writeln!(text, "| | {} |{more}", result.workload.unit.name())?;
    writeln!(text, "|---|---|{}", if memory { "" } else { "---|---|" })?;
    for (index, contender) in result.workload.contenders.iter().enumerate() {
        let Some(value) = result.value(index) else {
            if let Some(reason) = &result.failures[index] {
                writeln!(text, "| {} | failed: {} |", contender.label, one_line(reason))?;
            }
            continue;
        };
        write!(text, "| {} | {} |", contender.label, spread(value))?;
        if !memory {
            let cpu = result.cpu_us(index).map_or("".into(), |cpu| show(cpu.median));
            let latency = result.latency_us(index);
            let latency = latency.map_or("".into(), |(half, most)| format!("{}, {}", show(half), show(most)));
            write!(text, " {cpu} | {latency} |")?;
        }
        writeln!(text)?;
    }
    Ok(())
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
        let name = result.workload.name.trim_start_matches("switch_");
        if let Some(reason) = result.failures.iter().flatten().next() {
            writeln!(text, "| `{name}` | {} | | failed: {} |", result.workload.title, one_line(reason))?;
        }
        let (Some(on), Some(off)) = (result.value(0), result.value(1)) else { continue };
        let cpu = |side| result.cpu_us(side).map_or("".into(), |cpu| show(cpu.median));
        let (title, about) = (result.workload.title, result.workload.about);
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.trim_end_matches('.')) };
        let unit = result.workload.unit.name();
        let overlap = on.min <= off.max && off.min <= on.max;
        let doubt = if overlap { " (not certain)" } else { "" };
        let better = gain(result).map_or("".into(), |gain| format!("{gain:.2} ×{doubt}"));
        let (on, off, cpu_on, cpu_off) = (spread(on), spread(off), cpu(0), cpu(1));
        writeln!(text, "| `{name}` | {title}{about} | {unit} | {on} | {off} | {better} | {cpu_on} | {cpu_off} |")?;
    }
    Ok(())
}

/// How many times better a technique makes it: over 1 if it helps.
pub fn gain(result: &Result) -> Option<f64> {
    let ratio = result.ratio(ON_OFF[0], &ON_OFF[1..])?.median;
    Some(if result.workload.unit.more_is_better() { ratio } else { 1.0 / ratio })
}

/// A message as it fits into a cell.
fn one_line(message: &str) -> String {
    message.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn spread(value: Summary) -> String {
    format!("{} ({} … {})", show(value.median), show(value.min), show(value.max))
}

fn how(text: &mut String) -> std::fmt::Result {
    text.write_str(
        "
## How it is kept fair

- Repetitions are interleaved: every contender of a workload has its first before any has its second, and each repetition
  begins with another contender.
- Each run has a server of its own, started just before. The images are flushed and dropped from the host's page cache
  (`posix_fadvise`) first; where a cache is to be full, the whole image is read through the server again. Before the
  first repetition the image is read from the disk once, so that a cache of the disk's own serves all alike.
- nbdkit runs as installed: `nbdkit file IMAGE` and `nbdkit memory SIZE`, 16 threads. The file plugin reads and writes
  through the host's page cache.
- qemu-nbd runs as `qemu-nbd --format=raw --cache=none --aio=io_uring --persistent --shared=8 IMAGE`.
- The limit is `fio --ioengine=io_uring --direct=1` on the same file.
- Clients: `fio --ioengine=nbd`, one connection unless said otherwise, `nbdcopy` and `qemu-img bench -t none`. They run on
  the same cores as the servers.
- What is written to the disk after the client has ended (by Awase, or by the kernel for nbdkit) is not in the numbers,
  unless the client flushes.
- All files lie below one directory on one disk (`--directory`), not in memory. Images hold data that does not compress
  and have no holes.
",
    )
}
