//! The configuration: defaults, overridden by the file, overridden by flags; and all problems found in them.
//!
//! A key is declared once: a field, a form of values, its purpose. File, flags, live switches, what is printed and the
//! reference follow from that. Not derived by `serde`, which was tried: it ends at the first problem, which need not be
//! the first in the file, suggests no key, and loses places within an export's kind; and it only reads.

mod client;
mod cluster;
mod database;
mod directory;
mod document;
mod draft;
mod export;
mod export_keys;
mod form;
mod given;
mod key;
mod kind;
mod listen;
mod print;
mod problem;
mod settings;
mod sharing;
mod switches;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use document::TableEntries;
use kernel::Switches;
use kernel::job::Group;
use transactions::terminal::User;

pub use cluster::{Backing, Cluster};
pub use database::Database;
pub use directory::Directory;
pub use draft::Draft;
pub use export::{Behaviour, Export, Store};
pub use export_keys::EXPORT_KEYS;
pub use given::{Given, parse_bytes, parse_duration, show_bytes, show_duration};
pub use key::{Entry, Key, nearest};
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
    /// There is at least one export, directory or database, and all names differ.
    pub directories: Vec<Directory>,
    /// Clients that are one job under a common name.
    pub clients: Vec<Group>,
    pub databases: Vec<Database>,
    /// Who may connect to databases; none: everybody.
    pub users: Vec<User>,
    /// What is right, and may not be meant.
    pub notices: Vec<String>,
    /// Nothing to serve is named, so this is what is served without a configuration.
    pub is_default: bool,
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
        let Some(path) = &overrides.file else { return Config::build(document::Document::default(), overrides) };
        let (document, mode) = read(path)?;
        let notices = database::exposed(&document.users, mode).into_iter().collect();
        Ok(Config { notices, ..Config::build(document, overrides)? })
    }

    /// As [`load`](Config::load), for a server that runs with `running`. A file that names nothing to serve may be one that is
    /// just being written: what is served without a configuration must not be served where others are.
    ///
    /// # Errors
    /// As [`load`](Config::load), or if nothing is to be served any more.
    pub fn load_again(overrides: &Overrides, running: &Config) -> Result<Config, Problems> {
        let config = Config::load(overrides)?;
        match (config.is_default, running.is_default, &overrides.file) {
            (false, ..) => Ok(config),
            (true, false, file) => {
                let file = file.as_ref().map_or_else(String::new, |file| file.display().to_string());
                let problem = Problem::new(&Place::Line { file, line: 0 }, "", "names nothing to serve");
                Err(problem
                    .allowed("an export or database; or a restart, with which the default ones are served")
                    .into())
            }
            // They stay where they are, as `data` does until a restart.
            (true, true, _) => Ok(Config {
                exports: running.exports.clone(),
                directories: running.directories.clone(),
                databases: running.databases.clone(),
                ..config
            }),
        }
    }

    /// The configuration that `text` describes; `file` is its name in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
        Config::build(document::parse(file, text)?, &Overrides::default())
    }

    /// Of disks and databases.
    pub fn volumes(&self) -> impl Iterator<Item = &Export> {
        self.exports.iter().chain(self.databases.iter().map(|database| &database.volume))
    }

    fn build(document: document::Document, overrides: &Overrides) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let (mut settings, mut switches) = (Settings::default(), Switches::default());
        for entry in document.entries.iter().chain(&overrides.entries) {
            problems.note(apply(&mut settings, &mut switches, entry));
        }
        settings.fill_in();
        let clients = client::groups(&document.clients, &mut problems);
        let mut databases = database::databases(&document.databases, &settings.data, &mut problems);
        let users = database::users(&document.users, &mut problems);
        let drafts = drafts(document.exports, overrides, &mut problems);
        // A draft with a refused key would also be reported for missing that key.
        let whole = drafts.into_iter().filter(|draft| !draft.was_refused);
        let described: Vec<Described> = whole.filter_map(|draft| problems.note(describe(draft))).collect();
        problems.refuse_pairs(&described, |one| one.name().0, refuse_same_name);
        let (mut exports, mut directories) = (Vec::new(), Vec::new());
        for one in described {
            match one {
                Described::Disk(export) => exports.push(export),
                Described::Directory(directory) => directories.push(directory),
            }
        }
        let volumes: Vec<&Export> = databases.iter().map(|database| &database.volume).chain(&exports).collect();
        let with_files: Vec<&Export> = volumes.iter().copied().filter(|export| export.path().is_some()).collect();
        problems.refuse_pairs(&with_files, |export| export.path(), |first, export| refuse_same_file(first, export));
        problems.refuse_pairs(&directories, |one| one.mount_names().collect::<Vec<_>>(), refuse_same_mount);
        sharing::check(&settings, &volumes, &mut problems);
        let read_only = overrides.read_only;
        if read_only {
            let refused = databases.iter().map(|database| {
                let key = format!("database {:?}", database.name);
                let problem = Problem::new(&database.place, key, "cannot be served read-only");
                problem.allowed("--read-only without databases")
            });
            problems.0.extend(refused);
        }
        let is_default = exports.is_empty() && directories.is_empty() && databases.is_empty();
        if is_default {
            let place = settings.place("data");
            exports.push(Export { read_only, ..Export::default_disk(&settings.data, place.clone()) });
            if !settings.nfs_addresses().is_empty() {
                directories.push(Directory { read_only, ..Directory::default_files(&settings.data, place.clone()) });
            }
            if !read_only {
                databases.push(Database::default_bank(&settings.data, place));
            }
        }
        if !databases.is_empty() {
            database::check_reach(&settings, &users, &mut problems);
        }
        let notices = Vec::new();
        let config =
            Config { settings, switches, exports, directories, clients, databases, users, notices, is_default };
        listen::check(&config, &mut problems);
        problems.or(config)
    }
}

