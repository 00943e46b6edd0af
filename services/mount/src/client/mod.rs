//! The procedures of NFS (RFC 1813), as calls to a server.

mod content;
mod directory;
mod names;
mod status;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kernel::Processor;
use kernel::volume::GROWING_BYTES_MAX;
use machine::Errno;
use nfs3_types::nfs3::{
    self, ACCESS3args, FSINFO3args, FSSTAT3args, GETATTR3args, NFS_PROGRAM as Nfs, PATHCONF3args, SETATTR3args, sattr3,
    sattrguard3,
};
use nfs3_types::xdr_codec::Pack;

use crate::attributes::{Attributes, Change, Time};
use crate::handle::Handle;
use crate::results::Results;
use crate::rpc::{Payload, Program, Remote, Reply, packed};
pub(crate) use content::Written;
pub(crate) use directory::{Entry, Listing};
pub(crate) use names::{Made, Object};
pub use status::Access;
pub(crate) use status::{BAD_COOKIE, NOT_SYNC};

pub const NFS: Program = Program { number: nfs3::PROGRAM, version: nfs3::VERSION };

/// Between two attempts at a call that the server asks to be made later (JUKEBOX).
const LATER_MIN: Duration = Duration::from_millis(100);
const LATER_MAX: Duration = Duration::from_secs(5);

/// An exported directory tree of a server.
pub struct Server {
    remote: Remote,
    root: Handle,
    limits: Limits,
    /// Does it keep times as they are given, to the nanosecond?
    keeps_times: AtomicBool,
    /// As long as nothing else is known.
    has_exclusive: AtomicBool,
}

/// What FSINFO and PATHCONF say. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub read_max: u32,
    pub write_max: u32,
    pub file_max: u64,
    pub name_max: u32,
    /// Does it say that times are stored to the nanosecond?
    pub has_exact_times: bool,
    /// May a name be found by another one?
    pub is_case_insensitive: bool,
}

/// What FSSTAT says. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    /// For this user.
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
}

/// A call's status other than OK, or why it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub errno: Errno,
    /// The call was sent more than once: its own first execution may be what it is refused for.
    pub was_repeated: bool,
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Errno {
        refused.errno
    }
}

impl Server {
    /// The tree below `root`. Its limits are asked for.
    ///
    /// # Errors
    /// The server's.
    pub async fn open(cpu: &Processor, remote: Remote, root: Handle) -> Result<Server, Errno> {
        let limits = Limits {
            read_max: 0,
            write_max: 0,
            file_max: 0,
            name_max: 255,
            has_exact_times: false,
            is_case_insensitive: true,
        };
        let (keeps_times, has_exclusive) = (AtomicBool::new(false), AtomicBool::new(true));
        let mut server = Server { remote, root, limits, keeps_times, has_exclusive };
        server.limits = server.ask_limits(cpu).await?;
        *server.keeps_times.get_mut() = server.limits.has_exact_times;
        Ok(server)
    }

    pub fn root(&self) -> &Handle {
        &self.root
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.remote.close();
    }

    async fn ask_limits(&self, cpu: &Processor) -> Result<Limits, Errno> {
        let arguments = FSINFO3args { fsroot: self.root.wire() };
        let info = self.ask(cpu, Nfs::NFSPROC3_FSINFO, &arguments, |results| {
            results.after()?;
            let (read_max, _) = (results.u32()?, results.bytes(8)?);
            let (write_max, _) = (results.u32()?, results.bytes(12)?);
            let (file_max, seconds, nanoseconds) = (results.u64()?, results.u32()?, results.u32()?);
            // A server that says nothing of it: its own refusals tell. No file is cached beyond what a volume can have.
            let file_max = if file_max == 0 { u64::MAX } else { file_max }.min(GROWING_BYTES_MAX);
            Some((read_max, write_max, file_max, (seconds, nanoseconds) == (0, 1)))
        });
        let (read_max, write_max, file_max, has_exact_times) = info.await?;
        let arguments = PATHCONF3args { object: self.root.wire() };
        let names = self.ask(cpu, Nfs::NFSPROC3_PATHCONF, &arguments, |results| {
            results.after()?;
            results.u32()?;
            let (name_max, _) = (results.u32()?, results.bytes(8)?);
            Some((name_max, results.boolean()?))
        });
        let (name_max, is_case_insensitive) = names.await.unwrap_or((255, true));
        Ok(Limits { read_max, write_max, file_max, name_max, has_exact_times, is_case_insensitive })
    }

