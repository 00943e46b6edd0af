//! Valid conversations of every protocol, as the messages that a client sends.

use nfs3_types::mount::{self, dirpath};
use nfs3_types::nfs3::{
    ACCESS3args, COMMIT3args, CREATE3args, FSINFO3args, FSSTAT3args, GETATTR3args, LINK3args, LOOKUP3args, MKDIR3args,
    MKNOD3args, NFS_PROGRAM as Nfs, Nfs3Option, PATHCONF3args, PROGRAM, READ3args, READDIR3args, READDIRPLUS3args,
    READLINK3args, REMOVE3args, RENAME3args, RMDIR3args, SETATTR3args, SYMLINK3args, VERSION, WRITE3args, cookieverf3,
    createhow3, mknoddata3, nfs_fh3, nfspath3, sattr3, stable_how, symlinkdata3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Void};

use crate::nbd::{self, Command, option};
use crate::nfs::{entry, record};

const EXTENDED_REQUEST: u32 = 0x21e4_1c71;

fn request(flags: u16, kind: u16, at: u64, len: u32, payload: &[u8]) -> Vec<u8> {
    nbd::request(flags, kind, 7 << 32, at, len, payload)
}

/// NBD: options of every kind, an export of at least 1 MiB, then requests of every kind.
pub fn nbd(export: &str, is_structured: bool) -> Vec<Vec<u8>> {
    let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes()].concat();
    let info = [&name[..], &2u16.to_be_bytes(), &3u16.to_be_bytes(), &0u16.to_be_bytes()].concat();
    let context = b"base:allocation";
    let contexts = [&name[..], &1u32.to_be_bytes(), &(context.len() as u32).to_be_bytes(), context].concat();
    // Fixed newstyle, no zeroes.
    let mut messages = vec![3u32.to_be_bytes().to_vec(), option(3, &[]), option(6, &info)];
    if is_structured {
        messages.extend([option(8, &[]), option(9, &contexts), option(10, &contexts)]);
    }
    messages.extend([option(5, &[]), option(99, b"unknown"), option(7, &info)]);
    let payload: Vec<u8> = (0..6000u32).map(|at| at as u8).collect();
    messages.extend([
        request(0, Command::Write as u16, 4096, 6000, &payload),
        request(1, Command::Write as u16, 100_000, 512, &payload[..512]),
        request(0, Command::Read as u16, 0, 8192, &[]),
        request(4, Command::Read as u16, 3, 4097, &[]),
        request(0, Command::Flush as u16, 0, 0, &[]),
        request(0, Command::Trim as u16, 8192, 65_536, &[]),
        request(2, Command::WriteZeroes as u16, 0, 4096, &[]),
        request(0, 5, 0, 1 << 20, &[]),
        request(8, 7, 0, 1 << 20, &[]),
        [&EXTENDED_REQUEST.to_be_bytes()[..], &[0; 28]].concat(),
        request(0, Command::Disconnect as u16, 0, 0, &[]),
    ]);
    messages
}

/// NFS and MOUNT: calls of every procedure, on a directory and a file in it.
pub fn nfs(path: &str, directory: &nfs_fh3, file: &nfs_fh3) -> Vec<Vec<u8>> {
    let mut calls = Calls::default();
    calls.mount(0, &Void);
    calls.mount(1, &dirpath(Opaque::borrowed(path.as_bytes())));
    calls.mount(2, &Void);
    calls.mount(5, &Void);
    let object = || file.clone();
    let attributes = || sattr3 { mode: Nfs3Option::Some(0o644), size: Nfs3Option::Some(5000), ..sattr3::default() };
    calls.nfs(Nfs::NFSPROC3_NULL, &Void);
    calls.nfs(Nfs::NFSPROC3_GETATTR, &GETATTR3args { object: object() });
    let guard = Nfs3Option::None;
    calls.nfs(Nfs::NFSPROC3_SETATTR, &SETATTR3args { object: object(), new_attributes: attributes(), guard });
    calls.nfs(Nfs::NFSPROC3_LOOKUP, &LOOKUP3args { what: entry(directory, "data") });
    calls.nfs(Nfs::NFSPROC3_ACCESS, &ACCESS3args { object: object(), access: 0x3f });
    calls.nfs(Nfs::NFSPROC3_READLINK, &READLINK3args { symlink: object() });
    calls.nfs(Nfs::NFSPROC3_READ, &READ3args { file: object(), offset: 100, count: 9000 });
    for stable in [stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC] {
        let data = Opaque::borrowed(&[7; 5000]);
        calls.nfs(Nfs::NFSPROC3_WRITE, &WRITE3args { file: object(), offset: 300, count: 5000, stable, data });
    }
    let how = createhow3::GUARDED(attributes());
    calls.nfs(Nfs::NFSPROC3_CREATE, &CREATE3args { where_: entry(directory, "made"), how });
    calls.nfs(Nfs::NFSPROC3_MKDIR, &MKDIR3args { where_: entry(directory, "below"), attributes: attributes() });
    let symlink =
        symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: nfspath3(Opaque::borrowed(b"data")) };
    calls.nfs(Nfs::NFSPROC3_SYMLINK, &SYMLINK3args { where_: entry(directory, "link"), symlink });
    let what = mknoddata3::NF3FIFO(sattr3::default());
    calls.nfs(Nfs::NFSPROC3_MKNOD, &MKNOD3args { where_: entry(directory, "pipe"), what });
    let (from, to) = (entry(directory, "made"), entry(directory, "moved"));
    calls.nfs(Nfs::NFSPROC3_RENAME, &RENAME3args { from, to });
    calls.nfs(Nfs::NFSPROC3_LINK, &LINK3args { file: object(), link: entry(directory, "second") });
    for name in ["moved", "second", "link", "pipe"] {
        calls.nfs(Nfs::NFSPROC3_REMOVE, &REMOVE3args { object: entry(directory, name) });
    }
    calls.nfs(Nfs::NFSPROC3_RMDIR, &RMDIR3args { object: entry(directory, "below") });
    let (cookieverf, dir) = (cookieverf3::default(), || directory.clone());
    calls.nfs(Nfs::NFSPROC3_READDIR, &READDIR3args { dir: dir(), cookie: 0, cookieverf, count: 4096 });
    let plus = READDIRPLUS3args { dir: dir(), cookie: 0, cookieverf, dircount: 512, maxcount: 8192 };
    calls.nfs(Nfs::NFSPROC3_READDIRPLUS, &plus);
    calls.nfs(Nfs::NFSPROC3_FSSTAT, &FSSTAT3args { fsroot: dir() });
    calls.nfs(Nfs::NFSPROC3_FSINFO, &FSINFO3args { fsroot: dir() });
    calls.nfs(Nfs::NFSPROC3_PATHCONF, &PATHCONF3args { object: dir() });
    calls.nfs(Nfs::NFSPROC3_COMMIT, &COMMIT3args { file: object(), offset: 0, count: 0 });
    // A directory is not readable.
    calls.nfs(Nfs::NFSPROC3_READ, &READ3args { file: dir(), offset: 0, count: 100 });
    calls.nfs(Nfs::NFSPROC3_READ, &READ3args { file: dir(), offset: 0, count: 100 });
    calls.mount(3, &dirpath(Opaque::borrowed(path.as_bytes())));
    calls.0
}

