//! Files that a process of the host changes while clients write to them: its writes stay, and clients see them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kernel::device::Delay;
use kernel::request::{Action, Outcome, Request};
use kernel::tree::{FRESH, FileTree, Vnode};
use kernel::{ForcedUnitAccess, Processor, Switches};
use machine::tree::{Creation, SetAttributes, TreeCall, TreeReply};
use policy::unit::ByteOffset;
use sim::{DiskConfig, Latency, TreeConfig, TreeId, World};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::context as disk_context;
use testkit::scene::disk::{Server, block, fill, first_byte};
use testkit::scene::files::{CACHE_BYTES, context, file, open, read, root, served, served_of, stable, write};
use testkit::scene::{Host, drive, ended, run, small_kernel, spawn};

const BLOCK: u64 = 4096;

#[test]
fn a_stable_byte_does_not_put_back_what_the_host_has_replaced_beside_an_unstable_block() {
    served(1, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 4 * BLOCK as usize], stable()).await.expect("durable");
        write(&cpu, &tree, &file, 0, &[2; BLOCK as usize], context()).await.expect("cached");
        assert!(
            read(&cpu, &tree, &file, 0, 4 * BLOCK).await.expect("read")[BLOCK as usize..].iter().all(|&byte| byte == 1)
        );
        seen.write_tree(id, "/file", ByteOffset(2 * BLOCK), &[9; BLOCK as usize]);
        seen.sync_tree(id);
        cpu.sleep(FRESH).await;
        let read_back = read(&cpu, &tree, &file, 2 * BLOCK, BLOCK).await.expect("read");
        assert!(read_back == [9; BLOCK as usize], "the change is seen while another block is dirty");
        seen.write_tree(id, "/file", ByteOffset(3 * BLOCK), &[8; BLOCK as usize]);
        seen.sync_tree(id);
        tree.commit(&cpu, &file, context()).await.expect("durable");
        let read_back = read(&cpu, &tree, &file, 3 * BLOCK, BLOCK).await.expect("read");
        assert!(read_back == [8; BLOCK as usize], "the change is seen after a COMMIT");
        write(&cpu, &tree, &file, 2 * BLOCK + 7, b"x", stable()).await.expect("durable");
        let mut expected =
            [[2; BLOCK as usize], [1; BLOCK as usize], [9; BLOCK as usize], [8; BLOCK as usize]].concat();
        expected[2 * BLOCK as usize + 7] = b'x';
        assert!(seen.tree_durable_content(id, "/file") == Some(expected));
    });
}

#[test]
fn part_of_a_block_written_just_after_the_host_wrote_the_rest_leaves_the_rest() {
    for stability in [stable(), context()] {
        served(2, 100, async move |cpu, tree, seen, id| {
            let (_, file) = file(&cpu, &tree, "file").await;
            write(&cpu, &tree, &file, 0, &[1; BLOCK as usize], stable()).await.expect("durable");
            assert!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read") == [1; BLOCK as usize]);
            seen.write_tree(id, "/file", ByteOffset(0), &[9; BLOCK as usize]);
            seen.sync_tree(id);
            write(&cpu, &tree, &file, 100, b"abc", stability).await.expect("written");
            write(&cpu, &tree, &file, 300, b"def", stability).await.expect("written");
            tree.commit(&cpu, &file, context()).await.expect("durable");
            let mut expected = [9; BLOCK as usize];
            expected[100..103].copy_from_slice(b"abc");
            expected[300..303].copy_from_slice(b"def");
            assert!(seen.tree_durable_content(id, "/file").as_deref() == Some(&expected[..]));
            cpu.sleep(FRESH).await;
            assert!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read") == expected);
        });
    }
}

#[test]
fn what_the_host_appended_stays_when_a_client_appends_and_writes_beyond() {
    served(3, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "log").await;
        write(&cpu, &tree, &file, 0, &[1; 100], stable()).await.expect("durable");
        seen.write_tree(id, "/log", ByteOffset(100), &[9; 9000]);
        seen.sync_tree(id);
        write(&cpu, &tree, &file, 100, &[2; 10], context()).await.expect("written");
        write(&cpu, &tree, &file, BLOCK, &[3; 10], context()).await.expect("written");
        write(&cpu, &tree, &file, 3 * BLOCK, &[4; 10], context()).await.expect("written");
        tree.commit(&cpu, &file, context()).await.expect("durable");
        let mut expected = [[1; 100].as_slice(), &[9; 9000]].concat();
        expected.resize(3 * BLOCK as usize + 10, 0);
        expected[100..110].fill(2);
        expected[BLOCK as usize..BLOCK as usize + 10].fill(3);
        expected[3 * BLOCK as usize..].fill(4);
        assert!(seen.tree_durable_content(id, "/log") == Some(expected.clone()));
        cpu.sleep(FRESH).await;
        assert!(read(&cpu, &tree, &file, 0, 1 << 20).await.expect("read") == expected);
    });
}

