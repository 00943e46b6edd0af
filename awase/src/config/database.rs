//! Databases: the volume that each is on, and its programs; and who may call them.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use transactions::store::{DATABASE_BYTES_MAX, DATABASE_BYTES_MIN};
use transactions::terminal::{User, Verifier};

use super::document::TableEntries;
use super::draft::{Draft, OF_SHARED_DISKS, OF_VOLUMES};
use super::export::{Behaviour, Export, Store};
use super::export_keys::EXPORT_KEYS;
use super::form::{Form, optional, path, text};
use super::given::{Given, Refusal, show_bytes};
use super::key::{Key, Keys, apply_all, keys, shown};
use super::kind::{Disk, Kind, StableWrites};
use super::problem::{Place, Problem, Problems};
use super::settings::Settings;

/// Size of the database that there is when nothing is configured. It is sparse.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Of a new one.
const SIZES: RangeInclusive<u64> = DATABASE_BYTES_MIN..=DATABASE_BYTES_MAX;

/// Longest name of a user or database, in bytes, as in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;

/// What no password begins with.
const VERIFIER_BEGIN: &str = "SCRAM-SHA-256$";

/// Permission of everybody to read a file.
const OTHERS_READ: u32 = 0o004;

/// Most users.
const USERS_MAX: usize = 1024;

/// Keys of a disk that a database has, too, besides those of its volume.
const OF_FILES: &[&str] = &["kind", "path", "create"];

#[derive(Clone, Debug, PartialEq)]
pub struct Database {
    pub name: String,
    /// Its volume, described as a disk; clients of NBD do not see it.
    pub volume: Export,
    /// The directory of its programs.
    pub programs: PathBuf,
    /// There by default, not configured: the server starts even if nobody can reach it.
    pub optional: bool,
    pub place: Place,
}

/// Keys that a disk has not, or as something else.
static OWN_KEYS: Keys<Draft> = keys! { Draft:
    name: optional(name_form("a text of 1 to 63 bytes")),
        "The name that clients connect to; required";
    programs: optional(path("a directory")),
        "The directory of its programs (default: the directory of the database's name in `programs` in `data`)";
};

pub static DATABASE_KEYS: LazyLock<Vec<Key<Draft>>> = LazyLock::new(|| {
    let is_of_volume = |key: &&Key<Draft>| [OF_FILES, OF_VOLUMES, OF_SHARED_DISKS].concat().contains(&key.name);
    let volume = EXPORT_KEYS.iter().filter(is_of_volume).map(|key| {
        let (about, allowed) = match key.name {
            "kind" => (
                "Where it is: in a file (the default), on a block device, in memory, on the papers' device, or on a disk \
                 shared by the nodes of a cluster, of which one has it open at a time (needs `cluster.etcd`)",
                "\"file\", \"block\", \"ram\", \"testdev\", \"shared\"",
            ),
            "path" => ("The file or device", &*key.allowed),
            "size" => (
                "The size; with it, a file that does not exist is created, sparse",
                "a size from \"8MiB\" to \"16TiB\" such as \"1GiB\", that is a multiple of 512 (shared disks: of 4096)",
            ),
            _ => (key.about.strip_prefix("Disks: ").unwrap_or(key.about), &*key.allowed),
        };
        Key { about, allowed: allowed.to_owned(), ..same(key) }
    });
    OWN_KEYS.iter().map(same).chain(volume).collect()
});

/// The same key, of another table.
fn same(key: &'static Key<Draft>) -> Key<Draft> {
    let Key { name, allowed, about, paper, .. } = key;
    let set = |draft: &mut Draft, given: &Given| (key.set)(draft, given);
    let show = |draft: &Draft| (key.show)(draft);
    Key { name, allowed: allowed.clone(), about, paper, set: Box::new(set), show: Box::new(show) }
}

