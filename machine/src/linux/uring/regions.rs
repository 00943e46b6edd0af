//! Registered memory: the regions that the kernel has pinned for this ring.

use io_uring::IoUring;
use libc::iovec;

use super::super::syscall;
use crate::{Errno, Region, RegionId};

/// Slots of the table: the maximum of registered regions.
const SLOTS: u16 = 1 << 14;
/// The kernel's limit for one buffer.
const REGION_BYTES_MAX: usize = 1 << 30;

/// The ring's table of registered buffers: a region has the slot of its number.
#[derive(Default)]
pub(super) struct Regions {
    /// Address and length. Empty until the first offer.
    slots: Vec<Option<(usize, usize)>>,
    registered: usize,
}

impl Regions {
    /// Registers `region`, if the kernel accepts it.
    pub(super) fn offer(&mut self, ring: &IoUring, region: Region) -> Result<(), Errno> {
        self.register(ring, region)?;
        self.registered += 1;
        Ok(())
    }

    fn register(&mut self, ring: &IoUring, region: Region) -> Result<(), Errno> {
        if region.id.0 >= SLOTS || region.len > REGION_BYTES_MAX || region.len == 0 {
            return Err(Errno::INVALID);
        }
        self.withdraw(ring, region.id);
        if self.slots.is_empty() {
            ring.submitter().register_buffers_sparse(SLOTS.into()).map_err(|error| syscall::errno(&error))?;
            self.slots = vec![None; SLOTS.into()];
        }
        let memory = iovec { iov_base: region.base.cast(), iov_len: region.len };
        update(ring, region.id, memory)?;
        self.slots[usize::from(region.id.0)] = Some((region.base.addr(), region.len));
        Ok(())
    }

    pub(super) fn withdraw(&mut self, ring: &IoUring, id: RegionId) {
        let Some(slot) = self.slots.get_mut(usize::from(id.0)) else {
            return;
        };
        if slot.take().is_none() {
            return;
        }
        self.registered -= 1;
        let nothing = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        if update(ring, id, nothing).is_err() {
            self.start_afresh(ring);
        }
    }

    /// A kernel that cannot clear one slot must drop the whole table: a pinned page is worse than a slow one.
    fn start_afresh(&mut self, ring: &IoUring) {
        // Fails only when there is no table.
        let _ = ring.submitter().unregister_buffers();
        self.slots.clear();
        self.registered = 0;
    }

    /// The slot of `region` if it is registered and contains all of `vectors`.
    pub(super) fn slot(&self, region: Option<RegionId>, vectors: &[iovec]) -> Option<u16> {
        let id = region?;
        let (base, len) = (*self.slots.get(usize::from(id.0))?)?;
        let inside = |vector: &iovec| {
            let start = vector.iov_base.addr();
            start >= base && start - base + vector.iov_len <= len
        };
        vectors.iter().all(inside).then_some(id.0)
    }
}

fn update(ring: &IoUring, id: RegionId, memory: iovec) -> Result<(), Errno> {
    // SAFETY: the offerer of a region keeps it mapped until it is withdrawn or the ring is gone; a null vector is
    // always valid.
    unsafe { ring.submitter().register_buffers_update(id.0.into(), &[memory], None) }
        .map_err(|error| syscall::errno(&error))
}
