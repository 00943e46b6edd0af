//! Bytes of which a few are inline.

use std::ops::Deref;
use std::sync::Arc;

/// What two or three numbers take.
pub(super) const INLINE: usize = 24;

/// Bytes that are never changed: few of them need no allocation, and no counter that two processors write, many are shared.
#[derive(Clone)]
pub struct Compact(pub(super) Place);

#[derive(Clone)]
pub(super) enum Place {
    /// Zeroes follow them.
    Inline([u8; INLINE], u8),
    Shared(Arc<[u8]>),
}

impl Compact {
    /// One part after the other.
    pub(super) fn of(parts: &[&[u8]]) -> Compact {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > INLINE {
            return Compact(Place::Shared(parts.concat().into()));
        }
        let (mut bytes, mut at) = ([0; INLINE], 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Compact(Place::Inline(bytes, len as u8))
    }
}

impl From<&[u8]> for Compact {
    fn from(bytes: &[u8]) -> Compact {
        Compact::of(&[bytes])
    }
}

impl Deref for Compact {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Inline(bytes, len) => &bytes[..usize::from(*len)],
            Place::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Compact {
    fn eq(&self, other: &Compact) -> bool {
        **self == **other
    }
}

impl Eq for Compact {}

impl std::fmt::Debug for Compact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
