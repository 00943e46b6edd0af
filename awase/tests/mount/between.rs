//! What stands between a mount and its server, and does with calls as a test says.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Procedures of NFS (RFC 1813).
pub const GETATTR: u32 = 1;
pub const SETATTR: u32 = 2;
pub const LOOKUP: u32 = 3;
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const CREATE: u32 = 8;
pub const MKDIR: u32 = 9;
pub const REMOVE: u32 = 12;
pub const RENAME: u32 = 14;
pub const READDIRPLUS: u32 = 17;
pub const FSINFO: u32 = 19;
pub const COMMIT: u32 = 21;

const NFS: u32 = 100_003;

/// What becomes of a call.
pub enum Fate {
    Passed,
    /// Nobody answers it.
    Swallowed,
    /// It has this status.
    Refused(u32),
    /// It has these results.
    Answered(Vec<u8>),
}

/// Decides by procedure and arguments.
type Rule = Arc<dyn Fn(u32, &[u8]) -> Fate + Send + Sync>;

struct Shared {
    server: u16,
    rule: Mutex<Rule>,
    swallowed: AtomicU64,
}

pub struct Between {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Between {
    /// Before the server at this port. Passes everything.
    pub fn new(server: u16) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let shared =
            Arc::new(Shared { server, rule: Mutex::new(Arc::new(|_, _| Fate::Passed)), swallowed: AtomicU64::new(0) });
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&own);
                thread::spawn(move || {
                    // It ends with either side.
                    let _ = serve(&shared, client);
                });
            }
        });
        Between { port, shared }
    }

    pub fn set(&self, rule: impl Fn(u32, &[u8]) -> Fate + Send + Sync + 'static) {
        *self.shared.rule.lock().expect("no panic") = Arc::new(rule);
    }

    pub fn pass(&self) {
        self.set(|_, _| Fate::Passed);
    }

    pub fn refuse(&self, wanted: u32, status: u32) {
        self.set(move |procedure, _| if procedure == wanted { Fate::Refused(status) } else { Fate::Passed });
    }

    /// `None`: every procedure.
    pub fn swallow(&self, wanted: Option<u32>) {
        self.set(move |procedure, _| match wanted {
            Some(wanted) if procedure != wanted => Fate::Passed,
            _ => Fate::Swallowed,
        });
    }

    /// Calls that nobody has answered.
    pub fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(Ordering::SeqCst)
    }
}

fn serve(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.server))?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut calls, replies) = (client.try_clone()?, Arc::new(Mutex::new(client.try_clone()?)));
    let (mut answers, mut passed) = (server.try_clone()?, server.try_clone()?);
    let to_client = Arc::clone(&replies);
    thread::spawn(move || {
        while let Ok(record) = read_record(&mut answers) {
            if write_record(&mut to_client.lock().expect("no panic"), &record).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
    let served = (|| loop {
        let record = read_record(&mut calls)?;
        let word = |at: usize| record.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().expect("4")));
        let rule = Arc::clone(&shared.rule.lock().expect("no panic"));
        let fate = if word(12) == NFS { rule(word(20), arguments(&record)) } else { Fate::Passed };
        let results = match fate {
            Fate::Passed => {
                write_record(&mut passed, &record)?;
                continue;
            }
            Fate::Swallowed => {
                shared.swallowed.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            // And nothing about the objects.
            Fate::Refused(status) => [&status.to_be_bytes()[..], &[0; 8]].concat(),
            Fate::Answered(results) => results,
        };
        // A reply that is accepted, with an empty verifier.
        let header = [word(0), 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        write_record(&mut replies.lock().expect("no panic"), &[header, results].concat())?;
    })();
    let _ = server.shutdown(Shutdown::Both);
    served
}

/// What follows the header of a call, its credentials and verifier.
fn arguments(record: &[u8]) -> &[u8] {
    let len =
        |at: usize| record.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().expect("4")) as usize);
    let verifier = 32 + len(28);
    record.get(verifier + 8 + len(verifier + 4)..).unwrap_or_default()
}

/// The first opaque of `arguments`, and what follows.
pub fn split_opaque(arguments: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = arguments.split_first_chunk().expect("a length");
    let len = u32::from_be_bytes(*len) as usize;
    (&rest[..len], &rest[len.next_multiple_of(4)..])
}

fn read_record(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let at = record.len();
        record.resize(at + (mark & 0x7fff_ffff) as usize, 0);
        stream.read_exact(&mut record[at..])?;
        if mark >> 31 == 1 {
            return Ok(record);
        }
    }
}

fn write_record(stream: &mut TcpStream, record: &[u8]) -> io::Result<()> {
    // In one piece: of two, the second would wait for the first to be acknowledged.
    stream.write_all(&[&(1 << 31 | record.len() as u32).to_be_bytes(), record].concat())
}
