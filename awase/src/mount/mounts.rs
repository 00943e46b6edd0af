//! What is mounted where, as the host lists it.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The type of our mounts, as the host lists them.
pub const SUBTYPE: &str = "awase";

/// The number of a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// The mount of ours on this directory, if there is one.
///
/// # Errors
/// The host's.
pub fn own_mount(directory: &Path) -> io::Result<Option<Device>> {
    let directory = absolute(directory)?;
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    // The last one is on top.
    let uppermost = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(Mounted::parse)
        .rfind(|mount| mount.on == directory.as_os_str().as_bytes());
    Ok(uppermost.filter(|mount| mount.is_ours).map(|mount| mount.device))
}

/// A line of the host's list (proc(5), `mountinfo`).
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    device: Device,
    on: Vec<u8>,
    is_ours: bool,
}

impl Mounted {
    fn parse(line: &[u8]) -> Option<Mounted> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
        let on = unescaped(fields.nth(1)?);
        fields.find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        // Root's own mounts have no subtype.
        let is_ours = (kind == b"fuse" || kind == b"fuse.awase") && source.starts_with(b"nfs://");
        Some(Mounted { device, on, is_ours })
    }
}

/// Without asking the mount itself, whose process may have ended.
pub fn absolute(directory: &Path) -> io::Result<PathBuf> {
    let directory = std::path::absolute(directory)?;
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(directory),
    }
}

/// The host writes blanks and the like as octal numbers.
fn unescaped(field: &[u8]) -> Vec<u8> {
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
    fn mounts_are_read_as_the_host_writes_them() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescaped(br"/mnt/\9"), br"/mnt/\9");
        let line = br"36 35 0:52 / /mnt/a\040b rw,nosuid shared:7 - fuse.awase nfs://server/x rw,user_id=0";
        let device = Device { major: 0, minor: 52 };
        assert_eq!(Mounted::parse(line), Some(Mounted { device, on: b"/mnt/a b".to_vec(), is_ours: true }));
        let other = b"36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw,errors=continue";
        assert_eq!(Mounted::parse(other).map(|mount| mount.is_ours), Some(false));
        assert_eq!(Mounted::parse(b""), None);
    }

    #[test]
    fn a_directory_that_is_no_mount_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(own_mount(directory.path()).expect("the host lists its mounts"), None);
    }
}
