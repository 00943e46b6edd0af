//! The list of mounts that DUMP shows.

use std::collections::VecDeque;

use nfs3_types::mount::{dirpath, mountbody, mountlist, name};
use nfs3_types::xdr_codec::{List, Opaque};
use parking_lot::Mutex;

/// Mounts remembered for DUMP. The list is informational ("not reliable", RFC 1813, 5.2.2); the oldest are dropped
/// first.
const MOUNTS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct MountList(Mutex<VecDeque<Mount>>);

#[derive(PartialEq, Eq)]
struct Mount {
    client: String,
    path: Vec<u8>,
}

impl MountList {
    pub(crate) fn add(&self, client: String, path: Vec<u8>) {
        let mount = Mount { client, path };
        let mut mounts = self.0.lock();
        mounts.retain(|other| *other != mount);
        if mounts.len() >= MOUNTS_MAX {
            mounts.pop_front();
        }
        mounts.push_back(mount);
    }

    pub(crate) fn remove(&self, client: &str, path: &[u8]) {
        self.0.lock().retain(|mount| mount.client != client || mount.path != path);
    }

    pub(crate) fn remove_all(&self, client: &str) {
        self.0.lock().retain(|mount| mount.client != client);
    }

    pub(crate) fn dump(&self) -> mountlist<'static, 'static> {
        let mounts = self.0.lock();
        let bodies = mounts.iter().map(|mount| mountbody {
            ml_hostname: name(Opaque::owned(mount.client.clone().into_bytes())),
            ml_directory: dirpath(Opaque::owned(mount.path.clone())),
        });
        List(bodies.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &MountList) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        list.dump().0.iter().map(|body| (text(&body.ml_hostname.0), text(&body.ml_directory.0))).collect()
    }

    #[test]
    fn a_mount_is_listed_once_until_it_is_undone() {
        let list = MountList::default();
        list.add("a".to_owned(), b"/x".to_vec());
        list.add("a".to_owned(), b"/y".to_vec());
        list.add("b".to_owned(), b"/x".to_vec());
        list.add("a".to_owned(), b"/x".to_vec());
        let pair = |client: &str, path: &str| (client.to_owned(), path.to_owned());
        assert_eq!(shown(&list), [pair("a", "/y"), pair("b", "/x"), pair("a", "/x")]);
        list.remove("a", b"/y");
        list.remove("b", b"/y");
        assert_eq!(shown(&list), [pair("b", "/x"), pair("a", "/x")]);
        list.remove_all("a");
        assert_eq!(shown(&list), [pair("b", "/x")]);
    }

    #[test]
    fn the_list_of_mounts_has_a_bound() {
        let list = MountList::default();
        for number in 0..2 * MOUNTS_MAX {
            list.add("a".to_owned(), number.to_string().into_bytes());
        }
        let shown = shown(&list);
        assert_eq!(shown.len(), MOUNTS_MAX);
        assert_eq!(shown[0].1, MOUNTS_MAX.to_string());
    }
}
