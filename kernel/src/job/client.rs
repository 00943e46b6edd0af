//! Identity of clients: by address and credential, or by a configured name.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// Clients that share a configured name.
    Named(Arc<str>),
    Address(IpAddr),
    /// A user of another host, as stated by that host (`AUTH_SYS`).
    UserAt(IpAddr, u32),
    /// A user of this host, through a Unix socket.
    User(u32),
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

/// Facts that identify a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// `None`: this host.
    pub address: Option<IpAddr>,
    /// Of this host: the user that the host reports; of another: the user stated in the request.
    pub user: Option<u32>,
}

/// Clients that share a job by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: Arc<str>,
    /// Empty: any.
    pub networks: Vec<IpNet>,
    /// Empty: any.
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
    /// The first group that matches, or else the client's own identity.
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
