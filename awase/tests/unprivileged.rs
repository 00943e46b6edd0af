//! A server that is an ordinary user serves directories: with real clients, and over restarts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::server::{AWASE, Place, Server, attempt, client};
use testkit::skip::note;

/// So long the tests wait for what only a wrong server never does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whose the server is. Root is squashed to the same.
const USER: u32 = 65534;

/// Becomes that user, after giving it the directory of the test; runs what follows.
const AS_USER: &str = "chown -R 65534:65534 . && chmod -R u+rwX . && { [ ! -e notify.sock ] || chmod 777 notify.sock; } && \
    HOME=$PWD exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\" \"$@\"";

/// Awase, to be run as an ordinary user; nothing where that can't be.
fn awase() -> Option<Command> {
    as_user(&AWASE)
}

/// Another program that starts Awase, or Awase.
fn as_user(program: &str) -> Option<Command> {
    // SAFETY: no pointer is passed.
    if unsafe { libc::geteuid() } != 0 {
        return Some(Command::new(program));
    }
    let may_run = format!("setpriv --reuid {USER} --regid {USER} --clear-groups test -x '{}'", *AWASE);
    if !attempt("sh", &["-c", &may_run]).status.success() {
        note(&format!("an ordinary user can't run {}", *AWASE));
        return None;
    }
    let mut command = Command::new("sh");
    command.args(["-c", AS_USER, program]);
    Some(command)
}

/// A server of an ordinary user, and the port at which it serves directories.
fn serve(place: &Place) -> Option<(Server, u16)> {
    let mut command = awase()?;
    command.args(["serve", "--nbd", "none", "--nfs", "127.0.0.1:0"]);
    let mut server = place.start(command);
    let banner = server.banner();
    let port = banner.split("nfsport=").nth(1).and_then(|rest| rest.split('&').next()).expect("a port");
    Some((server, port.parse().expect("a number")))
}

#[test]
fn real_clients_use_the_directory_of_an_ordinary_user() {
    let place = Place::new();
    let Some((server, port)) = serve(&place) else { return };
    let uri = |name: &str, port: u16| format!("nfs://127.0.0.1/files/{name}?nfsport={port}&mountport={port}");
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(place.file("source"), &content).expect("written");
    let source = place.file("source");
    client("nfs-cp", &[source.to_str().expect("a path"), &uri("copy", port)]);
    client("nfs-cp", &["/etc/hostname", &uri("small", port)]);
    let list = client("nfs-ls", &[&uri("", port)]);
    assert!(list.contains("copy") && list.contains("small") && list.contains("3000000"), "{list}");
    assert!(attempt("nfs-cat", &[&uri("copy", port)]).stdout == content, "what is read is not what was written");
    assert!(std::fs::read(place.file("awase-data/files/copy")).expect("there") == content);
    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert!(status.success(), "{errors}");
    let Some((_server, port)) = serve(&place) else { return };
    assert!(attempt("nfs-cat", &[&uri("copy", port)]).stdout == content, "after a restart");
}

#[test]
fn root_of_a_namespace_of_its_own_serves_as_the_ordinary_user_that_it_is() {
    if !attempt("unshare", &["--user", "--map-root-user", "true"]).status.success() {
        testkit::skip!("no user namespaces here");
    }
    let place = Place::new();
    let Some(mut command) = as_user("unshare") else { return };
    command.args(["--user", "--map-root-user", &*AWASE, "serve", "--nbd", "none", "--metrics", "none"]);
    command.args(["--nfs", "127.0.0.1:0"]);
    let mut server = place.start(command);
    let banner = server.banner();
    let port = banner.split("nfsport=").nth(1).and_then(|rest| rest.split('&').next()).expect("a port");
    let uri = format!("nfs://127.0.0.1/files/note?nfsport={port}&mountport={port}");
    client("nfs-cp", &["/etc/hostname", &uri]);
    assert_eq!(client("nfs-cat", &[&uri]), std::fs::read_to_string("/etc/hostname").expect("readable"));
}

#[test]
fn an_ordinary_user_serves_at_a_port_that_it_may_take() {
    let place = Place::new();
    let Some(mut command) = awase() else { return };
    let output = command.args(["check", "--nbd", "none"]).current_dir(place.path()).output().expect("run");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("nfs 127.0.0.1:20490"), "{printed}");
    assert!(printed.contains("/files"), "{printed}");
}

#[test]
fn what_the_limit_of_locked_memory_declines_is_said_and_counted() {
    let place = Place::new();
    let Some(mut command) = as_user("sh") else { return };
    // Enough for rings, and for a part of the cache.
    command.args(["-c", "ulimit -l 4096; exec \"$0\" \"$@\"", &AWASE, "serve", "--nbd", "none", "--nfs", "none"]);
    command.args(["--memory", "64MiB", "--metrics", "127.0.0.1:0", "--export", "name=r,kind=ram,size=64MiB"]);
    let mut server = place.start(command);
    let banner = server.banner();
    if !banner.contains(", io_uring") {
        return testkit::skip::note_kernel("without io_uring nothing is registered");
    }
    let watched = banner.split_once("http://").and_then(|(_, rest)| rest.split_once('/')).expect("an address").0;
    let mut client = testkit::nbd::Client::connect(&server.socket(), "r").expect("connect");
    (0..32).for_each(|at| client.write(at << 20, &[1; 1 << 20]).expect("written"));
    let mut stream = TcpStream::connect(watched).expect("connect");
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {watched}\r\n\r\n").as_bytes()).expect("sent");
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).expect("an answer");
    let declined = metrics.lines().filter(|line| line.starts_with("awase_regions_declined_total"));
    let declined: f64 = declined.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
    assert!(declined > 0.0, "{metrics}");
    server.signal(libc::SIGTERM);
    let (status, _, errors) = server.wait();
    assert!(status.success() && errors.contains("of the cache only 4MiB can be registered"), "{errors}");
}

