//! The sockets on which clients are awaited: handed over by systemd, or made here.

use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use listenfd::ListenFd;
use machine::linux::net::{Address, ListeningSocket, NetError, adopt_listener, listen_tcp, listen_unix};

use crate::config::{Place, Problem, Problems, Settings};
use crate::predecessor::Patience;

const TCP_KEY: &str = "listen.nbd";
const UNIX_KEY: &str = "listen.nbd_unix";

/// The export `name` at `address`, as clients write it (NBD URI specification).
pub fn uri(address: &Address, name: &str) -> String {
    let name = percent_encoded(name);
    match address {
        Address::Tcp(address) => format!("nbd://{address}/{name}"),
        Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", path.display()),
        Address::Unnamed => format!("nbd+unix:///{name}"),
    }
}

fn percent_encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Takes over the sockets that systemd passed (`LISTEN_FDS`); if it passed none, makes those of the configuration.
/// Waits with `patience` for a server before this one.
///
/// # Errors
/// When a socket is in use, not permitted or not of a kind that can be served.
pub fn open(settings: &Settings, patience: Patience) -> Result<Vec<ListeningSocket>, Problems> {
    let activated = activated()?;
    if !activated.is_empty() {
        return Ok(activated);
    }
    let (mut sockets, mut problems) = (Vec::new(), Problems::default());
    let at = |key: &'static str| move |problem: Problem| Problem { place: settings.place(key), ..problem };
    for address in &settings.nbd {
        sockets.extend(problems.note(tcp(*address, patience).map_err(at(TCP_KEY))));
    }
    for path in settings.unix_sockets() {
        sockets.extend(problems.note(unix(&path, &settings.data, patience).map_err(at(UNIX_KEY))));
    }
    if sockets.is_empty() && problems.0.is_empty() {
        let problem = Problem::new(&settings.place(TCP_KEY), "listen", "has neither nbd nor nbd_unix");
        return Err(problem.allowed("at least one address or Unix socket").into());
    }
    problems.or(sockets)
}

fn activated() -> Result<Vec<ListeningSocket>, Problem> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        let refused = |error: String| {
            Problem::new(
                &Place::Flag("environment".into()),
                "LISTEN_FDS",
                format!("socket {index} cannot be served: {error}"),
            )
            .allowed("listening stream sockets: TCP or Unix")
        };
        if let Some(fd) = passed.take_raw_fd(index).map_err(|error| refused(error.to_string()))? {
            // SAFETY: systemd passed the descriptor to this process alone, and it is taken only once.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            sockets.push(adopt_listener(socket).map_err(|error| refused(error.to_string()))?);
        }
    }
    Ok(sockets)
}

fn tcp(address: SocketAddr, patience: Patience) -> Result<ListeningSocket, Problem> {
    match patience.retry(|| listen_tcp(address), is_in_use) {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(refused(TCP_KEY, &error, "an address of this host whose port nobody uses, or \"none\"")),
    }
}

fn unix(path: &Path, data: &Path, patience: Patience) -> Result<ListeningSocket, Problem> {
    if path.starts_with(data) {
        std::fs::create_dir_all(data).map_err(|error| {
            Problem::new(
                &Place::Default,
                UNIX_KEY,
                format!("= {path:?} lies in a directory that cannot be made: {error}"),
            )
        })?;
    }
    let socket = patience.retry(|| listen_unix(path), is_in_use);
    socket.map_err(|error| refused(UNIX_KEY, &error, "a path of its own in an existing directory, or \"none\""))
}

fn is_in_use(error: &NetError) -> bool {
    matches!(error, NetError::AddrInUse(_))
}

fn refused(key: &str, error: &NetError, allowed: &str) -> Problem {
    Problem::new(&Place::Default, key, format!("cannot be served: {error}")).allowed(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(directory: &Path) -> Settings {
        Settings { data: directory.to_owned(), nbd: Vec::new(), ..Settings::default() }
    }

    #[test]
    fn a_socket_in_use_is_refused_and_an_abandoned_one_is_taken_over() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let settings = settings(directory.path());
        let held = open(&settings, Patience::none()).expect("free");
        let message = open(&settings, Patience::none()).expect_err("in use").to_string();
        assert!(message.contains("is in use by another server"), "{message}");
        drop(held);
        let path = directory.path().join("nbd.sock");
        assert!(!path.exists());
        // As after kill -9: the file is there, the server is not.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bind"));
        open(&settings, Patience::none()).expect("abandoned");
    }

    #[test]
    fn a_file_in_the_place_of_a_socket_is_never_removed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("nbd.sock");
        std::fs::write(&path, "precious").expect("write");
        let message = open(&settings(directory.path()), Patience::none()).expect_err("a file").to_string();
        assert!(message.contains("exists and is not a socket"), "{message}");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[test]
    fn a_server_that_nobody_can_reach_is_refused() {
        let settings = Settings { nbd: Vec::new(), nbd_unix: Some(Vec::new()), ..Settings::default() };
        let message = open(&settings, Patience::none()).expect_err("nowhere").to_string();
        assert!(message.contains("listen has neither nbd nor nbd_unix"), "{message}");
    }

    #[test]
    fn names_are_written_so_that_clients_can_read_them() {
        let address = Address::Unix("/run/a.sock".into());
        assert_eq!(uri(&address, "a b/ü"), "nbd+unix:///a%20b/%C3%BC?socket=/run/a.sock");
        assert_eq!(uri(&Address::Tcp(([127, 0, 0, 1], 10809).into()), "disk"), "nbd://127.0.0.1:10809/disk");
    }
}
