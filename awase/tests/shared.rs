//! Shared disks: two servers on this host that are nodes of one cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::nbd::Client;
use testkit::port;
use testkit::server::{AWASE, Sandbox, Server, attempt, client};

const SIZE: u64 = 32 << 20;

/// A request that needs another node fails after this time (`dsm::TIMEOUT`), and not much later.
const TIMEOUT: Duration = Duration::from_secs(10);

struct Cluster {
    sandboxes: [Sandbox; 2],
    ports: [u16; 2],
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { sandboxes: [Sandbox::new(), Sandbox::new()], ports: [(); 2].map(|()| port::unused()) }
    }

    fn configuration(&self, node: usize, size: u64, backing: &str) -> String {
        let [a, b] = self.ports;
        let (name, own) = (["a", "b"][node], self.ports[node]);
        format!(
            "[cluster]\nnode = \"{name}\"\nlisten = \"127.0.0.1:{own}\"\n\
             peers = {{ a = \"127.0.0.1:{a}\", b = \"localhost:{b}\" }}\n\
             [[export]]\nname = \"s\"\nkind = \"shared\"\nsize = \"{size}B\"\nbacking = \"{backing}\"\n"
        )
    }

    fn start(&self, node: usize, size: u64, backing: &str) -> Server {
        self.start_with(node, &self.configuration(node, size, backing))
    }

    fn start_with(&self, node: usize, configuration: &str) -> Server {
        let sandbox = &self.sandboxes[node];
        sandbox.write("node.toml", configuration);
        sandbox.serve(&["--config", "node.toml", "--memory", "64MiB"])
    }

    fn both(&self, backing: &str) -> [Server; 2] {
        let mut servers = [0, 1].map(|node| self.start(node, SIZE, backing));
        servers.iter_mut().for_each(|server| server.await_error("is connected"));
        servers
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.socket(), "s").expect("connected")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

#[test]
fn an_image_copied_into_one_node_is_read_at_the_other() {
    let cluster = Cluster::new();
    let [a, b] = cluster.both("memory");
    let sandbox = &cluster.sandboxes[0];
    let bytes: Vec<u8> = (0..SIZE as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let (image, copy) = (sandbox.file("image"), sandbox.file("copy"));
    for (from, to) in [(&a, &b), (&b, &a)] {
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte ^ from.id() as u8).collect();
        std::fs::write(&image, &bytes).expect("written");
        client("nbdcopy", &["--flush", text(&image), &from.uri("s")]);
        client("nbdcopy", &[&to.uri("s"), text(&copy)]);
        assert!(std::fs::read(&copy).expect("read") == bytes, "the copy differs");
    }
    assert!(client("nbdinfo", &[&a.uri("s")]).contains("can_multi_conn: true"));
}

#[test]
fn both_nodes_write_parts_of_the_same_blocks() {
    let cluster = Cluster::new();
    let servers = cluster.both("memory");
    let mut clients = [connect(&servers[0]), connect(&servers[1])];
    for round in 0..200_u64 {
        let at = round % 16 * 512 + (round % 3) * (2 << 20);
        clients[(round % 2) as usize].write(at, &[round as u8; 512]).expect("written");
        let seen = clients[((round + 1) % 2) as usize].read(at, 512).expect("read");
        assert!(seen == [round as u8; 512], "round {round}");
    }
}

