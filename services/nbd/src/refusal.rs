//! Refusals: the protocol's error, and a text for replies that have room for it.

use kernel::connection::Header;
use machine::Errno;

use crate::proto::{NbdError, chunk, structured_chunk};

/// Length of an error text, at most ("Values": strings). Bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    UnknownCommand,
    Flags,
    ReadOnly,
    /// For reads and the like; a write there would need more space.
    BeyondEnd,
    NoSpace,
    TooLong,
    Unaligned,
    /// "Don't fragment" is impossible.
    Fragments,
    StatusOfNothing,
    NoContext,
    PayloadTooLong,
    Host(Errno),
}

impl Refusal {
    pub(crate) fn error(self) -> NbdError {
        match self {
            Refusal::ReadOnly => NbdError::EPERM,
            Refusal::NoSpace => NbdError::ENOSPC,
            Refusal::Fragments => NbdError::EOVERFLOW,
            Refusal::Host(errno) => errno.into(),
            _ => NbdError::EINVAL,
        }
    }

    /// The whole reply, with the text.
    pub(crate) fn chunk(self, cookie: u64) -> Header {
        let text = self.text();
        let text = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
        let mut header = Header::new();
        header.extend_from_slice(&structured_chunk(true, chunk::ERROR, cookie, 6 + text.len() as u32));
        header.extend_from_slice(&self.error().0.to_be_bytes());
        header.extend_from_slice(&(text.len() as u16).to_be_bytes());
        header.extend_from_slice(text);
        header
    }

    fn text(self) -> String {
        let text = match self {
            Refusal::UnknownCommand => "the command is not known here",
            Refusal::Flags => "the command does not take these flags",
            Refusal::ReadOnly => "the export is read-only",
            Refusal::BeyondEnd | Refusal::NoSpace => "the request reaches beyond the end of the export",
            Refusal::TooLong => "the request is longer than the largest block size offered",
            Refusal::Unaligned => "the request is no multiple of the smallest block size offered",
            Refusal::Fragments => "the data does not fit into one chunk",
            Refusal::StatusOfNothing => "block status of nothing",
            Refusal::NoContext => "no context was negotiated",
            Refusal::PayloadTooLong => "the payload is too long",
            // The protocol has only few errors.
            Refusal::Host(errno) => return errno.to_string(),
        };
        text.to_owned()
    }
}
