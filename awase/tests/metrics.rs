//! Metrics over HTTP: `/metrics` under a known load, hostile clients, and the page in a browser.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::stable_how;
use testkit::nbd::Client;
use testkit::server::{AWASE, Sandbox, Server, attempt, await_that, nfs_port};
use transactions::program::BANK;

/// Only a server that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);

const RAM: &str = "name=r,kind=ram,size=16MiB";

/// Starts a server with metrics at any free port. Returns the address, too.
fn serve(sandbox: &Sandbox, arguments: &[&str]) -> (Server, SocketAddr) {
    let mut server = sandbox.serve(&[&["--metrics", "127.0.0.1:0"], arguments].concat());
    let banner = server.banner();
    (server, metrics_address(&banner))
}

fn metrics_address(banner: &str) -> SocketAddr {
    let found = banner.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
    found.and_then(|(address, _)| address.parse().ok()).unwrap_or_else(|| panic!("no address in:\n{banner}"))
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).expect("connect");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends bytes and returns the answer: status, head and body.
fn ask(at: SocketAddr, request: &[u8]) -> (u16, String, String) {
    let mut stream = connect(at);
    stream.write_all(request).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {head:?}")), head.to_owned(), body.to_owned())
}

fn get(at: SocketAddr, path: &str) -> String {
    let (status, head, body) = ask(at, format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes());
    assert_eq!(status, 200, "{head}");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.lines().any(|line| line == length), "{head}");
    body
}

/// The lines of `/metrics` by name and labels. Each must belong to the family declared before it.
fn metrics(at: SocketAddr) -> BTreeMap<String, f64> {
    let (mut found, mut family, mut kind) = (BTreeMap::new(), String::new(), String::new());
    for line in get(at, "/metrics").lines() {
        if let Some(about) = line.strip_prefix("# TYPE ") {
            let (name, of) = about.split_once(' ').expect("a name and a type");
            (family, kind) = (name.to_owned(), of.to_owned());
            assert!(["counter", "gauge", "histogram"].contains(&of), "{line}");
            assert_eq!(of == "counter", name.ends_with("_total"), "{line}");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let parts: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(parts.iter().any(|part| format!("{family}{part}") == name), "{line} in {family}");
            assert!(labels.ends_with('}'), "{line}");
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(found.insert(series.to_owned(), value).is_none(), "{series} occurs twice");
        }
    }
    found
}

/// Sum over a family.
fn total(metrics: &BTreeMap<String, f64>, family: &str) -> f64 {
    metrics.iter().filter(|(series, _)| series.split('{').next() == Some(family)).map(|(_, value)| value).sum()
}

