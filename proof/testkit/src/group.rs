//! Control groups whose memory is limited (cgroups(7)).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A control group for one test, version 1 or 2. Removed when dropped.
pub struct Group {
    path: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// File that counts kills for lack of memory.
    events: &'static str,
}

impl Group {
    /// A group limited to `bytes` of memory. `None` where it cannot be created: without root or without the controller.
    pub fn new(name: &str, bytes: u64) -> Option<Group> {
        let name = format!("awase-test-{}-{name}", std::process::id());
        let (parent, files) = Group::parent()?;
        let [limit, usage, events] = files;
        let path = parent.join(name);
        fs::create_dir(&path).ok()?;
        let group = Group { path, limit, usage, events };
        // On failure the group is dropped and removed.
        group.set_limit(bytes).then_some(group)
    }

    /// The memory controller's group of this process in version 1, else the root of version 2.
    fn parent() -> Option<(PathBuf, [&'static str; 3])> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let point = |is_wanted: &dyn Fn(&str) -> bool| {
            let line = mounts.lines().find(|line| line.split_once(" - ").is_some_and(|(_, kind)| is_wanted(kind)))?;
            line.split(' ').nth(4).map(PathBuf::from)
        };
        let is_v1 = |kind: &str| kind.starts_with("cgroup ") && kind.split([' ', ',']).any(|word| word == "memory");
        if let Some(point) = point(&is_v1) {
            let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
            let own = groups.lines().find_map(|line| line.split_once(":memory:"))?.1;
            let parent = [point.join(own.trim_start_matches('/')), point].into_iter().find(|path| path.exists())?;
            return Some((parent, ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"]));
        }
        let point = point(&|kind| kind.starts_with("cgroup2 "))?;
        let controllers = fs::read_to_string(point.join("cgroup.subtree_control")).ok()?;
        let has_memory = controllers.split_whitespace().any(|name| name == "memory");
        has_memory.then_some((point, ["memory.max", "memory.current", "memory.events"]))
    }

    /// Sets the limit. False if more is used and cannot be reclaimed (version 1; in version 2 processes are killed).
    pub fn set_limit(&self, bytes: u64) -> bool {
        fs::write(self.path.join(self.limit), bytes.to_string()).is_ok()
    }

    /// A command that runs `program` in the group.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs")).arg(program);
        command
    }

    /// Bytes used by its processes.
    pub fn used(&self) -> u64 {
        fs::read_to_string(self.path.join(self.usage)).expect("usage").trim().parse().expect("a number")
    }

    /// Processes killed for lack of memory.
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.events)).expect("events");
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.map_or(0, |count| count.trim().parse().expect("a number"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Killed processes leave it a moment later.
        let end = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}
