//! Exports: a directory tree with a name, its permitted clients and its squashing.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use machine::tree::{Caller, Node};

use crate::client::{ClientAddress, Credentials};
use crate::grants::Grants;
use crate::handle::{ExportId, Handle, HandleKey};
use kernel::export::ExportNo;
use kernel::tree::FileTree;

/// The default anonymous user and group.
pub const NOBODY: u32 = 65534;

/// Callers that act as the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squashed {
    Nobody,
    /// User 0 and group 0 (`root_squash`).
    #[default]
    Root,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    /// Callers that act as the anonymous user.
    pub squashed: Squashed,
    pub uid: u32,
    pub gid: u32,
}

impl Default for Squash {
    fn default() -> Self {
        Squash { squashed: Squashed::default(), uid: NOBODY, gid: NOBODY }
    }
}

impl Squash {
    /// The user as whom the host executes calls with these credentials. `None`: calls without credentials are refused
    /// (`AUTH_TOOWEAK`), unless all callers are squashed.
    pub(crate) fn caller(&self, credentials: &Credentials) -> Option<Caller> {
        match credentials {
            _ if self.squashed == Squashed::All => Some(self.anonymous()),
            Credentials::None => None,
            Credentials::Unix { gid, groups, .. } => {
                let root = self.squashed == Squashed::Root;
                let group = |id: u32| if root && id == 0 { self.gid } else { id };
                // Without any, nothing is allocated.
                let groups =
                    if groups.is_empty() { Arc::default() } else { groups.iter().map(|&id| group(id)).collect() };
                Some(Caller { uid: self.user(credentials)?, gid: group(*gid), groups })
            }
        }
    }

    /// Only the user of [`Squash::caller`].
    pub(crate) fn user(&self, credentials: &Credentials) -> Option<u32> {
        match credentials {
            _ if self.squashed == Squashed::All => Some(self.uid),
            Credentials::None => None,
            Credentials::Unix { uid: 0, .. } if self.squashed == Squashed::Root => Some(self.uid),
            Credentials::Unix { uid, .. } => Some(*uid),
        }
    }

    pub(crate) fn anonymous(&self) -> Caller {
        Caller { uid: self.uid, gid: self.gid, groups: Arc::from([]) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// The path by which clients mount it, such as `/files`. Handles contain its hash: under another name it is another
    /// export.
    pub name: String,
    pub read_only: bool,
    /// Networks of permitted clients; empty: all. Clients of a Unix socket always are: its permissions decide.
    pub clients: Vec<IpNet>,
    /// Require privileged ports? Otherwise any user of a client's host can impersonate any other.
    pub secure: bool,
    pub squash: Squash,
    pub names: Names,
}

/// When changes of names and attributes are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// When they are durable.
    #[default]
    Durable,
    /// At once. A crash leaves a prefix of them, at least what was answered a second before; stable writes and COMMIT
    /// make those before them durable, too.
    Ordered,
}

/// Why a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    Address,
    Port,
}

pub struct Export {
    id: ExportId,
    number: ExportNo,
    config: ExportConfig,
    tree: Arc<FileTree>,
    grants: Grants,
}

impl Export {
    pub fn new(config: ExportConfig, tree: Arc<FileTree>) -> Arc<Self> {
        let number = tree.export_as(&config.name);
        if config.names == Names::Ordered {
            tree.begin_order();
        }
        Arc::new(Export { id: ExportId::of(&config.name), number, config, tree, grants: Grants::default() })
    }

    pub fn id(&self) -> ExportId {
        self.id
    }

    pub fn number(&self) -> ExportNo {
        self.number
    }

    pub fn config(&self) -> &ExportConfig {
        &self.config
    }

    pub fn tree(&self) -> &Arc<FileTree> {
        &self.tree
    }

    pub fn read_only(&self) -> bool {
        self.config.read_only || self.tree.read_only()
    }

