//! A minimal NFS client, which can have several calls in flight and never retransmits, so that a test knows exactly what
//! was acknowledged.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nfs3_types::mount::{self, dirpath, mountres3};
use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, GETATTR3args, GETATTR3res, LOOKUP3args, LOOKUP3res, MKDIR3args, MKDIR3res,
    NFS_PROGRAM as Nfs, Nfs3Option, Nfs3Result, PROGRAM, READ3args, READ3res, VERSION, WRITE3args, WRITE3res,
    createhow3, diropargs3, fattr3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

/// The end of a record (RFC 5531, 11).
const LAST_FRAGMENT: u32 = 1 << 31;

/// The procedure MNT of the MOUNT protocol (RFC 1813, 5.2.1).
const MNT: u32 = 1;

/// A connection on which calls are made as root.
pub struct Client {
    stream: TcpStream,
    xid: u32,
}

pub struct Answer {
    /// Transaction id of the call.
    pub xid: u32,
    results: Vec<u8>,
}

impl Answer {
    /// Decodes the results, which must have no trailing bytes.
    pub fn results<T: Unpack>(&self) -> T {
        let mut rest = &self.results[..];
        let (results, _) = T::unpack(&mut rest).expect("results of the procedure that was called");
        assert!(rest.is_empty(), "{} bytes after the results", rest.len());
        results
    }
}

/// A connection's first transaction id: random as with real clients, since a server would take reused ids for
/// retransmissions (RFC 1813, section 4.8).
fn first_xid() -> u32 {
    RandomState::new().hash_one(0) as u32
}