fn name_form(allowed: &str) -> Form<String> {
    text(allowed).unless(|name| match name.len() {
        bytes if bytes > NAME_BYTES_MAX => Some(format!("is {bytes} bytes long, more than {NAME_BYTES_MAX}")),
        _ if name.contains(|c: char| c.is_control() || c == '/') => Some("holds a slash or a control character".into()),
        _ => matches!(name.as_str(), "." | "..").then(|| "cannot be the name of a directory".into()),
    })
}

impl Database {
    /// The database that there is when no export is configured; `place` is where `data` was set.
    pub fn default_bank(data: &Path, place: Place) -> Database {
        let name = "bank".to_owned();
        Database {
            volume: Export {
                name: name.clone(),
                description: String::new(),
                kind: Disk::File,
                store: Store::File { path: data.join("bank.db"), size: Some(DEFAULT_BYTES), create: true },
                behaviour: Behaviour::Plain,
                read_only: false,
                block_size: 1,
                stable_writes: StableWrites::Auto,
                access: None,
                delay: std::time::Duration::ZERO,
                faults: kernel::device::Faults::default(),
                homes: Vec::new(),
                overlay: None,
                is_database: true,
                place: place.clone(),
            },
            programs: default_programs(data, &name),
            name,
            optional: true,
            place,
        }
    }

    /// # Errors
    /// The first key that is missing, impossible or contradicts another.
    fn from_draft(mut draft: Draft, data: &Path) -> Result<Database, Problem> {
        let name =
            draft.name.clone().ok_or_else(|| draft.missing("name").allowed("the name that clients connect to"))?;
        let disk = match draft.kind {
            None => Disk::File,
            Some(Kind::Disk(disk)) => disk,
            Some(Kind::Directory) => {
                let allowed = "\"file\", \"block\", \"ram\", \"testdev\", \"shared\"";
                return Err(draft.problem("kind", "is none that a database can be on").allowed(allowed));
            }
        };
        draft.kind = Some(Kind::Disk(disk));
        draft.refuse_keys_of_other_kinds(Kind::Disk(disk))?;
        if disk == Disk::File && draft.size.is_some() {
            draft.create = draft.create.or(Some(true));
        }
        if let Some(size) = draft.size.filter(|size| !SIZES.contains(size))
            && (size < DATABASE_BYTES_MIN || is_made(&draft, disk))
        {
            let why = match size < DATABASE_BYTES_MIN {
                true => "less than a database needs",
                false => "more than a new database can have",
            };
            let what = format!("= {:?} is {why}", show_bytes(size));
            let allowed =
                format!("a size from {} to {}", show_bytes(DATABASE_BYTES_MIN), show_bytes(DATABASE_BYTES_MAX));
            return Err(draft.problem("size", what).allowed(allowed));
        }
        let programs = draft.programs.clone().unwrap_or_else(|| default_programs(data, &name));
        let place = draft.place.clone();
        let volume = Export::from_draft(name.clone(), disk, draft)?;
        Ok(Database { name, volume, programs, optional: false, place })
    }

    pub fn key(&self, key: &str) -> String {
        self.volume.key(key)
    }
}

/// Is it certain that there is no database yet? An existing one may be larger, and else it is found when it is opened; but a
/// file would have been made by then.
fn is_made(draft: &Draft, disk: Disk) -> bool {
    disk != Disk::Shared && draft.path.as_ref().is_none_or(|path| !path.exists())
}

fn default_programs(data: &Path, name: &str) -> PathBuf {
    data.join("programs").join(name)
}

impl From<&Database> for Draft {
    fn from(database: &Database) -> Draft {
        Draft {
            programs: Some(database.programs.clone()),
            read_only: None,
            block_size: None,
            ..Draft::from(&database.volume)
        }
    }
}

