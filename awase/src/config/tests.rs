use std::path::Path;

use super::*;

fn problem(text: &str) -> String {
    match Config::parse("awase.toml", text) {
        Ok(config) => panic!("was accepted: {config:?}"),
        Err(problems) => problems.0[0].to_string(),
    }
}

#[test]
fn without_a_file_one_sparse_disk_is_served_on_loopback() {
    let config = Config::parse("awase.toml", "").expect("defaults");
    assert_eq!(config.settings, Settings::default());
    assert_eq!(config.settings.nbd[0].to_string(), "127.0.0.1:10809");
    assert_eq!(config.settings.nbd_unix, [PathBuf::from("awase-data/nbd.sock")]);
    assert_eq!(
        config.exports[0].store,
        Store::File { path: "awase-data/disk.img".into(), size: Some(1 << 30), create: true }
    );
    assert_eq!(config.directories, [Directory::default_files(Path::new("awase-data"), Place::Default)]);
    let addresses = config.settings.nfs_addresses();
    assert!(addresses.len() == 1 && addresses[0].ip().is_loopback(), "{addresses:?}");
}

#[test]
fn a_message_names_line_key_and_what_is_allowed() {
    for (text, message) in [
        (
            "processors = 0",
            "awase.toml:1: processors = 0 is not between 1 and 1024; allowed: \"auto\" (one for each core) or a number from 1 to 1024",
        ),
        (
            "\n\nengine = \"uring\"",
            "awase.toml:3: engine = \"uring\" is not allowed; allowed: \"auto\", \"io_uring\", \"threads\"",
        ),
        (
            "[switches]\nreadahead = 4",
            "awase.toml:2: switches.readahead is not a known key; did you mean \"read_ahead\"?",
        ),
        (
            "[[export]]\nname = \"a\"\ndescription = \"a\\nb\"",
            "awase.toml:3: export \"a\" description = \"a\\nb\" holds a control character; allowed: a text of at most 4096 bytes",
        ),
        ("[listen]\nndb = []", "awase.toml:2: listen.ndb is not a known key; did you mean \"listen.nbd\"?"),
        ("priority = true", "awase.toml:1: priority belongs into the section [switches], not the top"),
        (
            "[[export]]\nkind = \"ram\"\nsize = 1000",
            "awase.toml:3: export size = 1000 is not a multiple of 512; allowed: a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512 (shared disks: of 4096)",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = 0",
            "awase.toml:4: export \"a\" size = 0 is not between 512B and 1EiB; allowed: a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512 (shared disks: of 4096)",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"10EiB\"",
            "awase.toml:4: export \"a\" size = \"10EiB\" is not between 512B and 1EiB; allowed: a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512 (shared disks: of 4096)",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1025PiB\"",
            "awase.toml:4: export \"a\" size = \"1025PiB\" is not between 512B and 1EiB; allowed: a size such as \"1GiB\", at most \"1EiB\", that is a multiple of 512 (shared disks: of 4096)",
        ),
        (
            "[[export]]\nname = \"a\"\npath = \"x\"",
            "awase.toml:1: export \"a\" kind is missing; allowed: \"file\", \"block\", \"ram\", \"testdev\", \"shared\", \"directory\"",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"mechanical\"",
            "awase.toml:3: export \"a\" kind = \"mechanical\" is not served any more: disks of 1990 are modelled in the laboratory (awase-lab run EXPERIMENT --on here); allowed: \"file\", \"block\", \"ram\", \"testdev\", \"shared\", \"directory\"",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1M\"\nlatency = \"1ms\"",
            "awase.toml:5: export \"a\" latency does not go with kind = \"ram\"",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1M\"\n[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1M\"",
            "awase.toml:5: export \"a\" name is taken already by the export of awase.toml:1; allowed: a name of its own",
        ),
        (
            "[listen]\nnbd = [\"localhost:1\"]",
            "awase.toml:2: listen.nbd = [\"localhost:1\"] holds \"localhost:1\", not an IP address; allowed: a list of addresses such as \"127.0.0.1:10809\" or \"[::]:10809\"; [] for none",
        ),
        (
            "[listen]\nnbd_unix = \"/a,\"",
            "awase.toml:2: listen.nbd_unix = \"/a,\" holds an empty text; allowed: a path (at most 107 bytes), a list of paths, or [] for none",
        ),
        ("export = 3", "awase.toml:1: export is not a list of tables; allowed: [[export]] for each export"),
    ] {
        assert_eq!(problem(text), message);
    }
}

