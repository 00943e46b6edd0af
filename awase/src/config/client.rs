//! Names for clients: the clients of one table `[[client]]` are one job (WS-7).

use kernel::job::Group;
use nfs::IpNet;

use super::export_keys::{ID_MAX, network, quoted};
use super::given::{Given, Refusal};
use super::key::{Entry, Key, apply};
use super::problem::{Place, Problem, Problems};

/// Longest name: it appears in tables and metrics. Bytes.
const NAME_BYTES_MAX: usize = 64;

/// Most tables: they are searched for each new client.
const CLIENTS_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct ClientDraft {
    name: Option<String>,
    networks: Vec<IpNet>,
    users: Vec<u32>,
}

pub static CLIENT_KEYS: &[Key<ClientDraft>] = &[
    Key {
        name: "name",
        allowed: "a text of 1 to 64 bytes",
        about: "The name of these clients in `awase top` and the metrics; required",
        paper: "",
        set: |draft, given| {
            let name = given.filled_text()?;
            if name.len() > NAME_BYTES_MAX {
                return Err(Refusal::Because(format!("is {} bytes long, more than {NAME_BYTES_MAX}", name.len())));
            }
            if name.contains(char::is_control) {
                return Err(Refusal::Because("holds a control character".into()));
            }
            draft.name = Some(name.to_owned());
            Ok(())
        },
        show: |draft| draft.name.as_ref().map(|name| quoted(name)),
    },
    Key {
        name: "address",
        allowed: "a network or an address such as \"10.0.0.0/24\" or \"fd00::1\", or a list of them",
        about: "Their addresses (default: any)",
        paper: "",
        set: |draft, given| {
            draft.networks = given.texts()?.iter().map(|text| network(text)).collect::<Result<_, _>>()?;
            match draft.networks.is_empty() {
                true => Err(Refusal::Because("is empty; leave it out for any client".into())),
                false => Ok(()),
            }
        },
        show: |draft| {
            let networks: Vec<_> = draft.networks.iter().map(|network| format!("\"{network}\"")).collect();
            Some(networks).filter(|list| !list.is_empty()).map(|list| format!("[{}]", list.join(", ")))
        },
    },
    Key {
        name: "uid",
        allowed: "a number from 0 to 4294967294, or a list of them",
        about: "Their users (default: any): through a Unix socket the user of the connected process, in NFS the user \
                that the client names",
        paper: "",
        set: |draft, given| {
            let one = |given: &Given| Ok(given.number(0..=ID_MAX)? as u32);
            draft.users = match given {
                Given::List(users) => users.iter().map(one).collect::<Result<_, Refusal>>()?,
                user => vec![one(user)?],
            };
            match draft.users.is_empty() {
                true => Err(Refusal::Because("is empty; leave it out for any client".into())),
                false => Ok(()),
            }
        },
        show: |draft| {
            let users: Vec<_> = draft.users.iter().map(u32::to_string).collect();
            Some(users).filter(|list| !list.is_empty()).map(|list| format!("[{}]", list.join(", ")))
        },
    },
];

pub(super) fn groups(written: Vec<(Place, Vec<Entry>)>, problems: &mut Problems) -> Vec<Group> {
    if let Some((place, _)) = written.get(CLIENTS_MAX) {
        problems.0.push(Problem::new(place, "client", "is one too many").allowed(format!("{CLIENTS_MAX} of them")));
    }
    let mut groups: Vec<(Place, Group)> = Vec::new();
    for (place, entries) in written {
        let Some(group) = group(&place, &entries, problems) else { continue };
        match groups.iter().find(|(_, other)| other.name == group.name) {
            Some((first, _)) => {
                let what = format!("is taken already by the client of {first}");
                let problem = Problem::new(&place, format!("client {:?} name", &*group.name), what);
                problems.0.push(problem.allowed("a name of its own; one client may have several addresses and users"));
            }
            None => groups.push((place, group)),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

fn group(place: &Place, entries: &[Entry], problems: &mut Problems) -> Option<Group> {
    let mut draft = ClientDraft::default();
    // The name first: it is part of every message.
    let (names, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.key == "name");
    let mut was_refused = false;
    for entry in names.into_iter().chain(rest) {
        let shown = key(&draft, &entry.key);
        was_refused |= problems.note(apply(CLIENT_KEYS, &mut draft, entry, &shown)).is_none();
    }
    if was_refused {
        return None;
    }
    let missing = |name: &str, allowed: &str| Problem::new(place, key(&draft, name), "is missing").allowed(allowed);
    let Some(name) = &draft.name else {
        problems.0.push(missing("name", "a name for these clients"));
        return None;
    };
    if draft.networks.is_empty() && draft.users.is_empty() {
        problems.0.push(missing("address", "address, uid, or both"));
        return None;
    }
    Some(Group { name: name.as_str().into(), networks: draft.networks, users: draft.users })
}

fn key(draft: &ClientDraft, key: &str) -> String {
    match &draft.name {
        Some(name) => format!("client {name:?} {key}"),
        None => format!("client {key}"),
    }
}

/// The draft from which `group` would be read, for printing.
impl From<&Group> for ClientDraft {
    fn from(group: &Group) -> ClientDraft {
        let name = Some(group.name.to_string());
        ClientDraft { name, networks: group.networks.clone(), users: group.users.clone() }
    }
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