/// The databases of the tables `[[database]]`.
pub(super) fn databases(tables: &[TableEntries], data: &Path, problems: &mut Problems) -> Vec<Database> {
    let mut databases = Vec::new();
    for TableEntries { place, entries } in tables {
        let mut draft = Draft { is_database: true, ..Draft::at(place.clone()) };
        if apply_all(&DATABASE_KEYS, &mut draft, entries, Draft::key, problems) {
            draft.places.extend(entries.iter().map(|entry| (entry.key.clone(), entry.place.clone())));
            databases.extend(problems.note(Database::from_draft(draft, data)));
        }
    }
    problems.refuse_pairs(
        &databases,
        |database| database.name.clone(),
        |first, database| {
            let what = format!("is taken already by the database of {}", first.place);
            Some(Problem::new(&database.place, database.key("name"), what).allowed("a name of its own"))
        },
    );
    databases
}

/// A user as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserDraft {
    name: Option<String>,
    password: Option<Verifier>,
}

pub static USER_KEYS: Keys<UserDraft> = keys! { UserDraft:
        name: optional(name_form("a text of 1 to 63 bytes")),
            "The name under which clients of databases connect; required";
        password: optional(Form { show: Box::new(|verifier: &Verifier| Some(super::form::quoted(verifier))), ..password() }),
            "The password, or the verifier that PostgreSQL stores of it (`pg_authid.rolpassword`); printed as a verifier; \
             required";
};

fn password() -> Form<Verifier> {
    let allowed = "a text of printable ASCII characters, or a verifier that begins with \"SCRAM-SHA-256$\"";
    Form::new(
        allowed,
        |given| {
            let text = given.filled_text()?;
            if text.starts_with(VERIFIER_BEGIN) {
                return Verifier::parse(text).ok_or_else(|| Refusal::Because("is no verifier".into()));
            }
            // What SASLprep would change, clients may prepare differently.
            let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            if !is_plain {
                return Err(Refusal::NotAllowed);
            }
            let mut salt = [0; 16];
            getrandom::fill(&mut salt).map_err(|error| Refusal::Because(format!("cannot be salted: {error}")))?;
            Ok(Verifier::of_password(text, &salt))
        },
        Verifier::to_string,
    )
}

/// The users of the tables `[[user]]`.
pub(super) fn users(tables: &[TableEntries], problems: &mut Problems) -> Vec<User> {
    if let Some(TableEntries { place, .. }) = tables.get(USERS_MAX) {
        problems.0.push(Problem::new(place, "user", "is one too many").allowed(format!("{USERS_MAX} of them")));
    }
    let mut users: Vec<(Place, User)> = Vec::new();
    for TableEntries { place, entries } in tables.iter().take(USERS_MAX) {
        let key = |draft: &UserDraft, key: &str| shown("user", draft.name.as_deref(), key);
        let mut draft = UserDraft::default();
        if !apply_all(&USER_KEYS, &mut draft, entries, key, problems) {
            continue;
        }
        let missing = if draft.name.is_none() { "name" } else { "password" };
        match draft {
            UserDraft { name: Some(name), password: Some(verifier) } => {
                users.push((place.clone(), User { name, verifier }));
            }
            draft => problems.0.push(Problem::new(place, key(&draft, missing), "is missing")),
        }
    }
    problems.refuse_pairs(
        &users,
        |(_, user)| user.name.clone(),
        |(first, _), (place, user)| {
            let what = format!("is taken already by the user of {first}");
            Some(Problem::new(place, shown("user", Some(&user.name), "name"), what).allowed("a name of its own"))
        },
    );
    users.into_iter().map(|(_, user)| user).collect()
}

/// A notice where a password stands in a file that everybody on this host may read. `mode`: the file's.
pub(super) fn exposed(tables: &[TableEntries], mode: u32) -> Option<String> {
    let is_password = |given: &Given| given.text().is_ok_and(|text| !text.starts_with(VERIFIER_BEGIN));
    let mut entries = tables.iter().flat_map(|table| &table.entries);
    let entry = entries.find(|entry| entry.key == "password" && is_password(&entry.given))?;
    (mode & OTHERS_READ != 0).then(|| {
        format!(
            "{}: everybody on this host may read this password (mode {:04o}); take that from others (chmod o-r), or write \
             the verifier that awase config prints",
            entry.place,
            mode & 0o7777
        )
    })
}

