//! File handles: stored by clients to identify files, and impossible to forge.
//!
//! ```text
//! version  export     MAC       node
//! 1 byte   7 bytes    16 bytes  up to 40 bytes      64 bytes at most (NFS3_FHSIZE)
//! ```
//!
//! Handles survive a restart. The host would open any node, also outside the exported directory: the MAC (BLAKE3 keyed
//! with the server's secret) admits only those that the server issued.

use std::cell::RefCell;
use std::fmt;

use machine::tree::{NODE_BYTES_MAX, Node};
use smallvec::SmallVec;

/// Version of the layout.
const VERSION: u8 = 1;

const EXPORT_BYTES: usize = 7;
const MAC_BYTES: usize = 16;
const MAC_AT: usize = 1 + EXPORT_BYTES;
const NODE_AT: usize = MAC_AT + MAC_BYTES;

/// Longest handle, in bytes (RFC 1813, 2.4: `NFS3_FHSIZE`).
pub(crate) const HANDLE_BYTES_MAX: usize = NODE_AT + NODE_BYTES_MAX;

const _: () = assert!(HANDLE_BYTES_MAX <= nfs3_types::nfs3::NFS3_FHSIZE);

/// The secret from which handles are made. It must survive restarts, or all handles become void.
pub(crate) struct HandleKey([u8; 32]);

impl HandleKey {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        HandleKey(key)
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(secret)")
    }
}

/// Identifies an export in handles: 56 bits of the hash of its name, stable across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(u64);

impl ExportId {
    pub fn of(name: &str) -> Self {
        let mut bytes = [0; 8];
        bytes[1..].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..EXPORT_BYTES]);
        ExportId(u64::from_be_bytes(bytes))
    }

    /// Below 2^56.
    pub fn number(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) export: ExportId,
    pub(crate) node: Node,
}

impl Handle {
    /// Encodes and authenticates it.
    pub(crate) fn seal(&self, key: &HandleKey) -> Vec<u8> {
        let node = self.node.as_bytes();
        let mut bytes = Vec::with_capacity(NODE_AT + node.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.export.0.to_be_bytes()[1..]);
        bytes.extend_from_slice(&mac(key, &bytes[..MAC_AT], node));
        bytes.extend_from_slice(node);
        bytes
    }

    /// Decodes a sealed handle; `None` for anything else.
    pub(crate) fn open(key: &HandleKey, bytes: &[u8]) -> Option<Handle> {
        let (head, rest) = bytes.split_at_checked(MAC_AT)?;
        let (claimed, node) = rest.split_at_checked(MAC_BYTES)?;
        let claimed: [u8; MAC_BYTES] = claimed.try_into().ok()?;
        if head[0] != VERSION || !constant_time_eq::constant_time_eq_16(&claimed, &mac(key, head, node)) {
            return None;
        }
        let mut export = [0; 8];
        export[1..].copy_from_slice(&head[1..]);
        Some(Handle { export: ExportId(u64::from_be_bytes(export)), node: Node::new(node)? })
    }
}

/// The handle that a connection used last: while it uses the same, the MAC need not be computed again.
#[derive(Default)]
pub(crate) struct LastHandle(RefCell<Option<(SmallVec<[u8; HANDLE_BYTES_MAX]>, Handle)>>);

impl LastHandle {
    /// As [`Handle::open`].
    pub(crate) fn open(&self, key: &HandleKey, bytes: &[u8]) -> Option<Handle> {
        if let Some((sealed, handle)) = &*self.0.borrow()
            && sealed[..] == *bytes
        {
            return Some(*handle);
        }
        let handle = Handle::open(key, bytes)?;
        self.0.replace(Some((bytes.into(), handle)));
        Some(handle)
    }
}

/// The export in an unverified handle.
pub(crate) fn claimed_export(bytes: &[u8]) -> Option<ExportId> {
    let head: [u8; 8] = *bytes.first_chunk()?;
    Some(ExportId(u64::from_be_bytes(head) & ((1 << (8 * EXPORT_BYTES)) - 1)))
}

/// The node in an unverified handle, for trace records.
pub(crate) fn claimed_node(bytes: &[u8]) -> u64 {
    bytes.get(NODE_AT..).map_or(0, kernel::tree::node_for_records)
}

