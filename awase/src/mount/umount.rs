//! Unmounting.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::arguments::UmountArguments;
use super::control;
use super::mounts::{absolute, own_mount};
use crate::tell::print;

/// Does what the command line says.
///
/// # Errors
/// When it is no mount of ours, or in use.
pub fn umount(arguments: &UmountArguments) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    let Some(mount) = own_mount(directory)? else {
        bail!("nothing is mounted on {} by awase", directory.display());
    };
    let directory = absolute(directory)?;
    if !arguments.force {
        take_away(&directory, arguments.lazy)?;
        return Ok(ExitCode::SUCCESS);
    }
    match control::ask(mount) {
        Ok(answer) => {
            let printed = print(format!("{answer}\n"));
            // It may have been refused.
            if own_mount(&directory)? == Some(mount) {
                take_away(&directory, true)?;
            }
            printed?;
        }
        Err(error) => {
            take_away(&directory, true)?;
            print(format!(
                "what was not stored is lost; how much that is the mount's process does not say: {error}\n"
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a mount away; lazily, if need be while it is in use.
///
/// # Errors
/// Why that is not possible.
pub fn take_away(directory: &Path, lazy: bool) -> anyhow::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let Err(error) = unmount(directory, flags | UnmountFlags::NOFOLLOW) else { return Ok(()) };
    match error {
        Errno::PERM => by_helper(directory, lazy),
        Errno::BUSY => bail!("{} is in use; --lazy takes it away anyway", directory.display()),
        _ => Err(error).with_context(|| format!("cannot unmount {}", directory.display())),
    }
}

/// Ordinary users unmount by fusermount3.
fn by_helper(directory: &Path, lazy: bool) -> anyhow::Result<()> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(directory).output();
    let output = output.context("cannot unmount: fusermount3 (package fuse3) is needed")?;
    if !output.status.success() {
        bail!("cannot unmount {}: {}", directory.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
