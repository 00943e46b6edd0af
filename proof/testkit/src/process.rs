//! The resources of a process (proc(5)).

use std::fs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    pub sockets: usize,
    pub files: usize,
    /// Threads of its own, not the kernel's workers for it.
    pub threads: usize,
    /// Resident bytes.
    pub resident: u64,
}

impl Holdings {
    pub fn of(process: u32) -> Holdings {
        let descriptors = descriptors(process);
        let sockets = descriptors.iter().filter(|target| target.starts_with("socket:")).count();
        let files = descriptors.len() - sockets;
        Holdings { sockets, files, threads: threads(process), resident: resident(process) }
    }
}

fn threads(process: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.ok()?));
    // The kernel starts and ends workers of io_uring as it likes.
    names.filter(|name| !name.starts_with("iou-")).count()
}

/// Resident memory (`VmRSS`). Bytes.
pub fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The targets of a process's descriptors.
pub fn descriptors(process: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok().map(|target| target.display().to_string());
    entries.filter_map(|entry| target(entry.ok()?)).collect()
}