#[test]
fn metrics_count_every_request_of_nbd() {
    for engine in ["auto", "threads"] {
        let sandbox = Sandbox::new();
        let arguments = ["--engine", engine, "--processors", "2", "--switch", "read_ahead=off", "--export", RAM];
        let (server, at) = serve(&sandbox, &arguments);
        let before = metrics(at);
        let mut client = Client::connect(&server.socket(), "r").expect("connect");
        for block in 0..50 {
            client.read(block * 4096, 4096).expect("read");
        }
        for block in 0..30 {
            client.read(block * 4096, 4096).expect("read what is cached");
        }
        for block in 0..7 {
            client.write((block + 100) * 4096, &[1; 4096]).expect("write");
        }
        client.flush().expect("flush");
        let after = metrics(at);
        let grown = |series: &str| after[series] - before[series];
        assert_eq!(grown("awase_requests_total{service=\"nbd\",request=\"read\"}"), 80.0);
        assert_eq!(grown("awase_requests_total{service=\"nbd\",request=\"write\"}"), 7.0);
        assert_eq!(grown("awase_requests_total{service=\"nbd\",request=\"flush\"}"), 1.0);
        assert_eq!(grown("awase_requests_total{service=\"nfs\",request=\"read\"}"), 0.0);
        assert_eq!((grown("awase_cache_hits_total"), grown("awase_cache_misses_total")), (30.0, 50.0));
        let class = "service=\"nbd\",class=\"read\"";
        assert_eq!(grown(&format!("awase_request_duration_seconds_count{{{class}}}")), 80.0);
        assert_eq!(grown(&format!("awase_request_duration_seconds_bucket{{{class},le=\"+Inf\"}}")), 80.0);
        let sum = grown(&format!("awase_request_duration_seconds_sum{{{class}}}"));
        assert!(sum > 0.0 && sum < 60.0, "80 reads took {sum} s");
        assert!(grown("awase_sent_bytes_total") >= 80.0 * 4096.0);
        assert!(grown("awase_received_bytes_total") >= 7.0 * 4096.0);
        let disk = |operation| format!("awase_disk_operations_total{{disk=\"memory0\",operation=\"{operation}\"}}");
        assert_eq!(after[&disk("read")], 50.0);
        assert!(after[&disk("write")] >= 1.0 && after[&disk("flush")] >= 1.0);
        assert_eq!(after["awase_disk_read_bytes_total{disk=\"memory0\"}"], 50.0 * 4096.0);
        assert_eq!(total(&after, "awase_connections"), 1.0);
        let user = std::fs::metadata("/proc/self").expect("this process").uid();
        let job = |family: &str| after.get(&format!("awase_job_{family}{{job=\"uid {user}\"}}")).copied();
        assert_eq!((job("connections"), total(&after, "awase_job_connections")), (Some(1.0), 1.0));
        let seconds = total(&after, "awase_processor_seconds_total") - total(&before, "awase_processor_seconds_total");
        assert!(seconds > 0.0 && total(&after, "awase_dispatches_total") > 50.0);
    }
}

#[test]
fn the_time_of_a_processor_that_sleeps_is_counted_once_and_while_it_sleeps() {
    for engine in ["auto", "threads"] {
        let sandbox = Sandbox::new();
        let (server, at) = serve(&sandbox, &["--engine", engine, "--processors", "2", "--export", RAM]);
        let spent = |metrics: &BTreeMap<String, f64>| {
            [0, 1].map(|processor| {
                let series = format!("awase_processor_seconds_total{{processor=\"{processor}\"");
                metrics.iter().filter(|(name, _)| name.starts_with(&series)).map(|(_, value)| value).sum::<f64>()
            })
        };
        let sample = || (Instant::now(), spent(&metrics(at)), Instant::now());
        let first = sample();
        let mut last = sample();
        while last.0.duration_since(first.2) < Duration::from_secs(1) {
            last = sample();
        }
        let woken = {
            let clients = [(); 4].map(|()| Client::connect(&server.socket(), "r").expect("connect"));
            clients.into_iter().for_each(|mut client| drop(client.read(0, 4096).expect("read")));
            sample()
        };
        for (before, after) in [(&first, &last), (&first, &woken)] {
            let (least, most) = (after.0 - before.2, after.2 - before.0);
            for (then, now) in before.1.iter().zip(after.1) {
                let grown = now - then;
                assert!(grown > 0.9 * least.as_secs_f64(), "{engine}: {grown} s in {least:?}");
                assert!(grown < 1.1 * most.as_secs_f64(), "{engine}: {grown} s in {most:?}");
            }
        }
    }
}

#[test]
fn the_series_of_a_memory_disk_end_with_it() {
    let sandbox = Sandbox::new();
    let config = |name| {
        let disk = |name, more| format!("[[export]]\nname = \"{name}\"\nkind = \"ram\"\nsize = \"1MiB\"\n{more}");
        sandbox.write("awase.toml", &(disk("stays", "") + &disk(name, "delay = \"1us\"\n")));
    };
    config("a");
    let (mut server, at) = serve(&sandbox, &["--config", "awase.toml"]);
    let mut client = Client::connect(&server.socket(), "a").expect("connect");
    client.read(0, 4096).expect("read");
    for name in ["b", "c"] {
        config(name);
        server.signal(libc::SIGHUP);
        server.await_notice("RELOADING=1");
        server.await_notice("READY=1");
    }
    let shown = || {
        let found = metrics(at).into_keys();
        let of = found
            .filter_map(|name| name.strip_prefix("awase_disk_read_bytes_total")?.split('"').nth(1).map(Into::into));
        of.collect::<Vec<String>>()
    };
    await_that("only disks that clients have are shown", || shown() == ["memory0", "memory1", "memory3"]);
    client.read(8192, 4096).expect("read");
    client.disconnect().expect("in order");
    await_that("the last client's disk is shown no more", || shown() == ["memory0", "memory3"]);
}

