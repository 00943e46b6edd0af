//! Savepoints: a client returns to what its block had written before, as with a model.

use std::collections::BTreeMap;

use testkit::random::Random;
use testkit::rounds::for_seeds;

use super::program::found;
use super::sessions::{TOO_LONG, alone, several};
use super::terminal::{message, parse, step, sync};

const KEYS: u64 = 4;
const NAMES: [&str; 3] = ["a", "b", "\"A\""];

/// The versions of rows, and a setting.
#[derive(Clone, Default)]
struct Model {
    rows: BTreeMap<u64, u64>,
    setting: u64,
}

#[test]
fn a_block_returns_to_its_savepoints_also_after_a_failure() {
    for_seeds("a_block_returns_to_its_savepoints_also_after_a_failure", 60, |seed| {
        alone(seed, async move |_, terminal, _| {
            let mut random = Random(seed);
            let (mut committed, mut version) = (Model::default(), 0);
            for _ in 0..4 {
                let (mut model, mut savepoints, mut has_failed) = (committed.clone(), Vec::new(), false);
                terminal.ask("BEGIN").await.expect("a reply");
                for _ in 0..random.below(40) {
                    let (name, key) = (random.index(NAMES.len()), random.below(KEYS));
                    let at = savepoints.iter().rposition(|(of, _): &(usize, Model)| *of == name);
                    let absent = if at.is_none() { Some("3B001") } else { None };
                    let in_failed = has_failed.then_some("25P02");
                    version += 1;
                    let (text, refused) = match random.below(12) {
                        0..4 => (format!("SELECT write({key}, {version}, 16)"), in_failed),
                        4 => (format!("SELECT remove({key})"), in_failed),
                        5 => (format!("SELECT look({key})"), in_failed),
                        6 => (format!("SET application_name = '{version}'"), in_failed),
                        7..9 => (format!("SAVEPOINT {}", NAMES[name]), in_failed),
                        9 => (format!("RELEASE {}", NAMES[name]), in_failed.or(absent)),
                        10 => (format!("ROLLBACK TO {}", NAMES[name]), absent),
                        _ => ("SELECT transfer(1, 2, 1000)".to_owned(), Some(in_failed.unwrap_or("P0001"))),
                    };
                    let reply = terminal.ask(&text).await.expect("a reply");
                    assert_eq!(reply.error.as_deref(), refused, "{text}");
                    has_failed |= refused.is_some();
                    if refused.is_some() {
                        assert_eq!(reply.status, b'E', "{text}");
                        continue;
                    }
                    let before = model.rows.get(&key).copied();
                    match text.split([' ', '(']).nth(1) {
                        Some("write") => drop(model.rows.insert(key, version)),
                        Some("remove") => drop(model.rows.remove(&key)),
                        Some("application_name") => model.setting = version,
                        _ => {}
                    }
                    if text.starts_with("SELECT") {
                        let saw = found(reply.values[0].as_deref()).map(|seen| seen.version.0);
                        assert_eq!(saw, before, "{text}");
                    }
                    match (text.split(' ').next(), at) {
                        (Some("SAVEPOINT"), _) => savepoints.push((name, model.clone())),
                        (Some("RELEASE"), Some(at)) => savepoints.truncate(at),
                        (Some("ROLLBACK"), Some(at)) => {
                            savepoints.truncate(at + 1);
                            let told = model.setting != savepoints[at].1.setting;
                            assert_eq!(reply.settings.len(), usize::from(told), "{text}: {:?}", reply.settings);
                            model = savepoints[at].1.clone();
                            has_failed = false;
                        }
                        _ => {}
                    }
                    assert_eq!(reply.status, b'T', "{text}");
                }
                let commits = random.chance(700);
                let reply = terminal.ask(if commits { "COMMIT" } else { "ROLLBACK" }).await.expect("a reply");
                let is_committed = commits && !has_failed;
                let tag = if is_committed { "COMMIT" } else { "ROLLBACK" };
                assert_eq!((reply.error, reply.tags, reply.status), (None, vec![tag.to_owned()], b'I'));
                if is_committed {
                    committed = model;
                }
                for key in 0..KEYS {
                    let reply = terminal.ask(&format!("SELECT look({key})")).await.expect("a reply");
                    let saw = found(reply.values[0].as_deref()).map(|seen| seen.version.0);
                    assert_eq!(saw, committed.rows.get(&key).copied(), "{key}");
                }
                let setting = terminal.ask("SHOW application_name").await.expect("a reply").values;
                let expected = if committed.setting == 0 { "test".to_owned() } else { committed.setting.to_string() };
                assert_eq!(setting, [Some(expected)]);
            }
        });
    });
}

#[test]
fn a_conflict_ends_the_transaction_though_its_client_returns_to_a_savepoint() {
    for_seeds("a_conflict_ends_the_transaction_though_its_client_returns_to_a_savepoint", 4, |seed| {
        several(seed, 2, async |_, terminals, _| {
            let [one, other] = terminals.as_slice() else { unreachable!("two") };
            let ask = async |text: &str| one.ask(text).await.expect("a reply");
            ask("BEGIN; SAVEPOINT a; SELECT look(1)").await;
            assert_eq!(other.ask("SELECT write(1, 1, 16)").await.expect("a reply").error, None);
            let reply = ask("ROLLBACK TO a; SELECT write(2, 2, 16)").await;
            assert_eq!((reply.error, reply.status), (None, b'T'));
            assert_eq!(ask("COMMIT").await.error.as_deref(), Some("40001"));
            assert_eq!(ask("SELECT look(2)").await.values, [None]);
        });
    });
}

