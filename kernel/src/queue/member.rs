//! The requests of a batch, which the disk gets as one.

use std::sync::Arc;

use machine::Errno;
use policy::unit::{ByteRange, Class, Stability};
use smallvec::SmallVec;

use super::end::End;
use crate::frame::Frames;
use crate::request::{Action, JobId, Outcome, Request};

/// Requests issued as one: usually a single one.
pub(super) type Members = SmallVec<[Member; 1]>;

/// A request of a batch, and its result.
pub(super) struct Member {
    /// Taken when it is performed alone.
    pub(super) request: Option<Request>,
    pub(super) end: Arc<End>,
    pub(super) result: Result<Outcome, Errno>,
}

impl Member {
    pub(super) fn job(&self) -> JobId {
        self.request.as_ref().map_or(JobId::default(), |request| request.context.job)
    }

    fn is_forced(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.context.stability == Stability::Stable)
    }
}

/// A forced write that fails may be the failure of a flush, which loses earlier writes: if each forced write of the failed
/// batch succeeds alone, one of them still reports the failure.
pub(super) fn report_forced(members: &mut [Member], failure: Result<Outcome, Errno>) {
    let mut forced = members.iter_mut().filter(|member| member.is_forced());
    if let Some(first) = forced.next()
        && first.result.is_ok()
        && forced.all(|member| member.result.is_ok())
    {
        first.result = failure;
    }
}

/// One request for the bytes of all, which are contiguous.
pub(super) fn merge(members: &[Member]) -> Option<Request> {
    let mut frames = Frames::new();
    let mut range: Option<ByteRange> = None;
    let mut requests = members.iter().filter_map(|member| member.request.as_ref()).peekable();
    let mut context = requests.peek()?.context;
    let mut is_write = false;
    for request in requests {
        if let Action::Read(at, some) | Action::Write(at, some) = &request.action {
            frames.extend(some.iter().cloned());
            range = Some(range.map_or(*at, |before| ByteRange { at: before.at, len: before.len + at.len }));
            is_write = matches!(request.action, Action::Write(..));
        }
        if request.context.class == Class::Synchronous {
            context.class = Class::Synchronous;
        }
        if request.context.stability == Stability::Stable {
            context.stability = Stability::Stable;
        }
    }
    let range = range.unwrap_or_else(|| unreachable!("only transfers are merged"));
    let action = if is_write { Action::Write(range, frames) } else { Action::Read(range, frames) };
    Some(Request { action, context })
}
