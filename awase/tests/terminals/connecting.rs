//! What clients send by themselves when they connect.

use crate::bank::Bank;
use crate::client::{Client, code, message, query};

/// Of a user alone: the database has the same name.
fn startup(user: &str) -> Vec<u8> {
    let body = [&(3_u32 << 16).to_be_bytes()[..], b"user\0", user.as_bytes(), b"\0\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

/// HAProxy's `pgsql-check` takes the first byte.
#[test]
fn who_is_authenticated_is_told_so_before_the_database_is_refused_and_nobody_else_hears_of_databases() {
    let bank = Bank::open();
    let mut client = Client::connect(&bank);
    client.send(&startup("haproxy"));
    assert_eq!(client.next(), Some((b'R', vec![0; 4])), "AuthenticationOk");
    let (kind, refused) = client.next().expect("a refusal");
    assert_eq!((kind, code(&refused).as_str()), (b'E', "3D000"));
    drop(bank);
    let bank = Bank::open_with("[[user]]\nname = \"ann\"\npassword = \"secret\"");
    for user in ["ann", "haproxy"] {
        let mut client = Client::connect(&bank);
        client.send(&startup(user));
        let (kind, asked) = client.next().expect("a question");
        assert_eq!((kind, &asked[..4]), (b'R', &[0, 0, 0, 10][..]), "AuthenticationSASL");
        client.send(&message(b'p', b"SCRAM-SHA-256\0\0\0\0\x20n,,n=,r=abcdefghijklmnopqrstuvwx"));
        let (kind, asked) = client.next().expect("a challenge");
        assert_eq!((kind, &asked[..4]), (b'R', &[0, 0, 0, 11][..]), "AuthenticationSASLContinue");
        let nonce = asked[4..].split(|byte| *byte == b',').next().expect("a nonce");
        let wrong = [b"c=biws,", nonce, b",p=", "A".repeat(43).as_bytes(), b"="].concat();
        client.send(&message(b'p', &wrong));
        let (kind, refused) = client.next().expect("a refusal");
        assert_eq!((kind, code(&refused).as_str()), (b'E', "28P01"), "{user}");
    }
}

#[test]
fn lookups_in_catalogues_are_answered_in_both_protocols() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    let kinds = |messages: &[(u8, Vec<u8>)]| messages.iter().map(|(kind, _)| char::from(*kind)).collect::<String>();
    for (sql, parameter, rows) in [
        ("select oid, typbasetype from pg_type where typname = 'lo'", None, 0),
        ("SELECT c.relname AS name FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1)", Some("accounts"), 0),
        ("SELECT oid, typname FROM pg_type WHERE typname = $1", Some("int8"), 1),
        ("SELECT oid, typname FROM pg_type WHERE typname IN ('int8', 'hstore')", None, 1),
        ("SELECT count(*) FROM pg_class", None, 1),
    ] {
        let given = parameter.map_or(vec![0, 0], |text| [&[0, 1, 0, 0, 0, text.len() as u8], text.as_bytes()].concat());
        let bind = message(b'B', &[b"\0\0\0\0", &given[..], b"\0\0"].concat());
        let parse = message(b'P', format!("\0{sql}\0\0\0").as_bytes());
        let (describe, execute) = (message(b'D', b"S\0"), message(b'E', b"\0\0\0\0\0"));
        let sync = message(b'S', b"");
        client.send(&[parse, describe, bind, execute.clone(), execute, sync].concat());
        let extended = client.until_ready();
        let data = "D".repeat(rows);
        assert_eq!(kinds(&extended), format!("1tT2{data}CCZ"), "{sql}");
        let tag = format!("SELECT {rows}\0");
        assert_eq!(extended[4 + rows].1, tag.as_bytes(), "{sql}");
        assert_eq!(extended[5 + rows].1, b"SELECT 0\0", "the portal is at its end");
        if parameter.is_none() {
            client.send(&query(sql));
            let simple = client.until_ready();
            assert_eq!(kinds(&simple), format!("T{data}CZ"), "{sql}");
            assert_eq!((&simple[0], &simple[1 + rows].1), (&extended[2], &extended[4 + rows].1), "{sql}");
        }
    }
    // In a block that has failed, as any statement.
    client.send(&query("BEGIN"));
    client.until_ready();
    client.send(&query("SELECT nothing()"));
    assert_eq!(client.refused(), "42883");
    client.send(&query("SELECT relname FROM pg_class"));
    assert_eq!(client.refused(), "25P02");
}

#[test]
fn settings_of_one_query_are_seen_by_what_follows_in_it_and_have_a_bound() {
    let bank = Bank::open();
    assert!(bank.psql(&["SET app.user = 'ann'; SHOW app.user"]).ends_with("ann\n"));
    let many: Vec<String> = (0..70).map(|number| format!("SET app.n{number} = 1")).collect();
    assert!(bank.refusal(&many.join("; ")).contains("54000"));
}

#[test]
fn a_column_that_is_only_a_cast_is_called_as_its_type() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    client.send(&query("SELECT 1::bigint, CAST('a' AS character varying), 5, 1::text::real, true::bool AS b"));
    let answer = client.until_ready();
    let mut fields = &answer[0].1[2..];
    let mut names = Vec::new();
    while let Some(end) = fields.iter().position(|byte| *byte == 0) {
        names.push(String::from_utf8_lossy(&fields[..end]).into_owned());
        // Numbers follow.
        fields = &fields[end + 19..];
    }
    assert_eq!(names, ["int8", "varchar", "?column?", "float4", "b"]);
}