#[test]
fn what_the_host_appended_is_seen_by_a_client_that_looks_up_the_name_before_each_read() {
    served(6, 100, async move |cpu, tree, seen, id| {
        let (dir, (_, file)) = (root(&cpu, &tree).await, file(&cpu, &tree, "log").await);
        for round in 1..20_u8 {
            let at = 200 * u64::from(round);
            write(&cpu, &tree, &file, at, &[round; 100], stable()).await.expect("durable");
            seen.write_tree(id, "/log", ByteOffset(at + 100), &[round; 100]);
            let written = cpu.now();
            loop {
                let lookup = TreeCall::Lookup { dir, name: b"log".to_vec() };
                let Ok(TreeReply::Node(_, found)) = tree.call(&cpu, None, lookup).await else { panic!("it is there") };
                let content = read(&cpu, &tree, &file, at, 1000).await.expect("read");
                assert_eq!(content.len() as u64 + at, found.size, "both are as new");
                if found.size == at + 200 {
                    assert!(content == [round; 200]);
                    break;
                }
                assert!(cpu.now().since(written) < FRESH, "round {round}: {} bytes", found.size);
                cpu.sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn where_the_host_reports_nothing_a_change_in_the_same_step_of_its_clock_as_the_one_before_is_seen() {
    const STEP_NS: u32 = 10_000_000;
    let silent = TreeConfig { watches: false, tick_ns: STEP_NS, ..TreeConfig::new() };
    served_of(8, silent, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        cpu.sleep(FRESH).await;
        let until_next = u64::from(STEP_NS) - cpu.now().ns() % u64::from(STEP_NS);
        cpu.sleep(Duration::from_nanos(until_next)).await;
        let modified = || seen.tree_attributes(id, "/file").expect("there").modified;
        seen.write_tree(id, "/file", ByteOffset(0), &[1; BLOCK as usize]);
        let before = modified();
        assert!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read") == [1; BLOCK as usize]);
        seen.write_tree(id, "/file", ByteOffset(0), &[2; BLOCK as usize]);
        assert_eq!(modified(), before, "the test is of this case");
        cpu.sleep(FRESH).await;
        assert!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read") == [2; BLOCK as usize]);
        let reads = seen.tree_counters(id).1.reads;
        for _ in 0..5 {
            cpu.sleep(FRESH).await;
            assert!(read(&cpu, &tree, &file, 0, BLOCK).await.expect("read") == [2; BLOCK as usize]);
        }
        assert_eq!(seen.tree_counters(id).1.reads, reads, "what was read later stays cached");
    });
}

#[test]
fn where_the_host_reports_nothing_what_it_appended_is_seen_by_a_client_that_only_looks_up_the_name_or_its_rights() {
    for by_name in [true, false] {
        let silent = TreeConfig { watches: false, ..TreeConfig::new() };
        served_of(7, silent, 100, async move |cpu, tree, seen, id| {
            let (dir, (node, file)) = (root(&cpu, &tree).await, file(&cpu, &tree, "log").await);
            for round in 1..20_u64 {
                write(&cpu, &tree, &file, 200 * round, &[1; 100], stable()).await.expect("durable");
                cpu.sleep(FRESH / 3).await;
                seen.write_tree(id, "/log", ByteOffset(200 * round + 100), &[2; 100]);
                let written = cpu.now();
                loop {
                    let call = if by_name {
                        TreeCall::Lookup { dir, name: b"log".to_vec() }
                    } else {
                        TreeCall::Access { node, wanted: 4 }
                    };
                    let size = match tree.call(&cpu, None, call).await {
                        Ok(TreeReply::Node(_, found) | TreeReply::Access(_, found)) => found.size,
                        _ => panic!("it is there"),
                    };
                    if size == 200 * round + 200 {
                        break;
                    }
                    assert!(cpu.now().since(written) <= FRESH * 2, "round {round}: {size} bytes");
                    cpu.sleep(FRESH / 7).await;
                }
            }
        });
    }
}

#[test]
fn what_the_host_wrote_to_a_mapping_after_a_clients_last_write_is_seen_by_a_client_that_looks_up_the_name_first() {
    for commits in [true, false] {
        served(9, 100, async move |cpu, tree, seen, id| {
            let (dir, (_, file)) = (root(&cpu, &tree).await, file(&cpu, &tree, "file").await);
            let look = async || {
                let lookup = TreeCall::Lookup { dir, name: b"file".to_vec() };
                tree.call(&cpu, None, lookup).await.map(drop).expect("it is there");
                read(&cpu, &tree, &file, 0, 2 * BLOCK).await.expect("read")
            };
            for round in 1..10_u8 {
                let (ours, theirs) = ([round; 2 * BLOCK as usize], [round | 0x80; 100]);
                if commits {
                    write(&cpu, &tree, &file, 0, &ours, context()).await.expect("cached");
                    tree.commit(&cpu, &file, context()).await.expect("durable");
                    assert!(look().await == ours);
                } else {
                    write(&cpu, &tree, &file, 0, &ours, stable()).await.expect("durable");
                    assert!(look().await == ours);
                    // Until it is closed for writing.
                    cpu.sleep(3 * FRESH).await;
                }
                seen.write_mapped_tree(id, "/file", ByteOffset(1000), &theirs);
                cpu.sleep(FRESH).await;
                let expected = [&ours[..1000], &theirs, &ours[1100..]].concat();
                assert!(look().await == expected, "round {round}, {commits}");
            }
        });
    }
}

#[test]
fn what_the_host_appended_while_a_file_was_opened_is_seen_after_a_write() {
    for delay in 0..150 {
        let disk = DiskConfig { late_permille: 1000, late: Latency::us(1, 60), ..DiskConfig::new(64 << 20) };
        served_of(8, TreeConfig { disk, ..TreeConfig::new() }, 100, async move |cpu, tree, seen, id| {
            let dir = root(&cpu, &tree).await;
            let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
            let call = TreeCall::Create { dir, name: "log".into(), how: Creation::Guarded, attributes };
            let Ok(TreeReply::Node(node, _)) = tree.call(&cpu, None, call).await else { panic!("not made") };
            seen.write_tree(id, "/log", ByteOffset(0), &[1; BLOCK as usize]);
            let same = Arc::clone(&tree);
            let opening = spawn(&cpu, async move |cpu| same.file(&cpu, node).await);
            cpu.sleep(Duration::from_micros(delay)).await;
            seen.write_tree(id, "/log", ByteOffset(BLOCK), &[2; BLOCK as usize]);
            let file = ended(&cpu, &opening).await.expect("open");
            write(&cpu, &tree, &file, 0, &[3; BLOCK as usize], stable()).await.expect("durable");
            cpu.sleep(FRESH).await;
            let content = read(&cpu, &tree, &file, 0, 4 * BLOCK).await.expect("read");
            assert!(content == [[3; BLOCK as usize], [2; BLOCK as usize]].concat(), "{delay}: {} bytes", content.len());
        });
    }
}

#[test]
fn what_a_flush_under_way_covers_does_not_stay_cached_when_the_host_has_changed_it() {
    let server = Server::new(1);
    let below = server.file();
    let slow = Arc::new(Delay::new(Arc::clone(&below), Duration::from_millis(10)));
    let volume = server.volume_on(slow, ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        fill(&cpu, &volume, block(3), 1, disk_context()).await.expect("cached");
        volume.write_out_unflushed(&cpu, disk_context()).await;
        let flushed = Arc::clone(&volume);
        let flush = spawn(&cpu, async move |cpu| flushed.flush(&cpu, disk_context()).await.expect("durable"));
        cpu.sleep(Duration::from_millis(2)).await;
        assert!(flush.borrow().is_none(), "it is under way");
        let mut frames = cpu.kernel().allocate(&cpu, 1).await;
        frames[0].bytes_mut().expect("unshared").fill(9);
        let action = Action::Write(block(3), frames);
        let written = below.perform(&cpu, Request { action, context: disk_context() }).await;
        assert_eq!(written, Ok(Outcome::Done));
        let size = volume.size();
        assert_eq!(volume.follow_host(&cpu, async { Ok(size) }).await, Ok(true));
        assert_eq!(first_byte(&cpu, &volume, 3).await, Ok(9));
    });
}

/// While the reader asks the host, the writer makes a block dirty.
fn slip_in(after: Duration) {
    served(4, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        write(&cpu, &tree, &file, 0, &[1; 8 * BLOCK as usize], stable()).await.expect("durable");
        cpu.sleep(FRESH).await;
        assert!(read(&cpu, &tree, &file, 0, 8 * BLOCK).await.expect("read") == [1; 8 * BLOCK as usize]);
        cpu.sleep(FRESH).await;
        assert!(tree.refresh(&cpu, &file).await.is_ok());
        let (same_tree, for_writer) = (Arc::clone(&tree), Arc::clone(&file));
        let writer = spawn(&cpu, async move |cpu| {
            cpu.sleep(after).await;
            write(&cpu, &same_tree, &for_writer, BLOCK, &[2; BLOCK as usize], context()).await.expect("cached");
        });
        seen.write_tree(id, "/file", ByteOffset(0), &[9; 8 * BLOCK as usize]);
        cpu.sleep(FRESH - Duration::from_micros(50)).await;
        while writer.borrow().is_none() {
            let _ = read(&cpu, &tree, &file, 4 * BLOCK, BLOCK).await.expect("read");
            cpu.sleep(Duration::from_micros(1)).await;
        }
        cpu.sleep(FRESH).await;
        assert!(
            read(&cpu, &tree, &file, 2 * BLOCK, 6 * BLOCK).await.expect("read") == [9; 6 * BLOCK as usize],
            "{after:?}"
        );
    });
}

#[test]
fn a_writer_who_slips_in_first_does_not_keep_the_change_from_being_seen() {
    (0..200).for_each(|us| slip_in(FRESH - Duration::from_micros(60) + Duration::from_micros(us)));
}

#[test]
fn a_cold_read_of_a_file_that_the_host_writes_all_the_time_ends() {
    served(5, 100, async move |cpu, tree, seen, id| {
        let (_, file) = file(&cpu, &tree, "file").await;
        seen.write_tree(id, "/file", ByteOffset(0), &[1; 8 * BLOCK as usize]);
        cpu.sleep(FRESH).await;
        let ended = Rc::new(Cell::new(false));
        let (world, until) = (seen.clone(), Rc::clone(&ended));
        spawn(&cpu, async move |cpu| {
            for round in 0..200_000_u32 {
                if until.get() {
                    return;
                }
                world.write_tree(id, "/file", ByteOffset(0), &[round as u8 | 1; 8 * BLOCK as usize]);
                cpu.sleep(Duration::from_micros(1)).await;
            }
        });
        let began = cpu.now();
        let bytes = read(&cpu, &tree, &file, 0, 8 * BLOCK).await.expect("read");
        assert!(bytes.len() == 8 * BLOCK as usize && !bytes.contains(&0));
        write(&cpu, &tree, &file, 5, b"x", stable()).await.expect("part of a block that is to be read first");
        assert!(cpu.now().since(began) < Duration::from_millis(100), "{:?}", cpu.now().since(began));
        ended.set(true);
        let (_, disk) = cpu.kernel().disk_queues().pop().expect("the tree's");
        assert!(disk.reading().reads > 2, "some were begun anew");
        assert_eq!(disk.reading().failed, 0, "that is no failure of the disk");
    });
}

/// Each cell of bytes has one owner, the clients or the host. Some blocks have one owner, others both.
const CELL: u64 = 64;

fn is_clients(at: u64) -> bool {
    match (at / BLOCK) % 4 {
        0 => true,
        1 => false,
        _ => (at / CELL).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 & 1 == 0,
    }
}

const FILE_BYTES: u64 = 40 * BLOCK;

/// A run of cells of one owner. Bytes.
fn run_of_cells(random: &mut Random, clients: bool) -> (u64, u64) {
    loop {
        let at = random.below(FILE_BYTES / CELL) * CELL;
        if is_clients(at) != clients {
            continue;
        }
        let len_max = 1 + random.below(3 * BLOCK / CELL);
        let mut end = at;
        while end < FILE_BYTES && is_clients(end) == clients && end - at < len_max * CELL {
            end += CELL;
        }
        return (at, end - at);
    }
}

/// The last value of each byte, written by its owner.
struct Ledger {
    bytes: Vec<u8>,
}

impl Ledger {
    /// The host's bytes are never anything else than what the host wrote last.
    fn check_host(&self, found: &[u8]) {
        for (at, (&found, &expected)) in found.iter().zip(&self.bytes).enumerate() {
            assert!(is_clients(at as u64) || found == expected, "byte {at} of the host is {found}, not {expected}");
        }
    }

    fn check_all(&self, found: &[u8]) {
        let differing = found.iter().zip(&self.bytes).position(|(found, expected)| found != expected);
        assert!(found.len() == self.bytes.len(), "{} bytes, not {}", found.len(), self.bytes.len());
        assert_eq!(
            differing,
            None,
            "a byte differs; is it a client's? {:?}",
            differing.map(|at| is_clients(at as u64))
        );
    }
}

async fn host_process(cpu: Processor, world: World, id: TreeId, ledger: Rc<RefCell<Ledger>>, mut random: Random) {
    for _ in 0..60 {
        let (at, len) = run_of_cells(&mut random, false);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        ledger.borrow_mut().bytes[at as usize..(at + len) as usize].copy_from_slice(&bytes);
        world.write_tree(id, "/file", ByteOffset(at), &bytes);
        if random.chance(500) {
            world.sync_tree(id);
        }
        let pause = if random.chance(100) { 400_000 } else { 2000 };
        cpu.sleep(Duration::from_micros(random.below(pause))).await;
        ledger.borrow().check_host(&world.tree_content(id, "/file").expect("there"));
    }
}

async fn client(
    cpu: Processor,
    (tree, file): (Arc<FileTree>, Arc<Vnode>),
    ledger: Rc<RefCell<Ledger>>,
    mut random: Random,
) {
    for _ in 0..80 {
        match random.below(10) {
            0..6 => {
                let (at, len) = run_of_cells(&mut random, true);
                let (at, len) = if random.chance(300) { (at + 3, len - 7) } else { (at, len) };
                let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                ledger.borrow_mut().bytes[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                let context = if random.chance(400) { stable() } else { context() };
                write(&cpu, &tree, &file, at, &bytes, context).await.expect("written");
            }
            6 => tree.commit(&cpu, &file, context()).await.expect("durable"),
            7 => cpu.sleep(Duration::from_micros(random.below(300_000))).await,
            _ => {
                let (at, len) = (random.below(FILE_BYTES), 1 + random.below(5 * BLOCK));
                let found = read(&cpu, &tree, &file, at, len).await.expect("read");
                for (place, found) in (at..).zip(found) {
                    let expected = ledger.borrow().bytes[place as usize];
                    assert!(!is_clients(place) || found == expected, "byte {place} is {found}, not {expected}");
                }
            }
        }
    }
}

fn changes_on_both_sides(seed: u64) {
    let mut random = Random(seed);
    let world = World::new(seed);
    let id = world.add_host("server");
    let tree_id = world.add_tree(id, TreeConfig::drawn(seed));
    let host = Host::boot(&world, id, small_kernel(2, CACHE_BYTES, Switches::default()));
    let seen = world.clone();
    let ledger = Rc::new(RefCell::new(Ledger { bytes: vec![0; FILE_BYTES as usize] }));
    let (tree, file) = run(&world, &host, async move |cpu| {
        let tree = open(&seen, &cpu, tree_id, 100);
        let (_, file) = file(&cpu, &tree, "file").await;
        seen.write_tree(tree_id, "/file", ByteOffset(0), &vec![0; FILE_BYTES as usize]);
        cpu.sleep(FRESH).await;
        (tree, file)
    });
    let (for_client, for_host, seen) = (Rc::clone(&ledger), Rc::clone(&ledger), world.clone());
    let (own, others) = (Random(random.next()), Random(random.next()));
    let same = (Arc::clone(&tree), Arc::clone(&file));
    let tasks = [
        spawn(&host.processors[0], async move |cpu| client(cpu, same, for_client, own).await),
        spawn(&host.processors[1], async move |cpu| host_process(cpu, seen, tree_id, for_host, others).await),
    ];
    host.processors.iter().for_each(|cpu| world.kick(id, cpu.id()));
    assert!(drive(&world, &[&host], || tasks.iter().all(|task| task.borrow().is_some())), "it hangs");
    let (seen, same) = (world.clone(), Rc::clone(&ledger));
    run(&world, &host, async move |cpu| {
        cpu.sleep(FRESH).await;
        let found = read(&cpu, &tree, &file, 0, 2 * FILE_BYTES).await.expect("read");
        same.borrow().check_all(&found);
        tree.commit(&cpu, &file, context()).await.expect("durable");
        let found = read(&cpu, &tree, &file, 0, 2 * FILE_BYTES).await.expect("read");
        same.borrow().check_all(&found);
        seen.sync_tree(tree_id);
        same.borrow().check_all(&seen.tree_durable_content(tree_id, "/file").expect("there"));
        drop(tree);
    });
}

#[test]
fn what_the_host_wrote_is_never_replaced_by_older_bytes_and_everybody_sees_the_same() {
    let name = "what_the_host_wrote_is_never_replaced_by_older_bytes_and_everybody_sees_the_same";
    for_seeds(name, 150, changes_on_both_sides);
}
