//! What this node reads from its storage, and stores there, for the pages whose home it is: what is wanted at a time is asked for
//! at the end of what is done then, adjacent pages in one request.

use std::cmp::Reverse;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use kernel::request::Action;
use kernel::trace::Event;
use kernel::{FRAME_BYTES, FrameRef, Frames, Processor};
use machine::Errno;
use policy::coherence::{Address, Envelope, Grants, Message, PageNo, Version};
use policy::unit::Instant;

use crate::Shared;
use crate::core::{Core, Progress, block};
use crate::waiting::{Content, Durability, Loaded, Reader, Wanted};
use crate::watch::Part;
use crate::wire::Word;

/// After a write to the home's storage failed. Whoever gave up the page retains it until it is stored.
const RETRY: Duration = Duration::from_secs(1);

/// Between two lines about the same failure.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Between looks at a lease that is over.
const LEASE_RETRY: Duration = Duration::from_millis(50);

/// Pages of one request, at most. No more are asked for, or granted, in one step.
pub(crate) const REQUEST_PAGES_MAX: usize = 64;

/// A page to be read into a frame.
#[derive(Clone)]
struct Read {
    page: PageNo,
    reader: Reader,
    frame: FrameRef,
}

type Reading = Pin<Box<dyn Future<Output = Result<(), Errno>>>>;

/// What was read at once, or the rest, for a task.
type Begun = Result<Result<(), Errno>, Reading>;

impl Shared {
    /// Pages that the storage is asked for at a time, at most.
    pub(crate) fn request_pages_max(&self, cpu: &Processor) -> usize {
        let most =
            if cpu.switches().look_ahead { self.storage.facts().transfer_bytes_max as usize / FRAME_BYTES } else { 1 };
        most.clamp(1, REQUEST_PAGES_MAX)
    }

    /// Reads a page of this home's storage for `reader`.
    pub(crate) fn read_home(&self, core: &mut Core, page: PageNo, reader: Reader) -> Progress {
        core.home.wanted.reads.push((page, reader));
        Progress::Running
    }

    /// Stores the page's last copy.
    pub(crate) fn store(
        &self,
        cpu: &Processor,
        core: &mut Core,
        page: PageNo,
        (version, content): (Version, Content),
    ) -> Progress {
        let frame = match content {
            Content::Page(Loaded::Frame(frame), _) => frame,
            Content::Page(Loaded::Bytes(bytes), _) => return self.store_bytes(cpu, page, bytes),
            Content::Lost => {
                // In a survey others may have it, and what nobody has is lost without being named.
                if !(self.config.is_volatile && core.node.is_surveying()) {
                    self.note_lost(core, page);
                }
                return Progress::Done;
            }
            // This node's own.
            Content::None => {
                self.touch(core, self.me, page);
                match core.saving.get(&page).and_then(|saving| saving.frame.clone()) {
                    Some(frame) => frame,
                    None => {
                        // Unless nothing was written, nobody has it: it was abandoned, or the lease was over.
                        if core.page(page).unwritten != Some(version) {
                            self.note_lost(core, page);
                        }
                        return Progress::Done;
                    }
                }
            }
        };
        core.home.wanted.writes.push((page, frame));
        Progress::Running
    }

    /// Asks the storage for what is wanted. True: some of it is done, and its pages are due.
    pub(crate) fn ask_storage(&self, cpu: &Processor, core: &mut Core) -> bool {
        let Wanted { mut reads, mut writes } = std::mem::take(&mut core.home.wanted);
        if reads.is_empty() && writes.is_empty() {
            return false;
        }
        let most = self.request_pages_max(cpu);
        let mut is_done = false;
        reads.sort_unstable_by_key(|(page, _)| *page);
        let reads = self.with_frames(cpu, core, reads);
        let runs = reads.chunk_by(|one, next| follows(one.page, next.page)).flat_map(|run| run.chunks(most));
        for run in runs {
            is_done |= self.read_run(cpu, core, run);
        }
        writes.sort_unstable_by_key(|(page, _)| *page);
        let runs = writes.chunk_by(|(one, _), (next, _)| follows(*one, *next)).flat_map(|run| run.chunks(most));
        for run in runs {
            is_done |= self.write_run(cpu, core, run);
        }
        is_done
    }