/// The document in a file, and the file's mode.
fn read(path: &Path) -> Result<(document::Document, u32), Problem> {
    let name = path.display().to_string();
    let read = || {
        let mut file = File::open(path)?;
        Ok((io::read_to_string(&mut file)?, file.metadata()?.mode()))
    };
    let (text, mode) = read().map_err(|error: io::Error| {
        let place = Place::Line { file: name.clone(), line: 0 };
        Problem::new(&place, "", format!("cannot be read: {error}"))
    })?;
    Ok((document::parse(&name, &text)?, mode))
}

fn apply(settings: &mut Settings, switches: &mut Switches, entry: &Entry) -> Result<(), Problem> {
    if let Some(name) = entry.key.strip_prefix(SWITCHES_SECTION) {
        return set_switch(switches, name, &entry.given, &entry.place);
    }
    if let Some(taken) = sharing::take(settings, entry) {
        return taken;
    }
    if SETTINGS.iter().any(|key| key.name == entry.key) {
        settings.places.insert(entry.key.clone(), entry.place.clone());
        return key::apply(&SETTINGS, settings, entry, &entry.key);
    }
    // A switch outside of its section is the commonest mistake.
    if SWITCHES.iter().any(|key| key.name == entry.key) {
        let what = format!("belongs into the section [switches], not {}", section_of(&entry.key));
        return Err(Problem::new(&entry.place, &entry.key, what));
    }
    let names = || SETTINGS.iter().map(|key| key.name);
    if key::is_empty_section(entry, names().chain([SWITCHES_SECTION])) {
        return Ok(());
    }
    let known = names().chain(["export", "client", "database", "user", "switches"]);
    Err(key::unknown(&entry.place, &entry.key, &entry.key, known))
}

fn section_of(key: &str) -> String {
    key.rsplit_once('.').map_or("the top".to_owned(), |(section, _)| format!("[{section}]"))
}

/// The drafts of the file, changed by flags that name the same export, then the exports that only flags name.
fn drafts(tables: Vec<TableEntries>, overrides: &Overrides, problems: &mut Problems) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for TableEntries { place, entries } in tables {
        let mut draft = Draft::at(place);
        draft.take(&entries, problems);
        drafts.push(draft);
    }
    for entries in &overrides.exports {
        let name = entries.iter().find(|entry| entry.key == "name").and_then(|entry| entry.given.text().ok());
        match drafts.iter_mut().find(|draft| name.is_some() && draft.name.as_deref() == name) {
            Some(draft) => draft.take(entries, problems),
            None => {
                let place = entries.first().map_or(Place::Flag("--export".into()), |entry| entry.place.clone());
                let mut draft = Draft::at(place);
                draft.take(entries, problems);
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
    let kind = draft.kind.ok_or_else(|| missing("kind", &form::named(kind::KINDS).allowed))?;
    draft.refuse_keys_of_other_kinds(kind)?;
    match kind {
        Kind::Disk(disk) => Export::from_draft(name, disk, draft).map(Described::Disk),
        Kind::Directory => Directory::from_draft(name, draft).map(Described::Directory),
    }
}

fn refuse_same_name(first: &Described, export: &Described) -> Option<Problem> {
    let ((_, first), (name, place)) = (first.name(), export.name());
    let what = format!("is taken already by the export of {first}");
    Some(Problem::new(place, key::shown("export", Some(name), "name"), what).allowed("a name of its own"))
}

fn refuse_same_mount(first: &Directory, directory: &Directory) -> Option<Problem> {
    let what = format!("= {:?} leads to the export of {} already", directory.mount, first.place);
    Some(Problem::new(&directory.place, directory.key("mount"), what).allowed("a path of its own"))
}

fn refuse_same_file(first: &Export, export: &Export) -> Option<Problem> {
    if first.read_only && export.read_only {
        return None;
    }
    let table = if first.is_database { "database" } else { "export" };
    let what = format!("is served by the {table} of {} already", first.place);
    Some(Problem::new(&export.place, export.key("path"), what).allowed(own_file(first, export)))
}

/// What two that have one file may have instead.
pub fn own_file(first: &Export, export: &Export) -> &'static str {
    let has_database = first.is_database || export.is_database;
    if has_database { "a file of its own" } else { "a file of its own, or read_only = true in both" }
}

#[cfg(test)]
mod tests;
