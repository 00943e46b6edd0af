//! What is seen of a shared disk at each node: events in the trace, and metrics.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::SeqCst;

use testkit::server::{Server, await_that};

use crate::cluster::{Cluster, PAGE, SHARD, connect};

/// Counters and states of the disk, by name and labels but for the volume.
fn metrics(address: &str) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let shared = text.lines().filter_map(|line| line.strip_prefix("awase_shared_")?.rsplit_once(' '));
    shared.map(|(name, value)| (name.replace("volume=\"0\"", ""), value.parse().expect("a number"))).collect()
}

struct Node {
    server: Server,
    metrics: String,
}

impl Node {
    fn start(cluster: &Cluster, node: usize) -> Node {
        let arguments = ["--metrics", "127.0.0.1:0", "--switch", "read_ahead=off", "--switch", "forwarding=on"];
        let mut server = cluster.start_with(node, &arguments);
        let banner = server.banner();
        let found = banner.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let metrics = found.unwrap_or_else(|| panic!("no address in:\n{banner}")).0.to_owned();
        Node { server, metrics }
    }
}

/// Nodes a, b and c: a page of b, which is read by a program at a, then written at c, then read at a again; and another one
/// that a client of a reads.
#[test]
fn what_happens_to_a_page_is_in_the_trace_and_the_metrics_of_each_node_that_it_concerns() {
    let cluster = Cluster::new(3, "memory");
    let mut nodes = [0, 1, 2].map(|node| Node::start(&cluster, node));
    nodes.iter_mut().for_each(|node| node.server.await_error("is connected"));
    await_that("all are connected", || nodes.iter().all(|node| metrics(&node.metrics)["peers{}"] == 2.0));
    let program = cluster.map(0);
    let word = program.atomic_u64(SHARD).expect("inside");
    assert_eq!(word.load(SeqCst), 0);
    let mut at_c = connect(&nodes[2].server);
    at_c.write(SHARD as u64, &[7; PAGE]).expect("written");
    at_c.write(SHARD as u64, &[7; PAGE]).expect("written at once");
    assert_eq!(word.load(SeqCst), u64::from_le_bytes([7; 8]));
    let mut at_a = connect(&nodes[0].server);
    at_a.read((SHARD + PAGE) as u64, PAGE as u32).expect("read");

    let counted: [&[(&str, f64)]; 3] = [
        &[
            ("fetches_total{}", 3.0),
            ("faults_total{}", 2.0),
            ("waits_total{,part=\"fetch\"}", 3.0),
            ("mappings{}", 1.0),
        ],
        &[("grants_total{}", 2.0), ("recalls_total{}", 2.0), ("waits_total{,part=\"holder\"}", 2.0)],
        &[("forwards_total{}", 1.0), ("invalidations_total{}", 1.0), ("fetches_total{}", 0.0)],
    ];
    for (node, expected) in nodes.iter().zip(counted) {
        await_that(&format!("{expected:?}"), || {
            let seen = metrics(&node.metrics);
            expected.iter().all(|(name, value)| seen.get(*name) == Some(value))
        });
    }
    let [at_a, at_b, at_c] = [0, 1, 2].map(|node| metrics(&nodes[node].metrics));
    assert_eq!(at_a["invalidations_total{}"], 1.0);
    assert_eq!(at_a["blocks{,state=\"mapped_read\"}"], 1.0);
    assert_eq!((at_a["blocks{,state=\"shared\"}"], at_c["blocks{,state=\"exclusive\"}"]), (2.0, 0.0));
    for (seen, part) in [(&at_a, "fetch"), (&at_b, "home"), (&at_b, "holder")] {
        let seconds = seen[&format!("wait_seconds_total{{,part=\"{part}\"}}")];
        assert!(seconds > 0.0, "{part}: {seconds}");
    }
    assert_eq!(at_c["waits_total{,part=\"home\"}"], 0.0, "it is no home of these");

    let events = |node: usize, event: &str| -> Vec<String> {
        let output = cluster.sandboxes[node].run(&["trace", "--event", event]);
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().filter(|line| line.contains(event)).map(str::to_owned).collect()
    };
    let traced = [
        (0, "shared.asked", 3, "node 1"),
        (0, "shared.fault", 2, "is_write 0"),
        (0, "shared.fetched", 1, "pages 1"),
        (0, "shared.invalidated", 1, "node 1"),
        (1, "shared.granted", 3, "node 0"),
        (1, "shared.recalled", 2, "node 0"),
        (2, "shared.forwarded", 1, "node 0"),
        (2, "shared.taken", 1, "pages 1"),
    ];
    for (node, event, count, of) in traced {
        let seen = events(node, event);
        assert!(seen.len() == count && seen.iter().any(|line| line.contains(of)), "{event} at {node}: {seen:#?}");
    }
    let breakdown = cluster.sandboxes[0].run(&["trace", "--breakdown"]);
    let breakdown = String::from_utf8_lossy(&breakdown.stdout).into_owned();
    assert!(breakdown.contains("waiting for pages of shared disks"), "{breakdown}");
}
