//! One call after another: mounts an export and makes the files that a load needs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail, ensure};
use nfs3_types::mount::{self, MOUNT_PROGRAM, dirpath, mountres3};
use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, FSINFO3res, LOOKUP3args, LOOKUP3res, NFS_PROGRAM, Nfs3Option, Nfs3Result, SETATTR3args,
    SETATTR3res, createhow3, diropargs3, nfs_fh3, nfsstat3, sattr3, sattrguard3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use super::TIMEOUT;
use super::rpc::{Caller, Procedure, Records, reply};

/// A server's addresses, and the user of the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub nfs: SocketAddr,
    /// Address of MOUNT; some servers use the same for both.
    pub mount: SocketAddr,
    pub export: String,
    pub uid: u32,
    pub gid: u32,
}

impl Endpoint {
    pub(super) fn connect(&self) -> Result<OwnedFd> {
        let stream = TcpStream::connect(self.nfs).with_context(|| format!("cannot connect to {}", self.nfs))?;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }
}

/// The largest transfers that a server takes, in bytes (FSINFO, RFC 1813, 3.3.19).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub read: u32,
    pub write: u32,
}

pub struct Session {
    stream: TcpStream,
    caller: Caller,
    records: Records,
    xid: u32,
}

impl Session {
    pub fn new(address: SocketAddr, uid: u32, gid: u32) -> Result<Session> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Session { stream, caller: Caller::new(uid, gid), records: Records::default(), xid: 0 })
    }

    /// Mounts the export of a server: returns a connection for NFS and the handle of the export's root.
    pub fn mount(endpoint: &Endpoint) -> Result<(Session, nfs_fh3)> {
        let mut session = Session::new(endpoint.mount, endpoint.uid, endpoint.gid)?;
        let procedure = mount_procedure(MOUNT_PROGRAM::MOUNTPROC3_MNT);
        let path = dirpath(Opaque::borrowed(endpoint.export.as_bytes()));
        let root = match session.call::<mountres3<'static>>(procedure, &path)? {
            mountres3::Ok(ok) => nfs_fh3 { data: ok.fhandle.0 },
            mountres3::Err(status) => bail!("the server does not mount {}: {status}", endpoint.export),
        };
        if endpoint.nfs != endpoint.mount {
            session = Session::new(endpoint.nfs, endpoint.uid, endpoint.gid)?;
        }
        Ok((session, root))
    }

    /// Does the program answer at all?
    pub fn null(&mut self, program: u32, version: u32) -> Result<()> {
        self.call::<nfs3_types::xdr_codec::Void>(
            Procedure { program, version, number: 0 },
            &nfs3_types::xdr_codec::Void,
        )?;
        Ok(())
    }

    pub fn limits(&mut self, root: &nfs_fh3) -> Result<Limits> {
        let ok = done(self.call::<FSINFO3res>(NFS_PROGRAM::NFSPROC3_FSINFO.into(), root)?).context("FSINFO")?;
        Ok(Limits { read: ok.rtmax, write: ok.wtmax })
    }

    /// The handle of a file and its size in bytes, if it exists.
    pub fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<Option<(nfs_fh3, u64)>> {
        let what = diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
        match self.call::<LOOKUP3res>(NFS_PROGRAM::NFSPROC3_LOOKUP.into(), &LOOKUP3args { what })? {
            Nfs3Result::Ok(ok) => {
                let Nfs3Option::Some(attributes) = ok.obj_attributes else {
                    bail!("LOOKUP {name}: the server gives no attributes");
                };
                Ok(Some((ok.object, attributes.size)))
            }
            Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(None),
            Nfs3Result::Err((status, _)) => bail!("LOOKUP {name}: {status}"),
        }
    }

    pub fn create(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3> {
        let how = createhow3::UNCHECKED(sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() });
        let where_ = diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
        let created = self.call::<CREATE3res>(NFS_PROGRAM::NFSPROC3_CREATE.into(), &CREATE3args { where_, how })?;
        match done(created).with_context(|| format!("CREATE {name}"))?.obj {
            Nfs3Option::Some(file) => Ok(file),
            Nfs3Option::None => Ok(self.lookup(dir, name)?.with_context(|| format!("{name} is gone after CREATE"))?.0),
        }
    }

    pub fn truncate(&mut self, file: &nfs_fh3, bytes: u64) -> Result<()> {
        let new_attributes = sattr3 { size: Nfs3Option::Some(bytes), ..sattr3::default() };
        let arguments = SETATTR3args { object: file.clone(), new_attributes, guard: sattrguard3::None };
        done(self.call::<SETATTR3res>(NFS_PROGRAM::NFSPROC3_SETATTR.into(), &arguments)?).context("SETATTR").map(drop)
    }

    fn call<R: Unpack>(&mut self, procedure: Procedure, arguments: &impl Pack) -> Result<R> {
        self.xid = self.xid.wrapping_add(1);
        let mut call = Vec::new();
        self.caller.call(&mut call, self.xid, procedure, 0, |out| arguments.pack(out))?;
        self.stream.write_all(&call).context("cannot send a call")?;
        let mut buffer = [0; 4096];
        loop {
            let received = match self.stream.read(&mut buffer) {
                // With a timeout, a read is not restarted after a signal (signal(7)).
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                received => received.context("no reply")?,
            };
            ensure!(received > 0, "the server closed the connection");
            let mut input = &buffer[..received];
            let Some((head, _)) = self.records.next(&mut input)? else { continue };
            let (xid, mut results) = reply(head)?;
            ensure!(xid == self.xid && input.is_empty(), "the server replied to something that was not asked");
            return Ok(R::unpack(&mut results).with_context(|| format!("results of {procedure:?}"))?.0);
        }
    }
}

/// An error if the server refused.
pub(super) fn done<T, E>(result: Nfs3Result<T, E>) -> Result<T> {
    match result {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => bail!("{status}"),
    }
}

fn mount_procedure(procedure: MOUNT_PROGRAM) -> Procedure {
    Procedure { program: mount::PROGRAM, version: mount::VERSION, number: procedure as u32 }
}