    /// Checks the client's address and port.
    ///
    /// # Errors
    /// The reason to refuse it.
    pub fn admit(&self, client: ClientAddress) -> Result<(), NotAdmitted> {
        match client {
            _ if !admits(&self.config.clients, client.ip()) => Err(NotAdmitted::Address),
            _ if self.config.secure && !client.is_privileged() => Err(NotAdmitted::Port),
            _ => Ok(()),
        }
    }

    /// Permissions recently granted by the host.
    pub(crate) fn grants(&self) -> &Grants {
        &self.grants
    }

    pub(crate) fn handle(&self, key: &HandleKey, node: Node) -> Vec<u8> {
        Handle { export: self.id, node }.seal(key)
    }

    /// The components of the path by which it is mounted.
    pub(crate) fn path(&self) -> impl Iterator<Item = &[u8]> {
        components(self.config.name.as_bytes())
    }
}

fn admits(networks: &[IpNet], address: Option<IpAddr>) -> bool {
    // A socket for both families shows IPv4 clients as `::ffff:a.b.c.d`.
    let Some(address) = address.map(|address| address.to_canonical()) else { return true };
    networks.is_empty() || networks.iter().any(|network| network.contains(&address))
}

/// The names in a path, without empty ones and `.`.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials::Unix { uid, gid, groups: groups.iter().copied().collect() }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Option<Caller> {
        Some(Caller { uid, gid, groups: groups.into() })
    }

    fn squash(squashed: Squashed) -> Squash {
        Squash { squashed, uid: 7, gid: 8 }
    }

    #[test]
    fn root_becomes_the_anonymous_user_in_every_group() {
        let squash = squash(Squashed::Root);
        assert_eq!(squash.caller(&unix(0, 0, &[0, 5])), caller(7, 8, &[8, 5]));
        assert_eq!(squash.caller(&unix(1000, 0, &[4, 0])), caller(1000, 8, &[4, 8]));
        assert_eq!(squash.caller(&unix(1000, 1000, &[4])), caller(1000, 1000, &[4]));
    }

    #[test]
    fn without_squashing_everybody_stays_who_he_is() {
        assert_eq!(squash(Squashed::Nobody).caller(&unix(0, 0, &[0])), caller(0, 0, &[0]));
    }

    #[test]
    fn when_all_are_squashed_nobody_keeps_a_group() {
        assert_eq!(squash(Squashed::All).caller(&unix(1000, 1000, &[0, 4])), caller(7, 8, &[]));
        assert_eq!(squash(Squashed::All).caller(&Credentials::None), caller(7, 8, &[]));
    }

    #[test]
    fn who_does_not_say_who_he_is_is_served_only_where_all_are_anonymous() {
        assert_eq!(squash(Squashed::Root).caller(&Credentials::None), None);
        assert_eq!(squash(Squashed::Nobody).caller(&Credentials::None), None);
    }

    #[test]
    fn only_clients_of_the_named_networks_are_admitted() {
        let networks: Vec<IpNet> =
            ["10.1.0.0/16", "fd00::/8"].iter().map(|network| network.parse().expect("a network")).collect();
        let admitted = |address: &str| admits(&networks, Some(address.parse().expect("an address")));
        assert!(admitted("10.1.255.3"));
        assert!(admitted("::ffff:10.1.2.3"));
        assert!(admitted("fd12::1"));
        assert!(!admitted("10.2.0.1"));
        assert!(!admitted("::ffff:10.2.0.1"));
        assert!(!admitted("fe80::1"));
        assert!(admits(&networks, None));
    }

    #[test]
    fn without_networks_everybody_is_admitted() {
        assert!(admits(&[], Some(IpAddr::from([192, 0, 2, 1]))));
    }

    #[test]
    fn a_path_means_the_same_however_it_is_written() {
        let names = |path: &str| components(path.as_bytes()).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(names("//a/./b/"), [b"a", b"b"]);
        assert_eq!(names("a/b"), names("/a/b"));
        assert_eq!(names("/"), Vec::<Vec<u8>>::new());
    }
}
