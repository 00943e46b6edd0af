//! What a session keeps, and for how long.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use sim::{NetworkConfig, Step};
use testkit::random::Random;
use testkit::rounds::for_seeds;
use testkit::scene::{run_beside, spawn};
use transactions::Monitor;

use super::terminal::{Terminal, bind, execute, flush, message, parse, step, sync};
use super::{FEW_KEYS, Scene};

/// Longer than `idle_in_transaction_session_timeout`, which is a minute.
pub const TOO_LONG: Duration = Duration::from_secs(61);

/// A client of a server on which there is nobody else.
pub fn alone(seed: u64, client: impl AsyncFnOnce(Processor, Terminal, Arc<Monitor>) + 'static) {
    several(seed, 1, async |cpu, mut terminals, monitor| {
        client(cpu, terminals.pop().expect("one"), monitor).await;
    });
}

/// The only client, with several sessions.
pub fn several(seed: u64, sessions: usize, client: impl AsyncFnOnce(Processor, Vec<Terminal>, Arc<Monitor>) + 'static) {
    let scene = Scene::new(seed, FEW_KEYS, &mut Random(seed));
    let life = scene.begin(seed);
    let (world, monitor) = (scene.world.clone(), Arc::clone(&life.monitor));
    let (from, to) = (scene.clients.id, scene.server);
    run_beside(&scene.world, &scene.clients, &[&life.host, &scene.clients], async move |cpu| {
        let mut terminals = Vec::new();
        for _ in 0..sessions {
            terminals.push(Terminal::open(&cpu, &world, from, to).await.expect("a server"));
        }
        client(cpu, terminals, monitor).await;
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

#[test]
fn a_read_only_transaction_reads_and_its_writes_are_refused() {
    for_seeds("a_read_only_transaction_reads_and_its_writes_are_refused", 8, |seed| {
        alone(seed, async |_, terminal, _| {
            let ask = async |text: &str| terminal.ask(text).await.expect("a reply");
            let (write, remove) = ("SELECT write(1, 1, 16)", "SELECT remove(1)");
            let always = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY";
            for change in [write, remove] {
                for (begin, end) in [
                    ("BEGIN READ ONLY", "ROLLBACK"),
                    ("BEGIN; SELECT look(2); SET TRANSACTION READ ONLY", "COMMIT"),
                    ("BEGIN; SET LOCAL transaction_read_only = on; RESET ALL", "COMMIT"),
                    (always, "RESET default_transaction_read_only"),
                    (
                        "SET default_transaction_read_only = on; BEGIN",
                        "ROLLBACK; SET default_transaction_read_only TO off",
                    ),
                    ("BEGIN READ ONLY; SET default_transaction_read_only = on; ROLLBACK; BEGIN READ ONLY", "ROLLBACK"),
                ] {
                    assert_eq!(ask(begin).await.error, None, "{begin}");
                    assert_eq!(ask("SHOW transaction_read_only").await.values, [Some("on".to_owned())], "{begin}");
                    let seen = ask("SELECT look(1)").await;
                    assert_eq!((seen.values, seen.error), (vec![None], None), "{begin}");
                    assert_eq!(ask(change).await.error.as_deref(), Some("25006"), "{begin}");
                    assert_eq!(ask(end).await.error, None, "{end}");
                    assert_eq!(ask("SHOW transaction_read_only").await.values, [Some("off".to_owned())], "{end}");
                }
            }
            let at_once = format!("BEGIN; SET TRANSACTION READ ONLY; {write}");
            assert_eq!(ask(&at_once).await.error.as_deref(), Some("25006"));
            ask("ROLLBACK").await;
            terminal.send([step("BEGIN READ ONLY"), step(write), sync()].concat()).await.expect("sent");
            assert_eq!(terminal.reply().await.expect("a reply").error.as_deref(), Some("25006"));
            ask("ROLLBACK").await;
            // Outside of a block it means nothing.
            assert_eq!(ask(&format!("SET TRANSACTION READ ONLY; {remove}")).await.error, None);
            for block in [
                format!("BEGIN READ WRITE; {write}; ROLLBACK"),
                format!("BEGIN; SET TRANSACTION READ WRITE; {write}; ROLLBACK"),
            ] {
                assert_eq!(ask(&format!("{always}; {block}")).await.error, None, "{block}");
            }
            assert_eq!(ask(remove).await.error.as_deref(), Some("25006"));
            assert_eq!(ask("DISCARD ALL").await.error, None);
            assert_eq!(ask(remove).await.error, None);
        });
    });
}

#[test]
fn what_comes_before_a_statement_that_is_refused_has_happened_unless_it_is_a_syntax_error() {
    alone(1, async |_, terminal, _| {
        let ask = async |text: &str| terminal.ask(text).await.expect("a reply");
        // The second is the tag of the first, too.
        let (write, select) = ("SELECT write(1, 1, 16)", "SELECT 1");
        for (text, tags, error, status, is_written) in [
            ("BEGIN; SELECT nosuch()", &["BEGIN"][..], "42883", b'E', false),
            ("BEGIN; SELECT nosuch; SELECT 1", &["BEGIN"], "42703", b'E', false),
            ("BEGIN; INSERT INTO t VALUES (1); COMMIT", &["BEGIN"], "0A000", b'E', false),
            (&format!("{write}; SELECT nosuch()"), &[select], "42883", b'I', false),
            (&format!("{write}; SELECT $1; COMMIT"), &[select], "42P02", b'I', false),
            (&format!("{write}; COMMIT; SELECT look(1, 2)"), &[select, "COMMIT"], "42883", b'I', true),
            (&format!("BEGIN; {write}; COMMIT; SELECT 1::money"), &["BEGIN", select, "COMMIT"], "42704", b'I', true),
            (&format!("{write}; BEGIN; SELECT nosuch()"), &[select, "BEGIN"], "42883", b'E', false),
            (&format!("BEGIN; {write}; COMMIT; SELEC 1"), &[], "42601", b'I', false),
            (&format!("{write}; SELECT nosuch(); SELECT 'a"), &[], "42601", b'I', false),
            ("SELECT nosuch(); BEGIN", &[], "42883", b'I', false),
        ] {
            let reply = ask(text).await;
            assert_eq!((reply.error.as_deref(), reply.status), (Some(error), status), "{text}");
            assert_eq!(reply.tags, tags, "{text}");
            ask("ROLLBACK").await;
            assert_eq!(ask("SELECT remove(1)").await.values[0].is_some(), is_written, "{text}");
        }
    });
}

#[test]
fn as_many_statements_without_a_sync_are_executed_as_the_refusal_of_more_says() {
    alone(1, async |_, terminal, _| {
        for (statements, refused) in [(4096, None), (4097, Some("54000"))] {
            terminal.send([step("SELECT 1").repeat(statements), sync()].concat()).await.expect("sent");
            let reply = terminal.reply().await.expect("a reply");
            assert_eq!(reply.error.as_deref(), refused, "{statements}");
        }
    });
}

/// All of it is evaluated before the processor does anything else.
#[test]
fn what_is_sent_once_is_not_used_and_cast_without_end() {
    alone(1, async |_, terminal, _| {
        let query = |columns: usize, casts: &str| format!("SELECT {}", vec![format!("$1{casts}"); columns].join(", "));
        // Its results are short.
        let number = |bytes: usize| format!("{}1", " ".repeat(bytes - 1));
        let casts = format!("{}::int8", "::text".repeat(7));
        for (query, value, times, refused) in [
            (query(4, ""), number(1_000_000), 1, None),
            (query(4, &casts), number(900_000), 1, None),
            (query(1, ""), number(900), 4000, None),
            (query(1, &casts), number(900), 4000, None),
            (query(100, &casts), number(90_000), 1, Some("54000")),
            (query(10, &casts), number(900), 4000, Some("54000")),
        ] {
            let len = (value.len() as u32).to_be_bytes();
            let bind = message(b'B', &[b"\0s\0\0\0\0\x01", &len[..], value.as_bytes(), b"\0\0"].concat());
            let executed = [bind, message(b'E', b"\0\0\0\0\0")].concat().repeat(times);
            terminal.send([parse("s", &query), executed, sync()].concat()).await.expect("sent");
            let reply = terminal.reply().await.expect("a reply");
            assert_eq!(reply.error.as_deref(), refused, "{times} times {} bytes, {} of text", value.len(), query.len());
            terminal.ask("DEALLOCATE ALL").await.expect("a reply");
        }
    });
}

#[test]
fn others_have_their_turn_between_lookups_that_were_sent_together() {
    let time_slices = |(statements, times): (&str, usize)| {
        let scene = Scene::new(2, FEW_KEYS, &mut Random(2));
        scene.world.set_network(NetworkConfig::default());
        let life = scene.begin(2);
        let (world, from, to) = (scene.world.clone(), scene.clients.id, scene.server);
        let (query, cpu) = (statements.repeat(times), &scene.clients.processors[0]);
        let reply = spawn(cpu, async move |cpu| {
            let terminal = Terminal::open(&cpu, &world, from, to).await.expect("a server");
            terminal.ask(&query).await.expect("a reply").tags.len()
        });
        scene.world.kick(scene.clients.id, cpu.id());
        let mut of_server = 0;
        while reply.borrow().is_none() {
            let Step::Processor(host, id) = scene.world.step() else { panic!("nothing is done") };
            of_server += usize::from(host == scene.server);
            let host = if host == scene.server { &life.host } else { &scene.clients };
            host.processors.iter().find(|cpu| cpu.id() == id).expect("a processor").turn();
        }
        assert_eq!(*reply.borrow(), Some(times * statements.matches(';').count()), "{statements}");
        scene.crash(life, false);
        scene.clients.die();
        of_server
    };
    let of = [
        ("SELECT oid FROM pg_class;", 1000),
        ("BEGIN; SELECT oid FROM pg_class; COMMIT;", 300),
        ("SELECT 1;", 1000),
        ("BEGIN; SELECT 1; COMMIT;", 300),
    ]
    .map(time_slices);
    assert!(of[0] > 1000 && of[1] > 300 && of[2] < 500 && of[3] < 150, "{of:?}");
}

#[test]
fn nothing_is_kept_of_the_block_of_a_client_that_is_gone() {
    for_seeds("nothing_is_kept_of_the_block_of_a_client_that_is_gone", 4, |seed| {
        alone(seed, async |cpu, terminal, monitor| {
            let before = Arc::strong_count(monitor.database());
            let begin = "SET idle_in_transaction_session_timeout = '1d'; BEGIN; SELECT write(1, 1, 16)";
            assert_eq!(terminal.ask(begin).await.expect("a reply").error, None);
            assert_eq!(Arc::strong_count(monitor.database()), before + 1, "that of the transaction");
            terminal.close();
            cpu.sleep(Duration::from_secs(1)).await;
            assert_eq!(Arc::strong_count(monitor.database()), before);
        });
    });
}

#[test]
fn who_let_a_transaction_without_begin_expire_is_told_so() {
    for_seeds("who_let_a_transaction_without_begin_expire_is_told_so", 4, |seed| {
        alone(seed, async |cpu, terminal, _| {
            for rest in [sync(), [step("SELECT look(1)"), sync()].concat()] {
                terminal.send([step("SELECT write(1, 1, 16)"), flush()].concat()).await.expect("sent");
                cpu.sleep(TOO_LONG).await;
                terminal.send(rest).await.expect("sent");
                let reply = terminal.reply().await.expect("a reply");
                assert_eq!((reply.error.as_deref(), reply.status), (Some("25P03"), b'I'));
                // It is over, with all that it wrote.
                let reply = terminal.ask("SELECT look(1)").await.expect("a reply");
                assert_eq!((reply.values, reply.error, reply.status), (vec![None], None, b'I'));
            }
        });
    });
}

/// Has these made one after the other in a block, until one is refused with this code.
async fn first_refusal(terminal: &Terminal, all: impl Iterator<Item = Vec<u8>>) -> Option<String> {
    terminal.ask("BEGIN").await.expect("a reply");
    for made in all {
        terminal.send([made, sync()].concat()).await.expect("sent");
        let reply = terminal.reply().await.expect("a reply");
        if reply.error.is_some() {
            terminal.ask("ROLLBACK").await.expect("a reply");
            return reply.error;
        }
    }
    None
}

#[test]
fn statements_and_portals_count_as_what_they_take() {
    alone(1, async |_, terminal, _| {
        let columns = format!("SELECT {}", vec!["1"; 100].join(","));
        let statements = (0..1000).map(|number| parse(&format!("s{number}"), &columns));
        assert_eq!(first_refusal(&terminal, statements).await.as_deref(), Some("54000"));
        // A portal has its statement also when the next one has its name.
        let long = format!("SELECT '{}'", "x".repeat(900_000));
        let portals = (0..8).map(|number| [parse("", &long), bind(&format!("p{number}"))].concat());
        assert_eq!(first_refusal(&terminal, portals).await.as_deref(), Some("54000"));
    });
}

#[test]
fn statements_are_forgotten_before_those_that_are_prepared_after_it() {
    alone(1, async |_, terminal, _| {
        let ask = async |asked: &[Vec<u8>]| {
            terminal.send([asked.concat(), sync()].concat()).await.expect("sent");
            let reply = terminal.reply().await.expect("a reply");
            (reply.values.into_iter().flatten().collect::<String>(), reply.error)
        };
        for (number, forget) in ["DEALLOCATE ALL", "DEALLOCATE s", "DISCARD ALL"].into_iter().enumerate() {
            assert_eq!(ask(&[parse("s", "SELECT 'old'")]).await, (String::new(), None), "{forget}");
            let new = parse("s", &format!("SELECT {number}"));
            let told = (number.to_string(), None);
            assert_eq!(ask(&[step(forget), new, execute("s")]).await, told, "{forget}");
            assert_eq!(ask(&[execute("s"), step("DEALLOCATE s")]).await, told, "{forget}");
        }
        for forget in ["DEALLOCATE ALL", "DISCARD ALL"] {
            assert_eq!(ask(&[step(forget), parse("t", "SELECT 'new'")]).await.1, None, "{forget}");
            assert_eq!(ask(&[execute("t")]).await, ("new".to_owned(), None), "{forget}");
        }
        // Each of these comes too late, or not.
        for late in [execute("s"), message(b'D', b"Ss\0"), parse("s", "SELECT 2")] {
            assert_eq!(ask(&[parse("s", "SELECT 1")]).await.1, None);
            let found = ask(&[step("DEALLOCATE s"), late.clone()]).await.1;
            assert_eq!(found.as_deref(), (late[0] != b'P').then_some("26000"));
            ask(&[message(b'C', b"Ss\0")]).await;
        }
        assert_eq!(ask(&[parse("s", "SELECT 1"), step("DEALLOCATE s"), message(b'C', b"Ss\0")]).await.1, None);
        // What was called before it is still of the same transaction as what comes after it.
        let (write, forget) = (step("SELECT write(1, 1, 16)"), step("DEALLOCATE ALL"));
        let (_, error) = ask(&[write, forget, parse("s", "SELECT 1"), execute("no")]).await;
        assert_eq!(error.as_deref(), Some("26000"));
        assert_eq!(terminal.ask("SELECT look(1)").await.expect("a reply").values, [None]);
    });
}

#[test]
fn what_all_sessions_hold_together_has_a_bound_and_little_is_always_possible() {
    const SESSIONS: usize = 12;
    let long = "x".repeat(900_000);
    let statement = format!("SELECT '{long}'");
    let statements: Vec<_> = (0..4).map(|number| parse(&format!("s{number}"), &statement)).collect();
    let portals: Vec<_> = (0..4).map(|number| bind(&format!("p{number}"))).collect();
    let value = [b"\0s\0\0\0\0\x01", &(long.len() as u32).to_be_bytes()[..], long.as_bytes(), b"\0\0"].concat();
    let arguments = [parse("s", "SELECT $1"), message(b'B', &value).repeat(4)];
    let results = [parse("s", &statement), execute("s").repeat(4)];
    for (held, what) in [
        ("statements", statements.concat()),
        ("portals", [parse("", &statement), portals.concat()].concat()),
        ("arguments", arguments.concat()),
        ("results", results.concat()),
    ] {
        several(1, SESSIONS + 1, async move |cpu, mut terminals, _| {
            let little = terminals.pop().expect("one more");
            // Each has 3.4 MiB or more, of 32 MiB; and after all others have let go, one alone.
            for (count, may_be_refused) in [(SESSIONS, SESSIONS - 9..SESSIONS), (1, 0..1)] {
                terminals.truncate(count);
                for terminal in &terminals {
                    terminal.ask("BEGIN; SAVEPOINT a").await.expect("a reply");
                    terminal.send(what.clone()).await.expect("sent");
                }
                // Until all of it has arrived.
                cpu.sleep(Duration::from_secs(10)).await;
                little.send([parse("", "SELECT look(1)"), execute(""), sync()].concat()).await.expect("sent");
                assert_eq!(little.reply().await.expect("a reply").error, None, "beside {held}");
                let mut refused = 0;
                for terminal in &terminals {
                    terminal.send(sync()).await.expect("sent");
                    let reply = terminal.reply().await.expect("a reply");
                    assert!(reply.error.is_none() || reply.error.as_deref() == Some("53200"), "{held}: {reply:?}");
                    refused += usize::from(reply.error.is_some());
                    if reply.error.is_some() {
                        // As after any failure of a block.
                        let reply = terminal.ask("SAVEPOINT a").await.expect("a reply");
                        assert_eq!((reply.error.as_deref(), reply.status), (Some("25P02"), b'E'), "{held}");
                        let reply = terminal.ask("ROLLBACK TO a").await.expect("a reply");
                        assert_eq!((reply.error, reply.status), (None, b'T'), "{held}");
                    }
                }
                assert!(may_be_refused.contains(&refused), "{refused} of {count} are refused for their {held}");
                for terminal in &terminals {
                    terminal.send([step("ROLLBACK"), step("DEALLOCATE ALL"), sync()].concat()).await.expect("sent");
                    assert_eq!(terminal.reply().await.expect("a reply").error, None, "after {held}");
                }
            }
        });
    }
}

#[test]
fn statements_that_stay_prepared_keep_nobody_from_long_arguments_and_results() {
    several(1, 13, async |_, mut terminals, _| {
        let long = format!("SELECT '{}'", "x".repeat(900_000));
        let caller = terminals.pop().expect("one more");
        let mut refused = 0;
        for (terminal, number) in terminals.iter().flat_map(|terminal| (0..4).map(move |number| (terminal, number))) {
            terminal.send([parse(&format!("s{number}"), &long), sync()].concat()).await.expect("sent");
            refused += usize::from(terminal.reply().await.expect("a reply").error.as_deref() == Some("53200"));
        }
        assert!(refused > 0, "there is room for more");
        assert_eq!(caller.ask(&long).await.expect("a reply").error, None);
    });
}

#[test]
fn settings_last_as_long_as_they_were_meant_to_and_clients_are_told_of_each() {
    alone(1, async |_, terminal, _| {
        for (text, shown, told) in [
            ("BEGIN; SET LOCAL application_name = a", "a", &["a"][..]),
            ("BEGIN; SET LOCAL application_name = a; SELECT write(1, 1, 16); COMMIT", "test", &["a", "test"]),
            ("BEGIN; SET application_name = a; COMMIT", "a", &["a"]),
            ("BEGIN; SET application_name = a; ROLLBACK", "test", &["a", "test"]),
            ("BEGIN; SET LOCAL application_name = a; SET application_name = b; COMMIT", "b", &["a", "b"]),
            ("BEGIN; SET application_name = b; SET LOCAL application_name = a; COMMIT", "b", &["b", "a", "b"]),
            ("SET application_name = a; BEGIN; RESET ALL; ROLLBACK", "a", &["a", "test", "a"]),
            ("SET LOCAL application_name = a", "test", &[]),
            ("SET application_name = a; RESET application_name", "test", &["a", "test"]),
            ("SET application_name = a; SET application_name TO DEFAULT", "test", &["a", "test"]),
            ("SET application_name = a; SET statement_timeout = 5; RESET ALL", "test", &["a", "test"]),
            ("SET application_name = a; DISCARD ALL", "test", &["a", "test"]),
        ] {
            let reply = terminal.ask(text).await.expect("a reply");
            assert_eq!((reply.error, reply.settings), (None, named(told)), "{text}");
            let reply = terminal.ask("SHOW application_name").await.expect("a reply");
            assert_eq!(reply.values, [Some(shown.to_owned())], "{text}");
            terminal.ask("ROLLBACK").await.expect("a reply");
            terminal.ask("DISCARD ALL").await.expect("a reply");
        }
    });
}

fn named(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| format!("application_name={value}")).collect()
}
