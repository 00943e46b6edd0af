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
    assert_eq!(config.settings.unix_sockets(), [PathBuf::from("awase-data/nbd.sock")]);
    assert_eq!(
        config.exports[0].store,
        Store::File { path: "awase-data/disk.img".into(), size: Some(1 << 30), create: true }
    );
}

#[test]
fn a_message_names_line_key_and_what_is_allowed() {
    for (text, message) in [
        (
            "processors = 0",
            "awase.toml:1: processors = 0 is not between 1 and 1024; allowed: \"auto\" (one a core) or a number from 1 to 1024",
        ),
        (
            "\n\nengine = \"uring\"",
            "awase.toml:3: engine = \"uring\" is not allowed; allowed: \"auto\", \"io_uring\", \"threads\"",
        ),
        (
            "[switches]\nreadahead = 4",
            "awase.toml:2: switches.readahead is not a known key; did you mean \"read_ahead\"?",
        ),
        ("[listen]\nndb = []", "awase.toml:2: listen.ndb is not a known key; did you mean \"listen.nbd\"?"),
        ("priority = true", "awase.toml:1: priority belongs into the section [switches], not the top"),
        (
            "[[export]]\nkind = \"ram\"\nsize = 1000",
            "awase.toml:3: export size = 1000 is no multiple of 512; allowed: a size such as \"1GiB\" that is a multiple of 512",
        ),
        (
            "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = 0",
            "awase.toml:4: export \"a\" size = 0 is not between 512B and 4194304TiB; allowed: a size such as \"1GiB\" that is a multiple of 512",
        ),
        (
            "[[export]]\nname = \"a\"\npath = \"x\"",
            "awase.toml:1: export \"a\" kind is missing; allowed: \"file\", \"block\", \"ram\", \"testdev\", \"mechanical\"",
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
            "awase.toml:2: listen.nbd = [\"localhost:1\"] holds \"localhost:1\", which is no IP address; allowed: a list of addresses such as \"127.0.0.1:10809\" or \"[::]:10809\"; [] for none",
        ),
        ("export = 3", "awase.toml:1: export is not a list of tables; allowed: [[export]] for each export"),
    ] {
        assert_eq!(problem(text), message);
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    let message = problem("processors = 1\nmemory = = 2\n");
    assert!(message.starts_with("awase.toml:2: is not valid TOML: "), "{message}");
}

#[test]
fn a_name_longer_than_the_protocol_allows_is_refused() {
    let message = problem(&format!("[[export]]\nname = \"{}\"\nkind = \"ram\"\nsize = \"1M\"", "x".repeat(4097)));
    assert!(message.contains("is 4097 bytes long, more than 4096"), "{message}");
}

#[test]
fn all_problems_are_found_at_once() {
    let text = "processors = 0\nmemory = \"much\"\n[[export]]\nname = \"a\"\n[switches]\nnothing = 1\n";
    let problems = Config::parse("awase.toml", text).expect_err("five things are wrong");
    assert_eq!(problems.0.len(), 4, "{problems:?}");
}

#[test]
fn flags_win_over_the_file() {
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
fn what_is_printed_means_the_same() {
    let text = r#"
        processors = 2
        memory = "64MiB"
        engine = "threads"
        data = "/var/lib/awase"
        [listen]
        nbd = ["[::1]:10810", "127.0.0.1"]
        nbd_unix = ["/run/a.sock", "/run/b.sock"]
        [limits]
        connections = 3
        stall_timeout = "5s"
        [switches]
        read_ahead = 4
        huge_pages = false
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
        kind = "mechanical"
        model = "mo-1990"
        path = "/tmp/y"
        read_only = true
        stable_writes = "flush"
    "#;
    let config = Config::parse("first", text).expect("a good configuration");
    let printed = toml(&config);
    let again = Config::parse("second", &printed).unwrap_or_else(|problems| panic!("{problems}\n{printed}"));
    assert_eq!(toml(&again), printed);
    // Where a key was written is not what it means.
    let meaning = |config: &Config| Settings { places: Default::default(), ..config.settings.clone() };
    assert_eq!(meaning(&again), meaning(&config));
    assert_eq!(format!("{:?}", again.switches), format!("{:?}", config.switches));
    let media = |config: &Config| -> Vec<_> { config.exports.iter().map(Export::medium).collect() };
    assert_eq!(media(&again), media(&config));
}

#[test]
fn every_model_of_the_kernel_can_be_configured() {
    let key = EXPORT_KEYS.iter().find(|key| key.name == "model").expect("key model");
    for model in kernel::device::MechanicalModel::ALL {
        assert!(key.allowed.contains(model.name), "{} is missing in {:?}", model.name, key.allowed);
    }
}

#[test]
fn a_refused_key_is_the_only_problem_of_its_export() {
    let problems = Config::parse("f", "[[export]]\nname = \"a\"\nkind = \"ram\"\nsize = -5\n").expect_err("refused");
    assert_eq!(problems.0.len(), 1, "{problems:?}");
}

#[test]
fn one_file_is_not_exported_twice_unless_nobody_writes_it() {
    let export =
        |name: &str, more: &str| format!("[[export]]\nname = {name:?}\nkind = \"file\"\npath = \"x\"\n{more}\n");
    let read_only = "read_only = true";
    let message = Config::parse("f", &(export("a", "") + &export("b", read_only))).expect_err("twice").to_string();
    assert!(message.contains("f:6: export \"b\" path is served by the export of f:1 already"), "{message}");
    Config::parse("f", &(export("a", read_only) + &export("b", read_only))).expect("nobody writes");
}

#[test]
fn what_the_host_refuses_is_told_where_it_was_given() {
    let config = Config::parse("f", "data = \"d\"\n[listen]\nnbd = []\n").expect("good");
    assert_eq!(config.settings.place("listen.nbd").to_string(), "f:3");
    assert_eq!(config.settings.place("listen.nbd_unix"), Place::Default);
    assert_eq!(config.exports[0].place.to_string(), "f:1");
}