/// For printing.
pub(super) fn user_draft(user: &User) -> UserDraft {
    UserDraft { name: Some(user.name.clone()), password: Some(user.verifier.clone()) }
}

/// Without users, everybody who reaches a database may use it: those are on this host.
pub(super) fn check_reach(settings: &Settings, users: &[User], problems: &mut Problems) {
    if !users.is_empty() {
        return;
    }
    if let Some(address) = settings.postgres_addresses().iter().find(|address| !address.ip().is_loopback()) {
        let key = "listen.postgres";
        let what = format!("holds {address}, which other hosts reach, and there are no users with passwords");
        let problem = Problem::new(&settings.place(key), key, what);
        problems.0.push(problem.allowed("addresses of loopback, or a table [[user]] for each who may connect"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::{Config, Overrides, toml};
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        Config::parse("awase.toml", text).map_err(|problems| problems.to_string())
    }

    const BANK: &str = "[[database]]\nname = \"bank\"\npath = \"b.db\"\nsize = \"64MiB\"\n";

    #[test]
    fn a_database_is_on_a_file_unless_said_otherwise_and_is_printed_as_it_was_read() {
        let text =
            format!("{BANK}programs = \"p\"\n[[database]]\nname = \"memory\"\nkind = \"ram\"\nsize = \"64MiB\"\n");
        let read = config(&text).expect("good");
        let store = Store::File { path: "b.db".into(), size: Some(64 << 20), create: true };
        assert_eq!(read.databases[0].volume.store, store);
        assert_eq!(read.databases[0].programs, Path::new("p"));
        assert_eq!(read.databases[1].volume.store, Store::Ram { size: 64 << 20 });
        assert_eq!(read.databases[1].programs, Path::new("awase-data/programs/memory"));
        assert!(read.exports.is_empty() && read.directories.is_empty(), "nothing else is served by default then");
        let again = config(&toml(&read)).expect("as printed");
        let stores = |config: &Config| -> Vec<_> {
            config.databases.iter().map(|of| (of.name.clone(), of.volume.store.clone(), of.programs.clone())).collect()
        };
        assert_eq!(stores(&again), stores(&read));
    }

    #[test]
    fn without_exports_there_is_a_bank() {
        let read = config("data = \"d\"").expect("good");
        assert_eq!(read.databases, [Database::default_bank(Path::new("d"), read.settings.place("data"))]);
        assert_eq!(read.settings.postgres_unix, [PathBuf::from("d/.s.PGSQL.5433")]);
        assert!(
            config("[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1M\"\n").expect("good").databases.is_empty()
        );
    }

    #[test]
    fn databases_do_not_go_with_read_only() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let file = directory.path().join("awase.toml");
        let load = |text: &str| {
            std::fs::write(&file, text).expect("write");
            Config::load(&Overrides { file: Some(file.clone()), read_only: true, ..Overrides::default() })
        };
        let message = load(BANK).expect_err("it takes changes").to_string();
        assert!(message.contains("awase.toml:1: database \"bank\" cannot be served read-only"), "{message}");
        assert!(load("").expect("good").databases.is_empty());
    }

    #[test]
    fn passwords_are_printed_as_verifiers_that_are_read_again() {
        let text = format!("{BANK}[[user]]\nname = \"ann\"\npassword = \"pencil\"\n");
        let read = config(&text).expect("good");
        let printed = toml(&read);
        assert!(!printed.contains("pencil") && printed.contains("SCRAM-SHA-256$4096:"), "{printed}");
        assert_eq!(config(&printed).expect("as printed").users, read.users);
    }

    #[test]
    fn a_password_that_everybody_may_read_is_told_and_a_verifier_is_not() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let file = directory.path().join("awase.toml");
        let notices = |mode: u32, password: &str| {
            let text = format!("{BANK}[[user]]\nname = \"a\"\npassword = \"{password}\"\n");
            std::fs::write(&file, &text).expect("write");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("chmod");
            Config::load(&Overrides { file: Some(file.clone()), ..Overrides::default() }).expect("good").notices
        };
        let told = notices(0o644, "pencil");
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains("awase.toml:7: everybody on this host may read this password (mode 0644)"),
            "{told:?}"
        );
        assert!(!told[0].contains("pencil"));
        // A group is how a server that is not root may read it.
        for (mode, password) in [(0o640, "pencil"), (0o600, "pencil"), (0o644, &*verifier())] {
            assert_eq!(notices(mode, password), [""; 0], "{mode:o} {password}");
        }
    }

    fn verifier() -> String {
        Verifier::of_password("pencil", &[7; 16]).to_string()
    }

    #[test]
    fn a_problem_with_a_database_or_user_names_the_line_and_what_is_allowed() {
        let user = "[[user]]\nname = \"a\"\npassword = \"p\"\n";
        for (text, expected) in [
            ("[[database]]\npath = \"x\"\n".to_owned(), "awase.toml:1: database name is missing"),
            ("[[database]]\nname = \"a\"\n".into(), "database \"a\" path is missing"),
            ("[[database]]\nname = \"a/b\"\nkind = \"ram\"\nsize = \"64M\"\n".into(), "holds a slash"),
            (
                "[[database]]\nname = \"a\"\nkind = \"shared\"\nsize = \"64M\"\nbacking = \"memory\"\n".into(),
                "awase.toml:1: database \"a\" kind = \"shared\" needs cluster.etcd",
            ),
            (
                "[[database]]\nname = \"a\"\nkind = \"directory\"\npath = \"/\"\n".into(),
                "none that a database can be on",
            ),
            (
                "[[database]]\nname = \"a\"\npath = \"a.db\"\nsize = \"4MiB\"\n".into(),
                "awase.toml:4: database \"a\" size = \"4MiB\" is less than a database needs; allowed: a size from 8MiB",
            ),
            (
                "[[database]]\nname = \"a\"\nkind = \"ram\"\nsize = \"17TiB\"\n".into(),
                "awase.toml:4: database \"a\" size = \"17TiB\" is more than a new database can have; allowed: a size from 8MiB to 16TiB",
            ),
            (format!("{BANK}read_only = true\n"), "read_only is not a known key"),
            (format!("{BANK}program = \"x\"\n"), "did you mean \"programs\"?"),
            (format!("{BANK}{BANK}"), "is taken already by the database of awase.toml:1"),
            (
                format!("{BANK}[[export]]\nname = \"e\"\nkind = \"file\"\npath = \"b.db\"\n"),
                "export \"e\" path is served by the database of awase.toml:1 already",
            ),
            ("database = 1\n".into(), "is not a list of tables"),
            (format!("{BANK}[[user]]\nname = \"a\"\n"), "user \"a\" password is missing"),
            (format!("{BANK}[[user]]\npassword = \"p\"\n"), "user name is missing"),
            (format!("{BANK}[[user]]\nname = \"a\"\npassword = \"pä\"\n"), "printable ASCII"),
            (format!("{BANK}[[user]]\nname = \"a\"\npassword = \"SCRAM-SHA-256$x\"\n"), "is no verifier"),
            (format!("{BANK}{user}{user}"), "is taken already by the user of"),
            (
                format!("[listen]\npostgres = [\"127.0.0.1\", \"10.0.0.1\"]\n{BANK}"),
                "awase.toml:2: listen.postgres holds 10.0.0.1:5433, which other hosts reach, and there are no users",
            ),
        ] {
            let problem = config(&text).expect_err(&text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
        // There may be a database.
        assert!(config("[[database]]\nname = \"a\"\npath = \"/dev/null\"\nsize = \"17TiB\"\n").is_ok());
        assert!(config(&format!("[listen]\npostgres = \"0.0.0.0\"\n{BANK}{user}")).is_ok());
    }
}
