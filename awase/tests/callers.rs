//! Who callers of NFS are: what the host vouches for counts, not what they claim.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;

use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, NFS_PROGRAM as Nfs, Nfs3Result, createhow3, diropargs3, filename3, nfs_fh3, nfsstat3,
    sattr3,
};
use testkit::nfs::Client;
use testkit::server::Place;

/// A user of this host that is nobody in particular.
const OTHER: u32 = 4321;

/// Makes a directory that everybody can walk to and write to.
fn make_directory(place: &Place, name: &str) -> PathBuf {
    let path = place.file(name);
    fs::create_dir_all(&path).expect("directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("chmod");
    path
}

/// Makes a file, as root, or so the client says.
fn create(client: &mut Client, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
    let where_ = diropargs3 { dir: dir.clone(), name: filename3::from(name.as_bytes()) };
    let arguments = CREATE3args { where_, how: createhow3::GUARDED(sattr3::default()) };
    match client.call::<CREATE3res>(Nfs::NFSPROC3_CREATE, &arguments).expect("an answer") {
        Nfs3Result::Ok(_) => Ok(()),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

#[test]
fn a_client_with_an_unprivileged_port_is_refused_and_that_is_said_once() {
    let place = Place::new();
    make_directory(&place, "files");
    let exports = ["safe,kind=directory,path=files", "open,kind=directory,secure=false,path=files"];
    let exports = exports.map(|export| format!("name={export}"));
    let arguments: Vec<&str> = exports.iter().flat_map(|export| ["--export", export]).collect();
    let (server, port) = place.serve_directories(0, &arguments);
    for _ in 0..3 {
        let mut client = Client::connect(port).expect("connect");
        let refused = client.mount("/safe").expect_err("refused");
        assert!(refused.to_string().contains("MNT3ERR_ACCES"), "{refused}");
        let root = client.mount("/open").expect("served");
        client.attributes(&root).expect("an answer").expect("served");
    }
    server.signal(libc::SIGTERM);
    let (_, _, errors) = server.wait();
    assert_eq!(errors.matches("is not below 1024").count(), 1, "{errors}");
    assert!(errors.contains("127.0.0.1 was refused at /safe") && errors.contains("secure = false"), "{errors}");
}

#[test]
fn a_caller_at_a_unix_socket_is_who_the_host_says_whatever_it_claims() {
    let place = Place::new();
    let files = make_directory(&place, "files");
    let export = "name=files,kind=directory,path=files,squash=no_root_squash";
    let _server = place.serve(&["--nfs-unix", "nfs.sock", "--export", export]);
    let socket = place.file("nfs.sock");
    let make = move |user: Option<u32>, name: &'static str| {
        let socket = socket.clone();
        let run = move || {
            if let Some(user) = user {
                // SAFETY: it takes numbers. Called like this, it is about this thread alone.
                let result = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
                assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            }
            let mut client = Client::connect_unix(&socket).expect("connect");
            let root = client.mount("/files").expect("served");
            create(&mut client, &root, name).expect("made");
        };
        thread::spawn(run).join().expect("a client");
    };
    // SAFETY: it takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    make(None, "own");
    assert_eq!(fs::metadata(files.join("own")).expect("made").uid(), own);
    if own == 0 {
        make(Some(OTHER), "other");
        assert_eq!(fs::metadata(files.join("other")).expect("made").uid(), OTHER, "not root's, though it says so");
    }
}
