//! The configuration: defaults, overridden by the file, overridden by flags; and all problems found in them.

mod client;
mod directory;
mod document;
mod draft;
mod export;
mod export_keys;
mod given;
mod key;
mod kind;
mod print;
mod problem;
mod settings;
mod switches;

use std::path::PathBuf;

use kernel::Switches;
use kernel::job::Group;

pub use directory::Directory;
pub use draft::Draft;
pub use export::{Behaviour, Export, Store};
pub use export_keys::EXPORT_KEYS;
pub use given::{Given, parse_bytes, parse_duration, show_bytes, show_duration};
pub use key::{Entry, Key};
pub use kind::{Disk, Kind, MECHANICAL, SECTOR_BYTES, StableWrites};
pub use print::{reference, switch_table, switches_help, toml};
pub use problem::{Place, Problem, Problems};
pub use settings::{CONTROL_NAME, Control, Limits, METRICS_PORT, SETTINGS, Settings};
pub use switches::{SWITCHES, change, set_switch};

#[derive(Clone, Debug)]
pub struct Config {
    pub settings: Settings,
    pub switches: Switches,
    pub exports: Vec<Export>,
    /// There is at least one export or directory, and all names differ.
    pub directories: Vec<Directory>,
    /// Clients that are one job under a common name.
    pub clients: Vec<Group>,
}

/// The flags, which override the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub file: Option<PathBuf>,
    pub entries: Vec<Entry>,
    pub exports: Vec<Vec<Entry>>,
    /// Make all exports read-only.
    pub read_only: bool,
}

const SWITCHES_SECTION: &str = "switches.";

impl Config {
    /// Reads the file, if one is named, and applies the flags.
    ///
    /// # Errors
    /// All problems that can be found without looking at disks and addresses.
    pub fn load(overrides: &Overrides) -> Result<Config, Problems> {
        let document = match &overrides.file {
            Some(path) => read(path)?,
            None => document::Document::default(),
        };
        Config::build(document, overrides)
    }

    /// The configuration that `text` describes; `file` is its name in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
        Config::build(document::parse(file, text)?, &Overrides::default())
    }

    fn build(mut document: document::Document, overrides: &Overrides) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let (mut settings, mut switches) = (Settings::default(), Switches::default());
        for entry in document.entries.iter().chain(&overrides.entries) {
            problems.note(apply(&mut settings, &mut switches, entry));
        }
        let written = std::mem::take(&mut document.clients).into_iter().map(|table| (table.place, table.entries));
        let clients = client::groups(written.collect(), &mut problems);
        let drafts = drafts(document, overrides, &mut problems);
        // A draft with a refused key would also be reported for missing that key.
        let whole = drafts.into_iter().filter(|draft| !draft.was_refused);
        let described: Vec<Described> = whole.filter_map(|draft| problems.note(describe(draft))).collect();
        refuse_same_names(&described, &mut problems);
        let (mut exports, mut directories) = (Vec::new(), Vec::new());
        for one in described {
            match one {
                Described::Disk(export) => exports.push(export),
                Described::Directory(directory) => directories.push(directory),
            }
        }
        refuse_same_files(&exports, &mut problems);
        refuse_same_mounts(&directories, &mut problems);
        let read_only = overrides.read_only;
        if exports.is_empty() && directories.is_empty() {
            let place = settings.place("data");
            exports.push(Export { read_only, ..Export::default_disk(&settings.data, place.clone()) });
            if !settings.nfs_addresses().is_empty() {
                directories.push(Directory { read_only, ..Directory::default_files(&settings.data, place) });
            }
        }
        problems.or(Config { settings, switches, exports, directories, clients })
    }
}

fn read(path: &PathBuf) -> Result<document::Document, Problem> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let place = Place::Line { file: file.clone(), line: 0 };
        Problem::new(&place, "", format!("cannot be read: {error}"))
    })?;
    document::parse(&file, &text)
}

fn apply(settings: &mut Settings, switches: &mut Switches, entry: &Entry) -> Result<(), Problem> {
    if let Some(name) = entry.key.strip_prefix(SWITCHES_SECTION) {
        return set_switch(switches, name, &entry.given, &entry.place);
    }
    if SETTINGS.iter().any(|key| key.name == entry.key) {
        settings.places.insert(entry.key.clone(), entry.place.clone());
        return key::apply(SETTINGS, settings, entry, &entry.key);
    }
    // A switch outside of its section is the commonest mistake.
    if SWITCHES.iter().any(|key| key.name == entry.key) {
        let what = format!("belongs into the section [switches], not {}", section_of(&entry.key));
        return Err(Problem::new(&entry.place, &entry.key, what));
    }
    let known = SETTINGS.iter().map(|key| key.name).chain(["export", "client", "switches"]);
    Err(key::unknown(&entry.place, &entry.key, &entry.key, known))
}

