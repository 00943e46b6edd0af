//! The secret with which NFS file handles are signed. Handles stay valid over a restart of the server, so the secret is
//! stored.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use machine::linux::file::make_directories;

use crate::config::{Problem, Settings};

/// In the data directory.
const FILE: &str = "nfs-secret";

const BYTES: usize = 32;

pub type Secret = [u8; BYTES];

/// The secret in the data directory; created, and made durable, if there is none.
///
/// # Errors
/// When it cannot be read, is not whole, or is readable by others. It is never replaced: all handles of all clients
/// would become stale.
pub fn load(settings: &Settings) -> Result<Secret, Problem> {
    let path = settings.data.join(FILE);
    let problem = |what: String| Problem::new(&settings.place("data"), "data", what);
    let made = match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&settings.data).and_then(|()| read(&path)),
        result => result,
    };
    let (bytes, mode) =
        made.map_err(|error| problem(format!("has no secret for NFS in {}: {error}", path.display())))?;
    if mode & 0o077 != 0 {
        let what = format!("holds the secret of NFS in {}, which others may read", path.display());
        return Err(problem(what).allowed("a file that only its owner may read (chmod 600)"));
    }
    bytes.as_slice().try_into().map_err(|_| {
        let what = format!("holds {} bytes in {} instead of a secret of {BYTES}", bytes.len(), path.display());
        problem(what).allowed("the file as it was made; without it, clients must mount again")
    })
}

/// A secret that nothing outlives.
///
/// # Errors
/// When the host gives no random bytes.
pub fn random() -> io::Result<Secret> {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret).map_err(io::Error::from)?;
    Ok(secret)
}

/// The file's content, at most one byte more than it should have, and its mode.
fn read(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    let mut bytes = Vec::new();
    file.take(BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes, mode))
}

/// Creates the file, whole and durable before it has its name. If another server was first, its file stays.
fn make(directory: &Path) -> io::Result<()> {
    make_directories(directory)?;
    let draft = directory.join(format!("{FILE}.{}", std::process::id()));
    let made = write(&draft).and_then(|()| match fs::hard_link(&draft, directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    });
    // A draft that cannot be removed does no harm.
    let _ = fs::remove_file(&draft);
    made?;
    File::open(directory)?.sync_all()
}

fn write(path: &Path) -> io::Result<()> {
    // Left by a server that was killed and had the same process id.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut secret = Secret::default();
    getrandom::fill(&mut secret)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&secret)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(directory: &Path) -> Settings {
        Settings { data: directory.join("data"), ..Settings::default() }
    }

    #[test]
    fn the_secret_is_created_once_readable_by_its_owner_alone() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = settings(directory.path());
        let first = load(&settings).expect("made");
        assert_ne!(first, [0; BYTES]);
        assert_eq!(load(&settings).expect("read"), first);
        let metadata = fs::metadata(settings.data.join(FILE)).expect("found");
        assert_eq!(metadata.mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&settings.data).expect("data").count(), 1, "no draft stays behind");
        let other = tempfile::tempdir().expect("temporary directory");
        assert_ne!(load(&super::tests::settings(other.path())).expect("made"), first);
    }

    #[test]
    fn a_truncated_or_readable_secret_is_refused_and_not_replaced() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = settings(directory.path());
        let secret = load(&settings).expect("made");
        let path = settings.data.join(FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        let message = load(&settings).expect_err("open to others").to_string();
        assert!(message.contains("which others may read; allowed: a file that only its owner may read"), "{message}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        for bytes in [&secret[..31], &[&secret[..], b"x"].concat()] {
            fs::write(&path, bytes).expect("write");
            let message = load(&settings).expect_err("not whole").to_string();
            assert!(message.contains("instead of a secret of 32"), "{message}");
            assert_eq!(fs::read(&path).expect("not replaced"), bytes);
        }
    }

    #[test]
    fn a_directory_instead_of_the_secret_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = settings(directory.path());
        fs::create_dir_all(settings.data.join(FILE)).expect("directory");
        let message = load(&settings).expect_err("a directory").to_string();
        assert!(message.contains("data has no secret for NFS in "), "{message}");
    }
}
