//! The list of mounts that DUMP shows.

use std::collections::VecDeque;

use nfs3_types::mount::{dirpath, mountbody, mountlist, name};
use nfs3_types::xdr_codec::{List, Opaque};
use parking_lot::Mutex;

use crate::export::components;

/// Mounts remembered for DUMP. The list is informational ("not reliable", RFC 1813, 5.2.2); the oldest are dropped
/// first.
const MOUNTS_MAX: usize = 1024;

/// Bytes of the list on the wire, at most: any client may have it sent again and again.
pub(crate) const LIST_BYTES_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct MountList(Mutex<VecDeque<Mount>>);

#[derive(PartialEq, Eq)]
struct Mount {
    client: String,
    path: Vec<u8>,
}

impl Mount {
    /// Of `path` however it is written: a client may do so in any number of ways.
    fn new(client: String, path: &[u8]) -> Self {
        let names: Vec<&[u8]> = components(path).collect();
        Mount { client, path: [&b"/"[..], &names.join(&b'/')].concat() }
    }

    /// On the wire: that it follows, and both parts with their lengths.
    fn bytes(&self) -> usize {
        12 + self.client.len().next_multiple_of(4) + self.path.len().next_multiple_of(4)
    }
}

impl MountList {
    pub(crate) fn add(&self, client: String, path: &[u8]) {
        let mount = Mount::new(client, path);
        let mut mounts = self.0.lock();
        mounts.retain(|other| *other != mount);
        mounts.push_back(mount);
        // After the last one there is a word more.
        while mounts.len() > MOUNTS_MAX || 4 + mounts.iter().map(Mount::bytes).sum::<usize>() > LIST_BYTES_MAX {
            mounts.pop_front();
        }
    }

    pub(crate) fn remove(&self, client: String, path: &[u8]) {
        let undone = Mount::new(client, path);
        self.0.lock().retain(|mount| *mount != undone);
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
    use nfs3_types::xdr_codec::Pack;

    use super::*;

    fn shown(list: &MountList) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        list.dump().0.iter().map(|body| (text(&body.ml_hostname.0), text(&body.ml_directory.0))).collect()
    }

    #[test]
    fn a_mount_is_listed_once_until_it_is_undone() {
        let list = MountList::default();
        list.add("a".to_owned(), b"/x");
        list.add("a".to_owned(), b"/y");
        list.add("b".to_owned(), b"/x");
        list.add("a".to_owned(), b"/x");
        let pair = |client: &str, path: &str| (client.to_owned(), path.to_owned());
        assert_eq!(shown(&list), [pair("a", "/y"), pair("b", "/x"), pair("a", "/x")]);
        list.remove("a".to_owned(), b"/y");
        list.remove("b".to_owned(), b"/y");
        assert_eq!(shown(&list), [pair("b", "/x"), pair("a", "/x")]);
        list.remove_all("a");
        assert_eq!(shown(&list), [pair("b", "/x")]);
    }

    #[test]
    fn the_list_of_mounts_has_a_bound() {
        let list = MountList::default();
        for number in 0..2 * MOUNTS_MAX {
            list.add("a".to_owned(), format!("/{number}").as_bytes());
        }
        let shown = shown(&list);
        assert_eq!(shown.len(), MOUNTS_MAX);
        assert_eq!(shown[0].1, format!("/{MOUNTS_MAX}"));
    }

    #[test]
    fn a_path_is_listed_once_however_it_is_written() {
        let list = MountList::default();
        for path in [&b"/x/y"[..], b"x/y", b"//x/./y/", b"/x//y/."] {
            list.add("a".to_owned(), path);
        }
        assert_eq!(shown(&list), [("a".to_owned(), "/x/y".to_owned())]);
        list.remove("a".to_owned(), b"/x/y/");
        assert_eq!(shown(&list), []);
    }

    #[test]
    fn the_bytes_of_the_list_of_mounts_have_a_bound_and_the_last_mount_is_in_it() {
        let list = MountList::default();
        for number in 0..MOUNTS_MAX {
            list.add("2001:db8::1".to_owned(), format!("/{}{number}", "x".repeat(1000)).as_bytes());
        }
        let bytes = list.dump().packed_size();
        assert!((LIST_BYTES_MAX - 1100..=LIST_BYTES_MAX).contains(&bytes), "{bytes} bytes");
        assert!(shown(&list).last().is_some_and(|(_, path)| path.ends_with(&format!("x{}", MOUNTS_MAX - 1))));
    }
}
