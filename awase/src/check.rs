//! `awase check`: finds all problems of a configuration that can be found without serving it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cluster::backing::Backing;
use crate::config::{Config, Overrides, Problems, show_bytes};
use crate::media::Medium;
use crate::tell::{print, tell};
use crate::{databases, directories, listeners, media};

/// Prints what would be served, or all problems.
///
/// # Errors
/// When standard output cannot be written.
pub fn check(overrides: &Overrides) -> anyhow::Result<ExitCode> {
    Ok(match examine(overrides) {
        Ok(summary) => {
            print(summary)?;
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in &problems.0 {
                tell(problem);
            }
            ExitCode::from(2)
        }
    })
}

/// What would be served, as lines of text.
///
/// # Errors
/// All problems.
pub fn examine(overrides: &Overrides) -> Result<String, Problems> {
    let config = Config::load(overrides)?;
    let mut problems = Problems::default();
    let mut summary = String::from("The configuration is right. It serves:\n");
    for export in &config.exports {
        if let Some(medium) = problems.note(media::inspect(export)) {
            let (mode, used) = (if export.read_only { ", read-only" } else { "" }, used(&medium));
            let size = show_bytes(medium.size);
            summary += &format!("  {:<16} {size:>9}  {}{mode}{used}\n", export.name, export.medium());
        }
    }
    if let Some(backing) = Backing::of(&config.settings) {
        problems.note_all(backing.refuse_missing(config.volumes()));
    }
    let volumes: Vec<_> = config.volumes().collect();
    media::refuse_same_medium(&volumes, &mut problems);
    let notices = problems.note_all(directories::inspect(&config.directories, &volumes)).unwrap_or_default();
    for directory in config.directories.iter().filter(|_| notices.is_empty()) {
        let (path, mode) = (directory.path.display(), if directory.read_only { ", read-only" } else { "" });
        summary += &format!("  {:<26}  directory {path}{mode}\n", directory.mount);
    }
    summary.extend(notices.iter().map(|line| format!("  {line}\n")));
    for database in &config.databases {
        let inspected = media::inspect(&database.volume);
        if let Some(medium) = problems.note(inspected.and_then(|medium| databases::inspect(database, medium))) {
            let (size, medium_name) = (show_bytes(medium.size), database.volume.medium());
            let (programs, used) = (database.programs.display(), used(&medium));
            let name = &database.name;
            summary += &format!("  {name:<16} {size:>9}  database on {medium_name}{used}, programs in {programs}\n");
        }
    }
    problems.note_all(listeners::inspect(&config));
    summary.extend(config.notices.iter().map(|line| format!("  {line}\n")));
    summary += &format!("at: {}\n", addresses(&config));
    problems.or(summary)
}

fn used(medium: &Medium) -> &'static str {
    if medium.in_use { " (in use now)" } else { "" }
}

/// Where it is served, for each service.
fn addresses(config: &Config) -> String {
    let settings = &config.settings;
    let mut all = Vec::new();
    let mut add = |service: &str, addresses: &[SocketAddr], sockets: &[PathBuf]| {
        if addresses.is_empty() && sockets.is_empty() {
            all.push(format!("{service} at sockets passed by systemd"));
        }
        all.extend(addresses.iter().map(|address| format!("{service} {address}")));
        all.extend(sockets.iter().map(|path| format!("{service} {}", path.display())));
    };
    if !config.exports.is_empty() {
        add("nbd", &settings.nbd, &settings.nbd_unix);
    }
    if !config.directories.is_empty() {
        add("nfs", &settings.nfs_addresses(), &settings.nfs_unix);
    }
    if !config.databases.is_empty() {
        add("postgres", &settings.postgres_addresses(), &settings.postgres_unix);
    }
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Entry, Given, Place};

    const RAM: [(&str, &str); 3] = [("name", "r"), ("kind", "ram"), ("size", "1MiB")];

    /// Of a disk in memory, and these settings.
    fn examined(settings: &[(&str, &str)]) -> Result<String, Problems> {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).into(),
            given: Given::Text((*value).into()),
            place: Place::Flag("--test".into()),
        };
        examine(&Overrides {
            entries: settings.iter().map(entry).collect(),
            exports: vec![RAM.iter().map(entry).collect()],
            ..Overrides::default()
        })
    }

    #[test]
    fn what_has_no_address_is_said_to_need_a_socket_of_systemd() {
        let summary = examined(&[("listen.nbd", "none"), ("listen.nbd_unix", "none")]).expect("right");
        assert!(summary.ends_with("at: nbd at sockets passed by systemd\n"), "{summary}");
    }

    #[test]
    fn an_address_or_socket_that_is_listed_twice_is_refused() {
        for (settings, message) in [
            (
                [("listen.nbd", "127.0.0.1:1,127.0.0.1:1"), ("listen.metrics", "none")],
                "--test: listen.nbd holds 127.0.0.1:1 twice",
            ),
            (
                [("listen.nbd", "127.0.0.1:1"), ("listen.metrics", "127.0.0.1:1")],
                "--test: listen.metrics holds 127.0.0.1:1, which listen.nbd has already",
            ),
            (
                [("listen.nbd_unix", "/run/a"), ("listen.control", "/run/a")],
                "--test: listen.control holds /run/a, which listen.nbd_unix has already",
            ),
        ] {
            let problem = examined(&settings).expect_err("twice").to_string();
            assert!(problem.contains(message), "{problem}");
        }
        // Nothing is served at the latter.
        examined(&[("listen.nbd", "127.0.0.1:1"), ("listen.nfs", "127.0.0.1:1")]).expect("right");
        examined(&[("listen.nbd", "127.0.0.1:0"), ("listen.metrics", "127.0.0.1:0")]).expect("any free ports");
    }

    #[test]
    fn a_data_directory_whose_sockets_have_too_long_paths_is_refused() {
        let data = "d".repeat(100);
        let problem = examined(&[("data", &data)]).expect_err("a socket of 109 bytes").to_string();
        assert!(problem.contains("--test: data = ") && problem.contains("too long for the Unix socket"), "{problem}");
        examined(&[("data", &data), ("listen.nbd_unix", "nbd.sock")]).expect("right");
    }
}