#[test]
fn what_fails_and_what_is_refused_is_a_request_without_bytes() {
    let sandbox = Sandbox::new();
    let failing = "name=f,kind=ram,size=1MiB,faults.read_permille=1000";
    let (server, at) = serve(&sandbox, &["--export", failing, "--export", "name=r,kind=ram,size=1MiB,read_only=true"]);
    let mut client = Client::connect(&server.socket(), "f").expect("connect");
    (0..10).for_each(|block| drop(client.read(block * 65536, 4096).expect_err("a read that fails")));
    let mut client = Client::connect(&server.socket(), "r").expect("connect");
    (0..7).for_each(|block| drop(client.write(block * 4096, &[1; 4096]).expect_err("it is read-only")));
    client.read(1 << 20, 4096).expect_err("beyond the end");
    let after = metrics(at);
    let requests = |name| after[&format!("awase_requests_total{{service=\"nbd\",request=\"{name}\"}}")];
    assert_eq!((requests("read"), requests("write")), (11.0, 7.0));
    assert_eq!(after["awase_disk_read_bytes_total{disk=\"memory0\"}"], 0.0);
    assert!(after["awase_disk_errors_total{disk=\"memory0\"}"] >= 10.0);
}

/// A fall is a restart to Prometheus, which then counts everything again.
#[test]
fn counters_never_fall() {
    let sandbox = Sandbox::new();
    let (server, at) = serve(&sandbox, &["--export", RAM]);
    let mut client = Client::connect(&server.socket(), "r").expect("connect");
    (0..100).for_each(|at| drop(client.read(at * 4096, 4096).expect("read")));
    let grows = |name: &str| ["_total", "_sum", "_count", "_bucket"].iter().any(|end| name.contains(end));
    let mut before = metrics(at);
    for _ in 0..20 {
        let now = metrics(at);
        let fell = before.iter().filter(|(name, value)| grows(name) && now[*name] < **value);
        let fell: Vec<_> = fell.map(|(name, value)| format!("{name}: {value} to {}", now[name])).collect();
        assert!(fell.is_empty(), "{fell:?}");
        before = now;
    }
}

