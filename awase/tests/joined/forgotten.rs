//! An etcd whose data are lost.

use std::time::Instant;

use testkit::skip;

use crate::{BLOCK, Cluster, LEASE, connect, pattern, value};

#[test]
fn servers_whose_etcd_has_lost_its_data_say_so_once_and_end_and_serve_what_was_flushed_when_started_anew() {
    let mut cluster = cluster!();
    let more = "[[export]]\nname = \"own\"\nkind = \"file\"\npath = \"own.img\"\ncreate = true\nsize = \"1MiB\"";
    cluster.configure(0, &format!("shared_device = {:?}\n{more}", cluster.device()));
    let (a, b) = (cluster.serve(0), cluster.start(1));
    connect(&a).write_stable(0, &pattern(1)).expect("written");
    let mut own = testkit::nbd::Client::connect(&a.socket(), "own").expect("connected");
    own.write(0, &pattern(7)).expect("written, and not flushed");
    drop(own);
    cluster.etcd.kill();
    let data = cluster.common.file("etcd");
    std::fs::remove_dir_all(&data).expect("lost");
    cluster.etcd = cluster.etcd.restart(&data);
    for server in [a, b] {
        let (status, _, errors) = server.wait();
        assert_eq!(status.code(), Some(1), "{errors}");
        assert_eq!(errors.matches("etcd has lost data").count(), 1, "{errors}");
        assert!(!errors.contains("could not be written"), "{errors}");
    }
    let image = std::fs::read(cluster.sandboxes[0].file("own.img")).expect("read");
    assert_eq!(value(&image[..BLOCK as usize]), 7, "other disks are written");
    let began = Instant::now();
    let mut b = cluster.start(1);
    b.await_error("no other node of the cluster \"default\" is registered");
    assert_eq!(value(&connect(&b).read(0, BLOCK as u32).expect("read")), 1);
    assert!(began.elapsed() >= LEASE, "nodes of before could serve");
    let a = cluster.start(0);
    connect(&a).write_stable(0, &pattern(2)).expect("written");
    assert_eq!(value(&connect(&b).read(0, BLOCK as u32).expect("read")), 2);
}
