//! A locked directory stays locked until the last write of a killed process has ended: its rings have it open.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, with};
use machine::Op;
use machine::linux::tree::{self, OpenTreeError};
use machine::linux::{Engine, net};
use testkit::skip::note;

/// Do rings of this process have the directory open?
fn is_kept(path: &Path) -> bool {
    let links = fs::read_dir("/proc/self/fd").expect("a list").flatten();
    let rings = links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[io_uring]")));
    let path = path.to_str().expect("UTF-8");
    rings.into_iter().any(|ring| {
        let told = Path::new("/proc/self/fdinfo").join(ring.file_name());
        // Another test's ring may be gone by now.
        fs::read_to_string(told).is_ok_and(|told| told.lines().any(|line| line.split(' ').next_back() == Some(path)))
    })
}

/// One turn of the processor.
fn turn(rig: &mut Rig) {
    let listening = net::listen_tcp("127.0.0.1:0".parse().expect("an address")).expect("listening").0;
    listening.stop();
    let _ = rig.run(Op::Accept { listener: listening.listener() });
}

#[test]
fn a_ring_keeps_a_locked_directory_open() {
    with(Engine::IoUring, |mut rig| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there");
        let state = tempfile::tempdir().expect("a temporary directory");
        let open = match tree::open_locked(&path, false, Some(state.path())) {
            Err(error @ OpenTreeError::NoHandles(_)) => return note(&error.to_string()),
            opened => opened.expect("opens"),
        };
        assert!(!is_kept(&path));
        turn(&mut rig);
        assert!(is_kept(&path));
        drop(open);
        turn(&mut rig);
        assert!(!is_kept(&path), "it can be unmounted");
    });
}
