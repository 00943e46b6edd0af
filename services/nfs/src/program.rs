//! The programs, and the largest transfer of a call.

use kernel::{FRAME_BYTES, Kernel};

/// One READ or WRITE, at most.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// And at least, even with a small cache.
const TRANSFER_BYTES_MIN: u64 = 128 << 10;

/// A transfer is at most the cache's size divided by this, within these bounds, so that many fit.
const TRANSFER_SHARE: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    Nfs,
    Mount,
}

/// `rtmax` and `wtmax` of FSINFO, and the most that a READ returns. Bytes. A WRITE may be longer, up to
/// [`TRANSFER_BYTES_MAX`]: the cache may have shrunk since FSINFO.
pub(crate) fn transfer_bytes_max(kernel: &Kernel) -> u32 {
    let share = kernel.cache_blocks() * FRAME_BYTES as u64 / TRANSFER_SHARE;
    share.clamp(TRANSFER_BYTES_MIN, u64::from(TRANSFER_BYTES_MAX)).next_power_of_two().min(TRANSFER_BYTES_MAX.into())
        as u32
}
