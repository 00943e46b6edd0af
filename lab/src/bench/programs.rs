//! The programs that are measured or measure, and the Debian packages that contain them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// Program and package.
const NEEDED: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdcopy", "libnbd-bin"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-img", "qemu-utils"),
];

/// Fails if a program is missing, naming the packages.
pub fn check() -> Result<()> {
    let mut packages: Vec<&str> =
        NEEDED.iter().filter(|(name, _)| find(name).is_none()).map(|(_, package)| *package).collect();
    packages.dedup();
    if !packages.is_empty() {
        let packages = packages.join(" ");
        bail!("these packages are missing: {packages}\nInstall them: sudo apt-get install {packages}");
    }
    let engines = first_lines("fio", &["--enghelp"]);
    for engine in ["nbd", "io_uring"] {
        if !engines.lines().any(|line| line.trim() == engine) {
            bail!("this fio was built without its {engine} engine; Debian's package has it");
        }
    }
    Ok(())
}

/// The default path of Awase's program: next to this program.
pub fn default_path() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("awase"))
}

/// The program of Awase: the one given, or the default.
pub fn awase(given: Option<&Path>) -> Result<PathBuf> {
    let path = given.map_or_else(default_path, |path| Ok(path.to_owned()))?;
    if !path.is_file() {
        bail!("{} is not there: build it (cargo build --release) or name it (--awase)", path.display());
    }
    Ok(path)
}

/// The versions of all programs, and of Awase if it is measured.
pub fn versions(awase: Option<&Path>) -> Vec<String> {
    let mut versions: Vec<String> = awase.map(|path| first_line(&path.to_string_lossy())).into_iter().collect();
    versions.extend(NEEDED.iter().filter(|(name, _)| *name != "qemu-nbd").map(|(name, _)| {
        let line = first_line(name);
        if line.starts_with(name) { line } else { format!("{name} {line}") }
    }));
    versions
}

/// The versions of the file servers.
pub fn versions_of_files(awase: &Path) -> Vec<String> {
    let ganesha = first_lines("ganesha.nfsd", &["-v"]);
    vec![first_line(&awase.to_string_lossy()), ganesha.lines().next().unwrap_or("NFS-Ganesha").trim().to_owned()]
}

/// The versions of the mounts.
pub fn versions_of_mounts(awase: &Path) -> Vec<String> {
    // What sshfs says first is the version of FUSE.
    let sshfs =
        first_lines("sshfs", &["--version"]).lines().find(|line| line.contains("SSHFS")).unwrap_or("sshfs").to_owned();
    vec![first_line(&awase.to_string_lossy()), sshfs, first_line("rclone"), first_line("git")]
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

pub fn first_line(program: &str) -> String {
    first_lines(program, &["--version"]).lines().next().unwrap_or("(unknown version)").trim().to_owned()
}

fn first_lines(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
