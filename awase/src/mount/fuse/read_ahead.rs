//! How much the host reads ahead.
//!
//! FUSE gives every mount 128 KiB, and only root may allow more. A request's cost does not depend on its length, so that a
//! reader in order is served faster with longer ones.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mount::umount::unescaped;

/// In KiB: several of the longest requests at a time. A reader in order got 1,180 MiB/s with 1 MiB, 1,440 with 4 MiB.
const READ_AHEAD_KIB: u32 = 4096;

/// Lets the host read ahead as much as is useful in what is mounted on `directory`.
///
/// # Errors
/// The host's: only root may.
pub fn allow_read_ahead(directory: &Path) -> io::Result<()> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    let device = device(&mounts, directory).ok_or(io::ErrorKind::NotFound)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB.to_string())
}

/// The device of what was mounted last on `directory`, as `major:minor`.
fn device(mounts: &[u8], directory: &Path) -> Option<String> {
    let mut lines = mounts.split(|byte| *byte == b'\n').rev();
    lines.find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').take(5).collect();
        let &[_, _, device, _, at] = &fields[..] else { return None };
        (unescaped(at) == directory.as_os_str().as_bytes()).then(|| String::from_utf8_lossy(device).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_that_of_the_last_mount() {
        let mounts = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 0:41 / /mnt/a\\040b rw,nosuid shared:2 - fuse.awase nfs://a/b rw\n\
            41 40 0:42 / /mnt/a\\040b rw - fuse.awase nfs://a/b rw\n";
        assert_eq!(device(mounts, Path::new("/mnt/a b")).as_deref(), Some("0:42"));
        assert_eq!(device(mounts, Path::new("/mnt")), None);
    }
}
