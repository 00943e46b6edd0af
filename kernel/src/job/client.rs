//! Who clients are: by their address and credential, or by a name from the configuration.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// Clients that have a name together.
    Named(Arc<str>),
    Address(IpAddr),
    /// A user of another host, as far as the host says who it is (`AUTH_SYS`).
    UserAt(IpAddr, u32),
    /// A user of this host, through a Unix socket.
    User(u32),
    /// Nothing is known of it.
    Unknown,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Named(name) => f.write_str(name),
            Client::Address(address) => address.fmt(f),
            Client::UserAt(address, user) => write!(f, "{address} uid {user}"),
            Client::User(user) => write!(f, "uid {user}"),
            Client::Unknown => f.write_str("unknown"),
        }
    }
}

/// What is known of one who asks for something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The address of the other host; `None`: this one.
    pub address: Option<IpAddr>,
    /// The user: of this host, the one that the host names; of another, the one that a request names.
    pub user: Option<u32>,
}

/// Clients that are one job by a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: Arc<str>,
    /// Where they are; empty: anywhere.
    pub networks: Vec<IpNet>,
    /// As whom they ask; empty: as anybody.
    pub users: Vec<u32>,
}

impl Group {
    fn has(&self, origin: Origin) -> bool {
        let is_there = |address| self.networks.iter().any(|network| network.contains(&address));
        let is_user = |user| self.users.contains(&user);
        (self.networks.is_empty() || origin.address.is_some_and(is_there))
            && (self.users.is_empty() || origin.user.is_some_and(is_user))
    }
}

impl Origin {
    /// Who that is: the first group that has it, else itself.
    pub fn client(self, groups: &[Group]) -> Client {
        let origin = Origin { address: self.address.map(|address| address.to_canonical()), ..self };
        if let Some(group) = groups.iter().find(|group| group.has(origin)) {
            return Client::Named(Arc::clone(&group.name));
        }
        match (origin.address, origin.user) {
            (Some(address), Some(user)) => Client::UserAt(address, user),
            (Some(address), None) => Client::Address(address),
            (None, Some(user)) => Client::User(user),
            (None, None) => Client::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str, user: Option<u32>) -> Origin {
        Origin { address: address.parse().ok(), user }
    }

    #[test]
    fn the_first_group_that_has_a_client_names_it_and_all_others_are_themselves() {
        let group = |name: &str, networks: &[&str], users: &[u32]| Group {
            name: name.into(),
            networks: networks.iter().map(|network| network.parse().expect("a network")).collect(),
            users: users.to_vec(),
        };
        let groups = [
            group("backup", &["10.1.0.0/16", "fd00::/8"], &[7]),
            group("build", &["10.1.0.0/16"], &[]),
            group("root", &[], &[0]),
        ];
        for (address, user, client) in [
            ("10.1.2.3", Some(7), "backup"),
            ("::ffff:10.1.2.3", Some(7), "backup"),
            ("fd00::1", Some(7), "backup"),
            ("10.1.2.3", Some(8), "build"),
            ("10.1.2.3", None, "build"),
            ("10.2.2.3", Some(0), "root"),
            ("", Some(0), "root"),
            ("10.2.2.3", Some(7), "10.2.2.3 uid 7"),
            ("10.2.2.3", None, "10.2.2.3"),
            ("", Some(7), "uid 7"),
            ("", None, "unknown"),
        ] {
            assert_eq!(origin(address, user).client(&groups).to_string(), client, "{address} {user:?}");
        }
    }
}
