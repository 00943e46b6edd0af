//! The identity of NFS callers: as authenticated by the host, not as claimed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;

use rustix::process::Uid;
use testkit::nfs::Client;
use testkit::server::Sandbox;

/// Any ordinary user of this host.
const OTHER: u32 = 4321;

/// Makes a directory that every user can reach and write to.
fn make_directory(sandbox: &Sandbox, name: &str) -> PathBuf {
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    sandbox.make_directory(name)
}

#[test]
fn a_client_with_an_unprivileged_port_is_refused_and_reported_once() {
    let sandbox = Sandbox::new();
    make_directory(&sandbox, "files");
    let exports = ["safe,kind=directory,path=files", "open,kind=directory,secure=false,path=files"];
    let exports = exports.map(|export| format!("name={export}"));
    let arguments: Vec<&str> = exports.iter().flat_map(|export| ["--export", export]).collect();
    let (server, port) = sandbox.serve_directories(0, &arguments);
    for _ in 0..3 {
        let mut client = Client::connect(port).expect("connect");
        let refused = client.mount("/safe").expect_err("refused");
        assert!(refused.to_string().contains("MNT3ERR_ACCES"), "{refused}");
        let root = client.mount("/open").expect("served");
        client.attributes(&root).expect("an answer").expect("served");
    }
    let errors = server.end();
    assert_eq!(errors.matches("is not below 1024").count(), 1, "{errors}");
    assert!(errors.contains("127.0.0.1 was refused at /safe") && errors.contains("secure = false"), "{errors}");
}

#[test]
fn the_host_authenticates_callers_at_a_unix_socket() {
    let sandbox = Sandbox::new();
    let files = make_directory(&sandbox, "files");
    let export = "name=files,kind=directory,path=files,squash=no_root_squash";
    let _server = sandbox.serve(&["--nfs-unix", "nfs.sock", "--export", export]);
    let socket = sandbox.file("nfs.sock");
    let make = move |user: Option<u32>, name: &'static str| {
        let socket = socket.clone();
        let run = move || {
            if let Some(user) = user {
                let user = Uid::from_raw(user);
                rustix::thread::set_thread_res_uid(user, user, user).expect("root");
            }
            let mut client = Client::connect_unix(&socket).expect("connect");
            let root = client.mount("/files").expect("served");
            // It claims to be root.
            client.create(&root, name).expect("an answer").expect("made");
        };
        thread::spawn(run).join().expect("a client");
    };
    let own = rustix::process::geteuid();
    make(None, "own");
    assert_eq!(fs::metadata(files.join("own")).expect("made").uid(), own.as_raw());
    if own.is_root() {
        make(Some(OTHER), "other");
        assert_eq!(fs::metadata(files.join("other")).expect("made").uid(), OTHER, "not root's, as claimed");
    }
}
