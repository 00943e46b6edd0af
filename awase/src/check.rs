//! `awase check`: finds all problems of a configuration that can be found without serving it.

use std::process::ExitCode;

use crate::config::{Config, Overrides, Problems, show_bytes};
use crate::media::Medium;
use crate::tell::tell;
use crate::{directories, media};

/// Prints what would be served, or all problems.
pub fn check(overrides: &Overrides) -> ExitCode {
    match examine(overrides) {
        Ok(summary) => {
            print!("{summary}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in &problems.0 {
                tell(problem);
            }
            ExitCode::from(2)
        }
    }
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
    let volumes: Vec<_> = config.volumes().collect();
    for (number, volume) in volumes.iter().enumerate() {
        let same = volumes[..number].iter().find_map(|first| media::refuse_same_medium(first, volume).err());
        problems.0.extend(same);
    }
    let notices = problems.note_all(directories::inspect(&config.directories, &volumes)).unwrap_or_default();
    for directory in config.directories.iter().filter(|_| notices.is_empty()) {
        let (path, mode) = (directory.path.display(), if directory.read_only { ", read-only" } else { "" });
        summary += &format!("  {:<26}  directory {path}{mode}\n", directory.mount);
    }
    summary.extend(notices.iter().map(|line| format!("  {line}\n")));
    for database in &config.databases {
        if let Some(medium) = problems.note(media::inspect(&database.volume)) {
            let (size, medium_name) = (show_bytes(medium.size), database.volume.medium());
            let (programs, used) = (database.programs.display(), used(&medium));
            let name = &database.name;
            summary += &format!("  {name:<16} {size:>9}  database on {medium_name}{used}, programs in {programs}\n");
        }
    }
    summary += &format!("at: {}\n", addresses(&config));
    problems.or(summary)
}

fn used(medium: &Medium) -> &'static str {
    if medium.in_use { " (in use now)" } else { "" }
}

fn addresses(config: &Config) -> String {
    let settings = &config.settings;
    let mut all = Vec::new();
    if !config.exports.is_empty() {
        all.extend(settings.nbd.iter().map(|address| format!("nbd {address}")));
        all.extend(settings.nbd_unix.iter().map(|path| format!("nbd {}", path.display())));
    }
    if !config.directories.is_empty() {
        all.extend(settings.nfs_addresses().iter().map(|address| format!("nfs {address}")));
        all.extend(settings.nfs_unix.iter().map(|path| format!("nfs {}", path.display())));
    }
    if !config.databases.is_empty() {
        all.extend(settings.postgres_addresses().iter().map(|address| format!("postgres {address}")));
        all.extend(settings.postgres_unix.iter().map(|path| format!("postgres {}", path.display())));
    }
    if all.is_empty() { "sockets passed by systemd".into() } else { all.join(", ") }
}