#[test]
fn malformed_toml_is_refused_with_its_line() {
    let message = problem("processors = 1\nmemory = = 2\n");
    assert!(message.starts_with("awase.toml:2: is not valid TOML: "), "{message}");
}

#[test]
fn a_name_longer_than_the_protocol_allows_is_refused() {
    let message = problem(&format!("[[export]]\nname = \"{}\"\nkind = \"ram\"\nsize = \"1M\"", "x".repeat(4097)));
    assert!(message.contains("is 4097 bytes long, more than 4096"), "{message}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "processors = 0\nmemory = \"much\"\n[[export]]\nname = \"a\"\n[switches]\nnothing = 1\n";
    let problems = Config::parse("awase.toml", text).expect_err("four keys are wrong");
    assert_eq!(problems.0.len(), 4, "{problems:?}");
}

#[test]
fn flags_override_the_file() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = directory.path().join("awase.toml");
    std::fs::write(&file, "processors = 2\n[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1MiB\"\n")
        .expect("write");
    let entry = |key: &str, value: &str| Entry {
        key: key.into(),
        given: Given::Text(value.into()),
        place: Place::Flag("--test".into()),
    };
    let overrides = Overrides {
        file: Some(file),
        entries: vec![entry("processors", "3"), entry("switches.priority", "off")],
        exports: vec![
            vec![entry("name", "a"), entry("size", "2MiB")],
            vec![entry("size", "1M"), entry("kind", "testdev"), entry("name", "b")],
        ],
        read_only: false,
    };
    let config = Config::load(&overrides).expect("a good configuration");
    assert_eq!(config.settings.processors, Some(3));
    assert!(!config.switches.priority);
    assert_eq!(config.exports[0].store, Store::Ram { size: 2 << 20 });
    assert_eq!(config.exports[1].behaviour, Behaviour::FixedLatency(std::time::Duration::from_millis(17)));
}

#[test]
fn a_printed_configuration_has_the_same_meaning() {
    let text = r#"
        processors = 2
        memory = "64MiB"
        engine = "threads"
        data = "/var/lib/a\"w\u007fse"
        [listen]
        nbd = ["[::1]:10810", "127.0.0.1"]
        nbd_unix = ["/run/a.sock", "/run/b.sock"]
        nfs = ["0.0.0.0:2050"]
        rpcbind = true
        control = "/run/c.sock"
        [limits]
        connections = 3
        open_files = 1000
        stall_timeout = "5s"
        [switches]
        read_ahead = 4
        quantum = "24ms"
        huge_pages = false
        trace = "off"
        [[export]]
        name = "quote\"d"
        description = "ö"
        kind = "file"
        path = "/tmp/x y"
        size = "1GiB"
        create = true
        block_size = 512
        [[export]]
        name = "t"
        kind = "testdev"
        size = "1MiB"
        latency = "3ms"
        delay = "1us"
        faults = { read_permille = 5, seed = 7 }
        [[export]]
        name = "m"
        kind = "testdev"
        path = "/tmp/y"
        read_only = true
        stable_writes = "flush"
        [[export]]
        name = "home"
        kind = "directory"
        path = "/srv/home"
        mount = "/export/home"
        clients = ["10.0.0.0/8", "fd00::1"]
        squash = "all_squash"
        anonymous_uid = 1000
        [[export]]
        name = "scratch"
        kind = "directory"
        path = "/srv/scratch"
        create = true
    "#;
    let config = Config::parse("first", text).expect("a good configuration");
    let printed = toml(&config);
    let again = Config::parse("second", &printed).unwrap_or_else(|problems| panic!("{problems}\n{printed}"));
    assert_eq!(toml(&again), printed);
    // The places of keys differ.
    let meaning = |config: &Config| Settings { places: Default::default(), ..config.settings.clone() };
    assert_eq!(meaning(&again), meaning(&config));
    assert_eq!(format!("{:?}", again.switches), format!("{:?}", config.switches));
    let media = |config: &Config| -> Vec<_> { config.exports.iter().map(Export::medium).collect() };
    assert_eq!(media(&again), media(&config));
    let directories = |config: &Config| -> Vec<_> {
        let nowhere = |directory: &Directory| Directory { place: Place::Default, ..directory.clone() };
        config.directories.iter().map(nowhere).collect()
    };
    assert_eq!(directories(&again).len(), 2);
    assert_eq!(directories(&again), directories(&config));
}

