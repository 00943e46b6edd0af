//! `awase check`: everything that can be known of a configuration without serving it.

use std::process::ExitCode;

use crate::config::{Config, Overrides, Problems, show_bytes};
use crate::media;

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
    let settings = &config.settings;
    let addresses = settings.nbd.iter().map(ToString::to_string);
    let sockets = settings.unix_sockets();
    let sockets = sockets.iter().map(|path| path.display().to_string());
    let all: Vec<_> = addresses.chain(sockets).collect();
    summary += &format!("at: {}\n", if all.is_empty() { "sockets passed by systemd".into() } else { all.join(", ") });
    problems.or(summary)
}