    /// Frames to read pages into: that of who waits for the page here, if somebody does. The pages for which none is free wait
    /// for one, each by itself.
    fn with_frames(&self, cpu: &Processor, core: &Core, wanted: Vec<(PageNo, Reader)>) -> Vec<Read> {
        let own = |page: PageNo, reader: Reader| {
            let load = core.pages.get(page).and_then(|entry| entry.loads.first());
            load.filter(|_| matches!(reader, Reader::Own(..))).map(|load| load.spare.clone())
        };
        let framed: Vec<_> = wanted.into_iter().map(|(page, reader)| (page, reader, own(page, reader))).collect();
        let mut free = Frames::new();
        let missing = framed.iter().filter(|(_, _, frame)| frame.is_none()).count();
        if missing > 0 {
            // What there is does for the first of them.
            cpu.kernel().try_allocate(missing, &mut free);
        }
        // Adjacent pages in adjacent frames make short vectors.
        free.sort_unstable_by_key(|frame| Reverse(frame.no()));
        let mut reads = Vec::with_capacity(framed.len());
        for (page, reader, frame) in framed {
            match frame.or_else(|| free.pop()) {
                Some(frame) => reads.push(Read { page, reader, frame }),
                None => self.read_alone(cpu, (page, reader), None),
            }
        }
        reads
    }

    fn read_run(&self, cpu: &Processor, core: &mut Core, run: &[Read]) -> bool {
        let Some(first) = run.first() else { return false };
        let frames: Frames = run.iter().map(|read| read.frame.clone()).collect();
        let read = self.begin_read(cpu, first.page, frames);
        self.go_on_reading(cpu, core, run, read)
    }

    /// Ends what was read at once, and the rest later. True: pages are due.
    fn go_on_reading(&self, cpu: &Processor, core: &mut Core, run: &[Read], read: Begun) -> bool {
        match read {
            Ok(result) if !self.has_ended() => {
                self.end_read(cpu, core, run, result);
                true
            }
            Err(read) => {
                self.end_read_later(cpu, run.to_vec(), read);
                false
            }
            Ok(_) => false,
        }
    }

    /// Reads adjacent pages that are granted to another node, which has asked at this time. `None`: they are sent by themselves,
    /// each of them busy until then.
    pub(crate) fn read_grants(
        &self,
        cpu: &Processor,
        core: &mut Core,
        grants: &Grants,
        (asked, mut frames): (Instant, Frames),
    ) -> Option<Frames> {
        frames.sort_unstable_by_key(|frame| frame.no());
        let read = self.begin_read(cpu, grants.pages.start, frames.clone());
        if matches!(read, Ok(Ok(()))) && !self.has_ended() {
            return Some(frames);
        }
        let mut run = Vec::with_capacity(frames.len());
        for (Envelope { to, message, .. }, frame) in grants.envelopes().zip(frames) {
            let Some(page) = message.page() else { continue };
            core.page(page).is_running = true;
            core.watch.begin(Part::Home, page, to.node, asked);
            run.push(Read { page, reader: Reader::Node(to, message), frame });
        }
        self.go_on_reading(cpu, core, &run, read);
        None
    }

    /// Memory is read at once.
    fn begin_read(&self, cpu: &Processor, first: PageNo, frames: Frames) -> Begun {
        let Some(shared) = self.this.upgrade() else { return Ok(Err(Errno::IO)) };
        let here = cpu.clone();
        at_once(async move { shared.read_frames(&here, first, frames).await })
    }

