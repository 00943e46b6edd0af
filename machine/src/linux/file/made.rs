//! A file that was made a moment ago, for something that may still be refused: then nothing shall be left of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::{OpenFile, descriptor};

/// It is open here, and thus locked. It stays unless it is removed.
pub struct Made {
    path: PathBuf,
    open: OpenFile,
}

impl Made {
    pub(super) fn new(path: PathBuf, open: OpenFile) -> Made {
        Made { path, open }
    }

    /// Removes it if nothing was written into it.
    pub fn remove_unused(self) {
        let size = self.open.facts.size;
        self.remove_if(|own| own.len() == size && own.blocks() == 0);
    }

    /// Removes it with what is in it, all of which is its maker's.
    pub fn remove(self) {
        self.remove_if(|_| true);
    }

    fn remove_if(self, may_go: impl FnOnce(&fs::Metadata) -> bool) {
        let Ok(own) = fs::metadata(format!("/proc/self/fd/{}", descriptor(self.open.file))) else { return };
        let is_own = |found: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) && may_go(&own) {
            // The refusal that led here is the one to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}
