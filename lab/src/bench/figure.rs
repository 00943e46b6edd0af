//! The figures that are to be reached, and the files of reports.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A figure: its name, its target, and what was measured with whether that meets the target.
pub struct Figure {
    pub name: String,
    pub target: String,
    pub measured: Option<(String, bool)>,
}

impl Figure {
    pub fn new(name: impl Into<String>, target: impl Into<String>, measured: Option<(String, bool)>) -> Figure {
        Figure { name: name.into(), target: target.into(), measured }
    }
}

/// As Markdown; `of` is what the names are.
pub fn table(of: &str, figures: &[Figure]) -> String {
    let mut text = format!("| {of} | target | measured | met |\n|---|---|---|---|\n");
    for Figure { name, target, measured } in figures {
        let (measured, met) = measured.as_ref().map_or(("not measured", false), |(text, met)| (text.as_str(), *met));
        text += &format!("| {name} | {target} | {measured} | {} |\n", if met { "yes" } else { "**no**" });
    }
    text
}

/// Writes a file of a report, and says so.
pub fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("written: {}", path.display());
    Ok(())
}
