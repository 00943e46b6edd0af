//! A server that runs as an ordinary user.
//!
//! Tests mostly run as root: then this program is run again as an ordinary user, with all tests of trees for one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::tree_rig::*;
use machine::tree::{Caller, Creation, Node, SetAttributes, SetTime, Time, TreeCall};
use rustix::process::{getegid, geteuid};
use testkit::skip::note;

const USER: u32 = 65534;

/// Names a directory of root's with a file, both open to all.
const FOREIGN: &str = "AWASE_TEST_FOREIGN";

/// Runs tests of this program as an ordinary user. Returns its output; `None` where that is impossible.
fn run_as_user(arguments: &[&str]) -> Option<String> {
    let foreign = tempfile::tempdir().expect("a temporary directory");
    let open_to_all = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("allowed");
    fs::write(foreign.path().join("file"), b"abc").expect("written");
    open_to_all(&foreign.path().join("file"), 0o666);
    open_to_all(foreign.path(), 0o777);
    if !is_root() {
        note("takes root, or is run as a user already");
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments).env(FOREIGN, foreign.path()).env_remove("TMPDIR").current_dir("/");
    // What an ordinary user cannot test is tested by root, whose list of skips counts.
    command.env_remove("AWASE_SKIPPED").env_remove("AWASE_SKIPS_FAIL");
    // Drops all groups of root, too.
    command.gid(USER).uid(USER);
    let output = match command.output() {
        Ok(output) => output,
        // It lies where only root has access.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            note(&format!("an ordinary user can't run this program: {error}"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    Some(printed)
}

#[test]
fn the_tests_of_trees_pass_as_an_ordinary_user() {
    let contract = ["handles::threads", "listing::", "names::", "permissions::threads"];
    let contract = contract.map(|suite| format!("tree_contract::{suite}"));
    let others = ["tree_content::threads", "tree_handles::threads", "tree_names::", "tree_search::"];
    let names: Vec<&str> = contract.iter().map(String::as_str).chain(others).collect();
    if let Some(printed) = run_as_user(&names) {
        assert!(printed.contains("test tree_contract::handles::threads::nodes_stay"), "{printed}");
    }
}

#[test]
fn a_server_that_is_an_ordinary_user_checks_its_callers() {
    if let Some(printed) = run_as_user(&["--ignored", "tree_unprivileged::"]) {
        assert!(printed.contains("8 passed"), "{printed}");
    }
}

/// Tests that apply only where the server is an ordinary user.
macro_rules! as_user {
    ($($name:ident),+ $(,)?) => {
        mod as_user {
            $(
                #[test]
                #[ignore = "runs in a program of an ordinary user, started by another test"]
                fn $name() { crate::rig::with(machine::linux::Engine::Threads, crate::tree_rig::on_new(super::$name)); }
            )+
        }
    };
}

as_user!(
    everything_is_done_as_the_servers_user,
    a_caller_changes_names_only_where_it_may,
    a_caller_lists_and_searches_only_what_it_may,
    in_a_sticky_directory_a_caller_removes_nothing_of_others,
    a_caller_sets_attributes_only_of_what_it_owns,
    who_may_write_to_what_the_server_does_not_own_empties_it,
    access_returns_the_permissions_common_to_server_and_caller,
    the_owner_writes_to_its_file_made_read_only,
);

fn me() -> Caller {
    caller(geteuid().as_raw(), getegid().as_raw(), &[])
}

fn stranger() -> Caller {
    caller(5001, 6001, &[6002])
}

fn a_file(dir: Node, name: &str) -> TreeCall {
    create(dir, name, Creation::Guarded, mode(0o644))
}

fn everything_is_done_as_the_servers_user(mut served: ServedTree) {
    let root = served.root;
    for (name, who) in [("a", None), ("b", Some(me())), ("c", Some(stranger())), ("d", Some(caller(0, 0, &[])))] {
        // A request for another owner is ignored.
        let asked = SetAttributes { uid: Some(5001), gid: Some(6001), ..mode(0o640) };
        let made = served.node(who.as_ref(), create(root, name, Creation::Guarded, asked)).expect("made").1;
        assert_eq!((made.uid, made.gid, made.mode), (me().uid, me().gid, 0o640), "{name}");
    }
}

fn a_caller_changes_names_only_where_it_may(mut served: ServedTree) {
    let (root, dir) = (served.root, served.make_directory("dir", 0o755));
    assert!(served.node(Some(&me()), a_file(dir, "file")).is_ok());
    let mine = served.node(Some(&stranger()), a_file(root, "mine")).expect("accessible to all").0;
    for call in [
        a_file(dir, "new"),
        create(dir, "new", Creation::Unchecked, mode(0o600)),
        make_directory(dir, "new", 0o700),
        make_symbolic_link(dir, "new", "x"),
        remove(dir, "file"),
        rename(dir, "file", root, "stolen"),
        rename(root, "mine", dir, "new"),
        link(mine, dir, "new"),
    ] {
        assert_eq!(served.ask(Some(&stranger()), call.clone()).err(), Some(EACCES), "{call:?}");
    }
    assert_eq!(served.list(None, dir, 0, 10, false).expect("listed").0.len(), 3);
    let taken = served.node(Some(&stranger()), create(dir, "file", Creation::Unchecked, mode(0o600)));
    assert!(taken.is_ok(), "it exists: {taken:?}");
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(served.node(Some(&stranger()), create(dir, "file", Creation::Unchecked, cut)), Err(EACCES));
    assert_eq!(served.node(Some(&stranger()), a_file(dir, "file")), Err(EEXIST));
}

fn a_caller_lists_and_searches_only_what_it_may(mut served: ServedTree) {
    let closed = served.make_directory("closed", 0o700);
    let only_read = served.make_directory("only-read", 0o744);
    let only_search = served.make_directory("only-search", 0o711);
    for dir in [closed, only_read, only_search] {
        assert!(served.node(None, a_file(dir, "file")).is_ok());
    }
    for name in ["file", ".", "..", "nothing"] {
        for dir in [closed, only_read] {
            assert_eq!(served.node(Some(&stranger()), lookup(dir, name)), Err(EACCES), "{name}");
            assert!(served.node(Some(&me()), lookup(dir, ".")).is_ok());
        }
    }
    assert!(served.node(Some(&stranger()), lookup(only_search, "file")).is_ok());
    for dir in [closed, only_search] {
        assert_eq!(served.list(Some(&stranger()), dir, 0, 10, false).err(), Some(EACCES));
    }
    let (entries, _) = served.list(Some(&stranger()), only_read, 0, 10, true).expect("listed");
    assert!(entries.len() == 3 && entries.iter().all(|entry| entry.node.is_none()));
}

fn in_a_sticky_directory_a_caller_removes_nothing_of_others(mut served: ServedTree) {
    let sticky = served.make_directory("sticky", 0o1777);
    assert!(served.node(None, a_file(sticky, "file")).is_ok());
    assert!(served.node(None, a_file(sticky, "other")).is_ok());
    for call in [remove(sticky, "file"), rename(sticky, "file", sticky, "new"), rename(sticky, "other", sticky, "file")]
    {
        assert_eq!(served.ask(Some(&stranger()), call.clone()).err(), Some(EPERM), "{call:?}");
        assert!(served.ask(Some(&me()), call.clone()).is_ok(), "{call:?}");
        assert!(served.node(None, create(sticky, "file", Creation::Unchecked, mode(0o644))).is_ok());
        assert!(served.node(None, create(sticky, "other", Creation::Unchecked, mode(0o644))).is_ok());
    }
}

fn a_caller_sets_attributes_only_of_what_it_owns(mut served: ServedTree) {
    let (root, node) = (served.root, served.file("file"));
    let time = SetTime::To(Time { seconds: 5, nanoseconds: 0 });
    let nothing = SetAttributes::default();
    for (attributes, error) in [
        (mode(0o777), EPERM),
        (SetAttributes { uid: Some(5001), ..nothing }, EPERM),
        (SetAttributes { accessed: Some(time), ..nothing }, EPERM),
        (SetAttributes { modified: Some(SetTime::Now), ..nothing }, EACCES),
        (SetAttributes { size: Some(1), ..nothing }, EACCES),
    ] {
        assert_eq!(served.ask(Some(&stranger()), set(node, attributes)).err(), Some(error), "{attributes:?}");
    }
    assert!(served.ask(Some(&me()), set(node, SetAttributes { size: Some(1), ..mode(0o666) })).is_ok());
    for attributes in
        [SetAttributes { modified: Some(SetTime::Now), ..nothing }, SetAttributes { size: Some(7), ..nothing }]
    {
        assert!(served.ask(Some(&stranger()), set(node, attributes)).is_ok(), "{attributes:?}");
    }
    assert_eq!(served.lookup(root, "file").expect("found").1.size, 7);
}

fn who_may_write_to_what_the_server_does_not_own_empties_it(served: ServedTree) {
    let foreign = std::env::var_os(FOREIGN).expect("set by the test that started this program");
    let mut served = ServedTree::at(served.rig, foreign.as_ref()).expect("opened");
    let node = served.lookup(served.root, "file").expect("there").0;
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    for who in [me(), stranger()] {
        let refused = SetAttributes { size: Some(0), ..mode(0o600) };
        assert_eq!(served.ask(Some(&who), set(node, refused)).err(), Some(EPERM));
        assert_ne!(served.attributes(node).expect("there").size, 0);
        let emptied = served.ask(Some(&who), set(node, SetAttributes { modified: Some(SetTime::Now), ..cut }));
        assert_eq!(attributes_in(emptied).expect("set").size, 0);
        served.put("file", b"again");
    }
}

fn access_returns_the_permissions_common_to_server_and_caller(mut served: ServedTree) {
    let node = served.file("file");
    let all = (libc::R_OK | libc::W_OK | libc::X_OK) as u32;
    let (read, write) = (libc::R_OK as u32, libc::W_OK as u32);
    for (permissions, mine, strangers) in
        [(0o640, read | write, 0), (0o664, read | write, read), (0o066, 0, read | write)]
    {
        assert!(served.ask(None, set(node, mode(permissions))).is_ok());
        let call = TreeCall::Access { node, wanted: all };
        assert_eq!(access(served.ask(Some(&me()), call.clone())), Ok(mine), "{permissions:o}");
        // The caller's permissions are limited by the server's.
        assert_eq!(access(served.ask(Some(&stranger()), call)), Ok(strangers & mine), "{permissions:o}");
    }
}

fn the_owner_writes_to_its_file_made_read_only(mut served: ServedTree) {
    for permissions in [0o444, 0] {
        let name = format!("{permissions:o}");
        let call = create(served.root, &name, Creation::Guarded, mode(permissions));
        let node = served.node(Some(&me()), call).expect("made").0;
        assert!(served.opened_by(Some(&me()), node, true).direct.facts.writable);
        let size = SetAttributes { size: Some(100), ..SetAttributes::default() };
        assert!(served.ask(Some(&me()), set(node, size)).is_ok());
        assert_eq!(served.ask(Some(&stranger()), set(node, size)).err(), Some(EACCES));
        let after = served.attributes(node).expect("attributes");
        assert_eq!((after.mode, after.size), (permissions, 100));
    }
}
