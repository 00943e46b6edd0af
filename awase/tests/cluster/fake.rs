//! As much of etcd's gateway as membership uses, with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant as Time};

use awase::membership::now;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex};
use policy::unit::Instant;
use serde_json::{Value, json};

/// What happens to the next request for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends, and nothing is done.
    Refused,
    /// It is done, and the connection ends without an answer.
    Unanswered,
    /// It is done, and answered so much later.
    Late(Duration),
    Status(u16),
    /// An answer that is not etcd's.
    Body(String),
}

#[derive(Default)]
struct Store {
    id: u64,
    /// How often it has begun again.
    life: u64,
    revision: u64,
    compacted: u64,
    keys: BTreeMap<String, Value>,
    /// Time to live and end.
    leases: BTreeMap<String, (u64, Time)>,
    granted: u64,
    /// Events with their revisions.
    log: Vec<(u64, Value)>,
    faults: Vec<(String, Fault)>,
    /// Requests for this path wait.
    held: Option<String>,
    holding: usize,
    /// When keys went because their leases ended.
    expired: Vec<(String, Instant)>,
    /// When a lease was last renewed, and when what was answered late was done.
    renewed: Option<Instant>,
    late: Option<Instant>,
    is_down: bool,
}

/// What it had at some time.
#[derive(Clone)]
pub struct Copied {
    revision: u64,
    keys: BTreeMap<String, Value>,
}

impl Copied {
    pub fn nothing() -> Copied {
        Copied { revision: 1, keys: BTreeMap::new() }
    }
}

pub struct Fake {
    pub url: String,
    shared: Arc<(Mutex<Store>, Condvar)>,
}

impl Fake {
    /// `id`: of its etcd cluster.
    pub fn start(id: u64) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new((Mutex::new(Store { id, revision: 1, ..Store::default() }), Condvar::new()));
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Arc::clone(&own);
                // A client that is gone is none of its business.
                thread::spawn(move || drop(serve(stream, &own)));
            }
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || expire(&own));
        Fake { url, shared }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut self.shared.0.lock());
        self.shared.1.notify_all();
        result
    }

    /// The next requests whose path ends so fail so, one after the other.
    pub fn fail(&self, path: &str, fault: Fault, times: usize) {
        self.with(|store| store.faults.extend(std::iter::repeat_n((path.to_owned(), fault), times)));
    }

    /// Waits until all that was to fail has failed.
    pub fn all_failed(&self) {
        self.wait(|store| store.faults.is_empty());
    }

    /// Requests whose path ends so wait until [`go_on`](Self::go_on).
    pub fn hold(&self, path: &str) {
        self.with(|store| store.held = Some(path.to_owned()));
    }

    /// Waits until one is held.
    pub fn holds(&self) {
        self.wait(|store| store.holding > 0);
    }

    pub fn go_on(&self) {
        self.with(|store| store.held = None);
    }

    /// From now on nobody is answered.
    pub fn down(&self) {
        self.with(|store| store.is_down = true);
    }

    /// Forgets all changes so far, and tells those who watch.
    pub fn compact(&self) {
        self.with(|store| store.compacted = store.revision);
    }

    /// What it has now.
    pub fn copy(&self) -> Copied {
        self.with(|store| Copied { revision: store.revision, keys: store.keys.clone() })
    }

    /// Begins again with this, as when it is restored from a backup: leases of keys begin anew, streams end.
    pub fn begin_again(&self, Copied { revision, keys }: Copied) {
        self.with(|store| {
            (store.life, store.revision, store.keys) = (store.life + 1, revision, keys);
            store.log.clear();
            store.leases.retain(|id, _| store.keys.values().any(|kv| kv["lease"] == *id));
            store.leases.values_mut().for_each(|(ttl, end)| *end = Time::now() + Duration::from_secs(*ttl));
        });
    }

    pub fn value(&self, key: &str) -> String {
        self.with(|store| plain(&store.keys[key]["value"]))
    }

    /// Goes on from this revision.
    pub fn set_revision(&self, revision: u64) {
        self.with(|store| store.revision = revision);
    }

    pub fn put(&self, key: &str, value: &str) {
        self.with(|store| store.put(key, value, None));
    }

    /// When the key went with its lease.
    pub fn expired(&self, key: &str) -> Instant {
        self.wait(|store| store.expired.iter().any(|(of, _)| of == key));
        let store = self.shared.0.lock();
        store.expired.iter().find(|(of, _)| of == key).expect("it is there").1
    }

    /// When what was answered late was done.
    pub fn late(&self) -> Instant {
        self.wait(|store| store.late.is_some());
        self.shared.0.lock().late.expect("it is there")
    }

    /// When a lease was last renewed.
    pub fn renewed(&self) -> Instant {
        self.shared.0.lock().renewed.expect("one was renewed")
    }

    fn wait(&self, is_reached: impl Fn(&Store) -> bool) {
        let mut store = self.shared.0.lock();
        let deadline = Time::now() + Duration::from_secs(15);
        while !is_reached(&store) {
            assert!(!self.shared.1.wait_until(&mut store, deadline).timed_out(), "the fake etcd is not asked");
        }
    }
}

