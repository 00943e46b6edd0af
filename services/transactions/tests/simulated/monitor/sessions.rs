//! What a session keeps, and for how long.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::run_beside;
use transactions::Monitor;

use super::terminal::{Terminal, step, sync};
use super::{FEW_KEYS, Scene};

/// Longer than `idle_in_transaction_session_timeout`, which is a minute.
const TOO_LONG: Duration = Duration::from_secs(61);

/// A client of a server on which there is nobody else.
fn alone(seed: u64, client: impl AsyncFnOnce(Processor, Terminal, Arc<Monitor>) + 'static) {
    let scene = Scene::new(seed, FEW_KEYS, &mut Random(seed));
    let life = scene.begin(seed);
    let (world, monitor) = (scene.world.clone(), Arc::clone(&life.monitor));
    let (from, to) = (scene.clients.id, scene.server);
    run_beside(&scene.world, &scene.clients, &[&life.host, &scene.clients], async move |cpu| {
        let terminal = Terminal::open(&cpu, &world, from, to).await.expect("a server");
        client(cpu, terminal, monitor).await;
    });
    scene.crash(life, false);
    scene.clients.die();
}

#[test]
fn the_time_before_a_block_does_not_count_as_idle_in_it() {
    for_seeds("the_time_before_a_block_does_not_count_as_idle_in_it", 4, |seed| {
        alone(seed, async |cpu, terminal, _| {
            for version in 1..4 {
                // As drivers do, BEGIN comes with what follows it.
                let write = step(&format!("SELECT write(1, {version}, 16)"));
                terminal.send([step("BEGIN"), write, sync()].concat()).await.expect("sent");
                assert_eq!(terminal.reply().await.expect("a reply").error, None, "block {version}");
                assert_eq!(terminal.ask("COMMIT").await.expect("a reply").tags, ["COMMIT"], "block {version}");
                cpu.sleep(TOO_LONG).await;
            }
        });
    });
}

#[test]
fn each_statement_of_a_block_ends_the_time_for_which_its_client_was_idle() {
    for_seeds("each_statement_of_a_block_ends_the_time_for_which_its_client_was_idle", 4, |seed| {
        alone(seed, async |cpu, terminal, _| {
            terminal.ask("BEGIN").await.expect("a reply");
            for _ in 0..3 {
                cpu.sleep(TOO_LONG * 2 / 3).await;
                terminal.send(step("SELECT look(1)")).await.expect("sent");
            }
            terminal.send(sync()).await.expect("sent");
            assert_eq!(terminal.reply().await.expect("a reply").error, None);
            cpu.sleep(TOO_LONG).await;
            assert_eq!(terminal.ask("COMMIT").await.expect("a reply").error.as_deref(), Some("25P03"));
        });
    });
}