#[derive(Default)]
struct Calls(Vec<Vec<u8>>);

impl Calls {
    fn mount(&mut self, procedure: u32, arguments: &impl Pack) {
        self.call([mount::PROGRAM, mount::VERSION, procedure], arguments);
    }

    fn nfs(&mut self, procedure: Nfs, arguments: &impl Pack) {
        self.call([PROGRAM, VERSION, procedure as u32], arguments);
    }

    fn call(&mut self, procedure: [u32; 3], arguments: &impl Pack) {
        self.0.push(record(self.0.len() as u32 + 1, procedure, arguments));
    }
}

/// HTTP, as browsers and Prometheus send it.
pub fn http() -> Vec<Vec<u8>> {
    let head = "Host: localhost\r\nUser-Agent: Prometheus/2\r\nAccept: */*\r\n";
    ["GET /metrics HTTP/1.1", "HEAD / HTTP/1.0", "GET /?x=1 HTTP/1.1", "POST /metrics HTTP/1.1\r\nContent-Length: 4"]
        .map(|line| format!("{line}\r\n{head}\r\n").into_bytes())
        .to_vec()
}

/// PostgreSQL's protocol: both of its ways to call the programs of `bank`, a block, a statement that is refused, and the end.
pub fn postgresql() -> Vec<Vec<u8>> {
    let strings = |texts: &[&str]| texts.iter().flat_map(|text| [text.as_bytes(), &[0]].concat()).collect::<Vec<u8>>();
    let startup = [&196_608u32.to_be_bytes()[..], &strings(&["user", "anybody", "database", "bank", ""])].concat();
    // Three parameters of type int8; then their values as texts, and the result as text.
    let parse =
        [strings(&["", "SELECT transfer($1, $2, $3)"]), vec![0, 3, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 20]].concat();
    let values = ["1", "2", "3"].map(|value| [&1u32.to_be_bytes()[..], value.as_bytes()].concat()).concat();
    let bind = [&[0, 0, 0, 0, 0, 3][..], &values, &[0, 0]].concat();
    vec![
        [&(startup.len() as u32 + 4).to_be_bytes()[..], &startup].concat(),
        terminal_message(b'Q', &strings(&["SELECT balance(1)"])),
        terminal_message(b'P', &parse),
        terminal_message(b'B', &bind),
        terminal_message(b'D', b"P\0"),
        terminal_message(b'E', &[0, 0, 0, 0, 0]),
        terminal_message(b'C', b"S\0"),
        terminal_message(b'H', &[]),
        terminal_message(b'S', &[]),
        terminal_message(b'Q', &strings(&["BEGIN; SELECT transfer(3, 4, 5); SHOW ALL; COMMIT"])),
        terminal_message(b'Q', &strings(&["DROP TABLE accounts"])),
        terminal_message(b'X', &[]),
    ]
}

/// What clients may send first: a question for encryption, and a request to cancel what another terminal does.
pub fn postgresql_first() -> Vec<Vec<u8>> {
    let of = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
    vec![of(&[8, 80_877_103]), of(&[8, 80_877_104]), of(&[16, 80_877_102, 1, 2])]
}

fn terminal_message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// The control socket: switches that do not affect results of requests.
pub fn control() -> Vec<Vec<u8>> {
    [
        r#"{"request": "status"}"#,
        r#"{"request": "switches"}"#,
        r#"{"request": "set", "name": "priority", "value": false}"#,
        r#"{"request": "set", "name": "quantum", "value": "20us"}"#,
        r#"{"request": "set", "name": "priority", "value": true}"#,
    ]
    .map(|line| format!("{line}\n").into_bytes())
    .to_vec()
}
