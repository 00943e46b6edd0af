//! The mounts that are compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::contender::{Contender, Peer};
use crate::measure::load::Endpoint;
use crate::measure::mounted::{Mounted, awase_mount};
use crate::measure::process::Interrupted;

/// OpenSSH's server of files (Debian's and Fedora's place).
const SFTP_SERVERS: [&str; 2] = ["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server"];

/// What a mount is made of.
pub struct Source<'a> {
    /// The directory itself, for those that need no server.
    pub directory: &'a Path,
    pub awase: &'a Path,
    pub endpoint: Option<&'a Endpoint>,
    /// A directory for this mount alone.
    pub place: &'a Path,
}

/// The server on which a contender is measured, if it is Awase's.
pub fn server_of(contender: &Contender) -> Option<Contender> {
    let peer = match contender.peer {
        Peer::Awase(_) | Peer::Driver | Peer::Libnfs => Peer::Awase(""),
        Peer::AwaseOrdered | Peer::AwaseAsLocal => Peer::AwaseOrdered,
        _ => return None,
    };
    Some(Contender { peer, ..*contender })
}

/// Mounts a contender.
pub fn mount(contender: &Contender, source: &Source<'_>, interrupted: &Interrupted) -> Result<Mounted> {
    let directory = source.place.join("mounted");
    fs::create_dir(&directory)?;
    let command = command(contender.peer, source, &directory)?;
    let name = command.get_program().to_string_lossy().into_owned();
    Mounted::new(command, &directory, &source.place.join("mount.log"), interrupted)
        .with_context(|| format!("{} ({name}; sshfs and rclone are packages of these names)", contender.label))
}

fn command(peer: Peer, source: &Source<'_>, at: &Path) -> Result<Command> {
    Ok(match peer {
        Peer::Awase(options) => awase(source, options, at)?,
        Peer::AwaseOrdered => awase(source, "", at)?,
        Peer::AwaseAsLocal => awase(source, "noclosecommit", at)?,
        Peer::PassThrough => {
            let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
            command.args(["limit", "fuse"]).arg(source.directory).arg(at);
            command
        }
        Peer::Sshfs => {
            let mut command = Command::new("sshfs");
            command.arg("-f").arg("-o").arg(format!("ssh_command={}", sftp(source.place)?.display()));
            command.arg(format!("local:{}", source.directory.display())).arg(at);
            command
        }
        Peer::Rclone => {
            let mut command = Command::new("rclone");
            command.arg("mount").arg(format!(":local:{}", source.directory.display())).arg(at);
            // What git and compilers do (reading what is being written) it only does with a cache of files on the disk.
            command.args([
                "--file-perms",
                "0777",
                "--vfs-cache-mode",
                "writes",
                "--vfs-write-back",
                "0s",
                "--cache-dir",
            ]);
            command.arg(source.place.join("cache")).arg("--config").arg(source.place.join("rclone.conf"));
            command
        }
        _ => bail!("{peer:?} is no mount"),
    })
}

fn awase(source: &Source<'_>, options: &str, at: &Path) -> Result<Command> {
    let endpoint = source.endpoint.context("it needs a server")?;
    Ok(awase_mount(source.awase, endpoint, options, at))
}

/// A program that sshfs runs instead of ssh, whatever the arguments: without encryption, and a pipe instead of TCP.
fn sftp(place: &Path) -> Result<PathBuf> {
    let server = SFTP_SERVERS.iter().find(|path| Path::new(path).is_file());
    let server = server.context("sftp-server is missing: sudo apt-get install openssh-sftp-server")?;
    let script = place.join("sftp");
    fs::write(&script, format!("#!/bin/sh\nexec {server}\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}