#[test]
fn a_node_killed_and_started_again_finds_what_was_flushed_on_its_path() {
    let cluster = Cluster::new();
    let [a, b] = cluster.both("part.img");
    let pattern = |block: u64| (block as u32).wrapping_mul(2_654_435_761).to_le_bytes().repeat(1024);
    // Blocks of both homes.
    let blocks = [0, 1, 255, 256, 300, 511, 512, 4097];
    let (mut at_a, mut at_b) = (connect(&a), connect(&b));
    for block in blocks {
        let client = if block % 2 == 0 { &mut at_a } else { &mut at_b };
        client.write(block * 4096, &pattern(block)).expect("written");
    }
    at_a.flush().expect("flushed");
    at_b.flush().expect("flushed");
    b.crash();
    // What is here needs nobody.
    assert!(at_a.read(0, 4096).expect("cached at its home") == pattern(0));
    let b = cluster.start(1, SIZE, "part.img");
    let mut at_b = connect(&b);
    for block in blocks {
        assert!(at_b.read(block * 4096, 4096).expect("read at b") == pattern(block), "block {block} at b");
        assert!(at_a.read(block * 4096, 4096).expect("read at a") == pattern(block), "block {block} at a");
    }
    at_a.write_stable(300 * 4096, &pattern(9)).expect("written to the home that returned");
    assert!(at_b.read(300 * 4096, 4096).expect("read") == pattern(9));
}

#[test]
fn a_home_whose_file_is_missing_does_not_start_and_makes_it_anew_only_if_it_is_told_to() {
    let cluster = Cluster::new();
    let [a, b] = cluster.both("part.img");
    // Of the second home.
    let at = 256 * 4096;
    let mut at_a = connect(&a);
    at_a.write(at, &[7; 4096]).expect("written");
    at_a.flush().expect("flushed");
    b.crash();
    let sandbox = &cluster.sandboxes[1];
    let (file, moved) = (sandbox.file("part.img"), sandbox.file("moved.img"));
    std::fs::rename(&file, &moved).expect("moved");
    let record = sandbox.file("awase-data/cluster.b.backing");
    for is_empty in [false, true] {
        if is_empty {
            std::fs::write(&file, []).expect("an empty file");
        }
        for command in ["check", "serve"] {
            // A server that accepts it would run on.
            let mut program = std::process::Command::new("timeout");
            program.args(["30", &AWASE, command, "--config", "node.toml"]).current_dir(sandbox.path());
            let output = program.env_remove("NOTIFY_SOCKET").output().expect("run awase");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command}: {errors}");
            let message =
                "export \"s\" backing = \"part.img\" is missing or empty: blocks that this node has stored there";
            assert!(
                errors.contains(message)
                    && errors.contains("take \"s\" out of the list in awase-data/cluster.b.backing"),
                "{errors}"
            );
        }
        assert_eq!(file.exists(), is_empty, "nothing was made");
    }
    std::fs::rename(&moved, &file).expect("back");
    let b = cluster.start(1, SIZE, "part.img");
    assert!(connect(&b).read(at, 4096).expect("read") == [7; 4096]);
    b.crash();
    std::fs::remove_file(&file).expect("removed");
    let noted = std::fs::read_to_string(&record).expect("a record");
    std::fs::write(&record, noted.replace("\"s\"", "")).expect("written");
    cluster.start(1, SIZE, "part.img");
    assert!(file.exists());
    assert_eq!(std::fs::read_to_string(&record).expect("a record"), noted);
}

#[test]
fn what_needs_a_node_that_is_away_fails_after_the_timeout_and_what_does_not_goes_on() {
    let cluster = Cluster::new();
    let [a, b] = cluster.both("memory");
    let mut at_a = connect(&a);
    at_a.write(0, &[1; 4096]).expect("a's own");
    b.crash();
    at_a.write(0, &[2; 4096]).expect("still a's own");
    assert!(at_a.read(0, 4096).expect("read") == [2; 4096]);
    let began = Instant::now();
    at_a.read(1 << 20, 4096).expect_err("b's own");
    let waited = began.elapsed();
    assert!(waited >= TIMEOUT && waited < 3 * TIMEOUT, "{waited:?}");
    // In memory all of b's own is lost: an error, until it is written anew.
    let mut b = cluster.start(1, SIZE, "memory");
    b.await_error("is connected");
    let mut at_b = connect(&b);
    at_b.read(1 << 20, 4096).expect_err("lost");
    at_a.write(1 << 20, &[3; 4096]).expect("written anew");
    assert!(at_b.read(1 << 20, 4096).expect("read") == [3; 4096]);
    assert!(at_b.read(0, 4096).expect("a's own") == [2; 4096]);
}

