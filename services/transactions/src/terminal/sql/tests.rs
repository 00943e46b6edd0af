use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::terminal::message::MESSAGE_BYTES_MAX;
use crate::terminal::refusal::Refusal;

fn one(query: &str) -> Statement {
    let mut statements = parse(query).unwrap_or_else(|refusal| panic!("{query}: {}", refusal.message));
    assert_eq!(statements.len(), 1, "{query}");
    statements.remove(0)
}

fn call(query: &str) -> (Call, Option<String>) {
    match one(query) {
        Statement::Query(Query { mut columns, .. }) => match columns.remove(0) {
            Column { what: Expression::Call(call), alias } => (call, alias),
            other => panic!("{query}: {other:?}"),
        },
        other => panic!("{query}: {other:?}"),
    }
}

fn refusal(query: &str) -> Refusal {
    parse(query).expect_err(query)
}

fn literals(query: &str) -> Vec<Literal> {
    call(query).0.arguments.into_iter().map(|constant| constant.literal).collect()
}

#[test]
fn calls_are_written_in_many_ways() {
    let expected = vec![Literal::Number("1".into()), Literal::Number("-2".into()), Literal::Text("it's".into())];
    for query in [
        "SELECT f(1, -2, 'it''s')",
        "select F ( 1 , - 2 , E'it\\'s' ) ;",
        "SELECT * FROM f(1, -2, 'it''s')",
        "select * from public.f(1,-2,'it''s') as result",
        "CALL f(1, -2, 'it''s')",
        "/* a /* nested */ comment */ SELECT -- and one\n f(1, -2, 'it''s')",
    ] {
        assert_eq!(literals(query), expected, "{query}");
        assert_eq!(call(query).0.function, "f");
    }
    assert_eq!(
        call("SELECT \"F\"() AS \"Total\""),
        (Call { function: "F".into(), arguments: vec![], position: 8 }, Some("Total".into()))
    );
    assert_eq!(call("SELECT f() total").1.as_deref(), Some("total"));
}