impl Store {
    fn header(&self) -> Value {
        json!({ "cluster_id": self.id.to_string(), "revision": self.revision.to_string() })
    }

    fn put(&mut self, key: &str, value: &str, lease: Option<&str>) {
        self.revision += 1;
        let now = self.revision.to_string();
        let created = self.keys.get(key).map_or_else(|| json!(now), |old| old["create_revision"].clone());
        let mut kv =
            json!({ "key": coded(key), "value": coded(value), "create_revision": created, "mod_revision": now });
        if let Some(lease) = lease {
            kv["lease"] = json!(lease);
        }
        self.keys.insert(key.to_owned(), kv.clone());
        self.log.push((self.revision, json!({ "kv": kv })));
    }

    /// Returns the keys that went.
    fn end_lease(&mut self, id: &str) -> Vec<String> {
        self.leases.remove(id);
        let of_lease = self.keys.iter().filter(|(_, kv)| kv["lease"] == id);
        let keys: Vec<String> = of_lease.map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.revision += 1;
            self.keys.remove(key);
            let kv = json!({ "key": coded(key), "mod_revision": self.revision.to_string() });
            self.log.push((self.revision, json!({ "type": "DELETE", "kv": kv })));
        }
        keys
    }

    fn answer(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let id = body["ID"].as_str().unwrap_or_default().to_owned();
        let lost = (404, json!({ "code": 5, "message": "etcdserver: requested lease not found" }));
        match path {
            "/v3/lease/grant" => {
                let ttl = body["TTL"].as_u64().expect("a time to live");
                self.granted += 1;
                let id = (7000 + self.granted).to_string();
                self.leases.insert(id.clone(), (ttl, Time::now() + Duration::from_secs(ttl)));
                (200, json!({ "header": self.header(), "ID": id, "TTL": ttl.to_string() }))
            }
            "/v3/lease/keepalive" => {
                let mut result = json!({ "header": self.header(), "ID": id });
                if let Some((ttl, end)) = self.leases.get_mut(&id) {
                    *end = Time::now() + Duration::from_secs(*ttl);
                    result["TTL"] = json!(ttl.to_string());
                    self.renewed = Some(now());
                }
                (200, json!({ "result": result }))
            }
            "/v3/lease/revoke" if self.leases.contains_key(&id) => {
                self.end_lease(&id);
                (200, json!({ "header": self.header() }))
            }
            "/v3/lease/revoke" => lost,
            "/v3/kv/range" => {
                let (from, end) = (plain(&body["key"]), plain(&body["range_end"]));
                let found: Vec<&Value> = self.keys.range(from..end).map(|(_, kv)| kv).collect();
                (200, json!({ "header": self.header(), "kvs": found }))
            }
            "/v3/kv/txn" => self.transaction(body).unwrap_or(lost),
            _ => (404, json!({ "message": "Not Found" })),
        }
    }

    fn transaction(&mut self, body: &Value) -> Option<(u16, Value)> {
        let compares = body["compare"].as_array().expect("compares");
        let key = plain(&compares[0]["key"]);
        let holds = |compare: &Value| {
            let field = if compare["target"] == "CREATE" { "create_revision" } else { "mod_revision" };
            let actual = self.keys.get(&plain(&compare["key"])).map_or_else(|| json!("0"), |kv| kv[field].clone());
            actual == compare[field]
        };
        if !compares.iter().all(holds) {
            let found: Vec<&Value> = self.keys.get(&key).into_iter().collect();
            let responses = json!([{ "response_range": { "kvs": found } }]);
            return Some((200, json!({ "header": self.header(), "responses": responses })));
        }
        let put = &body["success"][0]["request_put"];
        let lease = put["lease"].as_str();
        if lease.is_some_and(|lease| !self.leases.contains_key(lease)) {
            return None;
        }
        self.put(&key, &plain(&put["value"]), lease);
        Some((200, json!({ "header": self.header(), "succeeded": true })))
    }
}