#[test]
fn savepoints_are_of_blocks_have_bounds_and_end_with_an_idle_block() {
    alone(1, async |cpu, terminal, _| {
        let ask = async |text: &str| terminal.ask(text).await.expect("a reply");
        for text in ["SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "SELECT look(1); SAVEPOINT a"] {
            let reply = ask(text).await;
            assert_eq!((reply.error.as_deref(), reply.status), (Some("25P01"), b'I'), "{text}");
        }
        ask("BEGIN").await;
        let mut made = 0;
        let refused = loop {
            match ask(&"SAVEPOINT a; SAVEPOINT b;".repeat(100)).await.error {
                None => made += 200,
                refused => break refused,
            }
        };
        assert_eq!(refused.as_deref(), Some("54000"));
        // Each is some 60 bytes of 1 MiB.
        assert!((10_000..20_000).contains(&made), "{made}");
        // A client could take an older one for that which it did not get.
        let reply = ask("ROLLBACK TO a").await;
        assert_eq!((reply.error.as_deref(), reply.status), (Some("3B001"), b'E'));
        assert_eq!(ask("COMMIT").await.tags, ["ROLLBACK"]);
        // What was released does not count.
        ask("BEGIN").await;
        for _ in 0..made / 100 {
            let reply = ask(&"SAVEPOINT a; SAVEPOINT b; RELEASE a;".repeat(100)).await;
            assert_eq!((reply.error, reply.status), (None, b'T'));
        }
        ask("ROLLBACK").await;
        // A block that failed has a transaction for its savepoint's sake: it is not kept for longer than any other.
        let reply = ask("BEGIN; SAVEPOINT a; SELECT transfer(1, 2, 1000)").await;
        assert_eq!((reply.error.as_deref(), reply.status), (Some("P0001"), b'E'));
        cpu.sleep(TOO_LONG).await;
        let reply = ask("ROLLBACK TO a").await;
        assert_eq!((reply.error.as_deref(), reply.status), (Some("25P03"), b'E'));
        assert_eq!(ask("ROLLBACK").await.error, None);
        let reply = ask("BEGIN; ROLLBACK TO a").await;
        assert_eq!(reply.error.as_deref(), Some("3B001"));
        ask("ROLLBACK").await;
    });
}

#[test]
fn a_savepoint_before_each_statement_of_a_long_block_does_not_end_it() {
    alone(1, async |_, terminal, _| {
        let ask = async |text: &str| terminal.ask(text).await.expect("a reply");
        ask("BEGIN").await;
        for text in ["SELECT 1", "SELECT write(1, 1, 16)"] {
            for _ in 0..30 {
                let reply = ask(&format!("SAVEPOINT a; {text};").repeat(100)).await;
                assert_eq!((reply.error, reply.status), (None, b'T'));
            }
        }
        let reply = ask("SELECT transfer(1, 2, 1000)").await;
        assert_eq!((reply.error.as_deref(), reply.status), (Some("P0001"), b'E'));
        assert_eq!(ask("ROLLBACK TO a; COMMIT").await.tags, ["ROLLBACK", "COMMIT"]);
        assert!(found(ask("SELECT look(1)").await.values[0].as_deref()).is_some());
    });
}

#[test]
fn a_portal_ends_with_the_savepoint_after_which_it_was_made() {
    alone(1, async |_, terminal, _| {
        let ask = async |asked: Vec<u8>| {
            terminal.send([asked, sync()].concat()).await.expect("sent");
            terminal.reply().await.expect("a reply")
        };
        ask(parse("s", "SELECT 1")).await;
        let made = |name: &str| message(b'B', format!("{name}\0s\0\0\0\0\0\0\0").as_bytes());
        for (last, end, left) in [
            ("b", "ROLLBACK TO b", "pq"),
            ("b", "ROLLBACK TO a", "p"),
            ("a", "ROLLBACK TO a", "pq"),
            ("b", "RELEASE b", "pqr"),
            ("b", "RELEASE b; ROLLBACK TO a", "p"),
            ("a", "RELEASE a; ROLLBACK TO a", "p"),
            ("b", "RELEASE a", "pqr"),
        ] {
            let first = [step("BEGIN"), made("p"), step("SAVEPOINT a"), made("q")];
            let asked = [first.concat(), step(&format!("SAVEPOINT {last}")), made("r")].concat();
            assert_eq!(ask(asked).await.error, None);
            assert_eq!(terminal.ask(end).await.expect("a reply").error, None, "{end}");
            for portal in ["p", "q", "r"] {
                let described = ask(message(b'D', format!("P{portal}\0").as_bytes())).await;
                let gone = (!left.contains(portal)).then_some("34000");
                assert_eq!(described.error.as_deref(), gone, "{portal} after {end}");
            }
            terminal.ask("ROLLBACK").await.expect("a reply");
        }
    });
}