    pub async fn attributes(&self, cpu: &Processor, object: &Handle) -> Result<Attributes, Errno> {
        let arguments = GETATTR3args { object: object.wire() };
        Ok(self.ask(cpu, Nfs::NFSPROC3_GETATTR, &arguments, |results| results.attributes()).await?)
    }

    /// `guard`: it must have been changed last then, else this is refused with [`NOT_SYNC`].
    pub(crate) async fn set_attributes(
        &self,
        cpu: &Processor,
        object: &Handle,
        new: sattr3,
        guard: Option<Time>,
    ) -> Result<Change, Errno> {
        let guard = guard.map_or(sattrguard3::None, |changed| sattrguard3::Some(changed.into()));
        let arguments = SETATTR3args { object: object.wire(), new_attributes: new, guard };
        Ok(self.ask(cpu, Nfs::NFSPROC3_SETATTR, &arguments, |results| results.change()).await?)
    }

    /// Which of the rights `wanted` the user has, and the object's attributes.
    pub async fn access(
        &self,
        cpu: &Processor,
        object: &Handle,
        wanted: Access,
    ) -> Result<(Access, Option<Attributes>), Errno> {
        let arguments = ACCESS3args { object: object.wire(), access: wanted.0 };
        let results = self.ask(cpu, Nfs::NFSPROC3_ACCESS, &arguments, |results| {
            let attributes = results.after()?;
            Some((Access(results.u32()?), attributes))
        });
        Ok(results.await?)
    }

    pub async fn space(&self, cpu: &Processor) -> Result<Space, Errno> {
        let arguments = FSSTAT3args { fsroot: self.root.wire() };
        let results = self.ask(cpu, Nfs::NFSPROC3_FSSTAT, &arguments, |results| {
            results.after()?;
            let [total, free, available, files, files_free] = [(); 5].map(|()| results.u64());
            Some(Space { total: total?, free: free?, available: available?, files: files?, files_free: files_free? })
        });
        Ok(results.await?)
    }

    /// Calls a procedure; `read` takes its results after an OK.
    async fn ask<T>(
        &self,
        cpu: &Processor,
        procedure: Nfs,
        arguments: &impl Pack,
        read: impl FnOnce(&mut Results<'_>) -> Option<T>,
    ) -> Result<T, Refused> {
        let arguments = packed(arguments);
        let reply = self.reply(cpu, procedure, &arguments, &Payload::default(), None).await?;
        take(&reply, read)
    }

    /// The reply to a call, as soon as it is not JUKEBOX.
    async fn reply(
        &self,
        cpu: &Processor,
        procedure: Nfs,
        arguments: &[u8],
        payload: &Payload,
        place: Option<&Payload>,
    ) -> Result<Reply, Refused> {
        let (mut pause, begun, mut was_repeated) = (LATER_MIN, cpu.now(), false);
        loop {
            let (payload, place) = (payload.clone(), place.cloned());
            let reply = self.remote.call_with(cpu, procedure as u32, arguments, payload, place).await;
            let mut reply = reply.map_err(|failure| Refused { errno: failure.errno(), was_repeated: false })?;
            // What was sent twice before may have been done then.
            was_repeated |= reply.was_repeated;
            if !status::is_jukebox(reply.results()) {
                reply.was_repeated = was_repeated;
                return Ok(reply);
            }
            if self.remote.fails_after().is_some_and(|most| cpu.now().since(begun) >= most) {
                return Err(Refused { errno: Errno::TIMED_OUT, was_repeated: false });
            }
            cpu.sleep(pause).await;
            pause = (2 * pause).min(LATER_MAX);
        }
    }
}

fn take<T>(reply: &Reply, read: impl FnOnce(&mut Results<'_>) -> Option<T>) -> Result<T, Refused> {
    let mut results = reply.results();
    let was_repeated = reply.was_repeated;
    let refused = |errno| Refused { errno, was_repeated };
    match results.u32() {
        Some(0) => read(&mut results).ok_or(refused(Errno::IO)),
        Some(status) => Err(refused(status::errno(status))),
        None => Err(refused(Errno::IO)),
    }
}
