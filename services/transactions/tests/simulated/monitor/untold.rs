//! What clients are not told: results of transactions that are not committed, if they may be of two times or not durable.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use sim::{DiskConfig, DiskFaults, DiskId, HostId, Latency, World};
use testkit::scene::run_beside;
use transactions::Monitor;

use super::terminal::{Reply, Terminal, execute, parse, step, sync};
use super::{DISK_BYTES, Scene};

/// A row that is on the disk and not in memory is read for so long.
const READ_MS: u64 = 10;

/// Longer than what could not be written waits until it is tried again.
const MENDED: Duration = Duration::from_secs(3);

/// Whose row takes [`READ_MS`] when it is looked at first.
const FAR: &str = "SELECT look(150)";

/// Clients of a server that has just started, on which there is nobody else.
struct Clients {
    cpu: Processor,
    world: World,
    own: HostId,
    server: HostId,
    disk: DiskId,
    monitor: Arc<Monitor>,
    /// The server's.
    beside: Processor,
}

impl Clients {
    async fn terminal(&self) -> Terminal {
        Terminal::open(&self.cpu, &self.world, self.own, self.server).await.expect("a server")
    }

    /// From now on nothing can be written.
    fn break_disk(&self) {
        let faults = DiskFaults { write_error_permille: 1000, failed_write_tears: false, ..DiskFaults::default() };
        self.world.set_faults(self.disk, faults);
    }

    /// From now on one of the rows changes while another is read from the disk.
    fn write_all_the_time(&self) {
        let (cpu, monitor) = (self.beside.clone(), Arc::clone(&self.monitor));
        self.beside.spawn(async move {
            loop {
                cpu.sleep(Duration::from_millis(READ_MS / 4)).await;
                let mut transaction = monitor.begin();
                let table = transaction.table("rows").expect("a table");
                transaction.put(table, &[1], &[1; 16]).expect("short");
                drop(transaction.commit(&cpu).await);
            }
        });
        self.world.kick(self.server, self.beside.id());
    }
}

/// There are 200 rows, on the disk.
fn served(clients: impl AsyncFnOnce(Clients) + 'static) {
    let read = Latency::us(READ_MS * 1000, READ_MS * 1000);
    // Large: a start reads 4 MiB of the log, and what is read ahead behind the end of a small one are the rows.
    let scene = Scene::on(1, DiskConfig { read, ..DiskConfig::new(8 * DISK_BYTES) });
    let first = scene.begin(0);
    let fill = async |clients: Clients| {
        let terminal = clients.terminal().await;
        for key in 0..200 {
            assert_eq!(ask(&terminal, &format!("SELECT write({key}, {}, 900)", key + 1)).await.error, None);
        }
        terminal.close();
    };
    connect(&scene, &first, fill);
    scene.end_in_order(&first);
    scene.crash(first, false);
    let second = scene.begin(0);
    connect(&scene, &second, clients);
    scene.crash(second, false);
    scene.clients.die();
}

fn connect(scene: &Scene, life: &super::Life, clients: impl AsyncFnOnce(Clients) + 'static) {
    let (world, own, server, disk) = (scene.world.clone(), scene.clients.id, scene.server, scene.disk);
    let (monitor, beside) = (Arc::clone(&life.monitor), life.host.processors[0].clone());
    run_beside(&scene.world, &scene.clients, &[&life.host, &scene.clients], async move |cpu| {
        clients(Clients { cpu, world, own, server, disk, monitor, beside }).await;
    });
}

async fn ask(terminal: &Terminal, text: &str) -> Reply {
    terminal.ask(text).await.expect("a reply")
}

/// It is nothing but an error of this code.
#[track_caller]
fn assert_error(reply: &Reply, code: &str) {
    assert_eq!(reply.error.as_deref(), Some(code), "{reply:?}");
    assert!(reply.values.is_empty() && reply.tags.is_empty() && reply.settings.is_empty(), "{reply:?}");
}

#[test]
fn a_transaction_that_cannot_be_committed_returns_nothing_and_sets_nothing() {
    served(async |clients| {
        let terminal = clients.terminal().await;
        clients.break_disk();
        assert_error(&ask(&terminal, "SELECT write(1, 1001, 16)").await, "08007");
        assert_error(&ask(&terminal, "SELECT write(2, 1002, 16)").await, "58030");
        let both = "SELECT write(2, 1002, 16); SET application_name = other";
        assert_error(&ask(&terminal, both).await, "58030");
        let reply = ask(&terminal, "SHOW application_name").await;
        assert_eq!(reply.values, [Some("test".to_owned())]);
    });
}

#[test]
fn what_is_not_durable_is_not_told_before_an_error_either() {
    served(async |clients| {
        let (writer, reader) = (clients.terminal().await, clients.terminal().await);
        let timeout = format!("SET statement_timeout = {}", READ_MS / 2);
        assert_eq!(ask(&reader, &timeout).await.error, None);
        clients.break_disk();
        assert_error(&ask(&writer, "SELECT write(1, 1001, 16)").await, "08007");
        assert_error(&ask(&reader, &format!("SELECT look(1); {FAR}")).await, "57014");
        assert_error(&ask(&reader, "SELECT look(1); SELECT write(1, 1002, 16)").await, "58030");
        assert_error(&ask(&reader, "SELECT look(1)").await, "58030");
        clients.world.set_faults(clients.disk, DiskFaults::default());
        clients.cpu.sleep(MENDED).await;
        assert_eq!(ask(&reader, "SELECT look(1)").await.error, None);
    });
}

#[test]
fn what_was_read_at_two_times_is_not_told_before_the_conflict() {
    served(async |clients| {
        let (writer, reader) = (clients.terminal().await, clients.terminal().await);
        assert_eq!(ask(&reader, "BEGIN; SELECT look(1)").await.error, None);
        assert_eq!(ask(&writer, "SELECT write(1, 1001, 16); SELECT write(2, 1002, 16)").await.error, None);
        // The second call gives up.
        assert_error(&ask(&reader, "SELECT look(2); SELECT transfer(1, 2, 1000)").await, "40001");
    });
}

#[test]
fn what_was_read_at_two_times_is_not_told_where_nothing_is_to_be_committed() {
    served(async |clients| {
        let (writer, reader) = (clients.terminal().await, clients.terminal().await);
        assert_eq!(ask(&writer, "SELECT write(1, 1001, 16)").await.error, None);
        clients.write_all_the_time();
        let text = format!("SELECT look(1); {FAR}; SET no_such_setting = 1");
        assert_error(&ask(&reader, &text).await, "40001");
    });
}

#[test]
fn calls_around_a_deallocate_are_repeated_on_a_conflict_where_nothing_depends_on_it() {
    served(async |clients| {
        let reader = clients.terminal().await;
        let statements = [parse("old", "SELECT 1"), parse("far", FAR), step("SELECT 1"), sync()];
        reader.send(statements.concat()).await.expect("sent");
        assert_eq!(reader.reply().await.expect("a reply").error, None);
        clients.write_all_the_time();
        let calls = [step("SELECT look(1)"), step("DEALLOCATE old"), execute("far"), sync()];
        reader.send(calls.concat()).await.expect("sent");
        let reply = reader.reply().await.expect("a reply");
        assert_eq!((reply.error, reply.values.len()), (None, 2));
    });
}
