//! The key of a block in the cache.

use policy::unit::{BlockNo, DeviceId};

/// A block of any device: 16 bits of device, 48 bits of block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockKey(pub(crate) u64);

impl BlockKey {
    /// Panics for a block beyond 2^60 bytes, which no open device has.
    pub(crate) fn new(device: DeviceId, block: BlockNo) -> Self {
        assert!(block.0 < 1 << 48, "block {} beyond 2^48", block.0);
        BlockKey(u64::from(device.0) << 48 | block.0)
    }

    pub(crate) fn device(self) -> DeviceId {
        DeviceId((self.0 >> 48) as u16)
    }

    pub(crate) fn block(self) -> BlockNo {
        BlockNo(self.0 & ((1 << 48) - 1))
    }
}
