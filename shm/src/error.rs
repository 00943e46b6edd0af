use std::io;
use std::path::PathBuf;

/// Why a shared volume cannot be mapped or flushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server answers at the path.
    #[error("no server answers at {path}: {source}; is one with a shared volume running?")]
    NoServer { path: PathBuf, source: io::Error },
    /// The server refuses, and says why.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The host refuses a call that is needed.
    #[error("the host refuses {what}: {source}")]
    Host { what: &'static str, source: io::Error },
    /// The host cannot tell a server of page faults as is needed.
    #[error("the host has no userfaultfd with write protection of shared memory and poison: Linux 6.6 or later has")]
    HostTooOld,
    /// What the server says makes no sense, or it speaks a later version.
    #[error("the server is not understood: {0}")]
    Misunderstood(&'static str),
    /// The server has ended. What was written since the last flush that succeeded may be lost.
    #[error("the server has ended; what was written since the last flush may be lost")]
    ServerLost,
    /// What was written since the last flush that succeeded may be lost.
    #[error("not everything could be made durable: {0}")]
    NotDurable(io::Error),
}

impl Error {
    pub(crate) fn host(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::Host { what, source: errno.into() }
    }
}