impl Client {
    /// Connects to a port of loopback.
    pub fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, xid: first_xid() })
    }

    /// Connects to a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        // Only used as a stream of bytes.
        Ok(Client { stream: TcpStream::from(OwnedFd::from(stream)), xid: first_xid() })
    }

    /// Connects to a port of loopback, and finds a file of an export.
    pub fn open(port: u16, export: &str, name: &str) -> (Client, nfs_fh3) {
        let mut client = Client::connect(port).expect("connected");
        let file = client.find(export, name);
        (client, file)
    }

    /// A file of an export, which exists.
    pub fn find(&mut self, export: &str, name: &str) -> nfs_fh3 {
        let root = self.mount(export).expect("mounted");
        self.lookup(&root, name).expect("an answer").expect("found")
    }

    /// The root of an export.
    pub fn mount(&mut self, path: &str) -> io::Result<nfs_fh3> {
        self.send_to(mount::PROGRAM, mount::VERSION, MNT, &dirpath(Opaque::borrowed(path.as_bytes())))?;
        match self.answer()?.results() {
            mountres3::Ok(ok) => Ok(nfs_fh3 { data: ok.fhandle.0 }),
            mountres3::Err(status) => Err(io::Error::other(status.to_string())),
        }
    }

    /// Sends a call without waiting for the answer. Returns its transaction id.
    pub fn send(&mut self, procedure: Nfs, arguments: &impl Pack) -> io::Result<u32> {
        self.send_to(PROGRAM, VERSION, procedure as u32, arguments)
    }

    /// Receives the answer to any call.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        assert_ne!(mark & LAST_FRAGMENT, 0, "answers have one fragment");
        let mut record = vec![0; (mark & !LAST_FRAGMENT) as usize];
        self.stream.read_exact(&mut record)?;
        let mut rest = &record[..];
        let (message, _) = rpc_msg::unpack(&mut rest).expect("an RPC message");
        match message.body {
            msg_body::REPLY(reply_body::MSG_ACCEPTED(reply))
                if matches!(reply.reply_data, accept_stat_data::SUCCESS) =>
            {
                Ok(Answer { xid: message.xid, results: rest.to_vec() })
            }
            body => Err(io::Error::other(format!("not accepted: {body:?}"))),
        }
    }

    /// Calls and waits for the answer. No other call may be in flight.
    pub fn call<T: Unpack>(&mut self, procedure: Nfs, arguments: &impl Pack) -> io::Result<T> {
        let xid = self.send(procedure, arguments)?;
        let answer = self.answer()?;
        assert_eq!(answer.xid, xid, "an answer to another call");
        Ok(answer.results())
    }

    pub fn attributes(&mut self, handle: &nfs_fh3) -> io::Result<Result<fattr3, nfsstat3>> {
        let arguments = GETATTR3args { object: handle.clone() };
        let results: GETATTR3res = self.call(Nfs::NFSPROC3_GETATTR, &arguments)?;
        Ok(outcome(results).map(|ok| ok.obj_attributes))
    }

    pub fn lookup(&mut self, directory: &nfs_fh3, name: &str) -> io::Result<Result<nfs_fh3, nfsstat3>> {
        let arguments = LOOKUP3args { what: entry(directory, name) };
        let results: LOOKUP3res = self.call(Nfs::NFSPROC3_LOOKUP, &arguments)?;
        Ok(outcome(results).map(|ok| ok.object))
    }

    /// Makes a file with mode 0755.
    pub fn create(&mut self, directory: &nfs_fh3, name: &str) -> io::Result<Result<nfs_fh3, nfsstat3>> {
        let how = createhow3::GUARDED(sattr3 { mode: Nfs3Option::Some(0o755), ..sattr3::default() });
        let arguments = CREATE3args { where_: entry(directory, name), how };
        let results: CREATE3res = self.call(Nfs::NFSPROC3_CREATE, &arguments)?;
        Ok(outcome(results).map(|ok| ok.obj.unwrap()))
    }

    pub fn make_directory(&mut self, directory: &nfs_fh3, name: &str) -> io::Result<Result<nfs_fh3, nfsstat3>> {
        let attributes = sattr3 { mode: Nfs3Option::Some(0o755), ..sattr3::default() };
        let arguments = MKDIR3args { where_: entry(directory, name), attributes };
        let results: MKDIR3res = self.call(Nfs::NFSPROC3_MKDIR, &arguments)?;
        Ok(outcome(results).map(|ok| ok.obj.unwrap()))
    }

    /// Reads `count` bytes, or fewer at the end of the file.
    pub fn read(&mut self, file: &nfs_fh3, offset: u64, count: u32) -> io::Result<Vec<u8>> {
        let arguments = READ3args { file: file.clone(), offset, count };
        let results: READ3res<'static> = self.call(Nfs::NFSPROC3_READ, &arguments)?;
        let ok = outcome(results).map_err(|status| io::Error::other(status.to_string()))?;
        Ok(ok.data.to_vec())
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, file: &nfs_fh3, offset: u64, bytes: &[u8], stable: stable_how) -> io::Result<()> {
        let (file, count) = (file.clone(), bytes.len() as u32);
        let arguments = WRITE3args { file, offset, count, stable, data: Opaque::borrowed(bytes) };
        let results: WRITE3res = self.call(Nfs::NFSPROC3_WRITE, &arguments)?;
        let ok = outcome(results).map_err(|status| io::Error::other(status.to_string()))?;
        assert_eq!(ok.count, count, "a short write");
        Ok(())
    }

    fn send_to(&mut self, prog: u32, vers: u32, proc: u32, arguments: &impl Pack) -> io::Result<u32> {
        self.xid = self.xid.wrapping_add(1);
        self.stream.write_all(&record(self.xid, [prog, vers, proc], arguments))?;
        Ok(self.xid)
    }
}

/// The results of a call, or its error.
pub fn outcome<T, E>(results: Nfs3Result<T, E>) -> Result<T, nfsstat3> {
    match results {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

/// A call as root, as a record: program, version, procedure and arguments.
pub fn record(xid: u32, [prog, vers, proc]: [u32; 3], arguments: &impl Pack) -> Vec<u8> {
    let cred = opaque_auth::auth_unix(&auth_unix::default());
    let call = call_body { rpcvers: RPC_VERSION_2, prog, vers, proc, cred, verf: opaque_auth::default() };
    let message = rpc_msg { xid, body: msg_body::CALL(call) };
    let mut record = vec![0; 4];
    message.pack(&mut record).expect("into memory");
    arguments.pack(&mut record).expect("into memory");
    let mark = (record.len() - 4) as u32 | LAST_FRAGMENT;
    record[..4].copy_from_slice(&mark.to_be_bytes());
    record
}

pub fn entry<'a>(directory: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
}
