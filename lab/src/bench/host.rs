//! The host of the measurement, without names and dates.

use std::fs;
use std::path::Path;

/// What a reader needs to compare results, one fact a line.
pub fn facts(directory: &Path) -> Vec<String> {
    [facts_without_disk(), vec![format!("Disk: {}", disk(directory))]].concat()
}

pub fn facts_without_disk() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = field(&cpuinfo, "model name", ':').or_else(|| field(&cpuinfo, "CPU part", ':')).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib: u64 = field(&read("/proc/meminfo"), "MemTotal", ':')
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let virtual_machine = cpuinfo.contains(" hypervisor");
    vec![
        format!("CPU: {model}, {cores} cores{}", if virtual_machine { ", in a virtual machine" } else { "" }),
        format!("Memory: {:.1} GiB", memory_kib as f64 / 1048576.0),
        format!("Kernel: Linux {}", read("/proc/sys/kernel/osrelease").trim()),
    ]
}

fn field<'a>(text: &'a str, name: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// The file system that holds a directory, and its device.
fn disk(directory: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (device, point, kind) = (*fields.first()?, *fields.get(1)?, *fields.get(2)?);
        directory.starts_with(point).then_some((point.len(), device, kind))
    });
    let Some((_, device, kind)) = below.max_by_key(|(len, _, _)| *len) else { return "unknown".into() };
    let name = device.rsplit('/').next().unwrap_or_default();
    format!("{kind} on {device}{}", queue_facts(name))
}

/// The kernel's facts of a whole disk; for a partition they are one directory up.
fn queue_facts(name: &str) -> String {
    let Ok(device) = fs::canonicalize(format!("/sys/class/block/{name}")) else { return String::new() };
    let whole = if device.join("queue").is_dir() { device.as_path() } else { device.parent().unwrap_or(&device) };
    let read = |path: &str| fs::read_to_string(whole.join(path)).unwrap_or_default().trim().to_owned();
    let model = read("device/model");
    let rotational = if read("queue/rotational") == "1" { "rotational" } else { "not rotational" };
    let scheduler = read("queue/scheduler");
    let scheduler = scheduler.split(['[', ']']).nth(1).unwrap_or("none").to_owned();
    let model = if model.is_empty() { String::new() } else { format!("{model}, ") };
    format!(" ({model}{rotational}, {}, scheduler {scheduler})", read("queue/write_cache"))
}
