//! Requests of this node that wait for a grant.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use kernel::volume::Change;
use kernel::{FRAME_BYTES, FrameRef};
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::{Action, Address, Envelope, Message, Mode, PageNo, Version};
use policy::unit::{Instant, JobId};
use smallvec::SmallVec;

use crate::mapping::{Fault, MappingNo};

/// Unanswered messages are sent again after this time. A connection loses none, so this is for what a peer ignored:
/// before it knew this node, or while it did not grant anything yet.
pub(crate) const RETRANSMIT_AFTER: Duration = Duration::from_secs(1);

/// Requests of one task: it waits for the last of them, or for the first that fails.
#[derive(Debug)]
pub(crate) struct Group<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    left: usize,
    result: Result<Vec<(PageNo, T)>, Errno>,
    waker: Option<Waker>,
}

impl<T> Group<T> {
    pub(crate) fn new(left: usize) -> Arc<Self> {
        Arc::new(Group { state: Mutex::new(State { left, result: Ok(Vec::new()), waker: None }) })
    }

    /// One of the requests is done.
    pub(crate) fn done(&self, page: PageNo, result: Result<T, Errno>) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        match (result, &mut state.result) {
            (Ok(value), Ok(all)) => all.push((page, value)),
            (Err(errno), result) => *result = Err(errno),
            (Ok(_), Err(_)) => {}
        }
        let waker = if state.left == 0 { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.state.lock().left > 0
    }

    /// Waits for all of them.
    pub(crate) async fn all(&self) -> Result<Vec<(PageNo, T)>, Errno> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.left > 0 {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::replace(&mut state.result, Ok(Vec::new())))
        })
        .await
    }
}

/// A reader of a page.
pub(crate) struct Load {
    pub(crate) group: Arc<Group<FrameRef>>,
    /// To be filled if the content does not come in a frame; this home's storage may read into it, also when the load has failed
    /// since.
    pub(crate) spare: FrameRef,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
}

/// What a writer does to a page.
pub(crate) enum Wish {
    Change(Change),
    /// Write what is cached once more: a flush failed after its home had stored it.
    Again,
}

/// A writer of a page.
pub(crate) struct Pending {
    pub(crate) wish: Wish,
    pub(crate) job: JobId,
    pub(crate) group: Arc<Group<()>>,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
}

/// The bytes of a page.
#[derive(Clone)]
pub(crate) enum Loaded {
    Frame(FrameRef),
    /// No frame was free when they arrived.
    Bytes(Arc<[u8]>),
}

impl Loaded {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Loaded::Frame(frame) => frame.bytes(),
            Loaded::Bytes(bytes) => bytes,
        }
    }
}

/// Entries of a page that is not busy any more for which memory is kept.
const KEPT_MAX: usize = 32;

/// Messages about one page that wait for its home's storage, at most.
const INBOX_MAX: usize = 256;

/// Fills a frame that was given for a read.
fn fill(into: &FrameRef, bytes: &[u8]) {
    assert_eq!(bytes.len(), FRAME_BYTES, "a page of another size");
    // SAFETY: whoever asks for a read gives the frame to be filled by it; nobody else has access to it meanwhile. Both
    // have a frame's bytes, and are different ones.
    unsafe { into.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), FRAME_BYTES) };
}

/// The change of a part as one of the whole page, whose content is `loaded`, if there is a frame for it.
pub(crate) fn whole(change: Change, loaded: &Loaded) -> Result<Change, Change> {
    let Change::Part { part, from, spare: Some(mut spare) } = change else { return Err(change) };
    match spare.bytes_mut() {
        Some(bytes) => {
            bytes.copy_from_slice(loaded.bytes());
            bytes[part.clone()].copy_from_slice(&from.bytes()[part]);
            Ok(Change::Whole(spare))
        }
        None => Err(Change::Part { part, from, spare: Some(spare) }),
    }
}

/// A page that a mapping may read, and that is not in its memory yet.
pub(crate) struct Filling {
    pub(crate) no: MappingNo,
    pub(crate) page: PageNo,
    pub(crate) content: Loaded,
    /// A thread waits for it.
    pub(crate) is_awaited: bool,
}

/// Of the content of a page, as its home says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is durable, or that is not to be cared for.
    Known,
    /// Its home has not flushed it.
    Uncertain,
}

/// What comes with an action.
#[derive(Clone, Default)]
pub(crate) enum Content {
    #[default]
    None,
    Page(Loaded, Durability),
    /// Nobody has them.
    Lost,
}

/// An action of the policy, to be done in its order.
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) content: Content,
    /// The number of a store.
    pub(crate) store: Option<u64>,
}

/// Who is granted a page that is read from storage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    /// Those who wait for it at this node.
    Own(Mode, Version),
    /// Another node, by this grant.
    Node(Address, Message),
}

/// What is to be asked of the storage; nothing while the state is not locked.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) reads: Vec<(PageNo, Reader)>,
    pub(crate) writes: Vec<(PageNo, FrameRef)>,
}

/// What is under way for one page; forgotten when nothing is.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) loads: SmallVec<[Load; 1]>,
    pub(crate) changes: VecDeque<Pending>,
    /// Few pages have any.
    pub(crate) queued: Option<Box<Queued>>,
    /// A task waits for the home's storage, to go on with the steps.
    pub(crate) is_running: bool,
    /// The number of what is running, if it is a store.
    pub(crate) store: Option<u64>,
    /// What was granted last and changed nothing, until the steps that came with it are done.
    pub(crate) unwritten: Option<Version>,
    /// Threads of programs that wait, at most one entry for each mapping.
    pub(crate) faults: SmallVec<[Fault; 1]>,
    /// A task waits until the page may be taken from a mapping.
    pub(crate) is_timed: bool,
}

