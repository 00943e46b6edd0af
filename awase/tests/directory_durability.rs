//! What NFS clients were told is stable survives `kill -9` under load, with a real process and a real directory.
//!
//! A process that is killed leaves the host alone, and with it all that the host was given, flushed or not. So these
//! tests prove that nothing acknowledged as stable was in the server's memory alone (its cache, groups that await their
//! flush, what it knows of names and handles), that the next server goes on with the handles of the last, and that it
//! says by another verifier that unstable writes may be gone. That the disk was told to keep it, too, is for the
//! simulated machine to prove: its disks lose at a crash whatever was not flushed.

use std::io;
use std::sync::mpsc::channel;
use std::thread;

use testkit::ledger::Ledger;
use testkit::nfs::Client;
use testkit::random::Random;
use testkit::server::{Place, Server};

const CLIENTS: usize = 4;
/// Acknowledgements of something stable after which the server is killed.
const ACKNOWLEDGEMENTS: usize = 400;
const KILLS: u64 = 3;

/// Has all clients work until so much was acknowledged as stable, and kills the server under them.
fn kill_under_load(server: Server, port: u16, ledgers: Vec<Ledger>, seed: u64) -> Vec<Ledger> {
    let (stable, acknowledged) = channel();
    let start = |(client, mut ledger): (usize, Ledger)| {
        let stable = stable.clone();
        thread::spawn(move || {
            let mut random = Random(seed * 100 + client as u64);
            let end = Client::connect(port).and_then(|mut client| ledger.work(&mut random, &mut client, &stable));
            (ledger, end)
        })
    };
    let clients: Vec<_> = ledgers.into_iter().enumerate().map(start).collect();
    drop(stable);
    let count = acknowledged.iter().take(ACKNOWLEDGEMENTS).count();
    server.crash();
    let end = |client: thread::JoinHandle<(Ledger, io::Result<()>)>| {
        let (ledger, end) = client.join().unwrap_or_else(|_| panic!("seed {seed}: a client found what may not be"));
        let error = end.expect_err("it works until the server is gone");
        assert_eq!(count, ACKNOWLEDGEMENTS, "seed {seed}: a client stopped early: {error}");
        ledger
    };
    clients.into_iter().map(end).collect()
}

fn survives_kill(arguments: &[&str], seed: u64) {
    let place = Place::new();
    for client in 0..CLIENTS {
        std::fs::create_dir_all(place.file(&format!("files/client-{client}"))).expect("directory");
        place.write(&format!("files/client-{client}/data"), "");
    }
    let export = ["--export", "name=files,kind=directory,path=files,squash=no_root_squash"];
    let arguments = [&export[..], arguments].concat();
    let (mut server, port) = place.serve_directories(0, &arguments);
    let new = (0..CLIENTS).map(|client| Ledger::new(port, client).expect("a server"));
    let mut ledgers: Vec<Ledger> = new.collect();
    for kill in 0..KILLS {
        ledgers = kill_under_load(server, port, ledgers, seed * 100 + kill);
        (server, _) = place.serve_directories(port, &arguments);
        let mut client = Client::connect(port).expect("a server");
        for ledger in &mut ledgers {
            let verified = ledger.verify(&mut client);
            verified.unwrap_or_else(|what| panic!("{arguments:?} seed {seed}, after kill {kill}: {what}"));
        }
    }
}

#[test]
fn acknowledged_changes_survive_kill_with_io_uring() {
    survives_kill(&["--engine", "auto"], 1);
}

#[test]
fn acknowledged_changes_survive_kill_with_threads() {
    survives_kill(&["--engine", "threads"], 2);
}

#[test]
fn acknowledged_changes_survive_kill_with_every_technique_off() {
    let off = ["flush_gathering", "smooth_write_back", "block_merge", "priority", "unmapped_io"];
    let off: Vec<String> = off.iter().map(|switch| format!("{switch}=off")).collect();
    let switches: Vec<&str> = off.iter().flat_map(|switch| ["--switch", switch]).collect();
    survives_kill(&[&switches[..], &["--memory", "16MiB"]].concat(), 3);
}
