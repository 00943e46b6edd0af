//! A call between the wire and the procedures, and its results.

use std::rc::Rc;
use std::sync::Arc;

use kernel::connection::ConnectionNo;
use kernel::request::JobId;
use kernel::{Frames, Processor};
use nfs3_types::rpc::auth_stat;

use crate::client::{ClientAddress, Credentials};
use crate::handle::LastHandle;
use crate::nfs::Nfs;
use crate::program::Program;
use crate::shape::Payload;

pub struct Call {
    pub(crate) cpu: Processor,
    pub(crate) nfs: Arc<Nfs>,
    pub(crate) client: ClientAddress,
    /// On which it was received.
    pub(crate) connection: ConnectionNo,
    pub(crate) credentials: Credentials,
    pub(crate) program: Program,
    /// Its number in the program, possibly undefined.
    pub(crate) procedure: u32,
    pub(crate) xid: u32,
    /// XDR of the arguments, in which opaques were checked to be complete. Of a WRITE up to `stable`, without the data
    /// and its length.
    pub(crate) arguments: Vec<u8>,
    /// Of a WRITE only.
    pub(crate) payload: Option<Payload>,
    /// The job to charge.
    pub(crate) job: JobId,
    /// The connection's.
    pub(crate) last_handle: Rc<LastHandle>,
}

#[derive(Debug)]
pub enum Results {
    Bytes(Vec<u8>),
    /// Results that end with an opaque: the data of a READ.
    Data {
        /// Everything before the opaque's bytes, its length included.
        head: Vec<u8>,
        /// The bytes.
        frames: Frames,
        /// Their offset in the first frame.
        skip: usize,
        /// Their number, without padding.
        len: usize,
    },
    /// The arguments are malformed.
    GarbageArguments,
    ProcedureUnavailable,
    /// Other credentials are required.
    AuthError(auth_stat),
    SystemError,
    /// No reply: the same call is in progress.
    Silence,
}
