//! A mount in the background: a child process, which tells its parent over a pipe when it is ready.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;

/// Set for the child.
const CHILD: &str = "AWASE_MOUNT_IN_BACKGROUND";

/// What the child says when it is ready.
const READY: &[u8] = b"ready";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts the child with the same arguments; returns when it is ready, or has said why not on standard error.
///
/// # Errors
/// When it cannot be started.
pub fn start() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(CHILD, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    // Signals of the terminal are not for it.
    command.process_group(0);
    let mut child = command.spawn().context("cannot start a process for the mount")?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Tells the parent, and lets go of what is the parent's: its output and errors, terminal and directory.
///
/// # Errors
/// The host's.
pub fn report_ready() -> anyhow::Result<()> {
    std::env::set_current_dir("/")?;
    // A session of its own; it fails for one that has it.
    let _ = rustix::process::setsid();
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
