//! Requests of this node that wait for a grant.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use kernel::FrameRef;
use kernel::volume::Change;
use machine::Errno;
use parking_lot::Mutex;
use policy::coherence::{Action, Envelope, PageNo};
use policy::unit::{Instant, JobId};

use crate::mapping::Fault;

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
    pub(crate) group: Arc<Group<Loaded>>,
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

/// What comes with an action.
#[derive(Clone, Default)]
pub(crate) enum Content {
    #[default]
    None,
    Page(Loaded),
    /// Nobody has them.
    Lost,
}

/// An action of the policy, to be done in its order.
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) content: Content,
}

/// What is under way for one page; forgotten when nothing is.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) loads: Vec<Load>,
    pub(crate) changes: VecDeque<Pending>,
    /// Messages that the policy has not been told of, since steps of earlier ones are not done.
    pub(crate) inbox: VecDeque<(Envelope, Content)>,
    pub(crate) steps: VecDeque<Step>,
    /// A task waits for the home's storage, to go on with the steps.
    pub(crate) is_running: bool,
    /// Threads of programs that wait, at most one entry for each mapping.
    pub(crate) faults: VecDeque<Fault>,
    /// A task waits until the page may be taken from a mapping.
    pub(crate) is_timed: bool,
}

impl Page {
    pub(crate) fn is_idle(&self) -> bool {
        let has_none = self.loads.is_empty() && self.changes.is_empty() && self.faults.is_empty();
        has_none && self.has_no_steps() && self.inbox.is_empty() && !self.is_timed
    }

    pub(crate) fn has_no_steps(&self) -> bool {
        self.steps.is_empty() && !self.is_running
    }

    pub(crate) fn add_fault(&mut self, fault: Fault) {
        match self.faults.iter_mut().find(|known| known.no == fault.no) {
            Some(known) => known.is_write |= fault.is_write,
            None => self.faults.push_back(fault),
        }
    }

    pub(crate) fn take_faults(&mut self, is_meant: impl Fn(&Fault) -> bool) -> Vec<Fault> {
        let (taken, left): (Vec<Fault>, Vec<Fault>) = self.faults.drain(..).partition(is_meant);
        self.faults = left.into();
        taken
    }

    /// Fails what has waited for too long.
    pub(crate) fn expire(&mut self, page: PageNo, now: Instant) {
        for load in self.loads.extract_if(.., |load| load.deadline <= now) {
            load.group.done(page, Err(Errno::IO));
        }
        self.changes.retain(|pending| {
            let is_over = pending.deadline <= now;
            if is_over {
                pending.group.done(page, Err(Errno::IO));
            }
            !is_over
        });
    }

    pub(crate) fn finish_loads(&mut self, page: PageNo, result: &Result<Loaded, Errno>) {
        for load in self.loads.drain(..) {
            load.group.done(page, result.clone());
        }
    }
}
