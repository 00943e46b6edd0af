//! What this node reads from its storage, and stores there, for the pages whose home it is: what is wanted at a time is asked for
//! at the end of what is done then, adjacent pages in one request.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kernel::request::Action;
use kernel::trace::Event;
use kernel::{FRAME_BYTES, FrameRef, Frames, Processor};
use machine::Errno;
use policy::coherence::{Address, Message, Mode, PageNo};

use crate::Shared;
use crate::core::{Core, Progress, block};
use crate::waiting::{Content, Durability, Loaded};
use crate::wire::Word;

/// After a write to the home's storage failed. Whoever gave up the page retains it until it is stored.
const RETRY: Duration = Duration::from_secs(1);

/// Between looks at a lease that is over.
const LEASE_RETRY: Duration = Duration::from_millis(50);

/// Pages read or stored by one request, at most.
const RUN_MAX: usize = 64;

/// Who is granted a page that is read from storage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    /// Those who wait for it at this node.
    Own(Mode),
    /// Another node, by this grant.
    Node(Address, Message),
}

/// What is to be asked of the storage; nothing while the state is not locked.
#[derive(Default)]
pub(crate) struct Wanted {
    reads: Vec<(PageNo, Reader)>,
    writes: Vec<(PageNo, FrameRef)>,
}

impl Wanted {
    pub(crate) fn clear(&mut self) {
        *self = Wanted::default();
    }
}

impl Shared {
    /// Reads a page of this home's storage for `reader`.
    pub(crate) fn read_home(&self, core: &mut Core, page: PageNo, reader: Reader) -> Progress {
        core.home.wanted.reads.push((page, reader));
        Progress::Running
    }

    /// Stores the page's last copy.
    pub(crate) fn store(&self, cpu: &Processor, core: &mut Core, page: PageNo, content: Content) -> Progress {
        let frame = match content {
            Content::Page(Loaded::Frame(frame), _) => frame,
            Content::Page(Loaded::Bytes(bytes), _) => return self.store_bytes(cpu, page, bytes),
            Content::Lost => {
                // In a survey others may have it, and what nobody has is lost without being named.
                if !(self.config.is_volatile && core.node.is_surveying()) {
                    core.home.lost.insert(page);
                }
                return Progress::Done;
            }
            // This node's own. It was not changed if it is not cached.
            Content::None => {
                core.flushes.touch(self.me.node, self.me.incarnation);
                match core.saving.get(&page).and_then(|saving| saving.frame.clone()) {
                    Some(frame) => frame,
                    None => return Progress::Done,
                }
            }
        };
        core.home.wanted.writes.push((page, frame));
        Progress::Running
    }

    /// Asks the storage for what is wanted. True: some of it is done, and its pages are due.
    pub(crate) fn ask_storage(&self, cpu: &Processor, core: &mut Core) -> bool {
        let Wanted { reads, writes } = std::mem::take(&mut core.home.wanted);
        let most = (self.storage.facts().transfer_bytes_max as usize / FRAME_BYTES).clamp(1, RUN_MAX);
        let mut is_done = false;
        for run in runs(reads, most) {
            is_done |= self.read_run(cpu, core, run);
        }
        for run in runs(writes, most) {
            is_done |= self.write_run(cpu, core, run);
        }
        is_done
    }

    fn read_run(&self, cpu: &Processor, core: &mut Core, run: Vec<(PageNo, Reader)>) -> bool {
        let (Some(shared), Some(&(first, _))) = (self.this.upgrade(), run.first()) else { return false };
        let here = cpu.clone();
        let Some(frames) = self.frames_for(cpu, core, &run) else {
            cpu.spawn(async move {
                for (page, reader) in run {
                    let frames = here.kernel().allocate(&here, 1).await;
                    let mut contents = shared.read_into(&here, page, frames).await;
                    let content = contents.pop().unwrap_or(Content::Lost);
                    shared.go_on(&here, page, |core| shared.end_read(&here, core, page, (reader, content)));
                }
            });
            return false;
        };
        let (own, its) = (Arc::clone(&shared), here.clone());
        match at_once(async move { own.read_into(&its, first, frames).await }) {
            Ok(contents) => {
                for ((page, reader), content) in run.into_iter().zip(contents) {
                    self.end_read(cpu, core, page, (reader, content));
                    self.end_step(core, page);
                }
                true
            }
            Err(read) => {
                cpu.spawn(async move {
                    let contents = read.await;
                    let read = run.into_iter().zip(contents).map(|((page, reader), content)| (page, (reader, content)));
                    shared.go_on_all(&here, read, |core, page, read| shared.end_read(&here, core, page, read));
                });
                false
            }
        }
    }

