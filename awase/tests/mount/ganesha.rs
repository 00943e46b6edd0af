//! Another server than ours: NFS-Ganesha, where it is installed.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::nfs::Client;
use testkit::server::{Sandbox, attempt, await_that, is_root};
use testkit::skip;

use crate::content::agree;
use crate::fixture::{Mount, has_fuse, shell};

/// The port mapper, without which Ganesha does not start.
const RPCBIND_PORT: u16 = 111;

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

fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("bound").port())
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

#[test]
fn ganesha_is_mounted_and_agrees_with_a_model() {
    if !is_root() || !attempt("sh", &["-c", "command -v ganesha.nfsd && command -v rpcbind"]).status.success() {
        skip!("NFS-Ganesha is not installed, or cannot be started by this user");
    }
    if !has_fuse() {
        return;
    }
    let sandbox = Sandbox::new();
    let (served, ports) = (sandbox.make_directory("files"), free_ports());
    let _port_mapper = (!answers(RPCBIND_PORT)).then(|| Process::start(Command::new("rpcbind").arg("-f")));
    await_that("rpcbind answers", || answers(RPCBIND_PORT));
    let file = sandbox.write("ganesha.conf", &configuration(&served, ports));
    let mut command = Command::new("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(file).arg("-L").arg(sandbox.file("ganesha.log"));
    command.arg("-p").arg(sandbox.file("ganesha.pid")).args(["-N", "NIV_CRIT"]);
    let _server = Process::start(&mut command);
    let export = served.display().to_string();
    await_that("Ganesha has its export", || {
        answers(ports[0]) && Client::connect(ports[1]).is_ok_and(|mut client| client.mount(&export).is_ok())
    });
    let mount = Mount::of(
        &sandbox,
        &format!("nfs://127.0.0.1:{}{export}", ports[0]),
        "mnt",
        &format!("mountport={}", ports[1]),
    );
    agree(&mount.directory.join("a"), &served.join("a"), 11);
    shell(
        &mount.directory,
        "git init -q tree && cd tree && git config user.name t && git config user.email t@t && \
                             for i in $(seq 200); do echo $i > f$i; done && git add . && git commit -q -m all && \
                             git fsck --full",
    );
    assert_eq!(fs::read_dir(mount.directory.join("tree")).expect("list").count(), 201);
    mount.end();
    assert_eq!(fs::read_to_string(served.join("tree/f7")).expect("on the server"), "7\n");
}