#[test]
fn metrics_count_every_call_of_nfs() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.file("shared")).expect("a directory");
    std::fs::write(sandbox.file("shared/file"), [7; 8192]).expect("a file");
    let export = "name=s,kind=directory,secure=false,path=shared,mount=/s,squash=no_root_squash";
    let mut server = sandbox.serve(&["--nfs", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--export", export]);
    let banner = server.banner();
    let at = metrics_address(&banner);
    let (mut client, file) = testkit::nfs::Client::open(nfs_port(&banner), "/s", "file");
    for _ in 0..20 {
        client.read(&file, 0, 4096).expect("read");
    }
    client.write(&file, 4096, &[8; 4096], stable_how::FILE_SYNC).expect("write");
    let after = metrics(at);
    let calls = |name| after[&format!("awase_requests_total{{service=\"nfs\",request=\"{name}\"}}")];
    assert_eq!([calls("mount"), calls("lookup"), calls("read"), calls("write")], [1.0, 1.0, 20.0, 1.0]);
    assert_eq!(after["awase_request_duration_seconds_count{service=\"nfs\",class=\"read\"}"], 20.0);
    assert_eq!(total(&after, "awase_requests_total"), 23.0);
    assert!(total(&after, "awase_job_connections") >= 1.0, "the client is a job: {after:?}");
}

/// Executes statements in the database of a sandbox, each by itself.
fn execute(sandbox: &Sandbox, statements: &[&str]) {
    let host = sandbox.file("awase-data").display().to_string();
    let mut arguments = vec!["-X", "-h", &host, "-p", "5433"];
    arguments.extend(statements.iter().flat_map(|statement| ["-c", *statement]));
    arguments.push("bank");
    let output = attempt("psql", &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A server with the bank that is shipped, and a program that counts for long.
fn serve_bank(sandbox: &Sandbox, switch: &str) -> (Server, SocketAddr) {
    std::fs::create_dir(sandbox.file("programs")).expect("a directory");
    std::fs::write(sandbox.file("programs/bank.wasm"), BANK).expect("written");
    let count = r#"(module (@custom "awase" "count(to_ bigint) returns bigint")
        (func (export "count") (param i64) (result i64) (local i64)
            (loop (br_if 0 (i64.lt_s (local.tee 1 (i64.add (local.get 1) (i64.const 1))) (local.get 0))))
            (local.get 1)))"#;
    std::fs::write(sandbox.file("programs/count.wasm"), wat::parse_str(count).expect("right")).expect("written");
    let text = "[[database]]\nname = \"bank\"\npath = \"bank.db\"\nsize = \"48MiB\"\nprograms = \"programs\"\n";
    let config = sandbox.write("awase.toml", text).display().to_string();
    let found = serve(sandbox, &["--processors", "1", "--switch", switch, "--config", &config]);
    // Its `init`, and what is looked up once.
    execute(sandbox, &["SELECT transfer(1, 2, 1)"]);
    found
}

#[test]
fn metrics_count_what_programs_ask_by_type_and_the_calls_of_the_monitors_modules() {
    let sandbox = Sandbox::new();
    // What is executed at once and takes too long is executed again, and counted again.
    let (_server, at) = serve_bank(&sandbox, "hottest_first=false");
    let before = metrics(at);
    let calls = ["SELECT deposit(1, 1)"; 7].iter().chain(&["SELECT total()"]).copied().collect::<Vec<_>>();
    execute(&sandbox, &calls);
    let after = metrics(at);
    let grown = |series: &str| after[series] - before[series];
    let asked = ["get", "put", "delete", "next"].map(|of| format!("awase_program_requests_total{{request=\"{of}\"}}"));
    // The total asks for each of 1,000 accounts, and finds out that there are no more.
    assert_eq!(asked.each_ref().map(|series| grown(series)), [7.0, 7.0, 0.0, 1001.0]);
    let module = |of: &str| grown(&format!("awase_module_calls_total{{module=\"{of}\"}}"));
    // Each deposit is durable before the next begins.
    assert_eq!(["transaction", "program", "log"].map(module), [8.0, 8.0, 7.0]);
    assert!(grown("awase_trace_records_total{recorder=\"0\"}") >= 16.0, "each call is received and replied to");
}

#[test]
fn the_time_of_programs_is_told_apart_and_charged_to_their_client() {
    let sandbox = Sandbox::new();
    let (_server, at) = serve_bank(&sandbox, "hottest_first=true");
    let before = metrics(at);
    execute(&sandbox, &["SELECT count(2000000)"; 20]);
    let after = metrics(at);
    let grown = |series: &str| after[series] - before[series];
    let spent = |of: &str| grown(&format!("awase_processor_seconds_total{{processor=\"0\",activity=\"{of}\"}}"));
    let program = spent("program");
    let others = ["service", "monitor", "path"].map(spent);
    let sum = program + others.iter().sum::<f64>();
    assert!(program > 0.3 * sum, "{program}, {others:?}");
    assert!(others[1] > 0.0, "{others:?}");
    let used = total(&after, "awase_job_seconds_total") - total(&before, "awase_job_seconds_total");
    assert!(used > program / 2.0, "{used} of {program}");
}

/// Scripts of a site whose name resolves to this host must not read metrics.
#[test]
fn metrics_are_answered_only_under_names_of_this_host() {
    let sandbox = Sandbox::new();
    sandbox.write("names.toml", "[listen]\nmetrics_names = [\"storage.example\"]\n");
    let (_server, at) = serve(&sandbox, &["--config", "names.toml", "--export", RAM]);
    for (host, status) in [
        (at.to_string(), 200),
        (format!("localhost:{}", at.port()), 200),
        ("storage.example".to_owned(), 200),
        (format!("attacker.example:{}", at.port()), 421),
        ("localhost.attacker.example".to_owned(), 421),
    ] {
        for path in ["/", "/metrics", "/live.json"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let (answered, _, body) = ask(at, request.as_bytes());
            assert_eq!(answered, status, "{host}: {body}");
            assert!(status == 200 || !body.contains("awase_"), "nothing is shown: {body}");
        }
    }
}

#[test]
fn malformed_requests_get_a_clear_answer() {
    let sandbox = Sandbox::new();
    let (_server, at) = serve(&sandbox, &["--export", RAM]);
    for (request, status) in [
        ("GET /nothing HTTP/1.1\r\n\r\n".to_owned(), 404),
        ("GET /../etc/passwd HTTP/1.1\r\n\r\n".to_owned(), 404),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody".to_owned(), 405),
        ("\u{16}\u{3}\u{1} this is TLS, or noise\r\n\r\n".to_owned(), 400),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100)), 431),
    ] {
        assert_eq!(ask(at, request.as_bytes()).0, status, "{request}");
    }
    let (status, head, body) = ask(at, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
}

