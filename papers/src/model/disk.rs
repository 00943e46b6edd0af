//! A disk in virtual time: a drive behind the request queue of crate `policy` (WS-3, WS-4).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use policy::queue::{Arrival, Batch, BatchId, Config, Queue, RequestId, RequestKind, StreamId};
use policy::unit::{ByteRange, Class, Instant, JobId};
use slab::Slab;

use super::wait::Answer;
use super::{Handler, Signals, Virtual};
use crate::drive::{Access, Drive, Running, Timing};

/// A disk. Clones are the same disk.
#[derive(Clone)]
pub struct Disk(Rc<State>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub requests: u64,
    /// Commands to the drive that the requests were merged into.
    pub batches: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub seek: Duration,
    /// Time spent waiting for rotation.
    pub rotation: Duration,
    /// Time spent moving data.
    pub transfer: Duration,
    /// Time with at least one command in the drive.
    pub busy: Duration,
}

/// A completed request, for plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    pub access: Access,
    pub range: ByteRange,
    /// Did a task wait for it?
    pub class: Class,
    pub arrived: Instant,
    /// When it was issued to the drive.
    pub issued: Instant,
    pub done: Instant,
}

struct State {
    time: Virtual,
    signals: Signals,
    queue: RefCell<Queue>,
    drive: RefCell<Running>,
    requests: RefCell<Slab<Request>>,
    in_flight: RefCell<Vec<Option<(Batch, Instant)>>>,
    busy_since: Cell<Option<Instant>>,
    /// The earliest future moment at which a look at the queue is scheduled.
    look_at: Cell<Option<Instant>>,
    counters: Cell<DiskCounters>,
    log: RefCell<Option<Log>>,
}

struct Request {
    access: Access,
    range: ByteRange,
    class: Class,
    arrived: Instant,
    completion: Answer<Instant>,
}

/// Which requests are logged, and the log.
struct Log {
    wanted: fn(&Completed) -> bool,
    noted: Vec<Completed>,
}

/// The token of a look at the queue; all others are numbers of batches.
const LOOK: u64 = u64::MAX;

impl Disk {
    /// An idle disk. `config`: depth 1 for the disks of 1990, which take one command at a time.
    pub fn new(time: &Virtual, drive: Drive, config: Config) -> Self {
        Disk(time.handled(|signals| State {
            time: time.clone(),
            signals,
            queue: RefCell::new(Queue::new(config)),
            drive: RefCell::new(drive.start()),
            requests: RefCell::default(),
            in_flight: RefCell::default(),
            busy_since: Cell::default(),
            look_at: Cell::default(),
            counters: Cell::default(),
            log: RefCell::default(),
        }))
    }

    pub async fn read(&self, range: ByteRange, class: Class) {
        self.submit(Access::Read, range, class).wait().await;
    }

    pub async fn write(&self, range: ByteRange, class: Class) {
        self.submit(Access::Write, range, class).wait().await;
    }

    /// Reads or writes; the answer is the time of completion.
    pub fn submit(&self, access: Access, range: ByteRange, class: Class) -> Answer<Instant> {
        self.submit_named(access, range, class).1
    }

    /// As [`submit`](Self::submit), with an id for [`promote`](Self::promote).
    pub fn submit_named(&self, access: Access, range: ByteRange, class: Class) -> (RequestId, Answer<Instant>) {
        let answer = Answer::new(&self.0.time);
        (self.0.arrive(access, range, class, answer.clone()), answer)
    }

    /// Makes an asynchronous request synchronous. No effect on one that is already in the drive.
    pub fn promote(&self, id: RequestId) {
        let waits = self.0.queue.borrow_mut().promote(self.0.time.now(), id);
        if let Some(request) = self.0.requests.borrow_mut().get_mut(id.0 as usize).filter(|_| waits) {
            request.class = Class::Synchronous;
        }
    }

    /// Requests that wait or are in the drive.
    pub fn unfinished(&self) -> usize {
        self.0.requests.borrow().len()
    }

    pub fn counters(&self) -> DiskCounters {
        let mut counters = self.0.counters.get();
        if let Some(since) = self.0.busy_since.get() {
            counters.busy += self.0.time.now() - since;
        }
        counters
    }

