//! Names for clients: the clients of one table `[[client]]` are one job (WS-7).

use std::sync::{Arc, LazyLock};

use kernel::job::Group;

use super::document::TableEntries;
use super::export_keys::{id, network};
use super::form::{Form, filled, parsed};
use super::given::Refusal;
use super::key::{Key, Keys, apply_all, keys, shown};
use super::problem::{Problem, Problems};

/// Longest name: it appears in tables and metrics. Bytes.
const NAME_BYTES_MAX: usize = 64;

/// Most tables: they are searched for each new client.
const CLIENTS_MAX: usize = 256;

pub static CLIENT_KEYS: Keys<Group> = keys! { Group:
    name: parsed("a text of 1 to 64 bytes", name),
        "The name of these clients in `awase top` and the metrics; required";
    address as networks: filled(parsed(
            "a network or an address such as \"10.0.0.0/24\" or \"fd00::1\", or a list of them", network)),
        "Their addresses (default: any)";
    uid as users: Form { allowed: id().allowed + ", or a list of them", ..filled(id()) },
        "Their users (default: any): through a Unix socket the user of the connected process, in NFS the user that the \
         client names";
};

fn name(name: &str) -> Result<Arc<str>, Refusal> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Refusal::Because(format!("is {} bytes long, more than {NAME_BYTES_MAX}", name.len())));
    }
    if name.contains(char::is_control) {
        return Err(Refusal::Because("holds a control character".into()));
    }
    Ok(name.into())
}

/// The groups of the tables `[[client]]`.
pub(super) fn groups(tables: &[TableEntries], problems: &mut Problems) -> Vec<Group> {
    if let Some(TableEntries { place, .. }) = tables.get(CLIENTS_MAX) {
        problems.0.push(Problem::new(place, "client", "is one too many").allowed(format!("{CLIENTS_MAX} of them")));
    }
    let groups: Vec<_> = tables.iter().filter_map(|table| Some((&table.place, group(table, problems)?))).collect();
    let name = |(_, group): &(_, Group)| Arc::clone(&group.name);
    problems.refuse_pairs(&groups, name, |(first, _), (place, group)| {
        let what = format!("is taken already by the client of {first}");
        let allowed = "a name of its own; one client may have several addresses and users";
        Some(Problem::new(place, key(group, "name"), what).allowed(allowed))
    });
    groups.into_iter().map(|(_, group)| group).collect()
}

fn group(table: &TableEntries, problems: &mut Problems) -> Option<Group> {
    let mut group = Group { name: "".into(), networks: Vec::new(), users: Vec::new() };
    if !apply_all(&CLIENT_KEYS, &mut group, &table.entries, key, problems) {
        return None;
    }
    let (missing, allowed) = match &group {
        Group { name, .. } if name.is_empty() => ("name", "a name for these clients"),
        Group { networks, users, .. } if networks.is_empty() && users.is_empty() => {
            ("address", "address, uid, or both")
        }
        _ => return Some(group),
    };
    problems.0.push(Problem::new(&table.place, key(&group, missing), "is missing").allowed(allowed));
    None
}

fn key(group: &Group, key: &str) -> String {
    shown("client", Some(&*group.name).filter(|name| !name.is_empty()), key)
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn groups(text: &str) -> Result<Vec<(String, usize, usize)>, String> {
        let config = Config::parse("awase.toml", text).map_err(|problems| problems.to_string())?;
        let parts =
            config.clients.iter().map(|group| (group.name.to_string(), group.networks.len(), group.users.len()));
        Ok(parts.collect())
    }

    #[test]
    fn clients_are_named_by_address_or_user_or_both_and_printed_as_they_were_read() {
        let text = "[[client]]\nname = \"build\"\naddress = [\"10.0.0.0/24\", \"fd00::1\"]\n\
                    [[client]]\nname = \"backup\"\naddress = \"10.0.1.7\"\nuid = 34\n\
                    [[client]]\nname = \"root\"\nuid = [0, 1]\n";
        let read = groups(text);
        let named = |name: &str, networks, users| (name.to_owned(), networks, users);
        assert_eq!(read, Ok(vec![named("build", 2, 0), named("backup", 1, 1), named("root", 0, 2)]));
        let config = Config::parse("awase.toml", text).expect("it was read just now");
        assert_eq!(groups(&super::super::toml(&config)), read);
    }

    #[test]
    fn a_problem_with_a_client_names_the_line_and_what_is_allowed() {
        for (text, expected) in [
            ("[[client]]\nname = \"a\"\n", "awase.toml:1: client \"a\" address is missing"),
            ("[[client]]\nuid = 1\n", "awase.toml:1: client name is missing"),
            ("[[client]]\nname = \"a\"\nadress = \"::1\"\n", "did you mean \"address\"?"),
            ("[[client]]\nname = \"a\"\naddress = \"10.0.0.0/33\"\n", "awase.toml:3: client \"a\" address"),
            ("[[client]]\nname = \"a\"\nuid = -1\n", "a number from 0 to 4294967294"),
            ("[[client]]\nname = \"a\"\naddress = []\n", "is empty"),
            ("[[client]]\nname = \"\"\nuid = 1\n", "is empty"),
            ("[[client]]\nname = \"a\"\nuid = 1\n[[client]]\nname = \"a\"\nuid = 2\n", "is taken already"),
            ("client = 1\n", "is not a list of tables"),
        ] {
            let problem = groups(text).expect_err(text);
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