fn coded(text: &str) -> String {
    STANDARD.encode(text)
}

fn plain(value: &Value) -> String {
    String::from_utf8(STANDARD.decode(value.as_str().expect("base64")).expect("base64")).expect("text")
}

fn expire(shared: &(Mutex<Store>, Condvar)) {
    let mut store = shared.0.lock();
    loop {
        let over: Vec<String> =
            store.leases.iter().filter(|(_, (_, end))| *end <= Time::now()).map(|(id, _)| id.clone()).collect();
        for id in over {
            let keys = store.end_lease(&id);
            store.expired.extend(keys.into_iter().map(|key| (key, now())));
            shared.1.notify_all();
        }
        let next = store.leases.values().map(|(_, end)| *end).min();
        let next = next.unwrap_or_else(|| Time::now() + Duration::from_secs(60));
        shared.1.wait_until(&mut store, next);
    }
}

fn serve(stream: TcpStream, shared: &(Mutex<Store>, Condvar)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let path = first.split(' ').nth(1).expect("a path").to_owned();

    let mut store = shared.0.lock();
    let is_held = |store: &mut Store| store.held.as_ref().is_some_and(|held| path.ends_with(held.as_str()));
    if is_held(&mut store) {
        store.holding += 1;
        shared.1.notify_all();
        shared.1.wait_while(&mut store, is_held);
        store.holding -= 1;
    }
    let fault = store.faults.iter().position(|(of, _)| path.ends_with(of.as_str()));
    let fault = fault.map(|index| store.faults.remove(index).1);
    shared.1.notify_all();
    if store.is_down || fault == Some(Fault::Refused) {
        return Ok(());
    }
    if path == "/v3/watch" && fault.is_none() {
        drop(store);
        return watch(stream, shared, &body);
    }
    let (status, answer) = match fault {
        Some(Fault::Status(status)) => (status, json!({ "message": "etcdserver: as it was told" }).to_string()),
        Some(Fault::Body(body)) => (200, body),
        fault => {
            let (status, answer) = store.answer(&path, &body);
            shared.1.notify_all();
            match fault {
                Some(Fault::Unanswered) => return Ok(()),
                Some(Fault::Late(by)) => {
                    store.late = Some(now());
                    drop(store);
                    thread::sleep(by);
                }
                _ => drop(store),
            }
            return send(&stream, status, &answer.to_string());
        }
    };
    drop(store);
    send(&stream, status, &answer)
}

fn send(mut stream: &TcpStream, status: u16, answer: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
    stream.write_all((head + answer).as_bytes())
}

/// Streams the events of a range from a revision on.
fn watch(mut stream: TcpStream, shared: &(Mutex<Store>, Condvar), body: &Value) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")?;
    let request = &body["create_request"];
    let mut next: u64 = request["start_revision"].as_str().expect("a revision").parse().expect("a number");
    let (from, end) = (plain(&request["key"]), plain(&request["range_end"]));
    let mut line = |result: Value| {
        let text = json!({ "result": result }).to_string() + "\n";
        stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
    };
    let mut store = shared.0.lock();
    line(json!({ "header": store.header(), "created": true }))?;
    let life = store.life;
    while !store.is_down && store.life == life {
        if next <= store.compacted {
            let compacted = store.compacted.to_string();
            line(json!({ "header": store.header(), "canceled": true, "compact_revision": compacted }))?;
            // The stream stays, as etcd's does.
            shared.1.wait_while(&mut store, |store| !store.is_down);
            return Ok(());
        }
        let is_in = |event: &Value| (&from..&end).contains(&&plain(&event["kv"]["key"]));
        let found = store.log.iter().filter(|(at, event)| *at >= next && is_in(event));
        let events: Vec<Value> = found.map(|(_, event)| event.clone()).collect();
        next = store.revision.max(next - 1) + 1;
        if !events.is_empty() {
            line(json!({ "header": store.header(), "events": events }))?;
        }
        shared.1.wait(&mut store);
    }
    Ok(())
}