/// The head has a fixed length, so no two handles have the same bytes under the MAC.
fn mac(key: &HandleKey, head: &[u8], node: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = [0; MAC_BYTES];
    let mut bytes = [0; MAC_AT + NODE_BYTES_MAX];
    let hash = match bytes.get_mut(..head.len() + node.len()) {
        // In one piece a hasher is not needed, which is large.
        Some(bytes) => {
            bytes[..head.len()].copy_from_slice(head);
            bytes[head.len()..].copy_from_slice(node);
            blake3::keyed_hash(&key.0, bytes)
        }
        None => blake3::Hasher::new_keyed(&key.0).update(head).update(node).finalize(),
    };
    mac.copy_from_slice(&hash.as_bytes()[..MAC_BYTES]);
    mac
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> HandleKey {
        HandleKey::new(*b"a secret of thirty-two bytes....")
    }

    fn handle(node: &[u8]) -> Handle {
        Handle { export: ExportId::of("/files"), node: Node::new(node).expect("a node") }
    }

    #[test]
    fn a_handle_is_the_same_in_every_release() {
        let sealed = handle(&[1, 2, 3, 4, 5, 6, 7, 8]).seal(&key());
        assert_eq!(sealed.len(), 32);
        assert_eq!(sealed, handle(&[1, 2, 3, 4, 5, 6, 7, 8]).seal(&key()));
        assert_eq!(&sealed[NODE_AT..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(hex(&sealed[..NODE_AT]), SEALED);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Clients retain handles across an upgrade of the server.
    const SEALED: &str = "01ad585828b21468cc1bbc1e4f7cc716ca2c0b4c664b11a7";

    #[test]
    fn what_a_handle_claims_is_what_it_names() {
        let handle = handle(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
        let sealed = handle.seal(&key());
        assert_eq!(claimed_export(&sealed), Some(handle.export));
        assert_eq!(claimed_node(&sealed), kernel::tree::node_for_records(handle.node.as_bytes()));
        assert_eq!((claimed_export(&sealed[..7]), claimed_node(&sealed[..7])), (None, 0));
    }

    #[test]
    fn the_longest_node_fits() {
        let handle = handle(&[7; NODE_BYTES_MAX]);
        let sealed = handle.seal(&key());
        assert_eq!(sealed.len(), HANDLE_BYTES_MAX);
        assert_eq!(Handle::open(&key(), &sealed), Some(handle));
    }

    #[test]
    fn a_handle_of_another_key_is_refused() {
        let sealed = handle(b"node").seal(&HandleKey::new([1; 32]));
        assert_eq!(Handle::open(&key(), &sealed), None);
    }

    #[test]
    fn the_last_handle_is_opened_again_and_no_other_in_its_place() {
        let last = LastHandle::default();
        let [a, b] = [handle(b"a node"), handle(b"a nodf")];
        for handle in [a, a, b, a, b, b] {
            let sealed = handle.seal(&key());
            assert_eq!(last.open(&key(), &sealed), Some(handle));
            for at in 0..sealed.len() {
                let mut forged = sealed.clone();
                forged[at] ^= 1;
                assert_eq!(last.open(&key(), &forged), None, "byte {at}");
                assert_eq!(last.open(&key(), &sealed[..at]), None, "cut to {at}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        for len in [0, 1, 8, 28, NODE_BYTES_MAX] {
            let sealed = handle(&vec![0x5a; len]).seal(&key());
            for bit in 0..sealed.len() * 8 {
                let mut forged = sealed.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Handle::open(&key(), &forged), None, "bit {bit} of a handle with {len} bytes of node");
            }
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        let sealed = handle(&[9; 20]).seal(&key());
        for len in 0..sealed.len() {
            assert_eq!(Handle::open(&key(), &sealed[..len]), None, "cut to {len}");
        }
        for more in 1..=64 - sealed.len() {
            let longer: Vec<u8> = sealed.iter().copied().chain(std::iter::repeat_n(0, more)).collect();
            assert_eq!(Handle::open(&key(), &longer), None, "{more} bytes longer");
        }
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened(node in prop::collection::vec(any::<u8>(), 0..=NODE_BYTES_MAX), name in ".{0,40}") {
            let handle = Handle { export: ExportId::of(&name), node: Node::new(&node).expect("a node") };
            prop_assert_eq!(Handle::open(&key(), &handle.seal(&key())), Some(handle));
        }

        #[test]
        fn what_nobody_sealed_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..=64)) {
            prop_assert_eq!(Handle::open(&key(), &bytes), None);
        }
    }
}
