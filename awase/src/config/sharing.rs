//! What shared disks and the cluster need of each other.

use super::cluster::{PEERS, add, allowed, misnamed};
use super::export::Export;
use super::given::{Given, Refusal};
use super::key::Entry;
use super::kind::Disk;
use super::problem::{Problem, Problems};
use super::settings::Settings;

/// Takes an entry that is one of the peers, or says that there are none. `None`: it is not.
pub(super) fn take(settings: &mut Settings, entry: &Entry) -> Option<Result<(), Problem>> {
    if entry.key == PEERS && entry.given == Given::TABLE {
        return Some(Ok(()));
    }
    let name = entry.key.strip_prefix(PEERS)?.strip_prefix('.')?;
    settings.places.entry(PEERS.to_owned()).or_insert_with(|| entry.place.clone());
    let added = entry.given.text().and_then(|address| add(&mut settings.cluster.peers, name, address));
    Some(added.map_err(|refusal| {
        let what = match refusal {
            Refusal::NotAllowed => format!("= {} is not allowed", entry.given),
            Refusal::Because(why) => format!("= {} {why}", entry.given),
        };
        Problem::new(&entry.place, &entry.key, what).allowed(allowed())
    }))
}

/// What shared disks, and those of databases, need of the cluster.
pub(super) fn check(settings: &Settings, volumes: &[&Export], problems: &mut Problems) {
    let cluster = &settings.cluster;
    let shared: Vec<&Export> = volumes.iter().copied().filter(|export| export.kind == Disk::Shared).collect();
    problems.refuse_pairs(
        &shared,
        |export| &export.name,
        |first, export| {
            let what = || format!("is that of the shared disk of {} already", first.place);
            (first.is_database != export.is_database)
                .then(|| Problem::new(&export.place, export.key("name"), what()).allowed("a name of its own"))
        },
    );
    if cluster.is_joined() {
        return check_joined(settings, &shared, problems);
    }
    for export in &shared {
        if export.is_database {
            let what = "= \"shared\" needs cluster.etcd: only there it is agreed which node has the database open";
            problems.0.push(Problem::new(&export.place, export.key("kind"), what));
        } else if export.is_on_device() {
            let what = "needs cluster.etcd: only there it is agreed who stores which blocks";
            problems.0.push(Problem::new(&export.place, export.key("shared_device"), what).allowed("backing"));
        }
    }
    let names: Vec<_> = cluster.names().map(|name| format!("{name:?}")).collect();
    let known = if names.is_empty() { allowed() } else { names.join(", ") };
    if let Some(export) = shared.first() {
        let missing = |key: &str, allowed: &str| {
            Problem::new(&export.place, key, "is missing, and a disk is shared").allowed(allowed)
        };
        if cluster.node.is_none() {
            problems.0.push(missing("cluster.node", "the name of this node, one of cluster.peers"));
        }
        if cluster.listen.is_none() {
            problems.0.push(missing("cluster.listen", "the address at which the other nodes reach this one"));
        }
    }
    if let Some(node) = cluster.node.as_deref().filter(|node| !cluster.names().any(|name| name == *node)) {
        let what = format!("= {node:?} is not among cluster.peers");
        problems.0.push(Problem::new(&settings.place("cluster.node"), "cluster.node", what).allowed(&*known));
    }
    for export in shared {
        let stranger = export.homes.iter().find(|home| !cluster.names().any(|name| name == **home));
        if let Some(home) = stranger {
            let what = format!("holds {home:?}, which is not among cluster.peers");
            problems.0.push(Problem::new(&export.place, export.key("homes"), what).allowed(&*known));
        }
    }
}

