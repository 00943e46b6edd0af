//! Stable writes that a processor receives together.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kernel::counters::{Count, Reading};
use kernel::request::{Context, JobId};
use kernel::{ForcedUnitAccess, Processor, Volume};
use machine::Errno;
use policy::unit::{ByteRange, Stability};
use sim::OpClass;
use testkit::rounds::for_seeds;
use testkit::scene::disk::{Server, block, fill, first_byte};
use testkit::scene::{context, ended, spawn, stable};

const WRITERS: u64 = 16;

/// Where a task leaves its result.
type Slot = Rc<RefCell<Option<Result<(), Errno>>>>;

fn begin(cpu: &Processor, volume: &Arc<Volume>, number: u64, byte: u8, context: Context) -> Slot {
    let volume = Arc::clone(volume);
    spawn(cpu, async move |cpu| fill(&cpu, &volume, block(number), byte, context).await)
}

fn count(cpu: &Processor, what: Count) -> u64 {
    Reading::sum(&cpu.kernel().counters().read()).count(what)
}

#[test]
fn writes_that_come_together_share_a_flush_and_are_not_waited_for_one_by_one() {
    for_seeds("writes_that_come_together_share_a_flush_and_are_not_waited_for_one_by_one", 20, |seed| {
        let server = Server::new(seed);
        let volume = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            let write_all = async |byte| {
                let writers: Vec<_> = (0..WRITERS).map(|at| begin(&cpu, &volume, 3 * at, byte, stable())).collect();
                for end in &writers {
                    assert_eq!(ended(&cpu, end).await, Ok(()));
                }
            };
            // Until there is memory.
            write_all(6).await;
            cpu.sleep(Duration::from_secs(1)).await;
            let counts = [Count::Flushes, Count::WriteOuts, Count::ImmediateDispatches];
            let before = counts.map(|what| count(&cpu, what));
            write_all(7).await;
            let [flushes, writes, immediate] = std::array::from_fn(|at| count(&cpu, counts[at]) - before[at]);
            assert_eq!((flushes, writes), (1, WRITERS));
            // Those of the flush.
            assert!(immediate <= 2, "{immediate} tasks ran at once when something completed");
            for at in 0..WRITERS {
                assert_eq!(world.read_durable(disk, block(3 * at)), [7; 4096]);
            }
        });
    });
}

#[test]
fn of_writes_of_one_block_that_come_together_the_last_stays() {
    for_seeds("of_writes_of_one_block_that_come_together_the_last_stays", 20, |seed| {
        let server = Server::new(seed);
        let volume = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            for round in 0..4 {
                let writers: Vec<_> =
                    (0..8).map(|at| begin(&cpu, &volume, at % 2, round * 8 + at as u8, stable())).collect();
                // A batch is under way when the next one comes.
                if round % 2 == 0 {
                    cpu.yield_now().await;
                    continue;
                }
                for end in &writers {
                    assert_eq!(ended(&cpu, end).await, Ok(()));
                }
                let durable = [0, 1].map(|number| world.read_durable(disk, block(number))[0]);
                assert_eq!(durable, [round * 8 + 6, round * 8 + 7], "round {round}");
            }
        });
    });
}

#[test]
fn all_are_told_of_a_failed_write_and_nothing_is_lost() {
    for_seeds("all_are_told_of_a_failed_write_and_nothing_is_lost", 40, |seed| {
        let server = Server::new(seed);
        let volume = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, world, disk| {
            let class = if seed % 2 == 0 { OpClass::Write } else { OpClass::Flush };
            world.fail_next(disk, class, 1, Errno::IO);
            let writers: Vec<_> = (0..WRITERS).map(|at| begin(&cpu, &volume, 2 * at, 7, stable())).collect();
            for end in &writers {
                assert_eq!(ended(&cpu, end).await, Err(Errno::IO));
            }
            volume.flush(&cpu, context()).await.expect("the disk works again");
            for at in 0..WRITERS {
                assert_eq!(world.read_durable(disk, block(2 * at)), [7; 4096]);
                assert_eq!(first_byte(&cpu, &volume, 2 * at).await, Ok(7));
            }
            assert!(volume.is_clean());
        });
    });
}

/// Two clients, each with writes to both disks.
#[test]
fn writes_to_a_disk_that_fails_do_not_fail_those_to_another_that_came_with_them() {
    let server = Server::new(1);
    let good = server.volume(ForcedUnitAccess::Never);
    let bad_disk = server.world.add_disk(server.host.id, sim::DiskConfig::new(8 << 20));
    let file = kernel::device::FileDevice::new(server.world.open(bad_disk, true));
    let bad = server.volume_on(Arc::new(file), ForcedUnitAccess::Never);
    server.run(async move |cpu, world, disk| {
        world.fail_next(bad_disk, OpClass::Write, 1, Errno::IO);
        let context = |job| Context::synchronous(JobId(job)).with_stability(Stability::Stable);
        let writers: Vec<_> = (0..8)
            .map(|at| {
                let is_bad = at % 2 == 1;
                let volume = if is_bad { &bad } else { &good };
                (is_bad, begin(&cpu, volume, at, 7, context(at as u32 / 4)))
            })
            .collect();
        let mut failed = 0;
        for (at, (is_bad, end)) in writers.iter().enumerate() {
            let (result, disk) = (ended(&cpu, end).await, if *is_bad { bad_disk } else { disk });
            match result {
                Ok(()) => assert_eq!(world.read_durable(disk, block(at as u64)), [7; 4096], "write {at}"),
                Err(_) => assert!(is_bad, "write {at}"),
            }
            failed += u64::from(result.is_err());
        }
        assert!(failed > 0, "nobody is told of the failure");
        bad.flush(&cpu, context(0)).await.expect("the disk works again");
        assert_eq!(world.read_durable(bad_disk, block(1)), [7; 4096]);
    });
}

/// As of clients that disconnect: their data is written, and nobody waits for them afterwards.
#[test]
fn a_batch_whose_callers_are_gone_is_completed() {
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Alone);
    server.run(async move |cpu, world, disk| {
        let mut callers: Vec<_> = (0..4).map(|at| Box::pin(fill(&cpu, &volume, block(at), 7, stable()))).collect();
        while volume.dirty_blocks() < 4 {
            poll_fn(|cx| {
                for caller in &mut callers {
                    assert!(caller.as_mut().poll(cx).is_pending());
                }
                Poll::Ready(())
            })
            .await;
        }
        drop(callers);
        cpu.sleep(Duration::from_secs(1)).await;
        assert!(volume.is_clean());
        assert_eq!(world.read_durable(disk, ByteRange::new(0, 4 * 4096)), [7; 4 * 4096]);
        // The others are expected to come with the next one. The one after it is known to be alone, and needs no flush.
        fill(&cpu, &volume, block(8), 8, stable()).await.expect("durable");
        cpu.sleep(Duration::from_millis(1)).await;
        let flushes = count(&cpu, Count::Flushes);
        fill(&cpu, &volume, block(9), 8, stable()).await.expect("durable");
        assert_eq!(count(&cpu, Count::Flushes), flushes);
    });
}
