//! A server without clients hardly wakes up and does not look busy.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use testkit::server::{Sandbox, Server};

/// Accounting of the time that processes wait for disks; off by default.
const DELAY_ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";

/// Period of the measurement.
const WINDOW: Duration = Duration::from_secs(4);

/// Enables delay accounting until dropped.
struct DelayAccounting(String);

impl DelayAccounting {
    fn on() -> Option<Self> {
        let before = fs::read_to_string(DELAY_ACCOUNTING).ok()?;
        fs::write(DELAY_ACCOUNTING, "1").ok()?;
        Some(DelayAccounting(before))
    }
}

impl Drop for DelayAccounting {
    fn drop(&mut self) {
        let _ = fs::write(DELAY_ACCOUNTING, &self.0);
    }
}

/// The directories of its threads in proc(5).
fn threads(server: &Server) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("threads");
    tasks.map(|task| task.expect("a thread").path()).collect()
}

/// Number of times that its threads went to sleep.
fn sleeps(server: &Server) -> u64 {
    let of = |task: &PathBuf| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    threads(server).iter().map(of).sum()
}

/// Time that its threads have waited for disks (proc(5), field 42 of `stat`). Hundredths of a second.
fn iowait(server: &Server) -> u64 {
    let of = |task: &PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().nth(39).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0)
    };
    threads(server).iter().map(of).sum()
}

#[test]
fn an_idle_server_wakes_twice_a_second_at_most_and_has_no_iowait() {
    let accounting = DelayAccounting::on();
    if accounting.is_none() {
        testkit::skip::note("delay accounting cannot be enabled, so iowait is not checked");
    }
    let (server, _) = Sandbox::new().serve_directories(0, &[]);
    // Threads of io_uring end meanwhile, and their counts are gone.
    // Work left from the start ends at the first check of memory that finds no transfers since the last check.
    thread::sleep(Duration::from_secs(1));
    let (began, slept, waited) = (Instant::now(), sleeps(&server), iowait(&server));
    thread::sleep(WINDOW);
    let (slept, waited) = (sleeps(&server).saturating_sub(slept), iowait(&server).saturating_sub(waited));
    let bound = began.elapsed().as_secs_f64() * 2.0 + 1.0;
    assert!(slept as f64 <= bound, "{slept} wake-ups in {:?}", began.elapsed());
    if accounting.is_some() && std::env::var("AWASE_ENGINE").as_deref() != Ok("threads") {
        assert_eq!(waited, 0, "hundredths of a second of iowait");
    }
}