/// The same where the nodes register in etcd.
fn check_joined(settings: &Settings, shared: &[&Export], problems: &mut Problems) {
    let cluster = &settings.cluster;
    let mut problem = |key: &str, what: &str, allowed: &str| {
        problems.0.push(Problem::new(&settings.place("cluster.etcd"), key, what).allowed(allowed));
    };
    if !cluster.peers.is_empty() {
        problem("cluster.etcd", "does not go with cluster.peers", "one of them");
    }
    if cluster.node.is_none() {
        problem("cluster.node", "is missing, and the node is to register in etcd", "a name of its own for each node");
    }
    match cluster.address() {
        None => problem("cluster.listen", "is missing", "the address at which the other nodes reach this one"),
        Some(address) if address.ip().is_unspecified() => {
            let what = format!("is missing, and {address} is no address by which others reach this node");
            problem("cluster.advertise", &what, "an address such as \"10.0.0.1:10810\"");
        }
        Some(_) => {}
    }
    for export in shared {
        let mut problem = |key: &str, what: &str, allowed: &str| {
            problems.0.push(Problem::new(&export.place, export.key(key), what).allowed(allowed));
        };
        if export.is_on_device() && !export.homes.is_empty() {
            problem("homes", "does not go with shared_device", "any node stores any block: leave it out");
        }
        if !export.is_on_device() && export.homes.is_empty() {
            let allowed = "a list such as [\"a\", \"b\"]; or shared_device, for a device that all nodes reach";
            problem("homes", "is missing: with cluster.etcd it is not known before which nodes there will be", allowed);
        }
        if let Some(why) = export.homes.iter().find_map(|home| misnamed(home)) {
            problem("homes", &format!("holds a name that {why}"), "names of nodes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    const CLUSTER: &str = "[cluster]\nnode = \"a\"\nlisten = \"127.0.0.1:7001\"\n\
                           peers = { a = \"127.0.0.1:7001\", b = \"localhost:7002\" }\n";
    const SHARED: &str = "[[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"1MiB\"\nbacking = \"memory\"\n";

    fn problem(text: &str) -> String {
        Config::parse("awase.toml", text).map_or_else(|problems| problems.to_string(), |_| "none".into())
    }

    #[test]
    fn a_cluster_is_read_and_printed_as_it_was_read() {
        let config = Config::parse("awase.toml", &format!("{CLUSTER}{SHARED}homes = [\"b\"]\n")).expect("good");
        assert_eq!(config.settings.cluster.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(config.exports[0].homes, ["b"]);
        let again = Config::parse("again.toml", &super::super::toml(&config)).expect("as printed");
        assert_eq!(again.settings.cluster, config.settings.cluster);
        assert_eq!(
            (&again.exports[0].homes, &again.exports[0].store),
            (&config.exports[0].homes, &config.exports[0].store)
        );
    }

    const JOINED: &str = "[cluster]\nnode = \"a\"\nlisten = \"127.0.0.1:7001\"\netcd = [\"http://127.0.0.1:2379/\"]\n\
                          lease = \"3s\"\n";
    const ON_DEVICE: &str = "[[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"1MiB\"\nshared_device = \"d\"\n";

    #[test]
    fn a_cluster_in_etcd_is_read_and_printed_as_it_was_read() {
        let config = Config::parse("awase.toml", &format!("{JOINED}{ON_DEVICE}")).expect("good");
        assert_eq!(config.settings.cluster.etcd, ["http://127.0.0.1:2379"]);
        assert_eq!((config.settings.cluster.lease.as_secs(), config.settings.cluster.name.as_str()), (3, "default"));
        let again = Config::parse("again.toml", &super::super::toml(&config)).expect("as printed");
        assert_eq!(again.settings.cluster, config.settings.cluster);
        assert_eq!(again.exports[0].store, config.exports[0].store);
    }

    #[test]
    fn a_problem_with_a_cluster_in_etcd_names_the_line_and_what_is_allowed() {
        let with = |from: &str, to: &str| format!("{JOINED}{ON_DEVICE}").replace(from, to);
        for (text, expected) in [
            (with("lease", "peers = { a = \"127.0.0.1:7001\" }\nlease"), "cluster.etcd does not go with cluster.peers"),
            (with("node = \"a\"\n", ""), "cluster.node is missing, and the node is to register in etcd"),
            (with("node = \"a\"", "node = \"a b\""), "is not 1 to 64 letters"),
            (with("listen = \"127.0.0.1:7001\"\n", ""), "cluster.listen is missing"),
            (with("127.0.0.1:7001", "0.0.0.0:7001"), "cluster.advertise is missing, and 0.0.0.0:7001 is no address"),
            (with("http:", "https:"), "allowed: a list of endpoints of one etcd"),
            (with("3s", "1500ms"), "is not a number of whole seconds"),
            (with("shared_device", "homes = [\"a\"]\nshared_device"), "homes does not go with shared_device"),
            (with("shared_device = \"d\"", "backing = \"memory\""), "homes is missing: with cluster.etcd"),
            (with("shared_device", "backing = \"x\"\nshared_device"), "shared_device does not go with backing"),
            (format!("{CLUSTER}{ON_DEVICE}"), "shared_device needs cluster.etcd"),
        ] {
            let problem = problem(&text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn a_problem_with_the_cluster_names_the_line_and_what_is_allowed() {
        let with = |from: &str, to: &str| format!("{CLUSTER}{SHARED}").replace(from, to);
        for (text, expected) in [
            (SHARED.to_owned(), "awase.toml:1: cluster.node is missing, and a disk is shared"),
            (
                with("node = \"a\"", "node = \"c\""),
                "awase.toml:2: cluster.node = \"c\" is not among cluster.peers; allowed: \"a\", \"b\"",
            ),
            (with("a = \"127.0.0.1:7001\", ", ""), "cluster.node = \"a\" is not among cluster.peers; allowed: \"b\""),
            (
                with("localhost:7002", "localhost"),
                "awase.toml:4: cluster.peers.b = \"localhost\" holds \"localhost\", which is not a host and a port",
            ),
            (with("localhost:7002", "127.0.0.1:7001"), "holds \"127.0.0.1:7001\", which \"a\" has already"),
            (with("b = \"localhost", "\"b c\" = \"localhost"), "which is not 1 to 64 letters"),
            (with("listen = \"127.0.0.1:7001\"\n", ""), "cluster.listen is missing"),
            (with("node = \"a\"", "nodes = \"a\""), "did you mean \"cluster.node\"?"),
            (with("size = \"1MiB\"", "size = \"5632B\""), "is not a multiple of 4096"),
            (with("size = \"1MiB\"\n", ""), "export \"s\" size is missing"),
            (with("backing = \"memory\"\n", ""), "export \"s\" backing is missing"),
            (with("backing", "path = \"x\"\nbacking"), "export \"s\" path does not go with kind = \"shared\""),
            (
                with("backing", "homes = [\"z\"]\nbacking"),
                "export \"s\" homes holds \"z\", which is not among cluster.peers",
            ),
            (with("backing", "homes = []\nbacking"), "homes = [] is empty; leave it out for all nodes"),
            (
                "[[export]]\nname = \"r\"\nkind = \"ram\"\nsize = \"1M\"\nhomes = \"a\"\n".into(),
                "homes does not go with kind = \"ram\"",
            ),
        ] {
            let problem = problem(&text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
