//! A Linux kernel's own client, in an emulated guest (`scripts/guest`): what it reaches is bound by the emulated processor.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::workload::{Measure, Setup};
use crate::measure::load::{Endpoint, Operation, Stability};
use crate::measure::process::{Interrupted, Process};

/// The script ends a guest that takes longer than 200 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Last line of a guest: requests, and hundredths of a second.
const LAST_LINE: &str = "GUEST DID ";

/// Has a guest work on a server, on which the files of the load exist. `work`: see [`work`]; `place`: where its console
/// goes; `cache`: where its kernel is kept. Returns requests and seconds.
pub fn drive(
    endpoint: &Endpoint,
    work: &str,
    place: &Path,
    cache: &Path,
    interrupted: &Interrupted,
) -> Result<(u64, f64)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guest");
    let mut command = Command::new(script);
    command.args(["bench", &endpoint.nfs.port().to_string(), &endpoint.export]).arg(cache);
    command.env("MOUNT_PORT", endpoint.mount.port().to_string()).env("WORK", work);
    let console = Process::start(command, &place.join("guest.log"), interrupted)?.finish(TIMEOUT)?;
    parse(&console).with_context(|| format!("the guest printed {console:?}"))
}

/// What the guest is told to do; its number and size of requests are in `scripts/guest-init-bench`.
pub fn work(setup: &Setup) -> Result<&'static str> {
    if let Measure::Tree(tree) = setup.measure {
        return Ok(tree.name());
    }
    match (setup.load.operation, setup.load.request_bytes >> 10) {
        (Operation::Read(_), 1024) => Ok("read"),
        (Operation::Overwrite(_, Stability::FileSync), 8) => Ok("write_sync"),
        other => bail!("a guest has no work for {other:?}"),
    }
}

fn parse(console: &str) -> Option<(u64, f64)> {
    let (_, line) = console.split_once(LAST_LINE)?;
    let mut words = line.split_whitespace();
    let requests: u64 = words.next()?.parse().ok()?;
    let hundredths: u64 = words.nth(1)?.parse().ok()?;
    (requests > 0 && hundredths > 0).then_some((requests, hundredths as f64 / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_guest_is_read() {
        assert_eq!(parse("a line\r\nGUEST DID 2000 IN 312\r\n"), Some((2000, 3.12)));
        assert_eq!(parse("GUEST FAILED: mount"), None);
    }
}
