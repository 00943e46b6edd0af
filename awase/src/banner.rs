//! What a server prints when it is ready: its exports, and how to connect.

use std::fmt::{Display, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use kernel::ForcedUnitAccess;
use machine::linux::net::Address;

use crate::config::{Config, show_bytes};
use crate::listeners::{nfs_uri, postgres_uri, uri};
use crate::server::Server;

pub fn banner(config: &Config, server: &Server, watched_at: &[SocketAddr]) -> String {
    let memory = match (config.settings.memory, config.switches.dynamic_cache) {
        (None, true) => "all that the host can spare".to_owned(),
        (None, false) => "a tenth of the host's".to_owned(),
        (Some(bytes), true) => format!("at most {}", show_bytes(bytes)),
        (Some(bytes), false) => show_bytes(bytes),
    };
    let (version, processors) = (env!("CARGO_PKG_VERSION"), server.description());
    let mut text = format!("Awase {version}: {processors}, memory: {memory}{}\n\n", colors(server));
    for served in server.disks() {
        let export = &served.export;
        let on_disk = export.path().is_some();
        let mode = match (served.volume.read_only(), on_disk, served.forced_unit_access) {
            (true, ..) => ", read-only",
            (false, true, ForcedUnitAccess::Always) => ", stable by forced unit access",
            (false, true, _) => ", stable by flush",
            (false, false, _) => "",
        };
        let size = show_bytes(served.volume.size());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<16} {size:>9}  {}{mode}", export.name, export.medium());
    }
    for served in server.directories() {
        let (directory, mode) = (&served.directory, if served.export.read_only() { ", read-only" } else { "" });
        let ports = if directory.secure { "" } else { ", clients are accepted from any port (secure = false)" };
        let _ = writeln!(text, "  {:<26}  directory {}{mode}{ports}", directory.mount, directory.path.display());
    }
    for (database, disk) in server.databases() {
        let (name, size) = (&database.name, show_bytes(disk.volume.size()));
        let _ = writeln!(text, "  {name:<16} {size:>9}  database on {}", database.volume.medium());
    }
    let first_disk = server.disks().next().map(|served| (served.export.name.as_str(), served.volume.read_only()));
    let first_directory =
        server.directories().first().map(|served| (served.directory.mount.as_str(), served.export.read_only()));
    let disks_at = first_disk.into_iter().flat_map(|(name, _)| server.nbd_addresses().map(move |at| uri(at, name)));
    let directories_at = first_directory
        .into_iter()
        .flat_map(|(mount, _)| server.nfs_addresses().filter_map(move |at| nfs_uri(at, mount)));
    let first_database = server.databases().next().map(|(database, _)| database.name.as_str());
    let databases_at =
        first_database.into_iter().flat_map(|name| server.postgres_addresses().map(move |at| postgres_uri(at, name)));
    text.push_str("\nat\n");
    for uri in disks_at.chain(directories_at).chain(databases_at) {
        let _ = writeln!(text, "  {uri}");
    }
    for address in watched_at {
        let _ = writeln!(text, "  http://{address}/ (live plots; /metrics for Prometheus)");
    }
    text.push_str("\nTry\n");
    if let (Some(address), Some((name, read_only))) = (server.nbd_addresses().next(), first_disk) {
        // A Unix socket takes the least of this host's memory, of which its block device may be short.
        let is_unix = |address: &&Address| matches!(address, Address::Unix(_));
        text += &disk_commands(address, server.nbd_addresses().find(is_unix).unwrap_or(address), name, read_only);
    }
    if let (Some(Address::Tcp(address)), Some((mount, read_only))) = (server.nfs_addresses().next(), first_directory) {
        text += &directory_commands(*address, mount, read_only);
    }
    if let Some(name) = first_database {
        server.postgres_addresses().for_each(|address| text += &database_command(address, name));
    }
    text.push_str("\nCtrl-C finishes the requests in flight, writes everything to the disks and ends.\n");
    text
}

/// How much is served, as a line of text.
pub fn summary(server: &Server) -> String {
    let counts = [
        (server.disks().count(), "disk", "disks"),
        (server.directories().len(), "directory", "directories"),
        (server.databases().count(), "database", "databases"),
    ];
    let served = counts.into_iter().filter(|(count, ..)| *count > 0);
    let served = served.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }));
    format!("serving {}", served.collect::<Vec<_>>().join(", "))
}

/// What the self-test found, and what is made of it (WS-6).
fn colors(server: &Server) -> String {
    let memory = server.kernel().memory();
    match (memory.colors_found().measured, memory.frames().colors()) {
        (None, 1) => ", no cache colours".into(),
        (Some(found), 1) => format!(", {found} cache colours, not used"),
        (_, used) => format!(", {used} cache colours"),
    }
}

