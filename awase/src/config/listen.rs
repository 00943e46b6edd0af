//! What addresses and sockets need of each other.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Config;
use super::problem::{Problem, Problems};
use super::settings::{Control, SOCKET_BYTES_MAX};

/// An address or socket, with its key.
type Listed = (&'static str, String);

/// Those that must be served are listed once each, and the sockets in the data directory are not too long.
pub(super) fn check(config: &Config, problems: &mut Problems) {
    let settings = &config.settings;
    let mut listed: Vec<Listed> = Vec::new();
    let mut sockets: Vec<(&'static str, &PathBuf)> = Vec::new();
    if !config.exports.is_empty() {
        listed.extend(addresses("listen.nbd", &settings.nbd));
        sockets.extend(settings.nbd_unix.iter().map(|path| ("listen.nbd_unix", path)));
    }
    if config.directories.iter().any(|directory| !directory.optional) {
        listed.extend(addresses("listen.nfs", &settings.nfs_addresses()));
        sockets.extend(settings.nfs_unix.iter().map(|path| ("listen.nfs_unix", path)));
    }
    if config.databases.iter().any(|database| !database.optional) {
        listed.extend(addresses("listen.postgres", &settings.postgres_addresses()));
        sockets.extend(settings.postgres_unix.iter().map(|path| ("listen.postgres_unix", path)));
    }
    let derived = sockets.iter().filter(|(key, _)| !settings.places.contains_key(*key)).map(|(_, path)| *path);
    let longest = derived.max_by_key(|path| path.as_os_str().len());
    if let Some(path) = longest.filter(|path| path.as_os_str().len() > SOCKET_BYTES_MAX) {
        let name = path.file_name().unwrap_or_default();
        let what = format!("= {:?} is too long for the Unix socket {name:?} in it", settings.data);
        let problem = Problem::new(&settings.place("data"), "data", what);
        problems
            .0
            .push(problem.allowed(format!("a directory whose sockets have paths of at most {SOCKET_BYTES_MAX} bytes")));
    }
    if let Control::At(path) = &settings.control {
        sockets.push(("listen.control", path));
    }
    listed.extend(addresses("listen.metrics", settings.metrics.as_deref().unwrap_or_default()));
    listed.extend(sockets.into_iter().map(|(key, path)| (key, path.display().to_string())));
    problems.refuse_pairs(
        &listed,
        |(_, at)| at,
        |(first, _), (key, at)| {
            let what = if first == key {
                format!("holds {at} twice")
            } else {
                format!("holds {at}, which {first} has already")
            };
            Some(Problem::new(&settings.place(key), *key, what).allowed("an address or path of its own"))
        },
    );
}

/// Those with a port: 0 is any free one.
fn addresses(key: &'static str, all: &[SocketAddr]) -> Vec<Listed> {
    all.iter().filter(|address| address.port() != 0).map(|address| (key, address.to_string())).collect()
}
