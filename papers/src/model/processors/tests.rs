use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use policy::unit::{Instant, ProcessorId};

use super::super::Simulation;
use super::bsd::Bsd;
use super::mach::{Config, Mach};
use super::*;

const MASTER: ProcessorId = ProcessorId(0);

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn costs() -> Costs {
    Costs { dispatch: Duration::ZERO, migration: Duration::ZERO, tick: ms(10) }
}

/// Events and their times in milliseconds.
pub type Log<T> = Rc<RefCell<Vec<(T, u64)>>>;

/// Processors, and what happens on them.
pub struct Scene<T> {
    pub run: Simulation,
    pub processors: Processors,
    pub log: Log<T>,
}

impl<T: 'static> Scene<T> {
    fn new(count: u16, costs: Costs, scheduler: impl Scheduler + 'static) -> Self {
        let run = Simulation::new(1);
        let processors = Processors::new(&run, count, costs, Rc::new(RefCell::new(scheduler)));
        Scene { run, processors, log: Log::default() }
    }

    pub fn of_mach(count: u16, notifies_master: bool) -> Self {
        let config = Config { processors: count, master: MASTER, quantum: ms(100), notifies_master };
        let order: Vec<_> = (0..count).map(ProcessorId).collect();
        Scene::new(count, costs(), Mach::new(config, &order))
    }

    fn of_bsd() -> Self {
        Scene::new(1, costs(), Bsd::new(1))
    }

    /// Records an event, now.
    pub fn note(&self) -> impl Fn(T) + use<T> {
        let (run, log): (Virtual, _) = (self.run.clone(), Rc::clone(&self.log));
        move |what| log.borrow_mut().push((what, run.now().ns() / 1_000_000))
    }

    pub fn run_for(&self, time: Duration) {
        self.run.run_until(Instant::ZERO + time);
    }
}

impl Scene<u32> {
    /// Starts so many processes, named by numbers, that compute for `time` and record their ends.
    pub fn compute(&self, count: u32, time: Duration) {
        for name in 0..count {
            let note = self.note();
            self.processors.start(move |thread| async move {
                thread.compute(time).await;
                note(name);
            });
        }
    }
}

#[test]
fn the_master_is_used_last() {
    let scene = Scene::of_mach(3, false);
    scene.compute(2, ms(50));
    scene.run_for(ms(1));
    let runs = |processor: usize| scene.processors.activities()[processor] != Activity::Idle;
    assert!(!runs(0) && runs(1) && runs(2));
}

#[test]
fn more_processes_than_processors_share_them_in_slices() {
    let scene = Scene::of_mach(1, false);
    scene.compute(2, ms(250));
    scene.run.run();
    let ends: Vec<u64> = scene.log.borrow().iter().map(|(_, end)| *end).collect();
    assert_eq!(ends, [450, 500]);
    assert!(scene.processors.counters().stops >= 4);
}

#[test]
fn a_thread_that_wants_to_the_busy_master_waits_for_its_clock_tick_unless_the_master_is_notified() {
    let went = |notifies_master| {
        let scene = Scene::of_mach(2, notifies_master);
        // Occupies the master, in user mode.
        scene.processors.start(|thread| async move {
            thread.bind(MASTER).await;
            thread.unbind();
            thread.compute(ms(100)).await;
        });
        let note = scene.note();
        scene.processors.start(move |thread| async move {
            thread.compute(ms(13)).await;
            thread.bind(MASTER).await;
            assert_eq!(thread.processor(), Some(MASTER));
            note(0);
        });
        scene.run.run();
        scene.log.borrow()[0].1
    };
    assert_eq!((went(false), went(true)), (20, 13));
}

#[test]
fn an_interrupt_delays_the_running_thread_and_no_other() {
    let scene = Scene::of_mach(3, false);
    scene.compute(2, ms(50));
    scene.run_for(ms(20));
    scene.processors.interrupt(ProcessorId(1), ms(5), Box::new(|_, _| ()));
    scene.processors.interrupt(MASTER, ms(5), Box::new(|_, _| ()));
    scene.run.run();
    assert_eq!(*scene.log.borrow(), [(1, 50), (0, 55)]);
    let ProcessorCounters { interrupts_busy, interrupts_idle, .. } = scene.processors.counters();
    assert_eq!((interrupts_busy, interrupts_idle), (1, 1));
}

#[test]
fn a_thread_pays_for_moving_to_another_processor() {
    let config = Config { processors: 2, master: MASTER, quantum: ms(100), notifies_master: true };
    let costs = Costs { dispatch: ms(1), migration: ms(2), tick: ms(10) };
    let scene = Scene::new(2, costs, Mach::new(config, &[ProcessorId(1)]));
    let note = scene.note();
    scene.processors.start(move |thread| async move {
        note("starts");
        thread.bind(MASTER).await;
        note("moved");
    });
    scene.run.run();
    assert_eq!(*scene.log.borrow(), [("starts", 1), ("moved", 4)]);
    assert_eq!(scene.processors.counters().migrations, 1);
}

#[test]
fn a_wakeup_that_comes_before_the_sleep_is_not_lost() {
    let scene = Scene::of_mach(2, false);
    let note = scene.note();
    let thread = scene.processors.start(move |thread| async move {
        thread.run_in_kernel(ms(10)).await;
        thread.sleep().await;
        note(0);
    });
    scene.run_for(ms(5));
    scene.processors.wake(thread, None);
    scene.run.run();
    assert_eq!(*scene.log.borrow(), [(0, 10)]);
}

#[test]
fn in_4_3bsd_a_thread_that_wakes_up_with_a_better_priority_takes_the_processor_at_once() {
    let scene = Scene::of_bsd();
    let note = scene.note();
    let interactive = scene.processors.start(move |thread| async move {
        thread.sleep().await;
        thread.compute(ms(5)).await;
        note(1);
    });
    scene.compute(1, ms(1000));
    scene.run_for(ms(503));
    let wakes = Box::new(move |processors: &Processors, on| processors.wake(interactive, Some(on)));
    scene.processors.interrupt(MASTER, ms(1), wakes);
    scene.run.run();
    assert_eq!(*scene.log.borrow(), [(1, 509), (0, 1006)]);
}

#[test]
fn in_4_3bsd_two_that_compute_get_the_same() {
    let scene = Scene::of_bsd();
    scene.compute(2, ms(3000));
    scene.run.run();
    let ends = scene.log.borrow();
    assert!(ends[0].1 >= 5700 && ends[1].1 == 6000, "{ends:?}");
}

#[test]
fn in_4_3bsd_usage_decays_more_slowly_under_load() {
    let usage_after = |threads: u32| {
        let mut bsd = Bsd::new(1);
        for number in 0..threads {
            bsd.on_start(ThreadId(number));
            bsd.on_ready(Instant::ZERO, ThreadId(number), None);
        }
        // After a minute, so that the load counts.
        bsd.on_used(Instant::ZERO + ms(60_000), ThreadId(0), ms(1000));
        bsd.on_used(Instant::ZERO + ms(61_000), ThreadId(0), Duration::ZERO);
        bsd.usage(ThreadId(0))
    };
    assert!(usage_after(1) < usage_after(10), "{:?} {:?}", usage_after(1), usage_after(10));
}