/// An answer to a survey, until nothing is left of what it is about.
pub(crate) struct Answer {
    pub(crate) to: Address,
    pub(crate) message: Message,
    /// Pages with steps that must be done before.
    pub(crate) after: BTreeSet<PageNo>,
}

#[derive(Default)]
pub(crate) struct Queued {
    pub(crate) steps: VecDeque<Step>,
    /// Messages for the policy, until the steps of earlier ones are done.
    pub(crate) inbox: VecDeque<(Envelope, Content)>,
}

impl Page {
    pub(crate) fn is_idle(&self) -> bool {
        let has_none = self.loads.is_empty() && self.changes.is_empty() && self.faults.is_empty();
        has_none && self.has_no_steps() && !self.has_messages() && !self.is_timed
    }

    /// Is the memory that it has for what comes worth keeping?
    pub(crate) fn is_small(&self) -> bool {
        let kept = self.queued.as_ref().map_or(0, |queued| queued.steps.capacity() + queued.inbox.capacity());
        kept + self.loads.capacity() + self.changes.capacity() + self.faults.capacity() <= KEPT_MAX
    }

    pub(crate) fn has_no_steps(&self) -> bool {
        self.queued.as_ref().is_none_or(|queued| queued.steps.is_empty()) && !self.is_running
    }

    /// Is it wanted by readers, and nothing else under way?
    pub(crate) fn is_only_read(&self) -> bool {
        let has_no_steps = self.has_no_steps() && !self.has_messages() && !self.is_timed;
        has_no_steps && self.changes.is_empty() && self.faults.iter().all(|fault| !fault.is_write)
    }

    /// The fault of this mapping, if it is the only one.
    pub(crate) fn take_only_fault(&mut self, no: MappingNo) -> Option<Fault> {
        let is_its = matches!(self.faults[..], [Fault { no: of, .. }] if of == no);
        if is_its { self.faults.pop() } else { None }
    }

    pub(crate) fn has_messages(&self) -> bool {
        self.queued.as_ref().is_some_and(|queued| !queued.inbox.is_empty())
    }

    pub(crate) fn queued(&mut self) -> &mut Queued {
        self.queued.get_or_insert_default()
    }

    /// Queues a message. One too many is dropped as if the connection had lost it: its sender repeats it.
    pub(crate) fn take_in(&mut self, envelope: Envelope, content: Content) {
        let inbox = &mut self.queued().inbox;
        if inbox.len() < INBOX_MAX {
            inbox.push_back((envelope, content));
        }
    }

    /// Adds a fault, as one with that of the same mapping.
    pub(crate) fn add_fault(&mut self, fault: Fault) -> &mut Fault {
        let index = self.faults.iter().position(|known| known.no == fault.no).unwrap_or_else(|| {
            self.faults.push(fault);
            self.faults.len() - 1
        });
        let known = &mut self.faults[index];
        known.is_write |= fault.is_write;
        known.since = known.since.into_iter().chain(fault.since).min();
        known.deadline = known.deadline.max(fault.deadline);
        known
    }

    /// When the first of those that wait for the page began to.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        let loads = self.loads.iter().map(|load| load.since);
        let changes = self.changes.iter().map(|pending| pending.since);
        loads.chain(changes).chain(self.faults.iter().filter_map(|fault| fault.since)).min()
    }

    /// Does a writer wait since before the first mapping does?
    pub(crate) fn is_changed_first(&self) -> bool {
        let fault = self.faults.first().and_then(|fault| fault.since);
        self.changes.front().is_some_and(|pending| fault.is_none_or(|fault| pending.since <= fault))
    }

    pub(crate) fn take_faults(&mut self, is_meant: impl Fn(&Fault) -> bool) -> SmallVec<[Fault; 1]> {
        let (taken, left) = std::mem::take(&mut self.faults).into_iter().partition(is_meant);
        self.faults = left;
        taken
    }

    /// Fails what has waited for too long.
    pub(crate) fn expire(&mut self, page: PageNo, now: Instant) {
        self.loads.retain(|load| {
            let is_over = load.deadline <= now;
            if is_over {
                load.group.done(page, Err(Errno::IO));
            }
            !is_over
        });
        self.changes.retain(|pending| {
            let is_over = pending.deadline <= now;
            if is_over {
                pending.group.done(page, Err(Errno::IO));
            }
            !is_over
        });
    }

    pub(crate) fn finish_loads(&mut self, page: PageNo, result: &Result<Loaded, Errno>) {
        for Load { group, spare, .. } in self.loads.drain(..) {
            let frame = result.as_ref().map_err(|errno| *errno).map(|loaded| match loaded {
                Loaded::Frame(frame) => frame.clone(),
                Loaded::Bytes(bytes) => {
                    fill(&spare, bytes);
                    spare
                }
            });
            group.done(page, frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::coherence::Message;

    use super::*;

    #[test]
    fn messages_about_a_page_that_is_busy_are_queued_up_to_a_bound() {
        let mut page = Page::default();
        for _ in 0..2 * INBOX_MAX {
            let ((from, to), serial) = Default::default();
            let message = Message::Taken { page: PageNo(0), serial };
            page.take_in(Envelope { from, to, message }, Content::None);
        }
        assert!(!page.is_idle() && page.has_messages() && page.has_no_steps());
        assert_eq!(page.queued().inbox.len(), INBOX_MAX);
    }
}
