//! Which shared disks have had blocks in a file of this node. What the other nodes have stored there was durable: a file that
//! is missing at a later start (a disk that is not mounted, a file that was moved) is not made anew, of zeroes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use machine::linux::file::make_directories;

use super::replace;
use crate::config::{Disk, Export, Problem, Problems, Settings, Store};

/// The record of that: a list of the disks' names in JSON, in the data directory.
pub struct Backing {
    node: String,
    record: PathBuf,
}

impl Backing {
    /// That of this node, if it is one.
    pub fn of(settings: &Settings) -> Option<Backing> {
        let node = settings.cluster.node.clone()?;
        Some(Backing { record: settings.data.join(format!("cluster.{node}.backing")), node })
    }

    /// # Errors
    /// The files that are missing, or empty.
    pub fn refuse_missing<'a>(&self, volumes: impl Iterator<Item = &'a Export>) -> Result<(), Problems> {
        let mut problems = Problems::default();
        for (export, path) in volumes.filter_map(|export| Some((export, self.file_of(export)?))) {
            let is_missing = match fs::metadata(path) {
                Ok(found) => found.is_file() && found.len() == 0,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if is_missing && problems.note(self.names(export)).is_some_and(|names| names.contains(&export.name)) {
                let what =
                    format!("= {path:?} is missing or empty: blocks that this node has stored there would be zeroes");
                let (name, record) = (&export.name, self.record.display());
                let allowed =
                    format!("the file, where it is now; or to lose them: take {name:?} out of the list in {record}");
                problems.0.push(Problem::new(&export.place, export.key("backing"), what).allowed(allowed));
            }
        }
        problems.or(())
    }

    /// Notes durably that there is a file for the export, if there is to be one. Nobody may have stored anything there before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn note(&self, export: &Export) -> Result<(), Problem> {
        if self.file_of(export).is_none() {
            return Ok(());
        }
        let mut names = self.names(export)?;
        if !names.insert(export.name.clone()) {
            return Ok(());
        }
        let text = serde_json::to_string(&names).map_err(io::Error::from);
        let made = self.record.parent().map_or(Ok(()), make_directories);
        let written = made.and(text).and_then(|text| replace(&self.record, &format!("{text}\n")));
        written
            .map_err(|error| self.unusable(export, "noted in", &error).allowed("a data directory that can be written"))
    }

    fn names(&self, export: &Export) -> Result<BTreeSet<String>, Problem> {
        match fs::read(&self.record) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|error| self.unusable(export, "looked up in", &error.into()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(self.unusable(export, "looked up in", &error)),
        }
    }

    fn unusable(&self, export: &Export, done: &str, error: &io::Error) -> Problem {
        let what = format!("cannot be {done} {}: {error}", self.record.display());
        Problem::new(&export.place, export.key("backing"), what)
    }

    /// Of blocks whose home this node is.
    fn file_of<'a>(&self, export: &'a Export) -> Option<&'a PathBuf> {
        let is_home = export.homes.is_empty() || export.homes.contains(&self.node);
        match &export.store {
            Store::File { path, .. } if is_home && export.kind == Disk::Shared => Some(path),
            _ => None,
        }
    }
}
