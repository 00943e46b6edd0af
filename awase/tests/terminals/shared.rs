//! A database on a shared disk: two servers of a cluster in etcd, on a file that both reach.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use testkit::etcd::Etcd;
use testkit::port;
use testkit::rounds::Rounds;
use testkit::server::{Sandbox, Server};
use testkit::skip;

use crate::bank::install;
use crate::client::{Client, code, startup};

const NAMES: [&str; 2] = ["a", "b"];
const CLIENTS: usize = 4;

const OPEN: &str = "database \"bank\" is open at this node now";

struct Pair {
    etcd: Etcd,
    /// Its file is the device.
    common: Sandbox,
    sandboxes: [Sandbox; 2],
    ports: [u16; 2],
}

impl Pair {
    /// `None` where etcd is not installed.
    fn new() -> Option<Pair> {
        let common = Sandbox::new();
        let etcd = Etcd::start(&common.file("etcd"))?;
        let device = std::fs::File::create(common.file("device")).expect("made");
        device.set_len(16 << 20).expect("sparse");
        let sandboxes = [(); 2].map(|()| Sandbox::new());
        sandboxes.iter().for_each(install);
        Some(Pair { etcd, common, sandboxes, ports: [(); 2].map(|()| port::unused()) })
    }

    fn start(&self, node: usize) -> Server {
        self.start_with(node, "")
    }

    /// `keys`: more of the database.
    fn start_with(&self, node: usize, keys: &str) -> Server {
        self.configure(node, keys);
        self.sandboxes[node].serve(&["--config", "node.toml", "--memory", "64MiB", "--metrics", "127.0.0.1:0"])
    }

    fn configure(&self, node: usize, keys: &str) {
        let (name, port, url, device) = (NAMES[node], self.ports[node], &self.etcd.url, self.common.file("device"));
        let text = format!(
            "[cluster]\nnode = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\netcd = [\"{url}\"]\n\
             [[database]]\nname = \"bank\"\nkind = \"shared\"\nsize = \"16MiB\"\nshared_device = {device:?}\n{keys}"
        );
        self.sandboxes[node].write("node.toml", &text);
    }

    /// # Errors
    /// Code and message where it is refused.
    fn connect(&self, node: usize) -> Result<Client, (String, String)> {
        let mut client = Client::to(&self.sandboxes[node].file("awase-data/.s.PGSQL.5433"));
        client.send(&startup());
        loop {
            match client.next().expect("an answer") {
                (b'Z', _) => return Ok(client),
                (b'E', body) => return Err((code(&body), String::from_utf8_lossy(&body).into_owned())),
                _ => {}
            }
        }
    }

    fn session(&self, node: usize) -> Client {
        self.connect(node).unwrap_or_else(|(code, what)| panic!("{code}: {what}"))
    }

    fn refuses(&self, node: usize, why: &str) {
        let (code, what) = self.connect(node).err().expect("refused");
        assert!(code == "57P03" && what.contains(why), "{code}: {what}");
    }
}

/// Where a server has its metrics.
fn metrics(server: &mut Server) -> String {
    let banner = server.banner();
    let address = banner.split_once("http://").and_then(|(_, rest)| rest.split('/').next());
    address.expect("an address").to_owned()
}

/// Transactions, calls of programs, and tables and functions looked up by name, as the metrics have them.
fn totals(address: &str) -> [u64; 4] {
    let (mut stream, mut text) = (TcpStream::connect(address).expect("connected"), String::new());
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("sent");
    stream.read_to_string(&mut text).expect("an answer");
    let calls = |module| format!("awase_module_calls_total{{module={module:?}}} ");
    let lookups = |of| format!("awase_name_lookups_total{{database=\"bank\",of={of:?}}} ");
    [calls("transaction"), calls("program"), lookups("table"), lookups("function")].map(|series| {
        let value = text.lines().find_map(|line| line.strip_prefix(&series)).expect("a value");
        value.parse().expect("a number")
    })
}

fn have_not_fallen(before: [u64; 4], after: [u64; 4]) -> bool {
    before.iter().zip(&after).all(|(before, after)| before <= after)
}

macro_rules! pair {
    () => {
        match Pair::new() {
            Some(pair) => pair,
            None => skip!("etcd is not installed (Debian: etcd-server)"),
        }
    };
}

