//! MOUNT.

use nfs3_types::mount::*;
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::xdr_codec::{Opaque, Unpack};

use super::scene::{Came, Client, Scene, bytes, user};
use crate::client::Credentials;
use crate::export::{ExportConfig, Squash, Squashed};
use crate::program::Program;

fn call(user: &Client, procedure: MOUNT_PROGRAM, arguments: Vec<u8>) -> Vec<u8> {
    match user.call_raw(Program::Mount, procedure as u32, arguments) {
        Came::Bytes(bytes) => bytes,
        other => panic!("no reply but {other:?}"),
    }
}

fn path(path: &str) -> Vec<u8> {
    bytes(&dirpath(Opaque::borrowed(path.as_bytes())))
}

fn mount(user: &Client, at: &str) -> Result<(nfs_fh3, Vec<u32>), u32> {
    let bytes = call(user, MOUNT_PROGRAM::MOUNTPROC3_MNT, path(at));
    match mountres3::unpack(&mut &bytes[..]).expect("decodes").0 {
        mountres3::Ok(ok) => Ok((nfs_fh3 { data: Opaque::owned(ok.fhandle.0.to_vec()) }, ok.auth_flavors)),
        mountres3::Err(status) => Err(status as u32),
    }
}

#[test]
fn an_export_and_directories_below_it_are_mounted() {
    let (user, root) = user();
    let dir = user.mkdir(&root, "dir", 0o700).expect("made");
    let below = user.mkdir(&dir, "below", 0o700).expect("made");
    user.create(&dir, "file", 0o600).expect("made");
    assert_eq!(mount(&user, "/files"), Ok((root.clone(), vec![1])));
    assert_eq!(mount(&user, "/files/"), Ok((root, vec![1])));
    assert_eq!(mount(&user, "/other"), Ok((user.root_of(1), vec![1])));
    assert_eq!(mount(&user, "/files/dir//below"), Ok((below, vec![1])));
    let error = |status: mountstat3| Err(status as u32);
    assert_eq!(mount(&user, "/"), error(mountstat3::MNT3ERR_NOENT));
    assert_eq!(mount(&user, "/filesystem"), error(mountstat3::MNT3ERR_NOENT));
    assert_eq!(mount(&user, "/files/absent"), error(mountstat3::MNT3ERR_NOENT));
    assert_eq!(mount(&user, "/files/dir/file"), error(mountstat3::MNT3ERR_NOTDIR));
    assert_eq!(mount(&user, "/files/dir/file/x"), error(mountstat3::MNT3ERR_NOTDIR));
    assert_eq!(mount(&user, "/files/dir/.."), error(mountstat3::MNT3ERR_INVAL));
    assert_eq!(mount(&user, &format!("/files/{}", "x".repeat(256))), error(mountstat3::MNT3ERR_NAMETOOLONG));
    assert_eq!(mount(&user, &"/x".repeat(600)), error(mountstat3::MNT3ERR_NAMETOOLONG));
    assert_eq!(mount(&user.scene.user(1001), "/files/dir/below"), error(mountstat3::MNT3ERR_ACCES));
}

#[test]
fn clients_of_other_networks_may_not_mount() {
    let clients = vec!["192.0.2.0/24".parse().expect("a network")];
    let scene = Scene::with(0, ExportConfig { clients, ..ExportConfig::default() });
    assert!(mount(&scene.user(0), "/files").is_ok());
    let stranger = scene.client("198.51.100.1", Credentials::None);
    assert_eq!(mount(&stranger, "/files"), Err(mountstat3::MNT3ERR_ACCES as u32));
    assert!(mount(&stranger, "/other").is_ok());
}

#[test]
fn without_credentials_only_what_is_anonymous_is_served() {
    let squash = Squash { squashed: Squashed::All, ..Squash::default() };
    let scene = Scene::with(0, ExportConfig { squash, ..ExportConfig::default() });
    assert_eq!(mount(&scene.user(0), "/files").map(|(_, flavors)| flavors), Ok(vec![1, 0]));
}

#[test]
fn mounts_are_listed_until_they_are_undone() {
    let scene = Scene::new(0);
    let user = scene.user(0);
    let dump = || {
        let bytes = call(&user, MOUNT_PROGRAM::MOUNTPROC3_DUMP, Vec::new());
        let list = mountlist::<'static, 'static>::unpack(&mut &bytes[..]).expect("decodes").0;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        list.0.iter().map(|body| (text(&body.ml_hostname.0), text(&body.ml_directory.0))).collect::<Vec<_>>()
    };
    mount(&user, "/files").expect("mounted");
    mount(&user, "/other").expect("mounted");
    mount(&user, "/absent").expect_err("not there");
    let client = || "192.0.2.1".to_owned();
    assert_eq!(dump(), [(client(), "/files".to_owned()), (client(), "/other".to_owned())]);
    assert_eq!(call(&user, MOUNT_PROGRAM::MOUNTPROC3_UMNT, path("/files")), Vec::<u8>::new());
    assert_eq!(dump(), [(client(), "/other".to_owned())]);
    assert_eq!(call(&user, MOUNT_PROGRAM::MOUNTPROC3_UMNTALL, Vec::new()), Vec::<u8>::new());
    assert_eq!(dump(), []);
}

#[test]
fn exports_are_listed_with_their_networks() {
    let clients = vec!["192.0.2.0/24".parse().expect("a network"), "fd00::/8".parse().expect("a network")];
    let scene = Scene::with(0, ExportConfig { clients, ..ExportConfig::default() });
    let bytes = call(&scene.user(0), MOUNT_PROGRAM::MOUNTPROC3_EXPORT, Vec::new());
    let list = exports::<'static, 'static>::unpack(&mut &bytes[..]).expect("decodes").0;
    let shown: Vec<(Vec<u8>, Vec<Vec<u8>>)> = (list.0.iter())
        .map(|node| (node.ex_dir.0.to_vec(), node.ex_groups.0.iter().map(|group| group.0.to_vec()).collect()))
        .collect();
    let networks = vec![b"192.0.2.0/24".to_vec(), b"fd00::/8".to_vec()];
    assert_eq!(shown, [(b"/files".to_vec(), networks), (b"/other".to_vec(), Vec::new())]);
}

#[test]
fn mount_has_no_other_procedures() {
    let scene = Scene::new(0);
    assert_eq!(scene.user(0).call_raw(Program::Mount, 0, Vec::new()), Came::Bytes(Vec::new()));
    assert_eq!(scene.user(0).call_raw(Program::Mount, 6, Vec::new()), Came::Unavailable);
    assert_eq!(scene.user(0).call_raw(Program::Mount, 1, vec![0, 0]), Came::Garbage);
}
