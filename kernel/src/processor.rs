//! A processor: one machine, its tasks, timers and operations.
//!
//! A task stays on the processor that started it. Other processors wake it, or start a new one on it with
//! [`Processor::spawn_on`].
//!
//! The machine returns at most eight completions per time slice. A virtual disk completes everything it has at once;
//! taken in one batch, it would idle until the last of them was answered and the first client asked again.

mod accounting;
mod delivery;
mod entry;
mod mailbox;
mod operations;
mod ready;
mod recording;
mod switches;
mod tasks;
mod timers;
mod to_end;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

use machine::{Completion, Machine, TickSource};
use parking_lot::Mutex;
use policy::quantum::Quantum;
use policy::unit::{Instant, ProcessorId};
use slab::Slab;

use crate::Kernel;
use crate::Switches;
use crate::counters::{Activity, Block, Count};
use crate::frame::set_thread_processor;
use crate::job::JobId;
use crate::operation::Operations;
use crate::trace::{Event, Recorder};
pub use accounting::{Timed, Together};
pub use delivery::IMMEDIATE_TASKS_MAX;
pub use mailbox::Mailbox;
use mailbox::{Published, TaskWaker};
use ready::Ready;
use recording::NOBODY;
pub(crate) use recording::here;
use tasks::Task;
use timers::Timers;

/// Tasks run in one time slice, at most.
const TASKS_A_TURN_MAX: usize = 256;

thread_local! {
    static CURRENT: RefCell<Option<Processor>> = const { RefCell::new(None) };
}

/// A task that is to be started.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;
type Start = Box<dyn FnOnce(Processor) + Send>;

/// Cheap to clone. Not `Send`: it never leaves its thread.
#[derive(Clone)]
pub struct Processor(Rc<Inner>);

struct Inner {
    machine: RefCell<Box<dyn Machine>>,
    mailbox: Arc<Mailbox>,
    tasks: RefCell<Slab<Task>>,
    ready: RefCell<Ready>,
    /// Of ended tasks, for reuse.
    used_wakers: RefCell<Vec<Arc<TaskWaker>>>,
    /// Charged for what runs now.
    job: Cell<JobId>,
    /// Of the running task, now.
    activity: Cell<Activity>,
    /// Of its run, what was charged to another activity before. Ticks.
    charged_before: Cell<u64>,
    timers: RefCell<Timers>,
    /// Tasks that go on in the next time slice.
    yielded: RefCell<Vec<Waker>>,
    operations: Rc<Operations>,
    completions: RefCell<Vec<Completion>>,
    /// What services have on each processor, by type: a few, each found faster in a row than by a hash.
    own: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
    /// Completions that were taken and are not processed yet.
    held: RefCell<VecDeque<Completion>>,
    regions_seen: Cell<u64>,
    serial: Cell<u64>,
    quantum: RefCell<Quantum>,
    /// Client requests since the quantum policy was last asked.
    requests: Cell<u64>,
    /// See [`Processor::requests_in_progress`].
    in_progress: Cell<usize>,
    recorder: Recorder,
    tick_source: TickSource,
    switches: RefCell<Rc<Switches>>,
    /// The generation of the switches that this processor last saw.
    switches_seen: Cell<u64>,
    counters: Arc<Block>,
    /// The time is accounted for up to this moment. Ticks.
    charged: Cell<u64>,
    /// Dropped last: operations in flight hold frames of its memory.
    kernel: Arc<Kernel>,
}

impl Processor {
    /// A processor of `kernel` on `machine`.
    pub fn new(machine: Box<dyn Machine>, kernel: &Arc<Kernel>) -> Self {
        let mailbox = Arc::new(Mailbox {
            id: machine.processor(),
            post: Mutex::default(),
            has_post: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            activity: Published::default(),
            requests: AtomicU64::new(0),
            doorbell: machine.doorbell(),
        });
        kernel.enroll(Arc::clone(&mailbox));
        let tick_source = machine.tick_source();
        let recorder = Recorder::new(kernel.tracer(), mailbox.id);
        // Before the switches: a change in between is seen at the first time slice.
        let switches_seen = Cell::new(kernel.observed().switches.generation());
        let switches = Rc::new(Switches::clone(&kernel.switches()));
        let counters = kernel.counters().block(mailbox.id, tick_source);
        let processor = Processor(Rc::new(Inner {
            machine: RefCell::new(machine),
            kernel: Arc::clone(kernel),
            mailbox,
            tasks: RefCell::default(),
            ready: RefCell::new(Ready::new(switches.usage, kernel.jobs())),
            used_wakers: RefCell::default(),
            job: Cell::new(NOBODY),
            activity: Cell::new(Activity::Service),
            charged_before: Cell::new(0),
            timers: RefCell::default(),
            yielded: RefCell::default(),
            operations: Rc::default(),
            completions: RefCell::default(),
            own: RefCell::default(),
            held: RefCell::default(),
            regions_seen: Cell::new(0),
            serial: Cell::new(0),
            quantum: RefCell::new(Quantum::new(switches.quantum)),
            requests: Cell::new(0),
            in_progress: Cell::new(0),
            recorder,
            tick_source,
            switches: RefCell::new(switches),
            switches_seen,
            counters,
            charged: Cell::new(0),
        }));
        processor.0.charged.set(processor.ticks());
        processor.trace(Event::ProcessorStarted, NOBODY, 0, 0);
        kernel.begin(&processor);
        processor
    }