fn section_of(key: &str) -> String {
    key.rsplit_once('.').map_or("the top".to_owned(), |(section, _)| format!("[{section}]"))
}

/// The drafts of the file, changed by flags that name the same export, then the exports that only flags name.
fn drafts(document: document::Document, overrides: &Overrides, problems: &mut Problems) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for export in document.exports {
        let mut draft = Draft::at(export.place);
        take(&mut draft, &export.entries, problems);
        drafts.push(draft);
    }
    for entries in &overrides.exports {
        let name = entries.iter().find(|entry| entry.key == "name").map(|entry| &entry.given);
        let named = drafts
            .iter_mut()
            .find(|draft| name.is_some() && draft.name.as_ref().map(|name| Given::Text(name.clone())).as_ref() == name);
        match named {
            Some(draft) => take(draft, entries, problems),
            None => {
                let place = entries.first().map_or(Place::Flag("--export".into()), |entry| entry.place.clone());
                let mut draft = Draft::at(place);
                take(&mut draft, entries, problems);
                drafts.push(draft);
            }
        }
    }
    if overrides.read_only {
        drafts.iter_mut().for_each(|draft| {
            draft.read_only = Some(true);
            draft.create = None;
        });
    }
    drafts
}

fn take(draft: &mut Draft, entries: &[Entry], problems: &mut Problems) {
    // The name first: it is part of every message.
    let (names, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.key == "name");
    for entry in names.into_iter().chain(rest) {
        let taken = draft.take(entry);
        draft.was_refused |= taken.is_err();
        problems.note(taken);
    }
}

enum Described {
    Disk(Export),
    Directory(Directory),
}

impl Described {
    fn name(&self) -> (&str, &Place) {
        match self {
            Described::Disk(export) => (&export.name, &export.place),
            Described::Directory(directory) => (&directory.name, &directory.place),
        }
    }
}

fn describe(draft: Draft) -> Result<Described, Problem> {
    let missing = |key, allowed: &str| Problem::new(&draft.place, draft.key(key), "is missing").allowed(allowed);
    let name = draft.name.clone().ok_or_else(|| missing("name", "the name that clients will ask for"))?;
    let kind = draft.kind.ok_or_else(|| missing("kind", Kind::ALLOWED))?;
    draft.refuse_keys_of_other_kinds(kind)?;
    match kind {
        Kind::Disk(disk) => Export::from_draft(name, disk, draft).map(Described::Disk),
        Kind::Directory => Directory::from_draft(name, draft).map(Described::Directory),
    }
}

fn refuse_same_names(exports: &[Described], problems: &mut Problems) {
    for (index, export) in exports.iter().enumerate() {
        let (name, place) = export.name();
        if let Some(first) = exports[..index].iter().find(|first| first.name().0 == name) {
            let what = format!("is taken already by the export of {}", first.name().1);
            let problem = Problem::new(place, format!("export {name:?} name"), what);
            problems.0.push(problem.allowed("a name of its own"));
        }
    }
}

fn refuse_same_mounts(directories: &[Directory], problems: &mut Problems) {
    for (index, directory) in directories.iter().enumerate() {
        let is_same = |first: &&Directory| first.mount_names().eq(directory.mount_names());
        if let Some(first) = directories[..index].iter().find(is_same) {
            let what = format!("= {:?} leads to the export of {} already", directory.mount, first.place);
            let problem = Problem::new(&directory.place, directory.key("mount"), what);
            problems.0.push(problem.allowed("a path of its own"));
        }
    }
}

fn refuse_same_files(exports: &[Export], problems: &mut Problems) {
    for (index, export) in exports.iter().enumerate() {
        let is_shared = |first: &&Export| {
            export.path().is_some() && first.path() == export.path() && !(first.read_only && export.read_only)
        };
        if let Some(first) = exports[..index].iter().find(is_shared) {
            let what = format!("is served by the export of {} already", first.place);
            let problem = Problem::new(&export.place, export.key("path"), what);
            problems.0.push(problem.allowed("a file of its own, or read_only = true in both"));
        }
    }
}

#[cfg(test)]
mod tests;