#[test]
fn a_node_that_ends_in_order_leaves_nothing_behind() {
    let cluster = Cluster::new();
    let [mut a, b] = cluster.both("memory");
    let (mut at_a, mut at_b) = (connect(&a), connect(&b));
    at_b.write(0, &[7; 4096]).expect("a's page at b, dirty");
    at_b.write(8192, &[8; 4096]).expect("another");
    drop(at_b);
    b.end();
    a.await_error("is not connected any more");
    let began = Instant::now();
    assert!(at_a.read(0, 4096).expect("stored when b ended") == [7; 4096]);
    at_a.write(8192, &[9; 4096]).expect("nobody holds it");
    assert!(began.elapsed() < TIMEOUT, "a waited for b");
}

/// At the same time, or one when the other has ended.
#[test]
fn all_nodes_end_in_order_and_nothing_that_was_acknowledged_is_lost() {
    let pattern = |block: u64| (block as u32).wrapping_mul(2_654_435_761).to_le_bytes().repeat(1024);
    for is_together in [true, false] {
        let cluster = Cluster::new();
        // What is written stays in the cache until the end.
        let start = |node: usize| {
            let configuration = cluster.configuration(node, SIZE, "part.img");
            cluster.start_with(node, &format!("{configuration}[switches]\nsmooth_write_back = false\n"))
        };
        let mut servers = [0, 1].map(start);
        servers.iter_mut().for_each(|server| server.await_error("is connected"));
        let [a, b] = servers;
        let mut at_b = connect(&b);
        // Of both homes.
        (0..4096).for_each(|block| at_b.write(block * 4096, &pattern(block)).expect("acknowledged, and not flushed"));
        let began = Instant::now();
        a.signal(libc::SIGTERM);
        let ended = if is_together {
            b.signal(libc::SIGTERM);
            [a.wait(), b.wait()]
        } else {
            let a = a.wait();
            b.signal(libc::SIGTERM);
            [a, b.wait()]
        };
        let took = began.elapsed();
        for (status, _, errors) in ended {
            assert!(status.success(), "together: {is_together}: {status}: {errors}");
        }
        assert!(took < TIMEOUT, "together: {is_together}: {took:?}");
        let [a, _b] = [0, 1].map(start);
        let mut at_a = connect(&a);
        for block in 0..4096 {
            assert!(at_a.read(block * 4096, 4096).expect("read") == pattern(block), "{is_together}: block {block}");
        }
    }
}

#[test]
fn nodes_that_mean_different_disks_refuse_each_other_with_one_message() {
    let cluster = Cluster::new();
    let mut a = cluster.start(0, SIZE, "memory");
    let mut b = cluster.start(1, 2 * SIZE, "memory");
    let message = "its volume \"s\" has 33554432 bytes, that of node \"b\" 67108864";
    a.await_error(&format!("node \"b\": refuses this node: {message}"));
    b.await_error(&format!("node \"a\": is refused: {message}"));
    for server in [a, b] {
        server.signal(libc::SIGTERM);
        let (_, _, errors) = server.wait();
        assert_eq!(errors.matches(message).count(), 1, "{errors}");
    }
}

#[test]
fn a_shared_disk_is_not_changed_while_the_server_runs() {
    let cluster = Cluster::new();
    let mut a = cluster.start(0, SIZE, "memory");
    cluster.sandboxes[0].write("node.toml", &cluster.configuration(0, 2 * SIZE, "memory"));
    a.signal(libc::SIGHUP);
    a.await_error("is added or changed while the server runs; allowed: a restart");
    assert!(attempt("nbdinfo", &["--size", &a.uri("s")]).status.success());
}