    pub fn id(&self) -> ProcessorId {
        self.0.mailbox.id
    }

    pub fn kernel(&self) -> &Arc<Kernel> {
        &self.0.kernel
    }

    pub fn now(&self) -> Instant {
        self.0.machine.borrow().now()
    }

    /// The time of day, on the clock of the host's files.
    pub fn time_of_day(&self) -> machine::tree::Time {
        self.0.machine.borrow().time_of_day()
    }

    /// Access to the machine, for what is not an operation.
    pub(crate) fn machine<T>(&self, ask: impl FnOnce(&mut dyn Machine) -> T) -> T {
        ask(self.0.machine.borrow_mut().as_mut())
    }

    /// This processor's own value of a type, which is made when it is first asked for.
    pub fn own<T: Default + 'static>(&self) -> Rc<T> {
        let mut own = self.0.own.borrow_mut();
        let found =
            own.iter().find(|(of, _)| *of == TypeId::of::<T>()).and_then(|(_, value)| Rc::clone(value).downcast().ok());
        found.unwrap_or_else(|| {
            let value = Rc::<T>::default();
            own.push((TypeId::of::<T>(), Rc::clone(&value) as Rc<dyn Any>));
            value
        })
    }

    /// A one-line description of its machine.
    pub fn describe(&self) -> String {
        self.0.machine.borrow().describe()
    }

    /// Runs `start` on processor `id`, where it may spawn tasks, charged to the job of this task.
    pub fn spawn_on(&self, id: ProcessorId, start: impl FnOnce(Processor) + Send + 'static) {
        if id == self.id() {
            start(self.clone());
        } else {
            let job = self.job();
            self.0.kernel.mailbox(id).start(move |cpu| cpu.clone().doing_for(job, || start(cpu)));
        }
    }

    /// Lets other ready tasks run, and the machine deliver completions, before this task continues.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            debug_assert!(here().is_some_and(|here| Rc::ptr_eq(&here.0, &self.0)), "yields to its own processor only");
            self.0.yielded.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// A client's request has arrived.
    pub fn count_request(&self) {
        self.0.requests.set(self.0.requests.get() + 1);
    }

    /// Requests of its clients that are in progress: admitted, and their replies not sent.
    pub fn requests_in_progress(&self) -> usize {
        self.0.in_progress.get()
    }

    pub(crate) fn begin_request(&self) {
        self.0.in_progress.set(self.0.in_progress.get() + 1);
    }

    pub(crate) fn end_requests(&self, count: usize) {
        self.0.in_progress.set(self.0.in_progress.get() - count);
    }

    /// Runs until [`Mailbox::stop`].
    pub fn run(&self) {
        while !self.0.mailbox.stopping.load(Ordering::SeqCst) {
            self.turn();
        }
        self.trace(Event::ProcessorStopped, NOBODY, 0, 0);
    }

    /// One time slice: takes post and completions, wakes due timers, runs ready tasks, each until it waits or yields. Parks
    /// first if there is nothing to do.
    pub fn turn(&self) {
        let before = CURRENT.replace(Some(self.clone()));
        set_thread_processor(self.id());
        if self.0.mailbox.parked.swap(false, Ordering::SeqCst) {
            // A machine may return from parking before the wait is over.
            self.charge_now(Activity::Idle);
        }
        self.follow_switches();
        self.follow_regions();
        self.take_post();
        self.enter();
        self.fire_timers();
        self.charge_now(Activity::Overhead);
        self.run_ready();
        CURRENT.set(before);
    }

    /// Drops all tasks, and those that this starts, as in a crash. Memory of operations in flight is retained until they end.
    pub fn abandon(&self) {
        while self.tasks() > 0 {
            drop(self.0.tasks.take());
        }
        drop(self.0.own.take());
        self.0.ready.borrow_mut().clear();
        self.0.yielded.borrow_mut().clear();
        self.0.timers.borrow_mut().clear();
    }

    /// Tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.0.tasks.borrow().len()
    }

    fn next_serial(&self) -> u64 {
        self.0.serial.set(self.0.serial.get() + 1);
        self.0.serial.get()
    }

    fn run_ready(&self) {
        if self.0.ready.borrow().is_empty() && self.0.yielded.borrow().is_empty() {
            return;
        }
        self.publish_running();
        for _ in 0..TASKS_A_TURN_MAX {
            let Some(waker) = self.0.ready.borrow_mut().next() else { break };
            let job = self.run_task(waker, false);
            if self.is_ready_turn_over(job) {
                break;
            }
        }
        self.0.yielded.borrow_mut().drain(..).for_each(Waker::wake);
        self.publish_running();
    }

    /// Offers and withdraws regions as the frame pool grows and shrinks.
    fn follow_regions(&self) {
        let pool = self.0.kernel.frames();
        if self.0.regions_seen.get() == pool.region_changes() {
            return;
        }
        let mut machine = self.0.machine.borrow_mut();
        let followed = pool.follow_regions(self.0.regions_seen.get(), self.id(), machine.as_mut());
        self.0.regions_seen.set(followed.seen);
        self.count(Count::RegionsDeclined, followed.declined);
    }
}
