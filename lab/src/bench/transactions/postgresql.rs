//! PostgreSQL as a peer: its own configuration but for the number of connections, with the bank as functions in PL/pgSQL.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::measure::process::{Interrupted, Process};

/// Where Debian has the programs, by version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Who runs it, if this program runs as root, which it refuses.
const USER: &str = "postgres";

const TIMEOUT: Duration = Duration::from_secs(60);

const BANK: &str = include_str!("postgresql.sql");

pub struct PostgreSql {
    pub process: Process,
    pub port: String,
    /// Its files, which are removed.
    _place: tempfile::TempDir,
}

impl PostgreSql {
    /// Starts one with its files in `directory`, which everybody may pass.
    pub fn start(directory: &Path, interrupted: &Interrupted) -> Result<PostgreSql> {
        let place = tempfile::Builder::new().prefix("postgresql-").tempdir_in(directory)?;
        let owner = owner()?;
        if let Some((user, group)) = owner {
            chown(place.path(), Some(user), Some(group))?;
        }
        let (data, log) = (place.path().join("data"), place.path().join("server.log"));
        let command = |name: &str| {
            let mut command = Command::new(program(name));
            command.current_dir(place.path());
            if let Some((user, group)) = owner {
                command.uid(user).gid(group);
            }
            command
        };
        let mut initdb = command("initdb");
        initdb.arg("-D").arg(&data).args(["-A", "trust", "-U", USER]);
        Process::start(initdb, &log, interrupted)?.finish(TIMEOUT)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut server = command("postgres");
        server.arg("-D").arg(&data).args(["-p", &port, "-h", "127.0.0.1", "-k", "", "-c", "max_connections=200"]);
        let mut process = Process::start(server, &log, interrupted)?;
        let ask = |database: &str, text: &str| {
            let mut psql = Command::new("psql");
            psql.args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                USER,
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                text,
                database,
            ]);
            Process::start(psql, &place.path().join("psql.log"), interrupted)?.finish(TIMEOUT)
        };
        process.ready(|_| ask(USER, "CREATE DATABASE bank"))?;
        ask("bank", BANK)?;
        Ok(PostgreSql { process, port, _place: place })
    }
}

/// The newest of Debian, or the one of the path.
fn program(name: &str) -> PathBuf {
    let places = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let programs =
        places.map(|place| (version(&place.file_name().to_string_lossy()), place.path().join("bin").join(name)));
    programs.filter(|(_, path)| path.is_file()).max().map_or_else(|| name.into(), |(_, path)| path)
}

/// Its numbers: 9.6 is older than 15.
fn version(name: &str) -> Vec<u32> {
    name.split('.').map_while(|number| number.parse().ok()).collect()
}

/// User and group of the server's process, if not those of this one.
fn owner() -> Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == USER);
    let number = |index: usize| fields.as_ref().and_then(|fields| fields.get(index)?.parse().ok());
    let owner = number(2).zip(number(3));
    owner.map(Some).with_context(|| format!("there is no user {USER} (Debian: postgresql)"))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(["unversioned", "9.6", "9.10", "15", "16"].map(version).is_sorted());
    }
}
