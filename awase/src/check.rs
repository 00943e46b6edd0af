//! `awase check`: everything that can be known of a configuration without serving it.

use std::process::ExitCode;

use crate::config::{Config, Overrides, Problems, show_bytes};
use crate::{directories, media};

/// Prints what would be served, or everything that is wrong.
pub fn check(overrides: &Overrides) -> ExitCode {
    match examine(overrides) {
        Ok(summary) => {
            print!("{summary}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            for problem in &problems.0 {
                eprintln!("awase: {problem}");
            }
            ExitCode::from(2)
        }
    }
}

/// What would be served, in lines.
///
/// # Errors
/// Everything that is wrong.
pub fn examine(overrides: &Overrides) -> Result<String, Problems> {
    let config = Config::load(overrides)?;
    let mut problems = Problems::default();
    let mut summary = String::from("The configuration is right. It serves:\n");
    let mut media = Vec::new();
    for export in &config.exports {
        if let Some(medium) = problems.note(media::inspect(export)) {
            let mode = if export.read_only { ", read-only" } else { "" };
            summary += &format!("  {:<16} {:>9}  {}{mode}\n", export.name, show_bytes(medium.size), export.medium());
            // Kept, so that two exports of one file find each other's lock.
            media.push(medium);
        }
    }
    let told = problems.note_all(directories::inspect(&config.directories, &config.exports)).unwrap_or_default();
    for directory in config.directories.iter().filter(|_| told.is_empty()) {
        let (path, mode) = (directory.path.display(), if directory.read_only { ", read-only" } else { "" });
        summary += &format!("  {:<26}  directory {path}{mode}\n", directory.mount);
    }
    summary.extend(told.iter().map(|line| format!("  {line}\n")));
    summary += &format!("at: {}\n", places(&config));
    problems.or(summary)
}

/// Where clients will find it.
fn places(config: &Config) -> String {
    let settings = &config.settings;
    let mut all = Vec::new();
    if !config.exports.is_empty() {
        all.extend(settings.nbd.iter().map(|address| format!("nbd {address}")));
        all.extend(settings.unix_sockets().iter().map(|path| format!("nbd {}", path.display())));
    }
    if !config.directories.is_empty() {
        all.extend(settings.nfs_addresses().iter().map(|address| format!("nfs {address}")));
        all.extend(settings.nfs_unix.iter().map(|path| format!("nfs {}", path.display())));
    }
    if all.is_empty() { "sockets passed by systemd".into() } else { all.join(", ") }
}
