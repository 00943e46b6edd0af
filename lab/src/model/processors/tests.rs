use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use policy::unit::{Instant, ProcessorId};

use super::super::Simulation;
use super::bsd::Bsd;
use super::mach::{Config, Mach};
use super::*;

const MASTER: ProcessorId = ProcessorId(0);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn costs() -> Costs {
    Costs { dispatch: Duration::ZERO, migration: Duration::ZERO, tick: ms(10) }
}

fn mach(run: &Simulation, count: u16, notifies_master: bool) -> Processors {
    let config = Config { processors: count, master: MASTER, quantum: ms(100), notifies_master };
    let order: Vec<_> = (0..count).map(ProcessorId).collect();
    Processors::new(run, count, costs(), Rc::new(RefCell::new(Mach::new(config, &order))))
}

/// Events and their times in milliseconds.
type Log<T> = Rc<RefCell<Vec<(T, u64)>>>;

fn note<T>(log: &Log<T>, run: &Virtual, what: T) {
    log.borrow_mut().push((what, run.now().ns() / 1_000_000));
}

/// Starts a process that computes for `time` and records its end.
fn computes(processors: &Processors, run: &Virtual, log: &Log<u32>, name: u32, time: Duration) -> ThreadId {
    let (run, log) = (run.clone(), Rc::clone(log));
    processors.start(move |thread| async move {
        thread.compute(time).await;
        note(&log, &run, name);
    })
}

#[test]
fn the_master_is_used_last() {
    let run = Simulation::new(1);
    let processors = mach(&run, 3, false);
    let log = Log::default();
    for name in 0..2 {
        computes(&processors, &run, &log, name, ms(50));
    }
    run.run_until(Instant::ZERO + ms(1));
    let runs = |processor: usize| processors.activities()[processor] != Activity::Idle;
    assert!(!runs(0) && runs(1) && runs(2));
}

#[test]
fn more_processes_than_processors_share_them_in_slices() {
    let run = Simulation::new(1);
    let processors = mach(&run, 1, false);
    let log = Log::default();
    for name in 0..2 {
        computes(&processors, &run, &log, name, ms(250));
    }
    run.run();
    let ends: Vec<u64> = log.borrow().iter().map(|(_, end)| *end).collect();
    assert_eq!(ends, [450, 500]);
    assert!(processors.counters().stops >= 4);
}

#[test]
fn a_thread_that_wants_to_the_busy_master_waits_for_its_clock_tick_unless_the_master_is_notified() {
    let went = |notifies_master| {
        let run = Simulation::new(1);
        let processors = mach(&run, 2, notifies_master);
        let log = Log::default();
        // Occupies the master, in user mode.
        let (time, noted) = (run.clone(), Rc::clone(&log));
        processors.start(|thread| async move {
            thread.bind(MASTER).await;
            thread.unbind();
            thread.compute(ms(100)).await;
        });
        processors.start(move |thread| async move {
            thread.compute(ms(13)).await;
            thread.bind(MASTER).await;
            assert_eq!(thread.processor(), Some(MASTER));
            note(&noted, &time, 0);
        });
        run.run();
        log.borrow()[0].1
    };
    assert_eq!((went(false), went(true)), (20, 13));
}

#[test]
fn an_interrupt_delays_the_running_thread_and_no_other() {
    let run = Simulation::new(1);
    let processors = mach(&run, 3, false);
    let log = Log::default();
    for name in 0..2 {
        computes(&processors, &run, &log, name, ms(50));
    }
    run.run_until(Instant::ZERO + ms(20));
    processors.interrupt(ProcessorId(1), ms(5), Box::new(|_, _| ()));
    processors.interrupt(MASTER, ms(5), Box::new(|_, _| ()));
    run.run();
    assert_eq!(*log.borrow(), [(1, 50), (0, 55)]);
    let ProcessorCounters { interrupts_busy, interrupts_idle, .. } = processors.counters();
    assert_eq!((interrupts_busy, interrupts_idle), (1, 1));
}

#[test]
fn a_thread_pays_for_moving_to_another_processor() {
    let run = Simulation::new(1);
    let config = Config { processors: 2, master: MASTER, quantum: ms(100), notifies_master: true };
    let costs = Costs { dispatch: ms(1), migration: ms(2), tick: ms(10) };
    let scheduler = Rc::new(RefCell::new(Mach::new(config, &[ProcessorId(1)])));
    let processors = Processors::new(&run, 2, costs, scheduler);
    let log = Log::default();
    let (time, noted) = (run.clone(), Rc::clone(&log));
    processors.start(move |thread| async move {
        note(&noted, &time, "starts");
        thread.bind(MASTER).await;
        note(&noted, &time, "moved");
    });
    run.run();
    assert_eq!(*log.borrow(), [("starts", 1), ("moved", 4)]);
    assert_eq!(processors.counters().migrations, 1);
}

#[test]
fn a_wakeup_that_comes_before_the_sleep_is_not_lost() {
    let run = Simulation::new(1);
    let processors = mach(&run, 2, false);
    let log = Log::default();
    let (time, noted) = (run.clone(), Rc::clone(&log));
    let thread = processors.start(move |thread| async move {
        thread.run_in_kernel(ms(10)).await;
        thread.sleep().await;
        note(&noted, &time, 0);
    });
    run.run_until(Instant::ZERO + ms(5));
    processors.wake(thread, None);
    run.run();
    assert_eq!(*log.borrow(), [(0, 10)]);
}

#[test]
fn in_4_3bsd_a_thread_that_wakes_up_with_a_better_priority_takes_the_processor_at_once() {
    let run = Simulation::new(1);
    let processors = Processors::new(&run, 1, costs(), Rc::new(RefCell::new(Bsd::new())));
    let log = Log::default();
    let (time, noted) = (run.clone(), Rc::clone(&log));
    let interactive = processors.start(move |thread| async move {
        thread.sleep().await;
        thread.compute(ms(5)).await;
        note(&noted, &time, 1);
    });
    computes(&processors, &run, &log, 0, ms(1000));
    run.run_until(Instant::ZERO + ms(503));
    processors.interrupt(MASTER, ms(1), Box::new(move |processors, on| processors.wake(interactive, Some(on))));
    run.run();
    assert_eq!(*log.borrow(), [(1, 509), (0, 1006)]);
}

#[test]
fn in_4_3bsd_two_that_compute_get_the_same() {
    let run = Simulation::new(1);
    let processors = Processors::new(&run, 1, costs(), Rc::new(RefCell::new(Bsd::new())));
    let log = Log::default();
    for name in 0..2 {
        computes(&processors, &run, &log, name, ms(3000));
    }
    run.run();
    let ends = log.borrow();
    assert!(ends[0].1 >= 5700 && ends[1].1 == 6000, "{ends:?}");
}

#[test]
fn in_4_3bsd_usage_decays_more_slowly_under_load() {
    let usage_after = |threads: u32| {
        let mut bsd = Bsd::new();
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