#[test]
fn when_the_node_that_has_it_is_killed_another_goes_on_with_all_that_was_acknowledged() {
    let pair = pair!();
    // Deposits of each account that were acknowledged; one more may be there.
    let mut told = [0; CLIENTS];
    let (mut holder, mut server) = (0, pair.start(0));
    for _ in Rounds::new("when_the_node_that_has_it_is_killed_another_goes_on", 2) {
        let other = 1 - holder;
        let mut standby = pair.start(other);
        pair.refuses(other, &format!("database \"bank\" is open at node {:?}", NAMES[holder]));
        let sums = told.map(AtomicI64::new);
        thread::scope(|scope| {
            for (account, sum) in sums.iter().enumerate() {
                let mut client = pair.session(holder);
                scope.spawn(move || {
                    let deposit = format!("SELECT deposit({}, 1)", account + 1);
                    // Ends with its server.
                    while client.try_number(&deposit).is_some_and(|answer| answer.is_ok()) {
                        sum.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while sums.iter().any(|sum| sum.load(Ordering::SeqCst) < 100) {
                thread::yield_now();
            }
            server.crash();
        });
        standby.await_error(OPEN);
        let mut client = pair.session(other);
        for (account, sum) in sums.iter().enumerate() {
            let least = sum.load(Ordering::SeqCst);
            let found = client.number(&format!("SELECT balance({})", account + 1)).expect("a balance") - 1000;
            assert!((least..=least + 1).contains(&found), "account {account}: {found}, told {least}");
            told[account] = found;
        }
        (holder, server) = (other, standby);
    }
    let mut next = pair.start(1 - holder);
    pair.refuses(1 - holder, &format!("is open at node {:?}", NAMES[holder]));
    server.end();
    next.await_error(OPEN);
    let found = pair.session(1 - holder).number("SELECT balance(1)");
    assert_eq!(found, Ok(told[0] + 1000), "after an end in order");
}

#[test]
fn a_node_that_cannot_open_it_leaves_it_to_others() {
    let pair = pair!();
    let a = pair.start(0);
    let mut b = pair.start_with(1, "programs = \"/dev/null/programs\"\n");
    pair.refuses(1, "is open at node \"a\"");
    a.crash();
    b.await_error("; tried again every 30 s");
    let _a = pair.start(0);
    testkit::server::await_that("it is open at the other node", || pair.connect(0).is_ok());
}

#[test]
fn programs_are_installed_at_a_node_that_does_not_have_it_open_for_the_time_when_it_has() {
    let pair = pair!();
    let _servers = [pair.start(0), pair.start(1)];
    for (sandbox, says) in pair.sandboxes.iter().zip(["by the running server", "when the running server opens it"]) {
        let output = sandbox.run(&["program", "install", "awase-data/programs/bank/bank.wasm"]);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.ends_with(&format!("\nloaded {says}: bank\n")), "{output:?}");
    }
}

#[test]
fn a_database_on_a_shared_disk_is_not_claimed_by_a_reload() {
    let pair = pair!();
    let mut a = pair.start(0);
    let device = pair.common.write("other", "");
    let shop = "[[database]]\nname = \"shop\"\nkind = \"shared\"\nsize = \"16MiB\"\n";
    pair.configure(0, &format!("{shop}shared_device = {device:?}\n"));
    a.signal(libc::SIGHUP);
    a.await_error("database \"shop\" kind = \"shared\" is added or changed while the server runs");
}

#[test]
fn a_node_stopped_for_longer_than_its_lease_answers_nothing_from_the_database_that_another_has_opened() {
    let pair = pair!();
    let (mut a, mut b) = (pair.start(0), pair.start(1));
    let mut before = pair.session(0);
    assert_eq!(before.number("SELECT deposit(1, 1)"), Ok(1001));
    let metrics = metrics(&mut a);
    let counted = totals(&metrics);
    assert!(!counted.contains(&0), "{counted:?}");
    a.signal(libc::SIGSTOP);
    b.await_error(OPEN);
    assert_eq!(pair.session(1).number("SELECT deposit(1, 1)"), Ok(1002));
    a.signal(libc::SIGCONT);
    let answer = before.number("SELECT balance(1)");
    assert_eq!(answer, Err("57P01".to_owned()), "1001 is no longer so");
    assert_eq!(before.number("SELECT deposit(1, 1)"), Err("08007".to_owned()), "it may have been in time");
    let is_refused = || pair.connect(0).is_err_and(|(_, what)| what.contains("is open at node \"b\""));
    testkit::server::await_that("it begins anew, without the database", is_refused);
    let since = totals(&metrics);
    assert!(have_not_fallen(counted, since), "counters fall from {counted:?} to {since:?}");
    assert_eq!(pair.session(1).number("SELECT balance(1)"), Ok(1002));
    b.crash();
    a.await_error(OPEN);
    let again = totals(&metrics);
    assert!(have_not_fallen(since, again), "counters fall from {since:?} to {again:?}");
}