/// `local`: where the kernel of this host connects.
fn disk_commands(address: &Address, local: &Address, name: &str, read_only: bool) -> String {
    let (uri, name) = (quoted(uri(address, name)), quoted(name));
    let copy = if read_only { format!("{uri} IMAGE") } else { format!("--flush IMAGE {uri}") };
    let kernel_client = match local {
        Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
        Address::Unix(path) => format!("-unix {}", quoted(path.display())),
        Address::Unnamed => return String::new(),
    };
    format!(
        "  nbdinfo {uri}\n  \
         nbdcopy {copy}\n  \
         qemu-img info {uri}\n  \
         fio --name=t --ioengine=nbd --uri={uri} --rw=randread --bs=4k --iodepth=32 --runtime=5 --time_based\n  \
         nbd-client {kernel_client} -N {name} /dev/nbd0\n"
    )
}

fn directory_commands(address: SocketAddr, mount: &str, read_only: bool) -> String {
    let (host, port) = (host(address.ip()), address.port());
    let uri = |path: &str| quoted(nfs_uri(&Address::Tcp(address), path).unwrap_or_default());
    let (directory, file) = (uri(mount), uri(&format!("{}/FILE", mount.trim_end_matches('/'))));
    let copy = if read_only { format!("{file} FILE") } else { format!("FILE {file}") };
    let place = quoted(format_args!("{host}:{mount}"));
    format!(
        "  mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock {place} /mnt\n  \
         mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolocks {place} /mnt    # macOS\n  \
         awase mount {directory} /mnt\n  \
         nfs-ls {directory}\n  \
         nfs-cp {copy}\n"
    )
}

/// A Unix socket is found by clients of PostgreSQL by its directory, which must be absolute, and the port in its name.
fn database_command(address: &Address, name: &str) -> String {
    let (host, port) = match address {
        Address::Tcp(address) => (host(address.ip()).trim_matches(['[', ']']).to_owned(), address.port().to_string()),
        Address::Unix(path) => {
            let Some((directory, port)) = socket_of(path) else { return String::new() };
            (quoted(directory.display()), port)
        }
        Address::Unnamed => return String::new(),
    };
    format!("  psql -h {host} -p {port} -d {}\n", quoted(name))
}

/// The directory and the port of a socket `.s.PGSQL.PORT`.
fn socket_of(path: &Path) -> Option<(PathBuf, String)> {
    let port = path.file_name()?.to_str()?.strip_prefix(".s.PGSQL.")?.to_owned();
    Some((std::path::absolute(path).ok()?.parent()?.to_owned(), port))
}

/// As one word of a shell, whatever it holds.
fn quoted(text: impl Display) -> String {
    format!("'{}'", text.to_string().replace('\'', r"'\''"))
}

/// The host as clients write it.
fn host(ip: IpAddr) -> String {
    match ip {
        _ if ip.is_unspecified() => "HOST".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_every_name_as_it_is() {
        let name = "it's $(id) \\";
        let unix = Address::Unix(PathBuf::from("/d 'x'/.s.PGSQL.5433"));
        let tcp = Address::Tcp(([127, 0, 0, 1], 2049).into());
        let commands = disk_commands(&tcp, &unix, name, false)
            + &directory_commands(([127, 0, 0, 1], 2049).into(), &format!("/{name}"), true)
            + &database_command(&unix, name);
        let words = |line: &str| {
            let script = format!("printf '%s\\n' {line}");
            let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
            assert!(output.status.success(), "{line}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let words: String = commands.lines().map(words).collect();
        for word in [name, "/d 'x'/.s.PGSQL.5433", "/d 'x'", &format!("127.0.0.1:/{name}")] {
            assert!(words.lines().any(|line| line == word), "no {word} in {words}");
        }
        assert!(!words.contains("uid="), "{words}");
    }

    #[test]
    fn commands_have_the_clients_syntax_for_host_and_port() {
        let text = directory_commands(([127, 0, 0, 1], 20490).into(), "/files", false);
        let linux = "mount -t nfs -o vers=3,proto=tcp,port=20490,mountport=20490,mountproto=tcp,nolock \
                     '127.0.0.1:/files' /mnt\n";
        assert!(text.contains(linux), "{text}");
        assert!(text.contains("nfs-ls 'nfs://127.0.0.1/files?nfsport=20490&mountport=20490'"), "{text}");
        assert!(text.contains("nfs-cp FILE 'nfs://127.0.0.1/files/FILE?nfsport=20490&mountport=20490'"), "{text}");
        let text = directory_commands("[::1]:2049".parse().expect("an address"), "/a", true);
        assert!(text.contains("'[::1]:/a' /mnt"), "{text}");
        assert!(text.contains("nfs-cp 'nfs://[::1]/a/FILE?nfsport=2049&mountport=2049' FILE\n"), "{text}");
        let text = directory_commands(([0, 0, 0, 0], 2049).into(), "/a", false);
        assert!(text.contains("'HOST:/a' /mnt"), "no client mounts from 0.0.0.0: {text}");
    }
}
