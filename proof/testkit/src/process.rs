//! What a process holds (proc(5)).

use std::fs;

/// What a process holds at a time.
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
    /// Of a process that lives.
    pub fn of(process: u32) -> Holdings {
        let descriptors = descriptors(process);
        let sockets = descriptors.iter().filter(|target| target.starts_with("socket:")).count();
        let files = descriptors.len() - sockets;
        Holdings { sockets, files, threads: threads(process), resident: resident(process) }
    }
}

fn threads(process: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process lives");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.ok()?));
    // Workers of io_uring come and go as the kernel likes.
    names.filter(|name| !name.starts_with("iou-")).count()
}

/// Memory of a process, in bytes (proc(5), `VmRSS`).
pub fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// What the open descriptors of a process are.
pub fn descriptors(process: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok().map(|target| target.display().to_string());
    entries.filter_map(|entry| target(entry.ok()?)).collect()
}