    /// Logs every request from now on, for [`log`](Self::log).
    pub fn keep_log(&self) {
        self.keep_log_of(|_| true);
    }

    /// Logs the `wanted` requests from now on: a fast device completes too many to log them all.
    pub fn keep_log_of(&self, wanted: fn(&Completed) -> bool) {
        *self.0.log.borrow_mut() = Some(Log { wanted, noted: Vec::new() });
    }

    /// The logged requests, in order of completion.
    pub fn log(&self) -> Vec<Completed> {
        self.0.log.borrow().as_ref().map(|log| log.noted.clone()).unwrap_or_default()
    }
}

impl State {
    fn arrive(&self, access: Access, range: ByteRange, class: Class, completion: Answer<Instant>) -> RequestId {
        let now = self.time.now();
        let request = Request { access, range, class, arrived: now, completion };
        // Fewer than 2^32 wait at a time.
        let id = RequestId(self.requests.borrow_mut().insert(request) as u32);
        let kind = if access == Access::Read { RequestKind::Read } else { RequestKind::Write };
        self.queue
            .borrow_mut()
            .on_arrival(now, Arrival { id, stream: StreamId(0), kind, range, class, job: JobId::default() });
        self.issue();
        id
    }

    /// Issues to the drive what the queue releases.
    fn issue(&self) {
        let now = self.time.now();
        loop {
            let next = self.queue.borrow_mut().next(now);
            let Some(batch) = next else { break };
            let access = if batch.kind == RequestKind::Read { Access::Read } else { Access::Write };
            let timing = self.drive.borrow_mut().serve(now, access, batch.range);
            self.count(access, &batch, timing);
            self.signals.at(timing.done, u64::from(batch.id.0));
            let index = batch.id.0 as usize;
            let mut in_flight = self.in_flight.borrow_mut();
            if in_flight.len() <= index {
                in_flight.resize_with(index + 1, || None);
            }
            in_flight[index] = Some((batch, now));
        }
        self.look_again(now);
    }

    /// The queue may hold a request until a deadline, without another event before it.
    fn look_again(&self, now: Instant) {
        let Some(deadline) = self.queue.borrow().next_deadline().filter(|deadline| *deadline > now) else { return };
        if self.look_at.get().is_none_or(|planned| planned <= now || deadline < planned) {
            self.look_at.set(Some(deadline));
            self.signals.at(deadline, LOOK);
        }
    }

    fn complete(&self, id: BatchId) {
        let now = self.time.now();
        let Some((batch, issued)) = self.in_flight.borrow_mut()[id.0 as usize].take() else { return };
        self.queue.borrow_mut().on_completion(now, id);
        if self.queue.borrow().in_flight() == 0
            && let Some(since) = self.busy_since.take()
        {
            let mut counters = self.counters.get();
            counters.busy += now - since;
            self.counters.set(counters);
        }
        for member in batch.members {
            let Request { access, range, class, arrived, completion } =
                self.requests.borrow_mut().remove(member.0 as usize);
            let served = Completed { access, range, class, arrived, issued, done: now };
            if let Some(log) = self.log.borrow_mut().as_mut().filter(|log| (log.wanted)(&served)) {
                log.noted.push(served);
            }
            completion.give(now);
        }
    }

    fn count(&self, access: Access, batch: &Batch, timing: Timing) {
        if self.busy_since.get().is_none() {
            self.busy_since.set(Some(self.time.now()));
        }
        let mut counters = self.counters.get();
        counters.requests += batch.members.len() as u64;
        counters.batches += 1;
        match access {
            Access::Read => counters.bytes_read += batch.range.len,
            Access::Write => counters.bytes_written += batch.range.len,
        }
        counters.seek += timing.seek;
        counters.rotation += timing.rotation;
        counters.transfer += timing.transfer;
        self.counters.set(counters);
    }
}

impl Handler for State {
    fn on_signal(&self, token: u64) {
        if token == LOOK {
            self.look_at.set(None);
        } else {
            // Numbers of batches have 32 bits.
            self.complete(BatchId(token as u32));
        }
        self.issue();
    }
}

#[cfg(test)]
mod tests {
    use policy::unit::Class::{Asynchronous, Synchronous};

    use super::super::Simulation;
    use super::*;
    use crate::drive::mechanical::Mechanical;

