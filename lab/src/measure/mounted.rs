//! A directory that a program in the foreground has mounted (FUSE), until dropped.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::measure::load::Endpoint;
use crate::measure::process::{Interrupted, Process};

/// For so long a mount may be busy: a program that another thread starts has our files open until it is executed.
const BUSY_MAX: Duration = Duration::from_secs(2);

/// Can file systems be mounted here?
pub fn has_fuse() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
}

/// `awase mount` of a server's export on `directory`.
pub fn awase_mount(awase: &Path, endpoint: &Endpoint, options: &str, directory: &Path) -> Command {
    let Endpoint { nfs, mount, export, .. } = endpoint;
    let mut command = Command::new(awase);
    command.arg("mount").arg(format!("nfs://{nfs}{export}")).arg(directory).arg("--foreground");
    command.args(["-o", &format!("mountport={},{options}", mount.port())]);
    command
}

pub struct Mounted {
    directory: PathBuf,
    process: Option<Process>,
}

impl Mounted {
    /// Starts `command`, which mounts on `directory`; `log`: where its messages go.
    pub fn new(command: Command, directory: &Path, log: &Path, interrupted: &Interrupted) -> Result<Mounted> {
        let above = fs::metadata(directory)?.dev();
        let process = Process::start(command, log, interrupted)?;
        let mut mounted = Mounted { directory: directory.to_owned(), process: Some(process) };
        let is_there = |_: &Process| {
            ensure!(fs::metadata(directory)?.dev() != above, "nothing is mounted on {}", directory.display());
            Ok(())
        };
        mounted.process.as_mut().map_or(Ok(()), |process| process.ready(is_there))?;
        Ok(mounted)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program that serves it.
    pub fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("it is mounted until dropped")
    }

    /// Unmounts it. What was written is stored when this returns.
    pub fn end(mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.unmount(false) {
            ensure!(begun.elapsed() < BUSY_MAX, "{} cannot be unmounted", self.directory.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process.take().map_or(Ok(()), Process::stop)
    }

    fn unmount(&self, lazily: bool) -> bool {
        let unmount = |program: &str, flags: &[&str]| {
            let mut command = Command::new(program);
            command.args(flags).arg(&self.directory).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let [plain, others]: [&[&str]; 2] = if lazily { [&["-l"], &["-q", "-u", "-z"]] } else { [&[], &["-q", "-u"]] };
        unmount("umount", plain) || unmount("fusermount3", others)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Its end ends every call that waits for it.
            process.kill();
            self.unmount(true);
        }
    }
}
