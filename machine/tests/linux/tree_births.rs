//! Nodes without handles, which only their times of birth tell apart.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::tree_file_systems::{Kind, Mounted};
use crate::tree_rig::*;

/// Without handles only the time of birth distinguishes a node from the next one with its number, and that has the steps of
/// the host's clock.
#[test]
fn a_node_without_a_handle_does_not_free_its_number_in_the_step_of_the_clock_in_which_it_was_made() {
    crate::tree_rig::searched(|rig| {
        let Some(mounted) = Mounted::new(Kind::Overlay) else { return };
        let Some(mut served) = ServedTree::at(rig, &mounted.path()) else { return };
        let root = served.root;
        for _ in 0..10 {
            served.file("young");
            let birth = born(&served.path("young"));
            assert!(served.remove(root, "young").is_ok());
            assert!(clock() > birth, "removed");
            served.make_directory("young", 0o755);
            let birth = born(&served.path("young"));
            assert!(served.ask(None, remove_directory(root, "young")).is_ok());
            assert!(clock() > birth, "a directory removed");
            served.file("other");
            served.file("young");
            let birth = born(&served.path("young"));
            assert!(served.ask(None, rename(root, "other", root, "young")).is_ok());
            assert!(clock() > birth, "replaced");
            assert!(served.remove(root, "young").is_ok());
        }
    });
}

#[test]
fn a_node_without_a_handle_that_lives_on_loses_a_name_at_once() {
    crate::tree_rig::searched(|rig| {
        let Some(mounted) = Mounted::new(Kind::Overlay) else { return };
        let Some(mut served) = ServedTree::at(rig, &mounted.path()) else { return };
        let root = served.root;
        let linked = |served: &ServedTree| {
            fs::write(served.path("young"), "").expect("written");
            fs::hard_link(served.path("young"), served.path("other")).expect("linked");
        };
        // If it waited, the clock would have gone on each time.
        assert!((0..100).any(|_| {
            linked(&served);
            let birth = born(&served.path("young"));
            assert!(served.remove(root, "other").is_ok());
            let at_once = clock() <= birth;
            fs::remove_file(served.path("young")).expect("removed");
            at_once
        }));
        assert!((0..100).any(|_| {
            linked(&served);
            let birth = born(&served.path("young"));
            assert!(served.ask(None, rename(root, "other", root, "young")).is_ok());
            let at_once = clock() <= birth;
            for name in ["young", "other"] {
                fs::remove_file(served.path(name)).expect("the host leaves both");
            }
            at_once
        }));
        assert!((0..100).any(|_| {
            fs::create_dir(served.path("young")).expect("made");
            let birth = born(&served.path("young"));
            assert!(served.ask(None, rename(root, "young", root, "young")).is_ok());
            let at_once = clock() <= birth;
            fs::remove_dir(served.path("young")).expect("removed");
            at_once
        }));
    });
}

fn born(path: &Path) -> Duration {
    let found = fs::symlink_metadata(path).expect("it exists");
    found.created().expect("it has a time of birth").duration_since(UNIX_EPOCH).expect("later")
}

/// The clock that times of birth are taken from.
fn clock() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills `now`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) }, 0);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
