//! Write-back of one volume: as much as its disk takes in due time, and not delayed by later writes.

use kernel::device::{Checked, Device, DeviceFacts, FoundData, Work};
use kernel::queue::{DiskQueue, Queued};
use kernel::request::{Action, Context, JobId, Outcome, Request};
use kernel::{ForcedUnitAccess, Processor, Switches, Volume};
use machine::Errno;
use policy::unit::{ByteRange, Instant};
use sim::{DiskConfig, Latency};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::scene::disk::{Server, block, fill};
use testkit::scene::{context, small_kernel, spawn};

use parking_lot::Mutex;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A device that records when which blocks were written.
struct Noting {
    below: Arc<dyn Device>,
    written: Mutex<Vec<(Instant, ByteRange)>>,
}

impl Device for Noting {
    fn facts(&self) -> DeviceFacts {
        self.below.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        if let Action::Write(range, _) = &request.action {
            self.written.lock().push((cpu.now(), *range));
        }
        self.below.perform(cpu, request)
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.below.find_data(cpu, within, runs_max)
    }
}

/// A device that never ends writes of the first block.
struct Hanging(Arc<dyn Device>);

impl Device for Hanging {
    fn facts(&self) -> DeviceFacts {
        self.0.facts()
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        match &request.action {
            Action::Write(range, _) if range.at.0 == 0 => Box::pin(std::future::pending()),
            _ => self.0.perform(cpu, request),
        }
    }

    fn find_data<'a>(&'a self, cpu: &'a Processor, within: ByteRange, runs_max: usize) -> Work<'a, FoundData> {
        self.0.find_data(cpu, within, runs_max)
    }
}

async fn write(cpu: &Processor, volume: &Volume, number: u64) {
    fill(cpu, volume, block(number), 1, context()).await.expect("written");
}

#[test]
fn a_burst_to_a_slow_disk_is_held_back_to_what_a_flush_writes_in_due_time() {
    // About 500 KB a second.
    let latency = |ns| Latency { ns_min: ns, ns_max: ns };
    let slow = DiskConfig { write: latency(8_000_000), ns_per_kib: 10, channels: 1, ..DiskConfig::new(128 * MIB) };
    let server = Server::of(1, small_kernel(1, 128 * MIB, Switches::default()), slow);
    let volume = server.volume(ForcedUnitAccess::Never);
    let took = server.run(async move |cpu, _, _| {
        for at in 0..10_000 {
            // Scattered: no two of them can be merged.
            write(&cpu, &volume, at * 7919 % 16_000 * 2).await;
        }
        let start = cpu.now();
        volume.flush(&cpu, context()).await.expect("flushed");
        cpu.now().since(start)
    });
    assert!(took < Duration::from_secs(45), "the flush took {took:?}");
}

#[test]
fn a_block_behind_the_cursor_is_written_in_its_time_though_others_write_ahead_of_it() {
    let memory = small_kernel(1, 32 * MIB, Switches::default());
    let server = Server::of(2, memory, DiskConfig::new(64 * MIB));
    let noting = Arc::new(Noting { below: server.file(), written: Mutex::default() });
    let volume = server.volume_on(Arc::new(Checked::new(noting.clone())), ForcedUnitAccess::Never);
    let dirtied = server.run(async move |cpu, _, _| {
        let mut dirtied = Instant::ZERO;
        for no in 0..3000 {
            write(&cpu, &volume, 1000 + 2 * no).await;
            if no == 1000 {
                dirtied = cpu.now();
                write(&cpu, &volume, 5).await;
            }
            cpu.sleep(Duration::from_millis(50)).await;
        }
        dirtied
    });
    let written = noting.written.lock();
    let (when, _) = written.iter().find(|(_, range)| range.at.0 <= 5 * BLOCK).expect("written at last");
    let waited = when.since(dirtied);
    assert!(waited < Duration::from_secs(32), "the block waited for {waited:?}");
}

/// One asynchronous request in flight at a time, as after reads that were slow beside more.
fn one_at_a_time() -> policy::queue::Config {
    policy::queue::Config { asynchronous_bytes_max: 0, depth: 2, merge: false, ..Default::default() }
}

/// Writes a block back, in a task of its own.
fn write_back(cpu: &Processor, device: &Arc<Queued>, number: u64) -> Rc<RefCell<Option<Result<Outcome, Errno>>>> {
    let device = Arc::clone(device);
    spawn(cpu, async move |cpu| {
        let frames = cpu.kernel().allocate(&cpu, 1).await;
        let (action, context) = (Action::Write(block(number), frames), Context::asynchronous(JobId(0)));
        device.perform(&cpu, Request { action, context }).await
    })
}

#[test]
fn a_write_that_hangs_in_the_disk_does_not_stop_those_that_wait_for_their_turn() {
    let server = Server::new(3);
    let device = Arc::new(Queued::new(Arc::new(DiskQueue::new(one_at_a_time())), Arc::new(Hanging(server.file()))));
    server.run(async move |cpu, _, _| {
        let writes = [0, 9].map(|number| write_back(&cpu, &device, number));
        cpu.sleep(Duration::from_secs(1)).await;
        assert_eq!(writes.map(|write| write.take()), [None, Some(Ok(Outcome::Done))]);
    });
}

#[test]
fn a_write_that_a_flush_waits_for_passes_reads_although_others_were_written_before() {
    let server = Server::new(4);
    let device = Arc::new(Queued::new(Arc::new(DiskQueue::new(one_at_a_time())), server.file()));
    server.run(async move |cpu, _, _| {
        let (first, second) = (write_back(&cpu, &device, 0), write_back(&cpu, &device, 9));
        for number in 20..24 {
            let device = Arc::clone(&device);
            spawn(&cpu, async move |cpu| {
                loop {
                    let frames = cpu.kernel().allocate(&cpu, 1).await;
                    let (action, context) = (Action::Read(block(number), frames), context());
                    let done = device.perform(&cpu, Request { action, context }).await;
                    assert_eq!(done, Ok(Outcome::Done));
                }
            });
        }
        cpu.sleep(Duration::from_millis(50)).await;
        assert!(first.borrow().is_some() && second.borrow().is_none(), "the reads go first");
        device.expedite(&cpu, block(9));
        cpu.sleep(Duration::from_millis(50)).await;
        assert!(second.borrow().is_some(), "it waits for longer than some reads take");
    });
}
