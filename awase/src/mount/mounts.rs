//! What is mounted where, as the host lists it.

use std::collections::HashSet;
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

/// A mount of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMount {
    pub device: Device,
    /// Who mounted.
    pub owner: u32,
}

/// The mount of ours on this directory, if there is one.
///
/// # Errors
/// The host's.
pub fn own_mount(directory: &Path) -> io::Result<Option<OwnMount>> {
    let directory = absolute(directory)?;
    // The last one is on top.
    let uppermost = mounts()?.into_iter().rfind(|mount| mount.on == directory.as_os_str().as_bytes());
    Ok(uppermost.and_then(|mount| Some(OwnMount { device: mount.device, owner: mount.owner? })))
}

/// Names of what something else is mounted on in a mounted file system, in any of its directories, as far as it is seen
/// from here.
///
/// # Errors
/// The host's.
pub fn names_mounted_on(device: Device) -> io::Result<HashSet<Vec<u8>>> {
    Ok(names_of_mounts_on(device, &mounts()?))
}

fn names_of_mounts_on(device: Device, mounts: &[Mounted]) -> HashSet<Vec<u8>> {
    let below: HashSet<u64> = mounts.iter().filter(|mount| mount.device == device).map(|mount| mount.id).collect();
    let above = mounts.iter().filter(|mount| below.contains(&mount.parent));
    above.filter_map(|mount| mount.on.rsplit(|byte| *byte == b'/').next()).map(<[u8]>::to_vec).collect()
}

fn mounts() -> io::Result<Vec<Mounted>> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    Ok(mounts.split(|byte| *byte == b'\n').filter_map(Mounted::parse).collect())
}

/// A line of the host's list (proc(5), `mountinfo`).
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    id: u64,
    /// What it is mounted on.
    parent: u64,
    device: Device,
    on: Vec<u8>,
    /// Of ours: who mounted.
    owner: Option<u32>,
}

impl Mounted {
    fn parse(line: &[u8]) -> Option<Mounted> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
        let device = text()?;
        let (major, minor) = device.split_once(':')?;
        let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
        let on = unescaped(fields.nth(1)?);
        fields.find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        // Root's own mounts have no subtype.
        let is_ours = (kind == b"fuse" || kind == b"fuse.awase") && source.starts_with(b"nfs://");
        let options = fields.next()?.split(|byte| *byte == b',');
        let mut owners = options.filter_map(|option| option.strip_prefix(b"user_id="));
        let owner = owners.next().filter(|_| is_ours).and_then(|user| std::str::from_utf8(user).ok()?.parse().ok());
        Some(Mounted { id, parent, device, on, owner })
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
        let line = br"36 35 0:52 / /mnt/a\040b rw,nosuid shared:7 - fuse.awase nfs://server/x rw,user_id=7,group_id=0";
        let device = Device { major: 0, minor: 52 };
        let mount = Mounted { id: 36, parent: 35, device, on: b"/mnt/a b".to_vec(), owner: Some(7) };
        assert_eq!(Mounted::parse(line), Some(mount));
        let other = b"36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw,user_id=7";
        assert_eq!(Mounted::parse(other).map(|mount| mount.owner), Some(None));
        assert_eq!(Mounted::parse(b""), None);
    }

    #[test]
    fn what_is_mounted_on_a_mount_is_known_by_name() {
        let lines: [&[u8]; 4] = [
            b"20 1 8:1 / / rw - ext4 /dev/root rw",
            b"36 20 0:52 / /mnt rw - fuse.awase nfs://server/x rw,user_id=7",
            br"37 36 8:1 /etc/a /mnt/sub/a\040b rw - ext4 /dev/root rw",
            b"38 20 0:53 / /elsewhere/c rw - tmpfs tmpfs rw",
        ];
        let mounts: Vec<Mounted> = lines.iter().filter_map(|line| Mounted::parse(line)).collect();
        assert_eq!(names_of_mounts_on(Device { major: 0, minor: 52 }, &mounts), HashSet::from([b"a b".to_vec()]));
    }

    #[test]
    fn a_directory_that_is_no_mount_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(own_mount(directory.path()).expect("the host lists its mounts"), None);
    }
}
