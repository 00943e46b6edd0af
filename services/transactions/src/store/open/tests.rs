//! Databases with a log of another length than those of 512 MiB and less: of version 3, and large ones of version 2.

use kernel::Switches;
use sim::{DiskConfig, World};
use testkit::scene::disk::open_disk;
use testkit::scene::{Host, run, small_kernel};

use super::*;

/// Logs of new databases of this size are longer than those of earlier versions.
const DISK_BYTES: u64 = 600 << 20;

/// Rows of a transaction, which is a group of so many pages.
const ROWS: u32 = 120;
const GROUP_PAGES: u64 = 31;

/// All rows are anew what the number of the transaction says.
async fn put(cpu: &Processor, database: &Arc<Database>, number: u32) {
    let mut transaction = database.begin();
    let table = transaction.table("rows").unwrap();
    let row = number.to_le_bytes().repeat(256);
    (0..ROWS).for_each(|key| transaction.put(table, &key.to_be_bytes(), &row).unwrap());
    transaction.commit(cpu).await.unwrap().durable(cpu).await.unwrap();
}

/// The transaction that all rows are of; 0: there are none.
async fn number(cpu: &Processor, database: &Arc<Database>) -> u32 {
    let mut transaction = database.begin();
    let table = transaction.table("rows").unwrap();
    let mut numbers = Vec::new();
    for key in 0..ROWS {
        let row = transaction.get(cpu, table, &key.to_be_bytes()).await.unwrap();
        numbers.push(row.map_or(0, |row| u32::from_le_bytes(row[..4].try_into().unwrap())));
    }
    assert_eq!(numbers, [numbers[0]; ROWS as usize]);
    numbers[0]
}

/// A database that is made with this layout goes on after crashes wherever its log has come to.
fn survives_crashes_around_the_end_of_its_log(layout: Layout) {
    let world = World::new(1);
    let id = world.add_host("server");
    let disk = world.add_disk(id, DiskConfig::new(DISK_BYTES));
    let end = layout.log_pages;
    let (mut written, mut has_crossed) = (0, false);
    // Up to which page there are groups when the power is cut.
    for up_to in [
        0..1,
        1000..end,
        end - 3 * GROUP_PAGES..end,
        end - GROUP_PAGES + 1..end,
        GROUP_PAGES..GROUP_PAGES + 1,
        100..200,
        // Nothing more is written.
        1..end,
    ] {
        let host = Host::boot(&world, id, small_kernel(1, 8 << 20, Switches::default()));
        let volume = open_disk(&world, &host, disk, 1);
        let is_new = up_to.start == 0;
        let crosses;
        (written, crosses) = run(&world, &host, async move |cpu| {
            if is_new {
                format(&cpu, Pages { volume, identity: 0 }, layout).await.unwrap();
                return (0, false);
            }
            let database = Database::open(&cpu, volume).await.unwrap();
            assert_eq!(database.layout, layout);
            assert_eq!(number(&cpu, &database).await, written);
            let crosses = {
                let state = database.state.read();
                state.log_begins.page > state.circle.place.page
            };
            let mut number = written;
            while !up_to.contains(&database.state.read().circle.place.page) {
                number += 1;
                put(&cpu, &database, number).await;
            }
            (number, crosses)
        });
        has_crossed |= crosses;
        world.crash(id, true);
        host.die();
    }
    assert!(has_crossed, "none was opened whose log goes on at its begin");
}

#[test]
fn a_database_with_a_long_log_survives_crashes_around_its_end() {
    let layout = Layout::new(DISK_BYTES / BLOCK_BYTES);
    assert!(layout.log_pages * BLOCK_BYTES > 70 << 20);
    survives_crashes_around_the_end_of_its_log(layout);
}

#[test]
fn a_large_database_of_version_2_survives_crashes_around_the_end_of_its_log() {
    let layout = Layout::by_size(DISK_BYTES / BLOCK_BYTES);
    assert_eq!(layout.log_pages * BLOCK_BYTES, 64 << 20);
    survives_crashes_around_the_end_of_its_log(layout);
}
