//! Unmounting, and what is mounted where.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use super::arguments::UmountArguments;

/// The type of our mounts, as the host lists them.
pub const SUBTYPE: &str = "awase";

/// Does what the command line says.
///
/// # Errors
/// When it is no mount of ours, or in use.
pub fn umount(arguments: &UmountArguments) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    if !is_own_mount(directory)? {
        bail!("nothing is mounted on {} by awase", directory.display());
    }
    take_away(&absolute(directory)?, arguments.lazy)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes a mount away; lazily, if need be while it is in use.
///
/// # Errors
/// Why that is not possible.
pub fn take_away(directory: &Path, lazy: bool) -> anyhow::Result<()> {
    let flags = if lazy { libc::MNT_DETACH } else { 0 };
    let Err(error) = umount2(directory, flags | libc::UMOUNT_NOFOLLOW) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::EPERM) => by_helper(directory, lazy),
        Some(libc::EBUSY) => bail!("{} is in use; --lazy takes it away anyway", directory.display()),
        _ => Err(error).with_context(|| format!("cannot unmount {}", directory.display())),
    }
}

fn umount2(directory: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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

/// Is there a mount of ours on this directory?
///
/// # Errors
/// The host's.
pub fn is_own_mount(directory: &Path) -> io::Result<bool> {
    let directory = absolute(directory)?;
    let mounts = std::fs::read("/proc/self/mounts")?;
    Ok(mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (source, path, kind) = (fields.next(), fields.next().map(unescaped), fields.next());
        // Root's own mounts have no subtype.
        let is_ours = [&b"fuse"[..], b"fuse.awase"].contains(&kind.unwrap_or_default());
        path.as_deref() == Some(directory.as_os_str().as_bytes())
            && is_ours
            && source.is_some_and(|source| source.starts_with(b"nfs://"))
    }))
}

/// Without asking the mount itself, whose process may have ended.
fn absolute(directory: &Path) -> io::Result<PathBuf> {
    let directory = std::path::absolute(directory)?;
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(directory),
    }
}

/// The host writes blanks and the like as octal numbers.
pub fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_the_host_writes_them() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescaped(br"/mnt/\9"), br"/mnt/\9");
    }

    #[test]
    fn a_directory_that_is_no_mount_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!is_own_mount(directory.path()).expect("the host lists its mounts"));
    }
}
