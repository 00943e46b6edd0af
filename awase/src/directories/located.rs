//! What the paths of configured directories lead to, and what must not lie in one another.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use machine::linux::file::make_directories;
use machine::linux::tree;

use crate::config::{Directory, Export, Place, Problem, Problems};

/// Identifies a directory by any path: device and inode number.
pub(super) type Identity = (u64, u64);

/// A configured directory and what its path leads to.
pub(super) struct Located<'a> {
    pub(super) directory: &'a Directory,
    pub(super) path: PathBuf,
    /// `None` if it does not exist.
    pub(super) identity: Option<Identity>,
    pub(super) read_only: bool,
}

impl Located<'_> {
    pub(super) fn is(&self, path: &Path, identity: Option<Identity>) -> bool {
        self.path == path || (identity.is_some() && self.identity == identity)
    }
}

/// Resolves the paths of directories, creates missing ones if configured and `may_create`, and refuses those that
/// overlap, and those with a volume's medium, which may be yet to be made.
pub(super) fn locate<'a>(
    wanted: &'a [Directory],
    volumes: &[&Export],
    may_create: bool,
    problems: &mut Problems,
) -> Vec<Located<'a>> {
    let mut located: Vec<Located<'_>> = Vec::new();
    for directory in wanted {
        let Some(path) = problems.note(find(directory, may_create)) else { continue };
        let overlapping = located.iter().find(|other| {
            let nested = other.path != path && (other.path.starts_with(&path) || path.starts_with(&other.path));
            nested && !(other.directory.read_only && directory.read_only)
        });
        if let Some(other) = overlapping {
            let name = &other.directory.name;
            let what = format!("is inside the directory of export {name:?}, or contains it");
            let problem = Problem::new(&directory.place, directory.key("path"), what);
            problems.0.push(problem.allowed("directories that do not contain each other, or read_only = true in both"));
        }
        if let Some(volume) = volumes.iter().find(|volume| contains(directory, &path, volume)) {
            let table = if volume.is_database { "database" } else { "export" };
            let what = format!("contains the medium of {table} {:?}", volume.name);
            let problem = Problem::new(&directory.place, directory.key("path"), what);
            problems.0.push(problem.allowed("a directory without it, or read_only = true in both"));
        }
        let identity = fs::metadata(&path).ok().map(|found| (found.dev(), found.ino()));
        let read_only = directory.read_only || tree::is_mounted_read_only(&path);
        located.push(Located { directory, path, identity, read_only });
    }
    located
}

/// Does the directory, at `path`, contain the volume's medium, and is either written?
fn contains(directory: &Directory, path: &Path, volume: &Export) -> bool {
    let medium = volume.path().map(resolve);
    medium.is_some_and(|medium| medium.starts_with(path)) && !(volume.read_only && directory.read_only)
}

/// Refuses directories with the medium of a disk that is open, though it may not be configured any more: its clients go on
/// with its cache.
pub(super) fn refuse_open_media(
    located: &[Located<'_>],
    volumes: &[&Export],
    open: &[&Export],
    problems: &mut Problems,
) {
    let is_configured = |open: &Export| volumes.iter().any(|volume| volume.path() == open.path());
    for Located { directory, path, .. } in located {
        let mut left = open.iter().filter(|open| !is_configured(open));
        if let Some(volume) = left.find(|volume| contains(directory, path, volume)) {
            let what = format!("contains the medium of export {:?}, which is open", volume.name);
            let problem = Problem::new(&directory.place, directory.key("path"), what);
            let allowed = "to read the configuration without both, and then again when no client has that export";
            problems.0.push(problem.allowed(allowed));
        }
    }
}

/// Refuses what lies in a directory of `leaving`, which is not served any more, or contains it: what clients have written
/// there may go to the host later than what is written through another cache.
pub(super) fn refuse_leaving(located: &[Located<'_>], volumes: &[&Export], leaving: &[&Path], problems: &mut Problems) {
    let refused = |place: &Place, key, what: &str, root: &Path| {
        let problem = Problem::new(place, key, format!("{what} {}, which was served until now", root.display()));
        problem.allowed("to read the configuration without it, and then again in a moment")
    };
    for Located { directory, path, .. } in located {
        let is_nested = |root: &Path| root != path && (root.starts_with(path) || path.starts_with(root));
        let root = leaving.iter().find(|root| is_nested(root));
        let what = "is inside, or contains, the directory";
        problems.0.extend(root.map(|root| refused(&directory.place, directory.key("path"), what, root)));
    }
    for volume in volumes {
        let Some(medium) = volume.path().map(resolve) else { continue };
        let root = leaving.iter().find(|root| medium.starts_with(root));
        problems.0.extend(root.map(|root| refused(&volume.place, volume.key("path"), "is in the directory", root)));
    }
}

fn find(directory: &Directory, may_create: bool) -> Result<PathBuf, Problem> {
    let problem = |what: String| Problem::new(&directory.place, directory.key("path"), what);
    if directory.create && may_create {
        let made = if directory.optional { create_shared(&directory.path) } else { make_directories(&directory.path) };
        made.map_err(|error| problem(format!("= {:?} cannot be created: {error}", directory.path)))?;
    }
    match fs::canonicalize(&directory.path) {
        Ok(path) => Ok(path),
        Err(_) if directory.create => Ok(resolve(&directory.path)),
        Err(error) => {
            let problem = problem(format!("= {:?} cannot be served: {error}", directory.path));
            Err(problem.allowed("an existing directory, or create = true"))
        }
    }
}

/// The path without symbolic links, also of what does not exist yet.
fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut real = PathBuf::new();
    for component in absolute.components() {
        if component == Component::ParentDir {
            real.pop();
        } else {
            real.push(component);
        }
        real = fs::canonicalize(&real).unwrap_or(real);
    }
    real
}

/// Creates a directory that every user may write to, as to `/tmp`: clients may be any user, and their root is squashed.
/// An existing one is left unchanged.
fn create_shared(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    make_directories(above)?;
    fs::create_dir(path)?;
    // Not in the call that creates it, where the process's umask applies; and before its name is durable.
    fs::set_permissions(path, Permissions::from_mode(0o1777))?;
    File::open(path)?.sync_all()?;
    File::open(above)?.sync_all()
}
