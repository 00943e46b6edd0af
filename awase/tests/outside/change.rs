//! Everything that can be changed under way is changed at random under load: switches by `awase set` and over the control
//! socket, the configuration by SIGHUP. What clients were told stays true, also when the server is killed meanwhile.

use awase::config::SWITCHES;
use awase::control::client::Client;
use testkit::nbd_load::Mix;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::{Place, Server};

use crate::kill::{Disk, End};

/// Changes of each round before the server is killed.
const CHANGES: u64 = 60;

/// The values that are named among those allowed.
fn values_of(allowed: &str) -> Vec<String> {
    let words = allowed.split([' ', ',']).filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
    words.map(|word| word.trim_matches('"').to_owned()).collect()
}

/// A configuration with some switches as they like and an export that is there or not.
fn configuration(random: &mut Random, export: &str) -> String {
    let mut text = String::from("[switches]\n");
    for key in SWITCHES {
        if random.chance(700) {
            continue;
        }
        let values = values_of(key.allowed);
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

fn change(place: &Place, server: &mut Server, export: &str, random: &mut Random) {
    for _ in 0..CHANGES {
        let key = random.pick(SWITCHES);
        let values = values_of(key.allowed);
        let value = random.pick(&values);
        match random.below(10) {
            0 => {
                let set = place.run(&["set", &format!("{}={value}", key.name)]);
                assert!(set.status.success(), "{}={value}: {}", key.name, String::from_utf8_lossy(&set.stderr));
            }
            1 | 2 => {
                place.write("awase.toml", &configuration(random, export));
                server.signal(libc::SIGHUP);
                server.await_notice("READY=1");
            }
            _ => {
                let mut client = Client::connect(&place.file("awase-data/control")).expect("a control socket");
                client.set(key.name, value).unwrap_or_else(|error| panic!("{}={value}: {error}", key.name));
            }
        }
    }
}

#[test]
fn sectors_survive_whatever_is_changed_under_load() {
    let place = Place::new();
    let size = Disk::BYTES;
    let export =
        format!("[[export]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk.img\"\nsize = {size}\ncreate = true\n");
    let mut disk = Disk::new();
    for seed in Rounds::new("sectors_survive_whatever_is_changed_under_load", 3) {
        let random = &mut Random(seed);
        place.write("awase.toml", &configuration(random, &export));
        let arguments = ["--config", "awase.toml", "--memory", "16MiB"];
        let mut server = place.serve(&arguments);
        let socket = server.socket();
        disk.work_beside(&socket, Mix::ALL, seed, || change(&place, &mut server, &export, random));
        disk.work_until_end(server, 20, Mix::ALL, seed, End::drawn(random));
        let server = place.serve(&arguments);
        disk.verify(&server).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(disk.load.progress.failed(), 0, "seed {seed}: requests failed where no disk did");
        server.crash();
    }
}
