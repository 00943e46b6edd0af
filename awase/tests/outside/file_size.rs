//! The host limits the size of files (`ulimit -f`, `LimitFSIZE`): what would exceed it fails, and the server goes on.

use std::process::Command;

use nfs3_types::nfs3::{NFS_PROGRAM, SETATTR3args, SETATTR3res, nfs_fh3, nfsstat3, sattr3, stable_how};
use nfs3_types::nfs3::{sattrguard3, set_size3};
use testkit::nbd;
use testkit::nfs::{Client, outcome};
use testkit::server::{AWASE, Sandbox, Server, nfs_port};
use testkit::skip;

const MIB: u64 = 1 << 20;

/// Awase with at most so large files; `None` where that cannot be.
fn limited(bytes: u64) -> Option<Command> {
    let limit = format!("--fsize={bytes}");
    if !Command::new("prlimit").args([&limit, "true"]).status().is_ok_and(|status| status.success()) {
        skip::note("no prlimit (util-linux)");
        return None;
    }
    let mut command = Command::new("prlimit");
    command.args([&limit, &*AWASE, "serve", "--nbd", "none", "--postgres", "none", "--metrics", "none"]);
    Some(command)
}

fn resize(client: &mut Client, file: &nfs_fh3, size: u64) -> Result<(), nfsstat3> {
    let new_attributes = sattr3 { size: set_size3::Some(size), ..sattr3::default() };
    let arguments = SETATTR3args { object: file.clone(), new_attributes, guard: sattrguard3::None };
    let results: SETATTR3res = client.call(NFS_PROGRAM::NFSPROC3_SETATTR, &arguments).expect("an answer");
    outcome(results).map(drop)
}

#[test]
fn a_file_of_a_directory_beyond_the_limit_is_refused() {
    let Some(mut command) = limited(16 * MIB) else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("files");
    command.args(["--nfs", "127.0.0.1:0", "--export", "name=files,kind=directory,secure=false,path=files"]);
    let mut server = sandbox.start(command);
    let mut client = Client::connect(nfs_port(&server.banner())).expect("connect");
    let root = client.mount("/files").expect("mounted");
    let file = client.create(&root, "file").expect("an answer").expect("made");
    assert_eq!(resize(&mut client, &file, 16 * MIB + 1), Err(nfsstat3::NFS3ERR_FBIG));
    for stable in [stable_how::UNSTABLE, stable_how::FILE_SYNC] {
        for at in [16 * MIB - 1, 16 * MIB, 32 * MIB] {
            let refused = client.write(&file, at, b"xy", stable).expect_err("it is beyond the limit");
            assert_eq!(refused.to_string(), nfsstat3::NFS3ERR_FBIG.to_string(), "at {at}");
        }
        client.write(&file, 16 * MIB - 2, b"xy", stable).expect("written");
    }
    assert_eq!(resize(&mut client, &file, 16 * MIB), Ok(()));
    server.end();
}

#[test]
fn a_sector_beyond_the_limit_is_not_written_and_those_below_it_are() {
    let Some(mut command) = limited(16 * MIB) else { return };
    let sandbox = Sandbox::new();
    let image = std::fs::File::create(sandbox.file("disk.img")).and_then(|file| file.set_len(32 * MIB));
    image.expect("an image");
    command.args(["--nfs", "none", "--export", "name=disk,kind=file,path=disk.img"]);
    let server = sandbox.start(command);
    let connect = |server: &Server| nbd::Client::connect(&server.socket(), "disk").expect("connect");
    connect(&server).write_stable(24 * MIB, &[1; 4096]).expect_err("it is beyond the limit");
    let mut client = connect(&server);
    client.write(4096, &[2; 4096]).expect("written");
    assert_eq!(client.read(4096, 4096).expect("read"), [2; 4096]);
}

#[test]
fn without_room_for_a_trace_nothing_is_traced_and_without_room_for_a_new_disk_none_is_made() {
    let Some(mut command) = limited(MIB) else { return };
    command.args(["--nfs", "none", "--export", "name=r,kind=ram,size=1MiB"]);
    let server = Sandbox::new().start(command);
    nbd::Client::connect(&server.socket(), "r").expect("connect").write(0, &[1; 4096]).expect("written");
    let errors = server.end();
    assert!(errors.contains("nothing is traced"), "{errors}");
    let mut command = limited(MIB).expect("as before");
    command.args(["--nfs", "none", "--export", "name=d,kind=file,path=disk.img,create=true,size=2MiB"]);
    let output = command.current_dir(Sandbox::new().path()).output().expect("run");
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
