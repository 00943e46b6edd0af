//! Directories served over NFS: to which clients, and as which users they act.

use std::path::{Path, PathBuf};

use nfs::{IpNet, NOBODY, Names, Squash, Squashed};

use super::draft::Draft;
use super::key::shown;
use super::kind::Kind;
use super::problem::{Place, Problem};

/// Longest path of the MOUNT protocol, in bytes (RFC 1813, 5.1.4: `MNTPATHLEN`).
const MOUNT_BYTES_MAX: usize = 1024;

/// Names of the squash rules: those of exports(5).
pub const SQUASH: [(Squashed, &str); 3] =
    [(Squashed::Root, "root_squash"), (Squashed::All, "all_squash"), (Squashed::Nobody, "no_root_squash")];

pub const NAMES: [(Names, &str); 2] = [(Names::Durable, "durable"), (Names::Ordered, "ordered")];

/// Checks that clients can mount by this path.
///
/// # Errors
/// The problem, to be appended to the path.
pub fn check_mount_path(path: &str) -> Result<(), &'static str> {
    let has_dots = path.split('/').any(|part| part == "." || part == "..");
    match path {
        _ if !path.starts_with('/') => Err("does not begin with \"/\""),
        _ if path.len() > MOUNT_BYTES_MAX => Err("is longer than 1024 bytes"),
        _ if path.contains(char::is_control) => Err("holds a control character"),
        _ if has_dots => Err("holds \".\" or \"..\""),
        _ => Ok(()),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Directory {
    pub name: String,
    pub path: PathBuf,
    /// Create it if it is missing.
    pub create: bool,
    /// The path by which clients mount it.
    pub mount: String,
    pub read_only: bool,
    /// The networks whose clients are served; empty: all.
    pub clients: Vec<IpNet>,
    /// Serve only clients with privileged ports.
    pub secure: bool,
    pub squash: Squash,
    pub names: Names,
    /// File handles are used though the file system is not known to have persistent ones.
    pub persistent_handles: bool,
    /// Served by default, not configured: the server starts even if this host cannot serve it.
    pub optional: bool,
    pub place: Place,
}

impl Directory {
    /// The directory that is served when no export is configured; `place` is where `data` was set.
    pub fn default_files(data: &Path, place: Place) -> Directory {
        Directory {
            name: "files".into(),
            path: data.join("files"),
            create: true,
            mount: "/files".into(),
            read_only: false,
            clients: Vec::new(),
            // So that any client can try it. Users of this host have the same access as to /tmp.
            secure: false,
            squash: Squash::default(),
            names: Names::default(),
            persistent_handles: false,
            optional: true,
            place,
        }
    }

    /// # Errors
    /// The first key that is missing, impossible or contradicts another.
    pub fn from_draft(name: String, draft: Draft) -> Result<Directory, Problem> {
        let path = draft.path.clone().ok_or_else(|| draft.missing("path").allowed("the path of a directory"))?;
        let read_only = draft.read_only.unwrap_or(false);
        let create = draft.create.unwrap_or(false);
        if create && read_only {
            return Err(draft.problem("create", "= true does not go with read_only = true"));
        }
        let mount = draft.mount.clone().unwrap_or_else(|| format!("/{}", name.trim_start_matches('/')));
        check_mount_path(&mount).map_err(|why| {
            let allowed = "another name, or mount = \"/...\"";
            draft.problem("name", format!("makes the path {mount:?} for clients, which {why}")).allowed(allowed)
        })?;
        let squash = Squash {
            squashed: draft.squash.unwrap_or_default(),
            uid: draft.anonymous_uid.unwrap_or(NOBODY),
            gid: draft.anonymous_gid.unwrap_or(NOBODY),
        };
        let (clients, secure) = (draft.clients, draft.secure.unwrap_or(true));
        let names = draft.names.unwrap_or_default();
        let persistent_handles = draft.persistent_handles.unwrap_or(false);
        let (optional, place) = (false, draft.place);
        Ok(Directory {
            name,
            path,
            create,
            mount,
            read_only,
            clients,
            secure,
            squash,
            names,
            persistent_handles,
            optional,
            place,
        })
    }

    /// The components of the mount path: paths with equal components are the same.
    pub fn mount_names(&self) -> impl Iterator<Item = &str> {
        self.mount.split('/').filter(|name| !name.is_empty())
    }

    pub fn key(&self, key: &str) -> String {
        shown("export", Some(&self.name), key)
    }
}

impl From<&Directory> for Draft {
    fn from(directory: &Directory) -> Draft {
        Draft {
            name: Some(directory.name.clone()),
            kind: Some(Kind::Directory),
            path: Some(directory.path.clone()),
            create: directory.create.then_some(true),
            read_only: Some(directory.read_only),
            mount: Some(directory.mount.clone()),
            clients: directory.clients.clone(),
            secure: Some(directory.secure),
            squash: Some(directory.squash.squashed),
            anonymous_uid: Some(directory.squash.uid),
            anonymous_gid: Some(directory.squash.gid),
            names: Some(directory.names),
            persistent_handles: directory.persistent_handles.then_some(true),
            place: directory.place.clone(),
            ..Draft::default()
        }
    }
}
