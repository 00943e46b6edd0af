//! Nodes that do not join, and that the others do not notice.

use std::time::Instant;

use testkit::skip;

use crate::{Cluster, LEASE, SIZE, connect, pattern};

#[test]
fn a_node_that_cannot_start_has_not_joined() {
    let cluster = cluster!();
    let mut a = cluster.start(0);
    let small = cluster.common.file("small");
    std::fs::File::create(&small).expect("made").set_len(SIZE / 2).expect("sparse");
    let mut at_a = connect(&a);
    // Once it finds out what it needs for that, and once later.
    for (disk, more, why) in [
        (small, "", "holds \"32MiB\""),
        (
            cluster.device(),
            &*format!("[listen]\ncontrol = \"{}/control\"\n", cluster.device().display()),
            "listen.control",
        ),
    ] {
        cluster.configure(1, &format!("shared_device = {disk:?}\n{more}"));
        let b = cluster.sandboxes[1].run(&["serve", "--config", "node.toml", "--memory", "64MiB"]);
        let errors = String::from_utf8_lossy(&b.stderr).into_owned();
        assert!(!b.status.success() && errors.contains(why), "{errors}");
        assert_eq!(errors.contains("serves as a member"), !more.is_empty(), "{errors}");
        let began = Instant::now();
        (0..64).for_each(|part| at_a.write(part << 20, &pattern(part)).expect("written"));
        at_a.flush().expect("all homes are there");
        assert!(began.elapsed() < LEASE / 2, "{why}: {:?}", began.elapsed());
    }
    drop(at_a);
    a.forget_errors();
    let _b = cluster.start(1);
    a.await_error("\"b\": is connected");
    a.signal(libc::SIGTERM);
}
