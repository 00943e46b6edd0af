//! Reading the results of procedures. Nothing is allocated by a length that the wire says, and no length is believed.

use nfs3_types::nfs3::{NFS3_FHSIZE, fattr3, wcc_data};
use nfs3_types::xdr_codec::Unpack;

use crate::attributes::{Attributes, Change};
use crate::handle::Handle;

/// The bytes that are left of a reply's results. Each call takes some; `None`: they are not what the procedure returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Results<'a>(&'a [u8]);

impl<'a> Results<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Results(bytes)
    }

    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_be_bytes)
    }

    pub fn boolean(&mut self) -> Option<bool> {
        match self.u32()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn verifier(&mut self) -> Option<[u8; 8]> {
        self.bytes(8)?.try_into().ok()
    }

    /// Opaque data of at most `most` bytes.
    pub fn opaque(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let data = self.bytes(len).filter(|_| len <= most)?;
        self.bytes(len.next_multiple_of(4) - len)?;
        Some(data)
    }

    pub fn handle(&mut self) -> Option<Handle> {
        self.opaque(NFS3_FHSIZE).filter(|data| !data.is_empty()).map(Handle::new)
    }

    pub fn optional<T>(&mut self, take: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        Some(if self.boolean()? { Some(take(self)?) } else { None })
    }

    pub fn attributes(&mut self) -> Option<Attributes> {
        self.fixed::<fattr3>().map(|attributes| Attributes::from(&attributes))
    }

    /// `post_op_attr`.
    pub fn after(&mut self) -> Option<Option<Attributes>> {
        self.optional(Results::attributes)
    }

    /// `wcc_data`.
    pub fn change(&mut self) -> Option<Change> {
        self.fixed::<wcc_data>().map(|data| Change::from(&data))
    }

    /// A type without opaque data.
    fn fixed<T: Unpack>(&mut self) -> Option<T> {
        T::unpack(&mut self.0).ok().map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_is_believed() {
        for bytes in [&[0xff; 4][..], &[0xff; 64], &[0, 0, 0, 5, 1, 2, 3, 4], &[0, 0, 0, 65], &[0, 0, 0, 1, 9]] {
            assert_eq!(Results::new(bytes).opaque(64), None, "{bytes:?}");
        }
        let mut results = Results::new(&[0, 0, 0, 1, 9, 0, 0, 0, 7]);
        assert_eq!((results.opaque(64), results.0), (Some(&[9][..]), &[7][..]));
        assert!(Results::new(&[0; 4]).handle().is_none(), "a handle has bytes");
    }
}
