//! Everything that can be changed at run time is changed at random under load: switches by `awase set` and the control
//! socket, the configuration by SIGHUP. Acknowledged writes survive it, also when the server is killed meanwhile.

use awase::config::SWITCHES;
use awase::control::client::Client;
use testkit::nbd;
use testkit::nbd_load::Mix;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server, await_that};

use crate::kill::{Disk, End};

/// Changes in each round before the server is killed.
const CHANGES: u64 = 60;

/// The allowed values that are words.
fn values_of(allowed: &str) -> Vec<String> {
    let words = allowed.split([' ', ',']).filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
    words.map(|word| word.trim_matches('"').to_owned()).collect()
}

/// A configuration with random switches, and sometimes another export.
fn configuration(random: &mut Random, export: &str) -> String {
    let mut text = String::from("[switches]\n");
    for key in SWITCHES.iter() {
        if random.chance(700) {
            continue;
        }
        let values = values_of(&key.allowed);
        let value = random.pick(&values);
        let is_plain = ["true", "false"].contains(&value.as_str());
        text += &if is_plain { format!("{} = {value}\n", key.name) } else { format!("{} = \"{value}\"\n", key.name) };
    }
    text += export;
    if random.chance(500) {
        text += "[[export]]\nname = \"other\"\nkind = \"ram\"\nsize = \"1MiB\"\n";
    }
    text
}

fn change(sandbox: &Sandbox, server: &mut Server, export: &str, random: &mut Random) {
    for _ in 0..CHANGES {
        let key = random.pick(&SWITCHES);
        let values = values_of(&key.allowed);
        let value = random.pick(&values);
        match random.below(10) {
            0 => {
                let set = sandbox.run(&["set", &format!("{}={value}", key.name)]);
                assert!(set.status.success(), "{}={value}: {}", key.name, String::from_utf8_lossy(&set.stderr));
            }
            1 | 2 => {
                sandbox.write("awase.toml", &configuration(random, export));
                server.signal(libc::SIGHUP);
                server.await_notice("READY=1");
            }
            _ => {
                let mut client = Client::connect(&sandbox.file("awase-data/control")).expect("a control socket");
                client.set(key.name, value).unwrap_or_else(|error| panic!("{}={value}: {error}", key.name));
            }
        }
    }
}

#[test]
fn sectors_survive_changes_under_load() {
    let sandbox = Sandbox::new();
    let size = Disk::BYTES;
    let export =
        format!("[[export]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk.img\"\nsize = {size}\ncreate = true\n");
    let mut disk = Disk::new();
    for seed in Rounds::new("sectors_survive_changes_under_load", 3) {
        let random = &mut Random(seed);
        sandbox.write("awase.toml", &configuration(random, &export));
        let arguments = ["--config", "awase.toml", "--memory", "16MiB"];
        let mut server = sandbox.serve(&arguments);
        let socket = server.socket();
        disk.work_during(&socket, Mix::ALL, seed, || change(&sandbox, &mut server, &export, random));
        disk.work_until_end(server, 20, Mix::ALL, seed, End::drawn(random));
        let server = sandbox.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(disk.load.progress.failed(), 0, "seed {seed}: requests failed on a sound disk");
        server.crash();
    }
}

#[test]
fn an_orderly_stop_waits_for_an_export_that_is_no_longer_served_to_be_written_to_its_disk() {
    let sandbox = Sandbox::new();
    let other = "[[export]]\nname = \"other\"\nkind = \"ram\"\nsize = \"1MiB\"\n";
    let slow = "[[export]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\ncreate = true\n\
                delay = \"2s\"\n";
    sandbox.write("awase.toml", &format!("{other}{slow}"));
    let mut server = sandbox.serve(&["--config", "awase.toml", "--memory", "16MiB"]);
    let mut writer = nbd::Client::connect(&server.socket(), "disk").expect("an export");
    writer.write(0, &[7; 4096]).expect("cached");
    writer.disconnect().expect("an end");
    let mut control = Client::connect(&sandbox.file("awase-data/control")).expect("a control socket");
    await_that("nobody has the export", || control.status().expect("a status")["connections"] == 0);
    sandbox.write("awase.toml", other);
    server.signal(libc::SIGHUP);
    server.await_notice("READY=1");
    server.end();
    let image = std::fs::read(sandbox.file("disk.img")).expect("an image");
    assert!(image[..4096] == [7; 4096], "an acknowledged write is lost");
}
