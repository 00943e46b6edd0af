//! Disks in memory, of homes whose processes die.

use testkit::skip;

use super::{BLOCK, NAMES, connect, pattern, value};
use crate::Cluster;

#[test]
fn blocks_of_a_home_in_memory_that_was_killed_are_errors_although_all_that_had_met_it_were_killed_too() {
    let cluster = cluster!();
    let start = |node: usize| {
        cluster.configure(node, "homes = [\"a\"]\nbacking = \"memory\"");
        cluster.serve(node)
    };
    let (a, b) = (start(0), start(1));
    connect(&b).write_stable(0, &pattern(1)).expect("written");
    a.crash();
    let c = start(2);
    b.crash();
    let servers = [start(0), c];
    for (server, name) in servers.iter().zip([NAMES[0], NAMES[2]]) {
        connect(server).read(0, BLOCK as u32).map(drop).expect_err(name);
    }
    connect(&servers[1]).write(0, &pattern(2)).expect("written anew");
    assert_eq!(value(&connect(&servers[0]).read(0, BLOCK as u32).expect("read")), 2);
    // What the other one has goes to the home, and is lost with it.
    for server in servers.into_iter().rev() {
        server.end();
    }
    // No node is left: the disk begins anew.
    let a = start(0);
    assert_eq!(value(&connect(&a).read(0, BLOCK as u32).expect("read")), 0);
}
