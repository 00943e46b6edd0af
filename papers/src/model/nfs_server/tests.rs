use std::time::Duration;

use policy::queue;

use super::super::Simulation;
use super::super::disk::Completed;
use super::super::ethernet::{self, Ethernet};
use super::super::host::Costs;
use super::super::nfs_client::{Client, Process};
use super::*;
use crate::drive::Drive;
use crate::drive::mechanical::Mechanical;

const BLOCKS: u64 = 64;
const PROCESS: Process = Process { per_block: Duration::from_micros(200) };
const INODE: u64 = 100 << 20;
const POINTERS: u64 = 400 << 20;
const DATA: u64 = 200 << 20;

struct Bench {
    run: Simulation,
    ethernet: Ethernet,
    disk: Disk,
    server: Rc<Server>,
    client: Rc<Client>,
}

/// A client with `daemons` daemons and a server with as many processes.
fn bench(daemons: u32, gather: bool, cached: bool) -> Bench {
    let run = Simulation::new(1);
    let ethernet = Ethernet::new(&run, ethernet::Config { bits_per_second: 10_000_000, mtu_bytes: 1500 });
    let costs = Costs {
        rpc: Duration::from_millis(1),
        frame: Duration::from_micros(200),
        copy_bytes_per_second: 11_000_000,
        interface_bytes_per_second: 6_000_000,
        checksum_bytes_per_second: None,
        disk_access: Duration::from_micros(500),
    };
    let [client_host, server_host] = [0, 1].map(|_| Host::new(&run, &ethernet, 1, costs));
    client_host.connect(&run, &server_host);
    server_host.connect(&run, &client_host);
    let queue = queue::Config { elevator: true, depth: 1, transfer_bytes_max: 128 << 10, ..queue::Config::default() };
    let disk = Disk::new(&run, Drive::Mechanical(Mechanical::named("hd1280")), queue);
    disk.keep_log();
    let place = Placement {
        inode: ByteOffset(INODE),
        data: (0..BLOCKS).map(|block| ByteOffset(DATA + block * TRANSFER_BYTES)).collect(),
        allocation: vec![ByteOffset(POINTERS); BLOCKS as usize],
    };
    let config = Config { processes: daemons.max(1), gather, cached, read_ahead: readahead::Mode::Off };
    let server = Server::new(&run, &server_host, &disk, place, config);
    let client = Client::new(&run, &client_host, daemons);
    Bench { run, ethernet, disk, server, client }
}

impl Bench {
    fn write(&self) -> Duration {
        let client = Rc::clone(&self.client);
        self.finish(async move { client.write_file(BLOCKS, PROCESS).await })
    }

    fn read(&self, ahead: u64) -> Duration {
        let client = Rc::clone(&self.client);
        let mode = if ahead == 0 { readahead::Mode::Off } else { readahead::Mode::Fixed { blocks: ahead } };
        let config = readahead::Config { mode, ..readahead::Config::default() };
        self.finish(async move { client.read_file(BLOCKS, config, PROCESS).await })
    }

    fn finish(&self, work: impl Future<Output = ()> + 'static) -> Duration {
        self.run.complete(work).expect("it ends");
        let took = self.run.now() - Instant::ZERO;
        self.run.run();
        took
    }
}

#[test]
fn without_the_rendezvous_each_write_costs_three_accesses_however_many_processes_there_are() {
    let (one, many) = (bench(1, false, false), bench(8, false, false));
    let (slow, fast) = (one.write(), many.write());
    for bench in [one, many] {
        assert_eq!(bench.disk.counters().batches, 3 * BLOCKS);
        assert_eq!(bench.server.acknowledged().len() as u64, BLOCKS);
    }
    assert!(fast * 100 > slow * 90, "{fast:?} {slow:?}");
}

#[test]
fn with_the_rendezvous_writes_share_a_flush_and_more_processes_share_more() {
    let time = |daemons| bench(daemons, true, false).write();
    assert!(time(16) * 3 < time(4) * 2 && time(4) * 3 < time(1) * 2);
    let many = bench(8, true, false);
    many.write();
    assert!(many.disk.counters().batches < 2 * BLOCKS);
    assert_eq!(many.server.flushed().iter().map(|group| u64::from(group.writes)).sum::<u64>(), BLOCKS);
}

#[test]
fn what_a_group_was_acknowledged_for_is_on_the_disk_with_pointers_and_inode_written_after_the_data() {
    let bench = bench(8, true, false);
    bench.write();
    let log = bench.disk.log();
    let written = |at: u64| log.iter().filter(move |served| served.range.at.0 == at);
    let is_data = |served: &&Completed| (DATA..DATA + BLOCKS * TRANSFER_BYTES).contains(&served.range.at.0);
    let mut promised = 0;
    for group in bench.server.flushed() {
        promised += group.writes as usize;
        for at in [POINTERS, INODE] {
            let last = written(at).rfind(|served| served.done <= group.at).expect("written for the group");
            let data = log.iter().filter(is_data).filter(|served| served.done <= last.arrived).count();
            assert!(data >= promised, "{data} of {promised} were on the disk");
        }
    }
    assert_eq!(promised as u64, BLOCKS);
}

#[test]
fn a_writer_without_daemons_does_its_writes_itself() {
    let bench = bench(0, false, false);
    bench.write();
    assert_eq!(bench.server.acknowledged().len() as u64, BLOCKS);
}

#[test]
fn blocks_read_ahead_fill_the_ethernet_and_each_block_crosses_it_once() {
    let (alone, ahead) = (bench(8, false, true), bench(8, false, true));
    let (slow, fast) = (alone.read(0), ahead.read(4));
    assert!(fast * 3 < slow * 2, "{fast:?} {slow:?}");
    assert_eq!(alone.ethernet.busy(), ahead.ethernet.busy());
    assert_eq!(ahead.disk.counters().requests, 0);
}

#[test]
fn a_file_that_is_not_in_memory_is_read_from_the_disk_once() {
    let bench = bench(4, false, false);
    bench.read(4);
    assert_eq!(bench.disk.counters().bytes_read, BLOCKS * TRANSFER_BYTES);
}
