//! Overlays copy a file of a lower layer when it is opened for writing.

use std::path::{Path, PathBuf};

use machine::linux::Engine;
use machine::linux::file::{OpenOptions, open};
use machine::{File, Op};
use policy::unit::{ByteOffset, Stability};
use rustix::fs::syncfs;

use crate::rig::{Memory, Rig};
use crate::tree_file_systems::{Kind, Mounted, after_power_cut};
use crate::tree_rig::*;

/// Writes over all of a file of the lower layer, and flushes it: it must be in the upper one then.
fn written_over_is_on_disk(test: impl FnOnce(Rig, &Path, &dyn Fn(&mut Rig, File))) {
    crate::rig::with(Engine::Auto, |rig| {
        let Some(ext4) = Mounted::new(Kind::Image("mkfs.ext4", &["-q", "-F"])) else { return };
        let Some(overlay) = Mounted::on(&ext4, Kind::Overlay) else { return };
        std::fs::File::open(ext4.path()).and_then(|root| Ok(syncfs(&root)?)).expect("synced");
        let from = Memory::filled(5, 7);
        test(rig, &overlay.path(), &|rig, file| {
            let op = Op::Write { file, at: ByteOffset(0), from: from.all(), stability: Stability::Unstable };
            assert_eq!(rig.run(op), Ok(5));
            assert_eq!(rig.run(Op::Flush { file }), Ok(0));
        });
        let upper = overlay.path().with_file_name("upper").join("layer/below");
        let upper: PathBuf = upper.strip_prefix(ext4.path()).expect("in it").into();
        let looked = after_power_cut(&ext4, "loop", |at| {
            assert_eq!(std::fs::read(at.join(upper)).ok().as_deref(), Some(from.bytes()));
        });
        assert!(looked.is_some(), "the copy could not be looked at");
    });
}

#[test]
fn a_file_of_a_lower_layer_that_a_client_has_written_to_is_on_disk_under_ext4() {
    written_over_is_on_disk(|rig, root, write| {
        let Some(mut served) = ServedTree::at(rig, root) else { return };
        let layer = served.lookup(served.root, "layer").expect("found").0;
        let node = served.lookup(layer, "below").expect("found").0;
        let open = served.opened(node, true);
        write(&mut served.rig, open.buffered.as_ref().unwrap_or(&open.direct).file);
    });
}

#[test]
fn an_image_of_a_lower_layer_that_was_written_to_is_on_disk_under_ext4() {
    written_over_is_on_disk(|mut rig, root, write| {
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let image = open(&root.join("layer/below"), options).expect("opened");
        write(&mut rig, image.tail.unwrap_or(image.file));
    });
}
