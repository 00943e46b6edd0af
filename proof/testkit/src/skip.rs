//! A test that cannot run on this machine reports why. `AWASE_SKIPPED` names a file that collects skips for the end of a
//! run; with `AWASE_SKIPS_FAIL=1` a skip is a failure.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Records that the test of this thread was skipped. Panics where skips fail.
pub fn note(reason: &str) {
    let line = list(reason);
    let fails = std::env::var("AWASE_SKIPS_FAIL").is_ok_and(|value| value != "0" && !value.is_empty());
    assert!(!fails, "{line} (AWASE_SKIPS_FAIL is set)");
}

/// Records a skip because the running kernel lacks a feature. It is never a failure, as nothing could be installed instead.
pub fn note_kernel(reason: &str) {
    list(reason);
}

fn list(reason: &str) -> String {
    let current = thread::current();
    let test = current.name().unwrap_or("a test");
    let line = format!("skipped: {test}: {reason}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("AWASE_SKIPPED") {
        // One appending write for each line, so that lines of several processes do not mix.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("cannot record in {} that {line}: {error}", path.display()));
    }
    line
}

/// Ends the calling test as skipped, for a reason in the syntax of `format!`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skip::note(&format!($($reason)*));
        return;
    }};
}