#[test]
fn constants_may_stand_in_parentheses() {
    let cast = Constant { literal: Literal::Text("5".into()), casts: vec![SqlType::Int8] };
    for query in
        ["SELECT f(('5'::int8))", "SELECT f((('5'))::int8)", "SELECT f(CAST(('5') AS int8))", "SELECT f((int8 '5'))"]
    {
        assert_eq!(call(query).0.arguments, std::slice::from_ref(&cast), "{query}");
    }
    let expected = ["5", "-5", "5", "-5", "5", "5"].map(|text| Literal::Number(text.into()));
    assert_eq!(literals("SELECT f((5), ((-5)), -(-5), -(+(5)), - -5, +(5))"), expected);
    assert_eq!(literals("CALL f((NULL), ($1))"), [Literal::Null, Literal::Parameter(1)]);
    let deep = |depth| format!("SELECT f({}1{})", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(literals(&deep(50)), [Literal::Number("1".into())]);
    for (query, state) in [
        (deep(100_000).as_str(), "54000"),
        (format!("SELECT f({}1)", "- ".repeat(100_000)).as_str(), "54000"),
        ("SELECT f((1 / 2))", "0A000"),
        ("SELECT f(-('5'))", "0A000"),
        ("SELECT f(-(5::int4))", "0A000"),
        ("SELECT f((SELECT 1))", "0A000"),
        ("SELECT f(())", "0A000"),
        ("SELECT f((1)", "42601"),
    ] {
        assert_eq!(refusal(query).state.0, state, "{}", refusal(query).message);
    }
}

#[test]
fn casts_come_in_three_forms() {
    for query in ["SELECT f($1::bigint)", "SELECT f(CAST($1 AS int8))", "SELECT f(cast ($1 as pg_catalog.int8))"] {
        let (call, _) = call(query);
        assert_eq!(
            call.arguments,
            [Constant { literal: Literal::Parameter(1), casts: vec![SqlType::Int8] }],
            "{query}"
        );
    }
    let (call, _) = call("SELECT f(float8 '1', '2'::text::double precision)");
    assert_eq!(call.arguments[0].casts, [SqlType::Float8]);
    assert_eq!(call.arguments[1].casts, [SqlType::Text, SqlType::Float8]);
}

#[test]
fn statements_about_transactions_and_the_session_are_known() {
    let lasting = |local: bool| {
        move |name: &str, value: Option<&str>| {
            let (name, value) = (name.into(), value.map(Into::into));
            Statement::Set { name, value, local }
        }
    };
    let (set, set_local) = (lasting(false), lasting(true));
    let begin = |read_only| Statement::Begin { read_only };
    let savepoint = |action, name: &str| Statement::Savepoint { action, name: name.to_owned() };
    for (query, expected) in [
        ("BEGIN", begin(None)),
        ("begin transaction isolation level read committed, read write", begin(Some(false))),
        ("BEGIN READ ONLY", begin(Some(true))),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE", begin(Some(true))),
        ("START TRANSACTION ISOLATION LEVEL SERIALIZABLE NOT DEFERRABLE", begin(None)),
        ("SET TRANSACTION READ ONLY", Statement::ReadOnly(true)),
        ("SET transaction_read_only = off", Statement::ReadOnly(false)),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", Statement::Nothing("SET")),
        ("COMMIT WORK", Statement::Commit),
        ("END", Statement::Commit),
        ("ROLLBACK AND NO CHAIN", Statement::Rollback),
        ("ABORT", Statement::Rollback),
        ("SAVEPOINT A", savepoint(SavepointAction::Make, "a")),
        ("savepoint \"A b\"", savepoint(SavepointAction::Make, "A b")),
        ("RELEASE SAVEPOINT a", savepoint(SavepointAction::Release, "a")),
        ("RELEASE a", savepoint(SavepointAction::Release, "a")),
        ("ROLLBACK TO SAVEPOINT a", savepoint(SavepointAction::RollBackTo, "a")),
        ("ROLLBACK WORK TO a", savepoint(SavepointAction::RollBackTo, "a")),
        ("SET extra_float_digits = 3", set("extra_float_digits", Some("3"))),
        ("SET LOCAL a TO 'x', y, -1", set_local("a", Some("x, y, -1"))),
        ("SET LOCAL TIME ZONE DEFAULT", set_local("timezone", None)),
        ("RESET a", set("a", None)),
        ("SET SESSION DateStyle TO DEFAULT", set("datestyle", None)),
        ("SET TIME ZONE 'UTC'", set("timezone", Some("UTC"))),
        ("SET TIME ZONE LOCAL", set("timezone", None)),
        ("SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE", set("timezone", Some("<+00>-00"))),
        ("SET TIME ZONE INTERVAL '-05:30'", set("timezone", Some("<-05:30>+05:30"))),
        ("SET LOCAL TIME ZONE interval '2' hour", set_local("timezone", Some("<+02>-02"))),
        ("SET TIME ZONE -3", set("timezone", Some("-3"))),
        ("SET NAMES 'UTF8'", set("client_encoding", Some("UTF8"))),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", set("default_transaction_read_only", Some("off"))),
        ("SHOW TRANSACTION ISOLATION LEVEL", Statement::Show(Some("transaction_isolation".into()))),
        ("SHOW ALL", Statement::Show(None)),
        ("RESET ALL", Statement::ResetAll),
        ("DISCARD ALL", Statement::DiscardAll),
        ("DEALLOCATE PREPARE \"S_1\"", Statement::Deallocate(Some("S_1".into()))),
        ("DEALLOCATE ALL", Statement::Deallocate(None)),
        ("UNLISTEN *", Statement::Nothing("UNLISTEN")),
        ("CLOSE ALL", Statement::Nothing("CLOSE CURSOR ALL")),
    ] {
        assert_eq!(one(query), expected, "{query}");
    }
    assert_eq!(parse("BEGIN; SELECT f(1);; COMMIT;").map(|all| all.len()), Ok(3));
    assert_eq!(parse(" ;; -- nothing").map(|all| all.len()), Ok(0));
}

#[test]
fn anything_else_gets_an_error_that_says_what_is_served() {
    for (query, state, position) in [
        ("INSERT INTO t VALUES (1)", "0A000", Some(1)),
        ("SELECT f(1) FROM t", "0A000", Some(13)),
        ("SELECT f(1) + 1", "0A000", Some(13)),
        ("SELECT f(1 / 1)", "0A000", Some(12)),
        ("SELECT f(g(1))", "0A000", Some(10)),
        ("SELECT abalance FROM pgbench_accounts", "42703", Some(8)),
        ("SELECT * FROM pgbench_accounts", "42703", Some(15)),
        ("SELECT other.f(1)", "3F000", Some(8)),
        ("SELEC f(1)", "42601", Some(1)),
        ("SELECT f(1", "42601", Some(11)),
        ("SELECT f(1)) ", "42601", Some(12)),
        ("SELECT 'open", "42601", Some(8)),
        ("SELECT f(1::money)", "42704", Some(13)),
        ("SELECT f($0)", "42P02", Some(10)),
        ("SELECT $$text$$", "0A000", Some(8)),
        ("BEGIN READ", "42601", Some(11)),
        ("SET TIME ZONE INTERVAL '1 day'", "0A000", Some(24)),
        ("SET TIME ZONE INTERVAL '2' MINUTE", "0A000", Some(24)),
        ("SET TIME ZONE INTERVAL '+02:60'", "0A000", Some(24)),
        ("SAVEPOINT", "42601", Some(10)),
        ("ROLLBACK TO 1", "42601", Some(13)),
        ("COMMIT TO a", "42601", Some(8)),
        ("COMMIT AND CHAIN", "0A000", None),
        ("CALL 1", "42601", Some(6)),
    ] {
        let refusal = refusal(query);
        assert_eq!(refusal.state.0, state, "{query}: {}", refusal.message);
        if position.is_some() {
            assert_eq!(refusal.position, position, "{query}: {}", refusal.message);
        }
    }
    assert!(refusal("INSERT INTO t VALUES (1)").hint.is_some_and(|hint| hint.contains("SELECT f(...)")));
}

/// As by PostgreSQL, with which they are well-formed.
#[test]
fn what_the_lexer_refuses_is_refused_where_it_is() {
    for (refused, state) in [
        ("DO $$ BEGIN END $$", "0A000"),
        ("CREATE FUNCTION f() AS $a$ SELECT 1; $a$", "0A000"),
        ("SELECT f($$a$$)", "0A000"),
        ("SELECT 1 $$a$$", "0A000"),
        ("SELECT f(E'\\x41')", "0A000"),
        ("SELECT f($99999)", "42P02"),
        ("SET a = $$a$$", "0A000"),
        ("$$a$$", "0A000"),
        ("SELECT oid FROM pg_class WHERE relname = $$a$$", "0A000"),
    ] {
        let statements = parse(&format!("BEGIN; {refused}; COMMIT")).unwrap_or_else(|_| panic!("{refused}"));
        match &statements[..] {
            [Statement::Begin { .. }, Statement::Refused(refusal)] => assert_eq!(refusal.state.0, state, "{refused}"),
            other => panic!("{refused}: {other:?}"),
        }
        assert_eq!(refusal(refused).state.0, state, "{refused}");
    }
    assert_eq!(refusal("BEGIN; SELECT 'open").state.0, "42601");
}

#[test]
fn integers_are_calculated_as_by_postgresql() {
    let number = |text: &str| literals(&format!("SELECT f({text})"))[0].clone();
    for (text, result) in [
        ("1+1", "2"),
        ("1 - -2", "3"),
        ("2 -1", "1"),
        ("1 + 2 * 3 - 4", "3"),
        ("(1 + 2) * -3", "-9"),
        ("-(2 - 5) - 1 - 1", "1"),
        ("2 * 3 * 4 + 5 * 6", "54"),
        ("-2147483647 - 1", "-2147483648"),
    ] {
        assert_eq!(number(text), Literal::Number(result.into()), "{text}");
    }
    assert_eq!(one("SELECT 1+1 AS result"), one("SELECT 2 AS result"));
    for (text, state) in [
        ("2147483647 + 1", "22003"),
        ("1 + 65536 * 65536", "22003"),
        ("1 + (2147483647 + 1)", "22003"),
        ("1 + '1'::foo", "42704"),
        (&format!("1 + {}", "(".repeat(101)), "54000"),
        ("2147483648 - 1", "0A000"),
        ("1.5 + 1", "0A000"),
        ("1 / 1", "0A000"),
        ("1 + '1'", "0A000"),
        ("1::int8 + 1", "0A000"),
        ("1 + $1", "0A000"),
        ("1 + g(1)", "0A000"),
    ] {
        for query in [format!("SELECT {text}"), format!("SELECT f({text})")] {
            assert_eq!(refusal(&query).state.0, state, "{query}");
        }
    }
}

#[test]
fn lists_and_queries_have_bounds() {
    let many = |count: usize| format!("SELECT f({})", vec!["1"; count].join(","));
    assert!(parse(&many(100)).is_ok());
    assert_eq!(refusal(&many(101)).state.0, "54000");
    assert!(parse(&"SELECT 1;".repeat(STATEMENTS_MAX)).is_ok());
    assert_eq!(refusal(&"SELECT 1;".repeat(STATEMENTS_MAX + 1)).state.0, "54000");
    let nested = "cast(".repeat(100_000);
    assert!(parse(&format!("SELECT {nested}")).is_err(), "the depth is not the client's choice");
    let cast = |count: usize| format!("SELECT f(1{})", "::int8".repeat(count));
    assert!(parse(&cast(8)).is_ok());
    assert_eq!(refusal(&cast(9)).state.0, "54000");
    assert_eq!(refusal(&format!("SELECT f({}1{})", "cast(".repeat(9), " as int8)".repeat(9))).state.0, "54000");
}

/// Nobody else is served by the processor meanwhile.
#[test]
fn what_is_repeated_until_a_message_is_full_is_parsed_in_time_that_grows_with_its_length() {
    /// The first of these took 11 s when each part of the name copied those before it.
    const MOST: Duration = Duration::from_secs(4);
    for (begin, repeated) in [
        ("SHOW a", ".a"),
        ("SET a", ".a"),
        ("RESET a", ".a"),
        ("SET a = b", ", b"),
        ("SET a = b", ", - 1"),
        ("BEGIN", " READ ONLY,"),
        ("SELECT f(", "("),
        ("SELECT f(", "-"),
        ("SELECT f(1", ",1"),
        ("SELECT f(1", "::text"),
        ("SELECT f(", "cast("),
        ("SELECT 1", ", 1"),
        ("SELECT 1", "1"),
        ("SELECT a", "a"),
        ("SELECT a", ".a"),
        ("SELECT '", "''"),
        ("SELECT E'", "\\n"),
        ("SELECT \"", "\"\""),
        ("SELECT ", "\"a\""),
        ("", "/*"),
        ("", "/* */"),
        ("", "--\n"),
        ("", ";"),
        ("", "SELECT 1;"),
        ("", "$1"),
        ("SELECT oid FROM pg_class WHERE ", "("),
        ("SELECT oid FROM pg_class WHERE a", " AND a.oid IN ($1)"),
        ("SELECT oid FROM pg_class", ", pg_class"),
        ("SELECT oid FROM pg_type", " JOIN pg_proc ON typinput"),
        ("SELECT oid FROM pg_type WHERE oid IN (1", ",1"),
        ("SELECT oid FROM pg_type WHERE true", " AND oid = 1"),
        ("", &format!("SELECT oid FROM pg_type WHERE {}oid = 1{};", "(".repeat(1000), ")".repeat(1000))),
        ("SELECT oid", ".oid"),
        ("SELECT oid", "::oid"),
        ("SELECT max", "(select max(1))"),
        ("WITH ", "a (b) AS (SELECT c FROM pg_class),"),
        ("WITH ", ")as"),
        ("WITH a AS () SELECT a FROM a", ",a"),
    ] {
        let query = format!("{begin}{}", repeated.repeat((MESSAGE_BYTES_MAX - begin.len()) / repeated.len()));
        let begun = Instant::now();
        let _ = parse(&query);
        assert!(begun.elapsed() < MOST, "{begin}{repeated}...: {:?}", begun.elapsed());
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_within_it(query in "\\PC{0,60}") {
        if let Err(refusal) = parse(&query)
            && let Some(position) = refusal.position
        {
            prop_assert!((1..=query.chars().count() + 1).contains(&position), "{}", position);
        }
    }

    #[test]
    fn any_words_of_the_language_are_parsed_or_refused(words in prop::collection::vec(prop::sample::select(vec![
        "select", "call", "*", "from", "f", "(", ")", ",", "1", "'x'", "$1", "::", "bigint", "cast", "as", ";", "-",
        "begin", "set", "=", "to", "default", "show", "all", "transaction", "isolation", "level", "null", ".", "\"Q\"",
    ]), 0..20)) {
        let _ = parse(&words.join(" "));
    }

    /// What a driver quotes arrives as it was.
    #[test]
    fn texts_survive_quoting(text in "\\PC{0,40}") {
        let query = format!("SELECT f('{}')", text.replace('\'', "''"));
        prop_assert_eq!(literals(&query), [Literal::Text(text)]);
    }
}