    /// Frames to read pages into: that of who waits for it here, if somebody does. `None`: too few are free.
    fn frames_for(&self, cpu: &Processor, core: &Core, run: &[(PageNo, Reader)]) -> Option<Frames> {
        let awaited = |page: &PageNo| core.pages.get(*page).and_then(|entry| entry.loads.first());
        let own: Vec<Option<FrameRef>> = run
            .iter()
            .map(|(page, reader)| awaited(page).filter(|_| matches!(reader, Reader::Own(_))))
            .map(|load| load.map(|load| load.spare.clone()))
            .collect();
        let mut free = Frames::new();
        let missing = own.iter().filter(|frame| frame.is_none()).count();
        if missing > 0 && !cpu.kernel().try_allocate(missing, &mut free) {
            return None;
        }
        let mut free = free.into_iter();
        own.into_iter().map(|frame| frame.or_else(|| free.next())).collect()
    }

    /// Adjacent pages. If they cannot be read together, each by itself: what storage cannot read is lost to whoever asks,
    /// as long as it cannot.
    async fn read_into(&self, cpu: &Processor, first: PageNo, frames: Frames) -> Vec<Content> {
        let page = |frame| Content::Page(Loaded::Frame(frame), Durability::Known);
        if self.read_frames(cpu, first, frames.clone()).await.is_ok() {
            return frames.into_iter().map(page).collect();
        }
        if frames.len() == 1 {
            return vec![Content::Lost];
        }
        let mut contents = Vec::with_capacity(frames.len());
        for (no, frame) in (first.0..).zip(frames) {
            let read = self.read_frames(cpu, PageNo(no), Frames::from_iter([frame.clone()])).await;
            contents.push(read.map_or(Content::Lost, |()| page(frame)));
        }
        contents
    }

    /// While the lease does not last nothing is known of what storage has: it is read when the lease is renewed.
    async fn read_frames(&self, cpu: &Processor, first: PageNo, frames: Frames) -> Result<(), Errno> {
        loop {
            let lasted = self.answers();
            let blocks = block(first).run(frames.len() as u64);
            let read = self.perform(cpu, Action::Read(blocks.bytes(), frames.clone())).await;
            if read.is_ok() || (lasted && self.answers()) || self.has_ended() {
                return read;
            }
            cpu.sleep(LEASE_RETRY).await;
        }
    }

    fn end_read(&self, cpu: &Processor, core: &mut Core, page: PageNo, (reader, content): (Reader, Content)) {
        match reader {
            Reader::Own(mode) => {
                if let Some(volume) = self.volume() {
                    self.granted(cpu, core, &volume, page, (mode, content));
                }
            }
            Reader::Node(to, message) => self.send_read(cpu, core, page, (to, message, content)),
        }
    }

    fn send_read(&self, cpu: &Processor, core: &mut Core, page: PageNo, grant: (Address, Message, Content)) {
        let (to, message, content) = grant;
        self.note_granted(cpu, core, page, to);
        let frame = match content {
            Content::Page(Loaded::Frame(frame), _) => Some(frame),
            _ => None,
        };
        self.counters.grants.add(1);
        cpu.trace(Event::SharedGranted, self.whose(), page.0, to.node.0.into());
        let lost = frame.is_none() || self.is_lost(core, page);
        let unflushed = core.flushes.home.is_unflushed(page);
        self.send_word(to, Word::Page { message, lost, unflushed }, frame.filter(|_| !lost));
    }

    fn write_run(&self, cpu: &Processor, core: &mut Core, run: Vec<(PageNo, FrameRef)>) -> bool {
        let (Some(shared), Some(&(first, _))) = (self.this.upgrade(), run.first()) else { return false };
        let here = cpu.clone();
        let frames: Frames = run.iter().map(|(_, frame)| frame.clone()).collect();
        let (own, its) = (Arc::clone(&shared), here.clone());
        match at_once(async move { own.perform(&its, write(first, frames)).await }) {
            Ok(Ok(())) => {
                for (page, _) in run {
                    self.note_stored(core, page);
                    self.end_step(core, page);
                }
                true
            }
            Ok(Err(errno)) => {
                self.store_each(cpu, run, errno);
                false
            }
            Err(written) => {
                cpu.spawn(async move {
                    match written.await {
                        Ok(()) => shared.go_on_all(&here, run, |core, page, _| shared.note_stored(core, page)),
                        Err(errno) => shared.store_each(&here, run, errno),
                    }
                });
                false
            }
        }
    }

