//! Another server than ours: NFS-Ganesha, where it is installed.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use testkit::nfs::Client;
use testkit::port;
use testkit::server::{Sandbox, attempt, await_that, is_root};
use testkit::skip;

use crate::content::agree;
use crate::ends::{building, has_compiler, with_restarts};
use crate::fixture::{Mount, has_fuse, shell};

/// The port mapper, without which Ganesha does not start.
const RPCBIND_PORT: u16 = 111;

/// One at a time: they register the same programs with the port mapper, and who finds one registered ends.
static ALONE: Mutex<()> = Mutex::new(());

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn configuration(directory: &Path, [nfs, mount]: [u16; 2]) -> String {
    let path = directory.display();
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {nfs}; MNT_Port = {mount}; Bind_addr = 127.0.0.1; Protocols = 3; Enable_NLM = false;
         Enable_RQUOTA = false; Enable_UDP = false; }}
         EXPORT {{ Export_Id = 1; Path = \"{path}\"; Pseudo = \"/files\"; Protocols = 3; Transports = TCP; Access_Type = RW;
         Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n"
    )
}

/// Ganesha with an export, and rpcbind if nobody else runs it.
struct Ganesha {
    command: Command,
    server: Option<Process>,
    ports: [u16; 2],
    served: PathBuf,
    _port_mapper: Option<Process>,
    sandbox: Sandbox,
    _alone: MutexGuard<'static, ()>,
}

impl Ganesha {
    /// `None` where it cannot be run.
    fn start() -> Option<Ganesha> {
        if !is_root() || !attempt("sh", &["-c", "command -v ganesha.nfsd && command -v rpcbind"]).status.success() {
            skip::note("NFS-Ganesha is not installed, or cannot be started by this user");
            return None;
        }
        if !has_fuse() {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let sandbox = Sandbox::new();
        let (served, ports) = (sandbox.make_directory("files"), [(); 2].map(|()| port::unused()));
        let port_mapper = (!answers(RPCBIND_PORT)).then(|| Process::start(Command::new("rpcbind").arg("-f")));
        await_that("rpcbind answers", || answers(RPCBIND_PORT));
        let file = sandbox.write("ganesha.conf", &configuration(&served, ports));
        let mut command = Command::new("ganesha.nfsd");
        command.arg("-F").arg("-f").arg(file).arg("-L").arg(sandbox.file("ganesha.log"));
        command.arg("-p").arg(sandbox.file("ganesha.pid")).args(["-N", "NIV_CRIT"]);
        let mut ganesha =
            Ganesha { command, server: None, ports, served, _port_mapper: port_mapper, sandbox, _alone: alone };
        ganesha.restart();
        Some(ganesha)
    }

    /// Kills it if it runs, and starts it anew.
    fn restart(&mut self) {
        self.server = None;
        self.server = Some(Process::start(&mut self.command));
        let (ports, export) = (self.ports, self.served.display().to_string());
        await_that("Ganesha has its export", || {
            answers(ports[0]) && Client::connect(ports[1]).is_ok_and(|mut client| client.mount(&export).is_ok())
        });
    }

    fn mount(&self, directory: &str) -> Mount {
        let [nfs, mount] = self.ports;
        let url = format!("nfs://127.0.0.1:{nfs}{}", self.served.display());
        Mount::of(&self.sandbox, &url, directory, &format!("mountport={mount}"))
    }
}

#[test]
fn ganesha_is_mounted_and_agrees_with_a_model() {
    let Some(ganesha) = Ganesha::start() else { return };
    let mount = ganesha.mount("mnt");
    agree(&mount.directory.join("a"), &ganesha.served.join("a"), 11);
    shell(
        &mount.directory,
        "git init -q tree && cd tree && git config user.name t && git config user.email t@t && \
                             for i in $(seq 200); do echo $i > f$i; done && git add . && git commit -q -m all && \
                             git fsck --full",
    );
    assert_eq!(fs::read_dir(mount.directory.join("tree")).expect("list").count(), 201);
    mount.end();
    assert_eq!(fs::read_to_string(ganesha.served.join("tree/f7")).expect("on the server"), "7\n");
}

#[test]
fn a_build_on_ganesha_goes_on_when_it_is_killed() {
    if !has_compiler() {
        return;
    }
    let Some(mut ganesha) = Ganesha::start() else { return };
    let mount = ganesha.mount("mnt");
    let mut work = building(&mount.directory);
    with_restarts(2, &mut work, || ganesha.restart());
    assert!(ganesha.served.join("built").exists());
    mount.end();
}

#[test]
fn a_mount_of_ganesha_that_is_killed_loses_nothing_that_fsync_promised() {
    let Some(mut ganesha) = Ganesha::start() else { return };
    let mount = ganesha.mount("mnt");
    let mut file = File::create(mount.directory.join("a")).expect("create");
    file.write_all(&[3; 200_000]).expect("write");
    file.sync_all().expect("fsync");
    file.write_all(&[4; 1000]).expect("write");
    mount.kill();
    drop(file);
    ganesha.restart();
    let content = fs::read(ganesha.served.join("a")).expect("on the server");
    assert!(content.len() >= 200_000 && content[..200_000].iter().all(|byte| *byte == 3));
}
