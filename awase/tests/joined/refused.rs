//! Nodes that do not join, and that the others do not notice.

use std::time::{Duration, Instant};

use testkit::skip;

use crate::{BLOCK, Cluster, SIZE, connect, pattern, value};

#[test]
fn a_node_that_cannot_start_has_not_joined() {
    let cluster = cluster!();
    // Much longer than anything takes that does not wait until it is over.
    let lease = Duration::from_secs(60);
    let configure = |node, more: &str| {
        cluster.configure(node, more);
        let text = std::fs::read_to_string(cluster.sandboxes[node].file("node.toml")).expect("written");
        let text = text.replace("[cluster]\n", &format!("[cluster]\nlease = \"{}s\"\n", lease.as_secs()));
        cluster.sandboxes[node].write("node.toml", &text);
    };
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
        configure(1, &format!("shared_device = {disk:?}\n{more}"));
        let b = cluster.sandboxes[1].run(&["serve", "--config", "node.toml", "--memory", "64MiB"]);
        let errors = String::from_utf8_lossy(&b.stderr).into_owned();
        assert!(!b.status.success() && errors.contains(why), "{errors}");
        assert_eq!(errors.contains("serves as a member"), !more.is_empty(), "{errors}");
        let began = Instant::now();
        (0..64).for_each(|part| at_a.write(part << 20, &pattern(part)).expect("written"));
        at_a.flush().expect("all homes are there");
        assert!(began.elapsed() < lease / 2, "{why}: {:?}", began.elapsed());
    }
    drop(at_a);
    a.forget_errors();
    configure(1, &format!("shared_device = {:?}", cluster.device()));
    let _b = cluster.serve(1);
    a.await_error("\"b\": is connected");
    a.signal(libc::SIGTERM);
}

#[test]
fn a_node_with_other_disks_than_the_members_does_not_keep_them_from_theirs() {
    let cluster = cluster!();
    let (a, device) = (cluster.start(0), cluster.device());
    let mut at_a = connect(&a);
    let more = format!(
        "shared_device = {device:?}\n[[export]]\nname = \"t\"\nkind = \"shared\"\nsize = \"1MiB\"\nshared_device = {:?}\n",
        cluster.common.file("t")
    );
    std::fs::File::create(cluster.common.file("t")).expect("made").set_len(1 << 20).expect("sparse");
    cluster.configure(1, &more);
    let mut b = cluster.serve(1);
    b.await_error("the shared disk \"t\" is not configured at node \"a\"");
    cluster.configure(2, &format!("shared_device = {device:?}"));
    let text = std::fs::read_to_string(cluster.sandboxes[2].file("node.toml")).expect("written");
    cluster.sandboxes[2].write("node.toml", &text.replace(&format!("{SIZE}B"), "32MiB"));
    let mut c = cluster.serve(2);
    c.await_error("the shared disk \"s\" has 67108864 bytes at node \"a\", and 33554432 here");
    (0..64).for_each(|part| at_a.write(part << 20, &pattern(part)).expect("written"));
    at_a.flush().expect("all homes have the disk");
    drop(at_a);
    drop(c);
    a.end();
    b.await_error("this node serves as a member");
    let mut at_b = connect(&b);
    assert_eq!(value(&at_b.read(63 << 20, BLOCK as u32).expect("read")), 63);
    at_b.flush().expect("it is alone");
}
