//! The sockets on which clients are awaited: handed over by systemd, or made here.

use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kernel::connection::Protocol as _;
use listenfd::ListenFd;
use machine::linux::file::make_directories;
use machine::linux::net::{
    Address, ListeningSocket, NetError, adopt_listener, examine_tcp, examine_unix, listen_tcp, listen_unix,
    listen_unix_private,
};
use nbd::Nbd;
use nfs::Nfs;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use transactions::terminal::Terminals;

use crate::config::{Config, Control, Database, Directory, Place, Problem, Problems, Settings};
use crate::predecessor::Deadline;
use crate::tell::tell;

const TCP_KEY: &str = "listen.nbd";
const UNIX_KEY: &str = "listen.nbd_unix";
const CONTROL_KEY: &str = "listen.control";
const METRICS_KEY: &str = "listen.metrics";
const SHM_KEY: &str = "listen.shm";
const NFS_KEY: &str = "listen.nfs";
const POSTGRES_KEY: &str = "listen.postgres";
const POSTGRES_UNIX_KEY: &str = "listen.postgres_unix";
const NFS_UNIX_KEY: &str = "listen.nfs_unix";

/// What systemd calls sockets of NFS and of databases (`FileDescriptorName=`); all others are of NBD.
const NAMED: [&str; 2] = [Nfs::NAME, Terminals::NAME];