#[test]
fn an_export_with_a_refused_key_is_reported_once() {
    let problems = Config::parse("f", "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = -5\n").expect_err("refused");
    assert_eq!(problems.0.len(), 1, "{problems:?}");
}

#[test]
fn one_file_is_not_exported_twice_unless_both_are_read_only() {
    let export =
        |name: &str, more: &str| format!("[[export]]\nname = {name:?}\nkind = \"file\"\npath = \"x\"\n{more}\n");
    let read_only = "read_only = true";
    let message = Config::parse("f", &(export("a", "") + &export("b", read_only))).expect_err("twice").to_string();
    assert!(message.contains("f:6: export \"b\" path is served by the export of f:1 already"), "{message}");
    Config::parse("f", &(export("a", read_only) + &export("b", read_only))).expect("both are read-only");
}

#[test]
fn a_value_remembers_its_line_for_later_problems() {
    let config = Config::parse("f", "data = \"d\"\n[listen]\nnbd = []\n").expect("good");
    assert_eq!(config.settings.place("listen.nbd").to_string(), "f:3");
    assert_eq!(config.settings.place("listen.nbd_unix"), Place::Default);
    assert_eq!(config.exports[0].place.to_string(), "f:1");
}

const DIRECTORY: &str = "[[export]]\nname = \"home\"\nkind = \"directory\"\npath = \"/srv/home\"\n";

fn directory(more: &str) -> Directory {
    Config::parse("f", &format!("{DIRECTORY}{more}\n")).expect("a good configuration").directories.remove(0)
}

#[test]
fn by_default_a_directory_is_mounted_by_its_name_and_root_is_squashed() {
    let plain = directory("");
    assert_eq!((plain.mount.as_str(), plain.read_only, plain.create), ("/home", false, false));
    assert_eq!(plain.squash, nfs::Squash { squashed: nfs::Squashed::Root, uid: 65534, gid: 65534 });
    assert!(plain.clients.is_empty());
    let other = directory("mount = \"/a/b\"\nsquash = \"no_root_squash\"\nclients = \"10.0.0.0/8, fd00::1 192.0.2.7\"");
    assert_eq!(other.mount, "/a/b");
    assert_eq!(other.squash.squashed, nfs::Squashed::Nobody);
    let clients: Vec<String> = other.clients.iter().map(ToString::to_string).collect();
    assert_eq!(clients, ["10.0.0.0/8", "fd00::1/128", "192.0.2.7/32"]);
}

