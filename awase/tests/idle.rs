//! What a server without clients asks of its host: next to nothing, and nothing that looks like work.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use testkit::server::{Place, Server};

/// Whether new processes are told how long they waited for disks. Harmless, and off by default.
const DELAY_ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";

/// For how long it is looked at.
const WINDOW: Duration = Duration::from_secs(4);

/// Switches delay accounting on while it lives.
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

/// The directories of its threads.
fn threads(server: &Server) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("threads");
    tasks.map(|task| task.expect("a thread").path()).collect()
}

/// How often all its threads have slept.
fn sleeps(server: &Server) -> u64 {
    let of = |task: &PathBuf| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    threads(server).iter().map(of).sum()
}

/// For how long its threads have waited for disks, by the host's account (proc(5), field 42 of `stat`). Hundredths of a
/// second.
fn iowait(server: &Server) -> u64 {
    let of = |task: &PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().nth(39).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0)
    };
    threads(server).iter().map(of).sum()
}

#[test]
fn an_idle_server_wakes_twice_a_second_at_most_and_is_not_shown_as_waiting_for_disks() {
    let accounting = DelayAccounting::on();
    if accounting.is_none() {
        testkit::skip::note("delay accounting cannot be switched on here, so iowait is not looked at");
    }
    let place = Place::new();
    let (server, _) = place.serve_directories(0, &[]);
    // What the start left to be done is over when the memory has been looked at without any transfer.
    thread::sleep(Duration::from_secs(1));
    let (began, slept, waited) = (Instant::now(), sleeps(&server), iowait(&server));
    thread::sleep(WINDOW);
    let (slept, waited) = (sleeps(&server) - slept, iowait(&server) - waited);
    let bound = began.elapsed().as_secs_f64() * 2.0 + 1.0;
    assert!(slept as f64 <= bound, "{slept} wake-ups in {:?}", began.elapsed());
    if accounting.is_some() && std::env::var("AWASE_ENGINE").as_deref() != Ok("threads") {
        assert_eq!(waited, 0, "hundredths of a second of iowait");
    }
}