#[test]
fn handles_of_an_ordinary_users_server_outlast_crashes_renames_and_lost_places() {
    let place = Place::new();
    let Some((server, port)) = serve(&place) else { return };
    let mut nfs = Nfs::connect(port);
    let root = nfs.mount("/files");
    let dir = nfs.make(9, &root, "dir");
    let file = nfs.make(8, &dir, "file");
    assert_eq!(nfs.write(&file, b"content"), 0);
    server.crash();
    let files = place.file("awase-data/files");
    let (server, port) = serve(&place).expect("as before");
    let mut nfs = Nfs::connect(port);
    assert_eq!(nfs.read(&file), Ok(b"content".to_vec()));
    // Somebody moves it on the host, while it is served and while not.
    std::fs::rename(files.join("dir"), files.join("moved")).expect("moved");
    assert_eq!(nfs.write(&file, b"changed"), 0);
    server.crash();
    std::fs::rename(files.join("moved/file"), files.join("file")).expect("moved");
    let kept = std::fs::read_dir(place.file("awase-data")).expect("listed").filter_map(Result::ok);
    let kept: Vec<_> = kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("places-")).collect();
    assert_eq!(kept.len(), 1, "one file of places for one directory");
    std::fs::remove_file(kept[0].path()).expect("removed");
    let (_server, port) = serve(&place).expect("as before");
    let mut nfs = Nfs::connect(port);
    assert_eq!(nfs.read(&file), Ok(b"changed".to_vec()));
    std::fs::remove_file(files.join("file")).expect("removed");
    std::fs::write(files.join("file"), "another").expect("written");
    // What the server knows of a file counts for a moment; then it is gone, and never another file.
    const STALE: u32 = 70;
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "what is gone is served on");
        match nfs.read(&file) {
            Err(STALE) => break,
            read => assert_eq!(read, Ok(b"changed".to_vec())),
        }
    }
}

/// Just enough of a client to keep handles over restarts, which real ones don't let us see. RFC 1813.
struct Nfs(TcpStream);

type Handle = Vec<u8>;

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut packed = (bytes.len() as u32).to_be_bytes().to_vec();
    packed.extend(bytes);
    packed.resize(packed.len().next_multiple_of(4), 0);
    packed
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn take_word(from: &mut &[u8]) -> u32 {
    let (word, rest) = from.split_first_chunk().expect("a word");
    *from = rest;
    u32::from_be_bytes(*word)
}

fn take_opaque(from: &mut &[u8]) -> Vec<u8> {
    let len = take_word(from) as usize;
    let (bytes, rest) = from.split_at(len.next_multiple_of(4));
    *from = rest;
    bytes[..len].to_vec()
}

impl Nfs {
    fn connect(port: u16) -> Self {
        Nfs(TcpStream::connect(("127.0.0.1", port)).expect("connected"))
    }

    /// The results of a call, done as the server's user.
    fn call(&mut self, program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
        let credentials = words(&[0, 0, USER, USER, 0]);
        let mut call = words(&[7, 0, 2, program, 3, procedure, 1]);
        call.extend(opaque(&credentials));
        call.extend(words(&[0, 0]));
        call.extend(arguments);
        let mut record = words(&[1 << 31 | call.len() as u32]);
        record.extend(call);
        self.0.write_all(&record).expect("sent");
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("a reply");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..24], words(&[7, 1, 0, 0, 0, 0]), "accepted and done");
        reply.split_off(24)
    }

    fn mount(&mut self, path: &str) -> Handle {
        let reply = self.call(100_005, 1, &opaque(path.as_bytes()));
        let mut rest = &reply[..];
        assert_eq!(take_word(&mut rest), 0);
        take_opaque(&mut rest)
    }

    /// CREATE (8) or MKDIR (9).
    fn make(&mut self, procedure: u32, dir: &[u8], name: &str) -> Handle {
        let mut arguments = [opaque(dir), opaque(name.as_bytes())].concat();
        if procedure == 8 {
            arguments.extend(words(&[0]));
        }
        // The mode, and nothing else.
        arguments.extend(words(&[1, 0o755, 0, 0, 0, 0, 0]));
        let reply = self.call(100_003, procedure, &arguments);
        let mut rest = &reply[..];
        assert_eq!((take_word(&mut rest), take_word(&mut rest)), (0, 1), "made, and its handle follows");
        take_opaque(&mut rest)
    }

    /// Writes at the beginning, stable.
    fn write(&mut self, file: &[u8], content: &[u8]) -> u32 {
        let len = content.len() as u32;
        let arguments = [opaque(file), words(&[0, 0, len, 2]), opaque(content)].concat();
        take_word(&mut &self.call(100_003, 7, &arguments)[..])
    }

    /// What is at the beginning, or the status.
    fn read(&mut self, file: &[u8]) -> Result<Vec<u8>, u32> {
        const ATTRIBUTES_BYTES: usize = 84;
        let reply = self.call(100_003, 6, &[opaque(file), words(&[0, 0, 100])].concat());
        let mut rest = &reply[..];
        match take_word(&mut rest) {
            0 => {}
            status => return Err(status),
        }
        if take_word(&mut rest) == 1 {
            rest = &rest[ATTRIBUTES_BYTES..];
        }
        let (_count, _eof) = (take_word(&mut rest), take_word(&mut rest));
        Ok(take_opaque(&mut rest))
    }
}