#[test]
fn silent_clients_delay_neither_metrics_nor_disks() {
    let sandbox = Sandbox::new();
    let (server, at) = serve(&sandbox, &["--export", RAM]);
    let mut client = Client::connect(&server.socket(), "r").expect("connect");
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(at)).collect();
    for (sandbox, stream) in silent.iter_mut().enumerate() {
        // Some have begun a request. The server may have ended the connection already.
        let begun: &[u8] = if sandbox % 2 == 0 { b"GET /metrics HT" } else { b"" };
        let _ = stream.write_all(begun);
    }
    assert_eq!(client.read(0, 4096).expect("served"), [0; 4096]);
    let after = metrics(at);
    assert_eq!(after["awase_requests_total{service=\"nbd\",request=\"read\"}"], 1.0);
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.id())).expect("threads");
    let names = threads.map(|task| std::fs::read_to_string(task.expect("a thread").path().join("comm")));
    // A thread may end between the two reads.
    let watchers = names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "metrics")).count();
    assert!(watchers <= 100, "{watchers} threads wait for silent clients");
    // The first ones were ended for later ones.
    let mut rest = Vec::new();
    assert!(matches!(silent[0].read_to_end(&mut rest), Ok(0) | Err(_)) && rest.is_empty());
}

#[test]
fn a_server_ends_in_order_with_open_connections_to_metrics() {
    let sandbox = Sandbox::new();
    let (server, at) = serve(&sandbox, &["--export", RAM]);
    let _silent = connect(at);
    get(at, "/live.json");
    assert_eq!(server.end(), "");
}

#[test]
fn a_port_in_use_is_a_notice_if_default_and_refused_if_configured() {
    let sandbox = Sandbox::new();
    // If this fails, the port is in use already.
    let _usual = TcpListener::bind("127.0.0.1:9809");
    let mut command = Command::new(&*AWASE);
    command.args(["serve", "--nbd", "none", "--nfs", "none", "--export", RAM]);
    let server = sandbox.start(command);
    Client::connect(&server.socket(), "r").expect("served without metrics");
    server.signal(libc::SIGTERM);
    let (status, output, errors) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("no metrics are served at 127.0.0.1:9809: "), "{errors}");
    assert!(!output.contains("http://"), "{output}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = sandbox.run(&["serve", "--nbd", "none", "--nfs", "none", "--metrics", &address, "--export", RAM]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(&format!("listen.metrics cannot be served: {address}: ")), "{errors}");
}

