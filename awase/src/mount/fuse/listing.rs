//! Replies to the listing of directories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use mount::{Listed, Sink};

use super::convert;

/// Names and kinds.
pub struct Names(pub ReplyDirectory);

impl Sink for Names {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        !self.0.add(INodeNo(entry.file_id), entry.cookie, convert::file_type(entry.kind), name)
    }
}

/// Entries with their attributes, to which the host refers from then on.
pub struct Entries(pub ReplyDirectoryPlus);

impl Sink for Entries {
    fn add(&mut self, entry: &Listed<'_>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        // Of `.` and `..` the host takes nothing but the name.
        let (attributes, holds) = match &entry.found {
            Some(found) => {
                // There is one time for both.
                let holds = found.name_holds.min(found.attributes_hold);
                (convert::attributes(found.id, &found.attributes), holds)
            }
            None => (convert::bare(entry.file_id, entry.kind), Duration::ZERO),
        };
        !self.0.add(attributes.ino, entry.cookie, name, &holds, &attributes, Generation(0))
    }
}
