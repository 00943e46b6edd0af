//! Answering the host's calls: work on the mount's processor, a reply, and what is undone where nobody takes that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Generation, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, Request};
use kernel::Processor;
use machine::Errno;
use mount::{Files, Flushed, Found, StreamId, WriteAhead};

use super::listing::{Listing, Shared};
use super::waiting::{Refuse, ThreadId};
use super::{Adapter, convert};

impl Adapter {
    /// Does `task` on the mount's processor.
    pub(super) fn start<F: Future<Output = ()> + 'static>(
        &self,
        task: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
    ) {
        let files = Arc::clone(&self.files);
        self.mailbox.start(move |cpu| {
            let future = task(files, cpu.clone());
            cpu.spawn(future);
        });
    }

    /// Answers a call with what `work` returns.
    pub(super) fn answer<R, T, F>(
        &self,
        request: &Request,
        reply: R,
        work: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
        give: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse + Send + 'static,
        T: 'static,
        F: Future<Output = Result<T, Errno>> + 'static,
    {
        self.answer_or_undo(request, reply, work, give, async |_, _, _| {});
    }

    /// As [`Adapter::answer`]; `undo`: the host refers to what it would be given, but who waited for it was killed.
    pub(super) fn answer_or_undo<R, T, F>(
        &self,
        request: &Request,
        reply: R,
        work: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
        give: impl FnOnce(R, T) + Send + 'static,
        undo: impl AsyncFnOnce(Arc<Files>, Processor, T) + Send + 'static,
    ) where
        R: Refuse + Send + 'static,
        T: 'static,
        F: Future<Output = Result<T, Errno>> + 'static,
    {
        let (waiting, thread) = (Arc::clone(&self.waiting), ThreadId(request.pid()));
        self.start(move |files, cpu| {
            let work = work(Arc::clone(&files), cpu.clone());
            async move {
                let mut work = pin!(work);
                match waiting.unless_killed(&cpu, thread, work.as_mut()).await {
                    Some(Ok(result)) => give(reply, result),
                    Some(Err(errno)) => reply.refuse(convert::errno(errno)),
                    None => {
                        reply.refuse(fuser::Errno::EINTR);
                        if let Ok(result) = work.await {
                            undo(files, cpu, result).await;
                        }
                    }
                }
            }
        });
    }

    pub(super) fn answer_entry<F>(
        &self,
        request: &Request,
        reply: ReplyEntry,
        work: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<Found, Errno>> + 'static,
    {
        self.answer_or_undo(
            request,
            reply,
            work,
            |reply, found| entry(reply, &found),
            async |files: Arc<Files>, cpu, found: Found| files.forget(&cpu, found.id, 1),
        );
    }

    pub(super) fn answer_empty<F>(
        &self,
        request: &Request,
        reply: ReplyEmpty,
        work: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), Errno>> + 'static,
    {
        self.answer(request, reply, work, |reply, ()| reply.ok());
    }

    /// Answers a write that waits to be written to the cache.
    pub(super) fn answer_ahead(&self, request: &Request, reply: ReplyWrite, write: WriteAhead, len: u32) {
        if let Some(file) = write.starts() {
            self.start(move |files, cpu| async move { files.write_waiting(&cpu, file).await });
        }
        if write.has_room() {
            return reply.written(len);
        }
        let work = move |_, _| async move {
            write.until_room().await;
            Ok(())
        };
        self.answer(request, reply, work, move |reply, ()| reply.written(len));
    }

    /// Only who takes the answer is told what failed.
    pub(super) fn answer_flushed<R, F>(
        &self,
        request: &Request,
        reply: R,
        work: impl FnOnce(Arc<Files>, Processor) -> F + Send + 'static,
        give: impl FnOnce(R) + Send + 'static,
    ) where
        R: Refuse + Send + 'static,
        F: Future<Output = Flushed> + 'static,
    {
        self.answer(
            request,
            reply,
            |files, cpu| {
                let work = work(files, cpu);
                async { Ok(work.await) }
            },
            |reply, flushed| match flushed.tell() {
                Ok(()) => give(reply),
                Err(errno) => reply.refuse(convert::errno(errno)),
            },
        );
    }

    /// Fills `names`, made on the mount's processor, with the entries after a cookie; the host may refer to them.
    pub(super) fn list<L: Listing>(
        &self,
        request: &Request,
        (stream, cookie, refers): (StreamId, u64, bool),
        names: impl FnOnce() -> L + Send + 'static,
    ) {
        let (waiting, thread) = (Arc::clone(&self.waiting), ThreadId(request.pid()));
        self.start(move |files, cpu| async move {
            let shared = Shared::new(names());
            let mut sink = shared.clone();
            let mut work = pin!(files.list(&cpu, stream, cookie, refers, &mut sink));
            let listed = waiting.unless_killed(&cpu, thread, work.as_mut()).await;
            let Some(names) = shared.take() else { return };
            let is_killed = listed.is_none();
            let result = listed.map_or(Err(fuser::Errno::EINTR), |result| result.map_err(convert::errno));
            if result.is_err() {
                // The host gets none of them.
                names.referred().iter().for_each(|id| files.forget(&cpu, *id, 1));
            }
            names.end(result);
            if is_killed {
                // It takes no more.
                let _ = work.await;
            }
        });
    }
}

pub(super) fn entry(reply: ReplyEntry, found: &Found) {
    reply.entry_with_ttls(&found.attributes_hold, &found.name_holds, &convert::referred(found), Generation(0));
}

pub(super) fn attributes(reply: ReplyAttr, (attributes, holds): (mount::Attributes, Duration)) {
    reply.attr(&holds, &convert::attributes(&attributes));
}