    /// Stores pages each by itself, that could not be stored together.
    fn store_each(&self, cpu: &Processor, run: Vec<(PageNo, FrameRef)>, errno: Errno) {
        let failed = (run.len() == 1).then_some(errno);
        for (page, frame) in run {
            let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
            cpu.spawn(async move {
                shared.write_home(&here, page, (&frame, failed)).await;
                shared.go_on(&here, page, |core| shared.note_stored(core, page));
            });
        }
    }

    /// Stores a page that arrived when no frame was free. For this a few are reserved: memory may be short because of
    /// what waits to be stored at another home, which may wait for the same.
    fn store_bytes(&self, cpu: &Processor, page: PageNo, bytes: Arc<[u8]>) -> Progress {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return Progress::Done };
        cpu.spawn(async move {
            let mut frame = shared.reserve.take().await;
            if let Some(into) = frame.bytes_mut() {
                into.copy_from_slice(&bytes);
            }
            shared.write_home(&here, page, (&frame, None)).await;
            shared.reserve.give_back(frame);
            shared.go_on(&here, page, |core| shared.note_stored(core, page));
        });
        Progress::Running
    }

    /// Writes a page to this home's storage, however often that takes. `failed`: why the last time failed. Gives up only when
    /// this incarnation has ended, after which nothing goes on.
    async fn write_home(&self, cpu: &Processor, page: PageNo, (frame, mut failed): (&FrameRef, Option<Errno>)) {
        loop {
            if let Some(errno) = failed {
                if self.has_ended() {
                    return;
                }
                self.report(None, format!("a page could not be stored: {errno}; it is tried again every second"));
                cpu.sleep(RETRY).await;
            }
            match self.perform(cpu, write(page, Frames::from_iter([frame.clone()]))).await {
                Ok(()) => return,
                Err(errno) => failed = Some(errno),
            }
        }
    }

    fn note_stored(&self, core: &mut Core, page: PageNo) {
        self.counters.stores.add(1);
        core.flushes.home.stored += 1;
        if self.config.shards.is_some() {
            core.flushes.home.unflushed.since_mut().insert(page);
        }
        core.home.lost.remove(page);
        if self.config.is_volatile {
            core.home.stored.insert(page);
        }
    }

    /// Ends a step that waited.
    pub(crate) fn go_on(&self, cpu: &Processor, page: PageNo, end: impl FnOnce(&mut Core)) {
        self.go_on_all(cpu, [(page, end)], |core, _, end| end(core));
    }

    /// Ends steps of several pages.
    fn go_on_all<T>(
        &self,
        cpu: &Processor,
        pages: impl IntoIterator<Item = (PageNo, T)>,
        end: impl Fn(&mut Core, PageNo, T),
    ) {
        let mut core = self.core.lock();
        let core = &mut *core;
        if self.has_ended() {
            return;
        }
        for (page, with) in pages {
            end(core, page, with);
            self.end_step(core, page);
        }
        self.drive(cpu, core);
    }

    fn end_step(&self, core: &mut Core, page: PageNo) {
        let entry = core.page(page);
        entry.is_running = false;
        let store = entry.store.take();
        self.end_store(core, store);
        core.due.push_back(page);
    }
}

/// Runs of adjacent pages, of at most so many.
fn runs<T>(pages: Vec<(PageNo, T)>, most: usize) -> Vec<Vec<(PageNo, T)>> {
    let mut runs: Vec<Vec<(PageNo, T)>> = Vec::new();
    for (page, with) in pages {
        match runs.last_mut() {
            Some(run) if run.len() < most && run.last().is_some_and(|(last, _)| last.0 + 1 == page.0) => {
                run.push((page, with));
            }
            _ => runs.push(vec![(page, with)]),
        }
    }
    runs
}

fn write(first: PageNo, frames: Frames) -> Action {
    Action::Write(block(first).run(frames.len() as u64).bytes(), frames)
}

/// Begins what storage does, with the volume's state locked: memory is done at once, which needs no task. `Err`: the rest,
/// for a task.
fn at_once<T>(work: impl Future<Output = T> + 'static) -> Result<T, Pin<Box<dyn Future<Output = T>>>> {
    let mut work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
    work.as_mut().now_or_never().ok_or(work)
}