#[test]
fn the_documentation_lists_exactly_the_metrics_served() {
    let sandbox = Sandbox::new();
    let (_server, at) = serve(&sandbox, &["--export", RAM]);
    let text = get(at, "/metrics");
    let served: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let documented = std::fs::read_to_string(path).expect("docs/metrics.md");
    let rows = documented.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: Vec<&str> = rows.collect();
    assert_eq!(documented, served);
}

#[test]
fn live_data_counts_all_requests_answered_before_and_names_no_export() {
    let sandbox = Sandbox::new();
    let (server, at) = serve(&sandbox, &["--export", "name=classified,kind=ram,size=16MiB"]);
    let mut client = Client::connect(&server.socket(), "classified").expect("connect");
    let mut uptime = 0.0;
    for number in 1..20_u64 {
        client.read(number * 4096, 4096).expect("read");
        let text = get(at, "/live.json");
        assert!(!text.contains("classified"), "{text}");
        let now: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let reads = now["requests"].as_array().into_iter().flatten().find(|row| row["request"] == "read");
        assert_eq!(reads.map(|row| row["count"].clone()), Some(number.into()), "{text}");
        assert_eq!(now["connected"][0]["requests"], number, "{text}");
        assert!(now["connected"][0]["sent"].as_u64() >= Some((number - 1) * 4096), "{text}");
        let before = std::mem::replace(&mut uptime, now["uptime"].as_f64().expect("seconds"));
        assert!(uptime > before);
    }
    // The page samples twice a second.
    assert!(get(at, "/").contains("INTERVAL_MS = 500,"));
}

#[test]
fn a_browser_shows_live_data_of_a_server_at_work() {
    let sandbox = Sandbox::new();
    let (server, at) = serve(&sandbox, &["--processors", "2", "--export", RAM]);
    let mut client = Client::connect(&server.socket(), "r").expect("connect");
    let page = format!("http://{at}/");
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1800"]);
    browser.arg(format!("--user-data-dir={}", sandbox.file("profile").display()));
    // Virtual time advances as fast as answers arrive, and stops while one is awaited.
    browser.args(["--virtual-time-budget=300000", "--dump-dom"]);
    browser.arg(&page);
    let running = std::sync::atomic::AtomicBool::new(true);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in 0.. {
                if !running.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                client.read(block % 4096 * 4096, 4096).expect("read");
                client.write(block % 64 * 4096, &[1; 4096]).expect("write");
            }
        });
        let output = browser.output();
        running.store(false, std::sync::atomic::Ordering::Relaxed);
        output.expect("chromium (package chromium): `make test` installs it")
    });
    let document = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(document.contains("class=\"\">live<"), "{document}");
    assert_eq!(document.matches("<canvas width=").count(), 15, "{document}");
    assert_eq!(document.matches("<section hidden=").count(), 1, "there is no shared disk: {document}");
    let legend = |name: &str| {
        let found = document.split_once(&format!("</i>{name} ")).and_then(|(_, rest)| rest.split_once('<'));
        found.map_or_else(|| panic!("no {name} in {document}"), |(value, _)| value.to_owned())
    };
    for name in ["nbd", "to clients", "from clients", "99%", "memory", "processor 1", "service", "connections"] {
        assert!(legend(name).starts_with(|first: char| first.is_ascii_digit()), "{name} {}", legend(name));
    }
    assert_eq!(legend("connections"), "1");
    for name in ["nbd", "to clients", "from clients"] {
        assert!(!legend(name).starts_with('0') || legend(name).starts_with("0."), "{name} {}", legend(name));
    }
    assert!(document.contains("<td>nbd read</td>") && document.contains("<td>memory0</td>"), "{document}");
    // The connection, its protocol and its processor.
    assert!(document.contains("<tr><td>1</td><td>nbd</td><td>"), "{document}");
}