    const BLOCK: u64 = 8192;

    fn config() -> Config {
        Config { elevator: true, depth: 1, transfer_bytes_max: 128 << 10, ..Config::default() }
    }

    fn disk(run: &Simulation, config: Config) -> Disk {
        Disk::new(run, Drive::Mechanical(Mechanical::named("scsi-1990")), config)
    }

    fn block(number: u64) -> ByteRange {
        ByteRange::new(number * BLOCK, BLOCK)
    }

    #[test]
    fn neighbours_that_wait_are_one_command_with_merging_and_many_without() {
        let commands = |merge| {
            let run = Simulation::new(1);
            let disk = disk(&run, Config { merge, ..config() });
            for number in 0..17 {
                disk.submit(Access::Write, block(number), Asynchronous);
            }
            run.run();
            (disk.counters().batches, disk.counters().requests, run.now())
        };
        // The first one finds the disk idle and goes alone.
        let (merged, single) = (commands(true), commands(false));
        assert_eq!((merged.0, merged.1, single.0), (2, 17, 17));
        assert!(merged.2.ns() * 2 < single.2.ns());
    }

    #[test]
    fn a_synchronous_request_goes_first_with_priority_and_in_order_without() {
        let waited = |priority| {
            let run = Simulation::new(1);
            let disk = disk(&run, Config { priority, merge: false, ..config() });
            for number in 0..50 {
                disk.submit(Access::Write, block(number), Asynchronous);
            }
            let answer = disk.submit(Access::Write, block(1000), Synchronous);
            run.complete(async move { answer.wait().await }).expect("it is answered")
        };
        assert!(waited(true).ns() * 10 < waited(false).ns());
    }

    #[test]
    fn nothing_that_is_asynchronous_waits_much_longer_than_its_deadline_behind_an_endless_load() {
        let longest = |asynchronous_deadline| {
            let run = Simulation::new(1);
            let disk = disk(&run, Config { asynchronous_deadline, ..config() });
            disk.keep_log_of(|served| served.access == Access::Write);
            let (time, load) = (run.clone(), disk.clone());
            for client in 0..2 {
                let load = load.clone();
                run.spawn(async move {
                    for round in 0.. {
                        load.read(block(1000 + (round * 2 + client) % 5000), Synchronous).await;
                    }
                });
            }
            run.spawn(async move {
                for number in 0..5 {
                    load.submit(Access::Write, block(10 * number), Asynchronous);
                    time.sleep(Duration::from_millis(100)).await;
                }
            });
            run.run_until(Instant::ZERO + Duration::from_secs(10));
            let writes = disk.log();
            (writes.len(), writes.iter().map(|served| served.done - served.arrived).max().unwrap_or_default())
        };
        let (done, wait) = longest(Duration::from_millis(500));
        assert!(done == 5 && wait < Duration::from_millis(800), "{done} {wait:?}");
        assert!(longest(Duration::from_secs(3600)).0 <= 1, "without it, only what found the disk idle is written");
    }

    #[test]
    fn a_read_ahead_that_is_reached_goes_before_others() {
        let run = Simulation::new(1);
        let disk = disk(&run, Config { merge: false, elevator: false, ..config() });
        for number in 0..20 {
            disk.submit(Access::Write, block(number), Asynchronous);
        }
        let (id, answer) = disk.submit_named(Access::Read, block(500), Asynchronous);
        disk.promote(id);
        run.run_while(|| !answer.is_given());
        assert!(disk.unfinished() >= 18, "{}", disk.unfinished());
    }

    #[test]
    fn the_time_of_a_disk_is_counted_by_what_it_did() {
        let run = Simulation::new(1);
        let disk = disk(&run, config());
        for number in [0, 900, 30, 500] {
            disk.submit(Access::Read, block(number), Synchronous);
        }
        run.run();
        let DiskCounters { batches, bytes_read, seek, rotation, transfer, busy, .. } = disk.counters();
        assert_eq!((batches, bytes_read), (4, 4 * BLOCK));
        assert_eq!(busy, run.now() - Instant::ZERO);
        let overhead = Duration::from_millis(1) * 4;
        assert_eq!(busy, seek + rotation + transfer + overhead);
    }
}