    fn end_read_later(&self, cpu: &Processor, run: Vec<Read>, read: Reading) {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            let result = read.await;
            shared.with_state(&here, |core| shared.end_read(&here, core, &run, result));
        });
    }

    /// Reads a page by itself. Without a frame it waits for one.
    fn read_alone(&self, cpu: &Processor, (page, reader): (PageNo, Reader), frame: Option<FrameRef>) {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            let mut frames = match frame {
                Some(frame) => Frames::from_iter([frame]),
                None => here.kernel().allocate(&here, 1).await,
            };
            let result = shared.read_frames(&here, page, frames.clone()).await;
            let Some(frame) = frames.pop() else { return };
            let read = Read { page, reader, frame };
            shared.with_state(&here, |core| shared.end_read(&here, core, &[read], result));
        });
    }

    /// Reads adjacent pages. While the lease does not last nothing is known of what storage has: it is read when the lease is
    /// renewed.
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

    /// Of pages that cannot be read together each is read by itself: what storage cannot read is lost to whoever asks, as long
    /// as it cannot.
    fn end_read(&self, cpu: &Processor, core: &mut Core, run: &[Read], result: Result<(), Errno>) {
        for Read { page, reader, frame } in run {
            let content = match result {
                Ok(()) => Content::Page(Loaded::Frame(frame.clone()), Durability::Known),
                Err(_) if run.len() == 1 => Content::Lost,
                Err(_) => {
                    self.read_alone(cpu, (*page, *reader), Some(frame.clone()));
                    continue;
                }
            };
            match *reader {
                Reader::Own(mode, version) => {
                    if let Some(volume) = self.volume() {
                        self.granted(cpu, core, &volume, *page, (mode, version, content));
                    }
                }
                Reader::Node(to, message) => self.send_read(cpu, core, *page, (to, message, content)),
            }
            self.end_step(core, *page);
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

    fn write_run(&self, cpu: &Processor, core: &mut Core, run: &[(PageNo, FrameRef)]) -> bool {
        let (Some(shared), Some(&(first, _))) = (self.this.upgrade(), run.first()) else { return false };
        let here = cpu.clone();
        let frames: Frames = run.iter().map(|(_, frame)| frame.clone()).collect();
        let written = {
            let (shared, here) = (Arc::clone(&shared), here.clone());
            at_once(async move { shared.perform(&here, write(first, frames)).await })
        };
        match written {
            Ok(_) if self.has_ended() => false,
            Ok(result) => {
                self.end_write(cpu, core, run, result);
                true
            }
            Err(written) => {
                let run = run.to_vec();
                cpu.spawn(async move {
                    let result = written.await;
                    shared.with_state(&here, |core| shared.end_write(&here, core, &run, result));
                });
                false
            }
        }
    }

    /// Pages that could not be stored together are stored each by itself.
    fn end_write(&self, cpu: &Processor, core: &mut Core, run: &[(PageNo, FrameRef)], result: Result<(), Errno>) {
        let failed = result.err().filter(|_| run.len() == 1);
        for (page, frame) in run {
            if result.is_ok() {
                self.note_stored(core, *page);
                self.end_step(core, *page);
            } else {
                self.store_alone(cpu, *page, frame.clone(), failed);
            }
        }
    }

    /// `failed`: why it could not be stored, by itself.
    fn store_alone(&self, cpu: &Processor, page: PageNo, frame: FrameRef, failed: Option<Errno>) {
        let (Some(shared), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            shared.write_home(&here, page, (&frame, failed)).await;
            shared.go_on(&here, page, |core| shared.note_stored(core, page));
        });
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
                self.report_store_failure(cpu.now(), errno);
                cpu.sleep(RETRY).await;
            }
            match self.perform(cpu, write(page, Frames::from_iter([frame.clone()]))).await {
                Ok(()) => return,
                Err(errno) => failed = Some(errno),
            }
        }
    }

    /// Not of each page each second: where storage is full, there may be thousands.
    fn report_store_failure(&self, now: Instant, errno: Errno) {
        let mut told = self.store_failure.lock();
        if told.is_none_or(|(before, at)| before != errno || now.since(at) >= TELL_AGAIN) {
            *told = Some((errno, now));
            drop(told);
            self.report(None, format!("what was written could not be stored: {errno}; it is tried again every second"));
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
        self.with_state(cpu, |core| {
            end(core);
            self.end_step(core, page);
        });
    }

    /// Ends what waited, unless this incarnation has ended, and does what can be done then.
    fn with_state(&self, cpu: &Processor, end: impl FnOnce(&mut Core)) {
        let mut core = self.core.lock();
        let core = &mut *core;
        if !self.has_ended() {
            end(core);
            self.drive(cpu, core);
        }
    }

    fn end_step(&self, core: &mut Core, page: PageNo) {
        let entry = core.page(page);
        entry.is_running = false;
        let store = entry.store.take();
        self.end_store(core, store);
        core.due.push_back(page);
    }
}

fn follows(one: PageNo, next: PageNo) -> bool {
    one.0 + 1 == next.0
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
