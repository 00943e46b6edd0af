//! The locked directories that a ring keeps open. The host closes what a killed process had open at once, but what its rings
//! have registered only when their last request has ended: so nobody else can lock a directory while a disk may still
//! write what this process has written to a file in it. (A lock on the file itself is kept by the request.)

use std::os::fd::{AsRawFd, RawFd};

use io_uring::IoUring;

use super::super::tree::lock;

/// Places in the ring's table of files; fewer where the process may open fewer. The directories that are served for
/// changes come first.
const PLACES: [usize; 3] = [4096, 256, 32];

#[derive(Default)]
pub(super) struct Locks {
    /// That were followed last.
    changes: u64,
    /// In the ring's table, once there is one.
    places: usize,
}

impl Locks {
    /// Registers what has been locked since, and lets go of what is not locked any more. To be called before a write.
    pub(super) fn follow(&mut self, ring: &IoUring) {
        if self.changes != lock::changes() {
            self.register(ring);
        }
    }

    #[cold]
    fn register(&mut self, ring: &IoUring) {
        let (changes, directories) = lock::directories();
        self.changes = changes;
        if self.places == 0 && !directories.is_empty() {
            let is_made = |places: &usize| ring.submitter().register_files_sparse(*places as u32).is_ok();
            self.places = PLACES.into_iter().find(is_made).unwrap_or(0);
        }
        let descriptors = directories.iter().map(|directory| directory.as_raw_fd());
        let table: Vec<RawFd> = descriptors.chain(std::iter::repeat(-1)).take(self.places).collect();
        if !table.is_empty() {
            // Without it the lock ends with the process, as on other engines.
            let _ = ring.submitter().register_files_update(0, &table);
        }
    }
}