#[test]
fn disks_and_directories_refuse_each_others_keys() {
    for (key, value) in [
        ("size", "\"1GiB\""),
        ("description", "\"x\""),
        ("block_size", "512"),
        ("stable_writes", "\"fua\""),
        ("access", "\"funnel\""),
        ("latency", "\"1ms\""),
        ("delay", "\"1ms\""),
        ("faults.seed", "0"),
    ] {
        let message = problem(&format!("{DIRECTORY}{key} = {value}\n"));
        assert_eq!(message, format!("awase.toml:5: export \"home\" {key} does not go with kind = \"directory\""));
    }
    for (key, value) in [
        ("mount", "\"/a\""),
        ("clients", "[\"10.0.0.0/8\"]"),
        ("squash", "\"root_squash\""),
        ("anonymous_uid", "1"),
        ("anonymous_gid", "1"),
        ("names", "\"ordered\""),
        ("persistent_handles", "true"),
    ] {
        let message = problem(&format!("[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = \"1M\"\n{key} = {value}\n"));
        assert_eq!(message, format!("awase.toml:5: export \"a\" {key} does not go with kind = \"ram\""));
    }
}

#[test]
fn impossible_values_of_a_directory_are_refused() {
    for (more, message) in [
        ("clients = []", "awase.toml:5: export \"home\" clients = [] is empty; leave it out for all clients; "),
        (
            "clients = [\"home.lan\"]",
            "awase.toml:5: export \"home\" clients = [\"home.lan\"] holds \"home.lan\", which is not a network; ",
        ),
        ("clients = [\"10.0.0.0/33\"]", "holds \"10.0.0.0/33\", which is not a network; allowed: a list of networks"),
        (
            "squash = \"root\"",
            "awase.toml:5: export \"home\" squash = \"root\" is not allowed; allowed: \"root_squash\", ",
        ),
        ("anonymous_uid = 4294967295", "anonymous_uid = 4294967295 is not between 0 and 4294967294"),
        ("mount = \"home\"", "mount = \"home\" does not begin with \"/\"; allowed: a path of at most 1024 bytes"),
        ("mount = \"/a/../b\"", "mount = \"/a/../b\" holds \".\" or \"..\""),
        (
            "create = true\nread_only = true",
            "awase.toml:5: export \"home\" create = true does not go with read_only = true",
        ),
    ] {
        let found = problem(&format!("{DIRECTORY}{more}\n"));
        assert!(found.contains(message), "{found}");
    }
    let nowhere = problem("[[export]]\nname = \"home\"\nkind = \"directory\"\n");
    assert_eq!(nowhere, "awase.toml:1: export \"home\" path is missing; allowed: the path of a directory");
    let long = problem(&DIRECTORY.replace("home", &"x".repeat(1024)));
    assert!(long.contains("which is longer than 1024 bytes; allowed: another name, or mount"), "{long}");
}

#[test]
fn two_directories_may_not_share_a_name_or_a_mount_path() {
    let second = |more: &str| format!("{DIRECTORY}[[export]]\nkind = \"directory\"\npath = \"/b\"\n{more}\n");
    let message = problem(&second("name = \"other\"\nmount = \"//home/\""));
    assert_eq!(
        message,
        "awase.toml:5: export \"other\" mount = \"//home/\" leads to the export of awase.toml:1 already; \
         allowed: a path of its own"
    );
    let message = problem(&second("name = \"home\""));
    assert!(message.contains("export \"home\" name is taken already by the export of awase.toml:1"), "{message}");
    let disk = format!("{DIRECTORY}[[export]]\nname = \"home\"\nkind = \"ram\"\nsize = \"1M\"\n");
    assert!(problem(&disk).contains("name is taken already"));
}

#[test]
fn the_default_port_of_nfs_is_one_that_this_user_may_bind() {
    let config = Config::parse("f", "[listen]\nnfs = [\"0.0.0.0\", \"[::1]:111\"]\n").expect("good");
    let default = Settings::default().nfs_addresses()[0].port();
    assert!([2049, 20490].contains(&default));
    assert_eq!(
        config.settings.nfs_addresses(),
        [([0, 0, 0, 0], default).into(), "[::1]:111".parse().expect("an address")]
    );
    let none = Config::parse("f", "[listen]\nnfs = []\n").expect("good");
    assert!(none.settings.nfs_addresses().is_empty());
    assert!(none.directories.is_empty(), "without an address no directory is served");
}