/// Those on which clients are awaited, each with the name of what is spoken there.
#[derive(Debug, Default)]
pub struct Sockets(Vec<(&'static str, ListeningSocket)>);

/// The export `name` at `address`, as clients write it (NBD URI specification).
pub fn uri(address: &Address, name: &str) -> String {
    let name = percent_encoded(name);
    match address {
        Address::Tcp(address) => format!("nbd://{address}/{name}"),
        Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", path.display()),
        Address::Unnamed => format!("nbd+unix:///{name}"),
    }
}

/// The directory that is mounted by `mount` at `address`, as libnfs writes it. `None` where it cannot go.
pub fn nfs_uri(address: &Address, mount: &str) -> Option<String> {
    let Address::Tcp(address) = address else { return None };
    let (host, port) = (address.ip(), address.port());
    let host = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
    Some(format!("nfs://{host}{}?nfsport={port}&mountport={port}", percent_encoded(mount)))
}

/// The database `name` at `address`, as clients of PostgreSQL write it.
pub fn postgres_uri(address: &Address, name: &str) -> String {
    let name = percent_encoded(name);
    match address {
        Address::Tcp(address) => format!("postgres://{address}/{name}"),
        Address::Unix(path) => format!("postgres:///{name} at {}", path.display()),
        Address::Unnamed => format!("postgres:///{name}"),
    }
}

fn percent_encoded(name: &str) -> PercentEncode<'_> {
    /// All but what RFC 3986 calls unreserved, and what divides a path.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    utf8_percent_encode(name, ENCODED)
}

impl Sockets {
    /// Takes over the sockets that systemd passed (`LISTEN_FDS`); for what it passed none, makes those of the
    /// configuration. Waits with `deadline` for a server before this one. Also returns whether any were passed.
    ///
    /// # Errors
    /// When a socket is in use, not permitted or not of a kind that can be served.
    pub fn open(config: &Config, deadline: Deadline) -> Result<(Sockets, bool), Problems> {
        let mut sockets = activated()?;
        let any_passed = !sockets.0.is_empty();
        let (settings, any_disks) = (&config.settings, !config.exports.is_empty());
        let made = sockets.make_missing(settings, any_disks, &config.directories, &config.databases, deadline)?;
        sockets.take(made);
        Ok((sockets, any_passed))
    }

    /// Makes those of the configuration that are needed for disks, if there are any, for `directories` and for
    /// `databases`, and are not there yet.
    ///
    /// # Errors
    /// As [`Sockets::open`]. That directories or databases which nobody asked for cannot be reached is only told.
    pub fn make_missing(
        &self,
        settings: &Settings,
        any_disks: bool,
        directories: &[Directory],
        databases: &[Database],
        deadline: Deadline,
    ) -> Result<Sockets, Problems> {
        let (mut made, mut problems) = (Sockets::default(), Problems::default());
        if any_disks && !self.has(Nbd::NAME) {
            made.add(Nbd::NAME, problems.note_all(for_disks(settings, deadline)).into_iter().flatten());
        }
        if !directories.is_empty() && !self.has(Nfs::NAME) {
            match for_directories(settings, deadline) {
                Err(refused) if directories.iter().all(|directory| directory.optional) => {
                    tell(format_args!("no directory is served: {refused}"));
                }
                result => made.add(Nfs::NAME, problems.note_all(result).into_iter().flatten()),
            }
        }
        if !databases.is_empty() && !self.has(Terminals::NAME) {
            match for_databases(settings, deadline) {
                Err(refused) if databases.iter().all(|database| database.optional) => {
                    tell(format_args!("no database can be reached: {refused}"));
                }
                result => made.add(Terminals::NAME, problems.note_all(result).into_iter().flatten()),
            }
        }
        problems.or(made)
    }

    /// Without users, everybody who reaches a database may use it: those are on this host.
    ///
    /// # Errors
    /// The first socket at which others reach databases.
    pub fn check_reach(&self, settings: &Settings) -> Result<(), Problem> {
        let is_reached = |address: &&Address| matches!(address, Address::Tcp(at) if !at.ip().is_loopback());
        let Some(address) = self.of(Terminals::NAME).map(ListeningSocket::address).find(is_reached) else {
            return Ok(());
        };
        let what = format!("is open at {address}, which other hosts reach, and there are no users with passwords");
        let allowed = "a table [[user]] for each who may connect, or a start with sockets of loopback";
        Err(problem(settings, POSTGRES_KEY, what).allowed(allowed))
    }

    fn add(&mut self, protocol: &'static str, sockets: impl IntoIterator<Item = ListeningSocket>) {
        self.0.extend(sockets.into_iter().map(|socket| (protocol, socket)));
    }

    /// Those of one protocol.
    pub fn of(&self, protocol: &str) -> impl Iterator<Item = &ListeningSocket> {
        self.0.iter().filter(move |(of, _)| *of == protocol).map(|(_, socket)| socket)
    }

    pub fn has(&self, protocol: &str) -> bool {
        self.of(protocol).next().is_some()
    }

    /// Takes out those of one protocol, which end with that.
    pub fn close(&mut self, protocol: &str) {
        self.0.retain(|(of, _)| *of != protocol);
    }

    pub fn take(&mut self, others: Sockets) {
        self.0.extend(others.0);
    }

    pub fn iter(&self) -> impl Iterator<Item = &ListeningSocket> {
        self.0.iter().map(|(_, socket)| socket)
    }
}

/// What of the sockets of a configuration this host refuses, as far as that can be known without making them.
///
/// # Errors
/// All problems, but for those of what is only told if it cannot be served.
pub fn inspect(config: &Config) -> Result<(), Problems> {
    let (settings, mut problems) = (&config.settings, Problems::default());
    let (nfs, postgres) = (settings.nfs_addresses(), settings.postgres_addresses());
    let has_directories = config.directories.iter().any(|directory| !directory.optional);
    let has_databases = config.databases.iter().any(|database| !database.optional);
    let tcp: [(bool, &str, &[SocketAddr]); 4] = [
        (!config.exports.is_empty(), TCP_KEY, &settings.nbd),
        (has_directories, NFS_KEY, &nfs),
        (has_databases, POSTGRES_KEY, &postgres),
        (true, METRICS_KEY, settings.metrics.as_deref().unwrap_or_default()),
    ];
    for (_, key, addresses) in tcp.into_iter().filter(|(is_served, ..)| *is_served) {
        for address in addresses {
            let examined = examine_tcp(*address);
            problems.note(examined.map_err(|error| refused(settings, key, &error, OWN_ADDRESS)));
        }
    }
    // One in the data directory is only told.
    let control = match &settings.control {
        Control::At(path) => vec![path.clone()],
        _ => Vec::new(),
    };
    let unix = [
        (!config.exports.is_empty(), UNIX_KEY, &settings.nbd_unix),
        (has_directories, NFS_UNIX_KEY, &settings.nfs_unix),
        (has_databases, POSTGRES_UNIX_KEY, &settings.postgres_unix),
        (true, CONTROL_KEY, &control),
    ];
    for (_, key, paths) in unix.into_iter().filter(|(is_served, ..)| *is_served) {
        // The data directory is made.
        let is_found = |path: &&PathBuf| settings.data.exists() || path.parent() != Some(&settings.data);
        for path in paths.iter().filter(is_found) {
            problems.note(examine_unix(path).map_err(|error| refused(settings, key, &error, OWN_PATH)));
        }
    }
    problems.or(())
}

fn for_disks(settings: &Settings, deadline: Deadline) -> Result<Vec<ListeningSocket>, Problems> {
    let (mut sockets, mut problems) = (Vec::new(), Problems::default());
    for address in &settings.nbd {
        sockets.extend(problems.note(tcp(settings, TCP_KEY, *address, deadline)));
    }
    for path in &settings.nbd_unix {
        sockets.extend(problems.note(unix(settings, UNIX_KEY, path, deadline)));
    }
    if sockets.is_empty() && problems.0.is_empty() {
        let problem = Problem::new(&settings.place(TCP_KEY), "listen", "has neither nbd nor nbd_unix");
        return Err(problem.allowed("at least one address or Unix socket").into());
    }
    problems.or(sockets)
}

fn for_directories(settings: &Settings, deadline: Deadline) -> Result<Vec<ListeningSocket>, Problems> {
    let (mut sockets, mut problems) = (Vec::new(), Problems::default());
    for address in settings.nfs_addresses() {
        sockets.extend(problems.note(tcp(settings, NFS_KEY, address, deadline)));
    }
    for path in &settings.nfs_unix {
        let made = unix(settings, NFS_UNIX_KEY, path, deadline).and_then(|socket| {
            // Callers are who they are: whoever can walk to the socket may ask.
            let mode = std::fs::Permissions::from_mode(0o666);
            let problem =
                |error| problem(settings, NFS_UNIX_KEY, format!("cannot be served: {}: {error}", path.display()));
            std::fs::set_permissions(path, mode).map_err(problem).map(|()| socket)
        });
        sockets.extend(problems.note(made));
    }
    if sockets.is_empty() && problems.0.is_empty() {
        let problem = problem(settings, NFS_KEY, "is empty, and directories are to be served");
        return Err(problem.allowed("at least one address").into());
    }
    problems.or(sockets)
}

fn for_databases(settings: &Settings, deadline: Deadline) -> Result<Vec<ListeningSocket>, Problems> {
    let (mut sockets, mut problems) = (Vec::new(), Problems::default());
    for address in settings.postgres_addresses() {
        sockets.extend(problems.note(tcp(settings, POSTGRES_KEY, address, deadline)));
    }
    for path in &settings.postgres_unix {
        sockets.extend(problems.note(unix(settings, POSTGRES_UNIX_KEY, path, deadline)));
    }
    if sockets.is_empty() && problems.0.is_empty() {
        let problem = problem(settings, POSTGRES_KEY, "is empty, and there are databases");
        return Err(problem.allowed("at least one address or Unix socket").into());
    }
    problems.or(sockets)
}

/// The control socket, in place of that of a server that was killed.
///
/// # Errors
/// When it cannot be made.
pub fn control(settings: &Settings, deadline: Deadline) -> Result<Option<ListeningSocket>, Problem> {
    settings.control_socket().map(|path| private(settings, CONTROL_KEY, &path, deadline)).transpose()
}

/// The socket for programs that map shared disks, in place of that of a server that was killed.
///
/// # Errors
/// When it cannot be made.
pub fn shm(settings: &Settings, path: &Path, deadline: Deadline) -> Result<ListeningSocket, Problem> {
    private(settings, SHM_KEY, path, deadline)
}

fn private(settings: &Settings, key: &str, path: &Path, deadline: Deadline) -> Result<ListeningSocket, Problem> {
    make_directory(settings, key, path)?;
    let made = deadline.retry(|| listen_unix_private(path), is_in_use);
    made.map_err(|error| refused(settings, key, &error, OWN_PATH))
}

fn activated() -> Result<Sockets, Problem> {
    // Whoever takes the descriptors takes their names too (sd_listen_fds_with_names(3)).
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let mut passed = ListenFd::from_env();
    let mut sockets = Sockets::default();
    for index in 0..passed.len() {
        let refused = |error: String| {
            let what = format!("socket {index} cannot be served: {error}");
            let problem = Problem::new(&Place::Flag("environment".into()), "LISTEN_FDS", what);
            problem.allowed("listening stream sockets: TCP or Unix")
        };
        if let Some(fd) = passed.take_raw_fd(index).map_err(|error| refused(error.to_string()))? {
            // SAFETY: systemd passed the descriptor to this process alone, and it is taken only once.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            let socket = adopt_listener(socket).map_err(|error| refused(error.to_string()))?;
            let named = NAMED.into_iter().find(|name| names.get(index) == Some(name));
            sockets.add(named.unwrap_or(Nbd::NAME), [socket]);
        }
    }
    Ok(sockets)
}

const OWN_ADDRESS: &str = "an address of this host whose port nobody uses, or \"none\"";

const OWN_PATH: &str = "a path of its own in an existing directory, or \"none\"";

fn tcp(settings: &Settings, key: &str, address: SocketAddr, deadline: Deadline) -> Result<ListeningSocket, Problem> {
    match deadline.retry(|| listen_tcp(address), is_in_use) {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(refused(settings, key, &error, OWN_ADDRESS)),
    }
}

fn unix(settings: &Settings, key: &str, path: &Path, deadline: Deadline) -> Result<ListeningSocket, Problem> {
    make_directory(settings, key, path)?;
    let socket = deadline.retry(|| listen_unix(path), is_in_use);
    socket.map_err(|error| refused(settings, key, &error, OWN_PATH))
}

fn make_directory(settings: &Settings, key: &str, path: &Path) -> Result<(), Problem> {
    if !path.starts_with(&settings.data) {
        return Ok(());
    }
    let refused = |error| format!("= {path:?} lies in a directory that cannot be made: {error}");
    make_directories(&settings.data).map_err(|error| problem(settings, key, refused(error)))
}

fn is_in_use(error: &NetError) -> bool {
    matches!(error, NetError::AddrInUse(_))
}

fn refused(settings: &Settings, key: &str, error: &NetError, allowed: &str) -> Problem {
    problem(settings, key, format!("cannot be served: {error}")).allowed(allowed)
}

fn problem(settings: &Settings, key: &str, what: impl Into<String>) -> Problem {
    Problem::new(&settings.place(key), key, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of disks and of directories.
    fn numbers(sockets: &Sockets) -> (usize, usize) {
        (sockets.of(Nbd::NAME).count(), sockets.of(Nfs::NAME).count())
    }

    fn open(settings: &Settings, deadline: Deadline) -> Result<Sockets, Problems> {
        Sockets::default().make_missing(settings, true, &[], &[], deadline)
    }

    fn settings(directory: &Path) -> Settings {
        let nbd_unix = vec![directory.join("nbd.sock")];
        Settings { data: directory.to_owned(), nbd: Vec::new(), nbd_unix, ..Settings::default() }
    }

    #[test]
    fn a_socket_in_use_is_refused_and_an_abandoned_one_is_taken_over() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = settings(directory.path());
        let held = open(&settings, Deadline::passed()).expect("free");
        let message = open(&settings, Deadline::passed()).expect_err("in use").to_string();
        assert!(message.contains("is in use by another server"), "{message}");
        drop(held);
        let path = directory.path().join("nbd.sock");
        assert!(!path.exists());
        // As after kill -9: the file is there, the server is not.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bind"));
        open(&settings, Deadline::passed()).expect("abandoned");
    }

    #[test]
    fn a_file_in_the_place_of_a_socket_is_never_removed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("nbd.sock");
        std::fs::write(&path, "precious").expect("write");
        let message = open(&settings(directory.path()), Deadline::passed()).expect_err("a file").to_string();
        assert!(message.contains("exists and is not a socket"), "{message}");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[test]
    fn a_server_that_nobody_can_reach_is_refused() {
        let settings = Settings { nbd: Vec::new(), nbd_unix: Vec::new(), ..Settings::default() };
        let message = open(&settings, Deadline::passed()).expect_err("nowhere").to_string();
        assert!(message.contains("listen has neither nbd nor nbd_unix"), "{message}");
    }

    #[test]
    fn names_are_written_so_that_clients_can_read_them() {
        let address = Address::Unix("/run/a.sock".into());
        assert_eq!(uri(&address, "a b/ü"), "nbd+unix:///a%20b/%C3%BC?socket=/run/a.sock");
        assert_eq!(uri(&Address::Tcp(([127, 0, 0, 1], 10809).into()), "disk"), "nbd://127.0.0.1:10809/disk");
    }

    #[test]
    fn sockets_are_made_only_for_what_is_served() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let loopback = Some(vec![([127, 0, 0, 1], 0).into()]);
        let settings = Settings { nfs: loopback, ..settings(directory.path()) };
        let disks = open(&settings, Deadline::passed()).expect("free");
        assert_eq!(numbers(&disks), (1, 0));
        let files = [Directory::default_files(directory.path(), Place::Default)];
        let more = disks.make_missing(&settings, true, &files, &[], Deadline::passed()).expect("free");
        assert_eq!(numbers(&more), (0, 1), "NBD has its socket");
        let only = Sockets::default().make_missing(&settings, false, &files, &[], Deadline::passed()).expect("free");
        assert_eq!(numbers(&only), (0, 1));
    }

    #[test]
    fn only_directories_that_somebody_asked_for_must_be_reachable() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = Settings { nfs: Some(Vec::new()), ..settings(directory.path()) };
        let files = Directory::default_files(directory.path(), Place::Default);
        let made =
            Sockets::default().make_missing(&settings, false, std::slice::from_ref(&files), &[], Deadline::passed());
        assert!(!made.expect("only told").has(Nfs::NAME));
        let wanted = [Directory { optional: false, ..files }];
        let refused = Sockets::default().make_missing(&settings, false, &wanted, &[], Deadline::passed());
        let message = refused.expect_err("nowhere").to_string();
        assert!(message.contains("listen.nfs is empty, and directories are to be served"), "{message}");
    }
}
