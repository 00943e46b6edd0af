//! Clients that send what they should not, hang, or are many.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use crate::bank::Bank;
use crate::client::{Client, code, message, query, startup, startup_with};

/// Everybody else is served.
fn is_served(bank: &Bank) {
    assert_eq!(bank.psql(&["SELECT balance(77)"]), "1000\n");
}

#[test]
fn what_is_no_message_ends_its_session_alone() {
    let bank = Bank::open();
    for bytes in [
        vec![0; 64],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 9000],
        [&7_u32.to_be_bytes()[..], &[0; 20]].concat(),
        [&10_001_u32.to_be_bytes()[..], &[0; 20]].concat(),
        [&8_u32.to_be_bytes()[..], &(2_u32 << 16).to_be_bytes()].concat(),
    ] {
        let mut client = Client::connect(&bank);
        let _ = client.0.write_all(&bytes);
        while client.next().is_some() {}
    }
    for bytes in [
        message(b'B', b"\0\0\xff\xff\0\0"),
        message(b'B', b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0"),
        message(b'P', b"\0SELECT 1\0\xff\xff"),
        message(b'Q', b"SELECT 1"),
        message(b'E', b"\0"),
        message(b'D', b"X\0"),
        message(b'!', b""),
        message(b'p', b"password\0"),
        b"Q\0\0\0\x03".to_vec(),
        b"Q\x7f\xff\xff\xff".to_vec(),
    ] {
        let mut client = Client::session(&bank);
        client.send(&bytes);
        let (kind, body) = client.next().expect("it is told why");
        assert_eq!((kind, code(&body)), (b'E', "08P01".into()), "{bytes:?}");
        assert!(client.next().is_none(), "{bytes:?}");
    }
    is_served(&bank);
}

#[test]
fn what_is_too_long_or_no_utf8_is_refused_and_the_session_goes_on() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    client.send(&message(b'Q', &vec![b'x'; 2 << 20]));
    assert_eq!(client.refused(), "54000");
    client.send(&message(b'Q', b"SELECT '\xff'\0"));
    assert_eq!(client.refused(), "22021");
    client.send(&[message(b'P', b"\0SELECT '\xff'\0\0\0"), message(b'S', b"")].concat());
    assert_eq!(client.refused(), "22021");
    // Statements without a Sync have a bound.
    let parse = message(b'P', b"\0SELECT balance(1)\0\0\0");
    client.send(&parse);
    let execute = [message(b'B', b"\0\0\0\0\0\0\0\0"), message(b'E', b"\0\0\0\0\0")].concat();
    client.send(&[execute.repeat(5000), message(b'S', b"")].concat());
    assert_eq!(client.refused(), "54000");
    client.send(&query("SELECT balance(1)"));
    assert_eq!(client.until_ready().len(), 4);
}

/// A statement, named `name`.
fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0\0\0").as_bytes())
}

/// Of the statement of that name.
fn execute(name: &str) -> Vec<u8> {
    let bind = message(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes());
    [bind, message(b'E', b"\0\0\0\0\0")].concat()
}

#[test]
fn results_between_two_syncs_have_a_bound_and_what_is_beyond_is_not_committed() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    let aliases: Vec<String> = (0..100).map(|column| format!("1 AS {}{column:03}", "c".repeat(60))).collect();
    let texts = [
        ("long", format!("SELECT '{}'", "x".repeat(900_000))),
        ("called", format!("SELECT same('{}')", "x".repeat(50_000))),
        ("described", format!("SELECT {}", aliases.join(", "))),
        ("all", "SHOW ALL".to_owned()),
        ("deposit", "SELECT deposit(1, 1)".to_owned()),
        ("begin", "BEGIN".to_owned()),
    ];
    for (name, text) in &texts {
        client.send(&[parse(name, text), message(b'S', b"")].concat());
        assert_eq!(client.until_ready().len(), 2, "{name}");
    }
    let before = anonymous(bank.server.id());
    let sync = message(b'S', b"");
    for (name, repeated) in [
        ("long", execute("long")),
        ("called", execute("called")),
        ("described", message(b'D', b"Sdescribed\0")),
        ("all", execute("all")),
    ] {
        // In a block each is executed as it comes.
        for (first, times) in [("deposit", 2000), ("begin", 8000)] {
            client.send(&[execute(first), repeated.repeat(times), sync.clone()].concat());
            assert_eq!(client.refused(), "54000", "{name} after {first}");
            client.send(&query("ROLLBACK"));
            client.until_ready();
        }
    }
    let grown = anonymous(bank.server.id()).saturating_sub(before);
    assert!(grown <= 64 << 20, "{} MiB more", grown >> 20);
    assert_eq!(bank.psql(&["SELECT balance(1)"]), "1000\n");
}

#[test]
fn replies_that_a_client_does_not_take_have_a_bound() {
    const CYCLES: usize = 120;
    let bank = Bank::open_with("memory = \"64MiB\"\n[limits]\nbytes_a_connection = \"32MiB\"\n");
    let mut client = Client::session(&bank);
    let sync = message(b'S', b"");
    let long = format!("SELECT '{}'", "x".repeat(900_000));
    client.send(&[parse("long", &long), sync.clone()].concat());
    assert_eq!(client.until_ready().len(), 2);
    is_served(&bank);
    let before = memory(bank.server.id(), "VmHWM:");
    client.send(&[execute("long").repeat(4), sync].concat().repeat(CYCLES));
    (0..10).for_each(|_| is_served(&bank));
    for cycle in 0..CYCLES {
        assert_eq!(client.until_ready().len(), 4 * 3 + 1, "cycle {cycle}");
    }
    let grown = memory(bank.server.id(), "VmHWM:") - before;
    assert!(grown <= 128 << 20, "{} MiB more", grown >> 20);
}

#[test]
fn values_that_are_null_count_as_what_they_take() {
    const VALUES: u16 = 30_000;
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    let count = VALUES.to_be_bytes();
    let types = 20_u32.to_be_bytes().repeat(usize::from(VALUES));
    let parse = message(b'P', &[b"\0SELECT 1\0", &count[..], &types].concat());
    let nulls = [0xff; 4].repeat(usize::from(VALUES));
    let bind = |portal: u8| message(b'B', &[&[portal, 0, 0, 0, 0], &count[..], &nulls, &[0, 0]].concat());
    client.send(&[parse, (b'a'..b'h').flat_map(bind).collect(), message(b'S', b"")].concat());
    assert_eq!(client.refused(), "54000");
}

/// Clients that wait for a reply before they send a Sync (asyncpg when it prepares, psycopg in a pipeline) do not hang.
#[test]
fn a_flush_sends_the_failure_before_it_and_the_sync_after_it_only_readiness() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    let (flush, sync) = (message(b'H', b""), message(b'S', b""));
    let mut kinds = |bytes: &[u8], count: usize| {
        client.send(bytes);
        (0..count).map(|_| client.next().expect("the session goes on").0).collect::<Vec<_>>()
    };
    let describe = message(b'D', b"S\0");
    assert_eq!(kinds(&[parse("", "SELECT nothing()"), describe, flush.clone()].concat(), 1), b"E");
    assert_eq!(kinds(&[flush.clone(), sync.clone()].concat(), 1), b"Z");
    assert_eq!(kinds(&query("BEGIN"), 2), b"CZ");
    let transfer = [parse("", "SELECT transfer(1, 2, 99999)"), execute(""), execute(""), flush.clone()].concat();
    assert_eq!(kinds(&transfer, 3), b"12E");
    assert_eq!(kinds(&[execute(""), flush, sync].concat(), 1), b"Z");
    assert_eq!(kinds(&query("ROLLBACK"), 2), b"CZ");
}

#[test]
fn of_the_name_of_an_encoding_letters_and_digits_count() {
    let bank = Bank::open();
    for name in ["'utf-8'", "UTF8", "utf_8", "\"Unicode\""] {
        let mut client = Client::connect(&bank);
        client.send(&startup_with(format!("client_encoding\0{name}\0").as_bytes()));
        let told = client.until_ready();
        assert!(told.iter().any(|(kind, body)| *kind == b'S' && body == b"client_encoding\0UTF8\0"), "{name}");
    }
    for name in ["LATIN1", "'utf-16'", "", "''"] {
        let mut client = Client::connect(&bank);
        client.send(&startup_with(format!("client_encoding\0{name}\0").as_bytes()));
        assert_eq!(client.next(), Some((b'R', vec![0; 4])), "AuthenticationOk");
        let (kind, body) = client.next().expect("a reply");
        assert_eq!((kind, code(&body)), (b'E', "22023".into()), "{name}");
    }
}

/// Each Sync ends a transaction: replies come in order, though later calls are executed while earlier ones wait for the disk.
#[test]
fn pipelined_calls_are_answered_in_their_order() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    const CALLS: i64 = 300;
    let call = |amount: i64| {
        let text = format!("\0SELECT deposit(5, {amount})\0\0\0");
        [
            message(b'P', text.as_bytes()),
            message(b'B', b"\0\0\0\0\0\0\0\0"),
            message(b'E', b"\0\0\0\0\0"),
            message(b'S', b""),
        ]
        .concat()
    };
    let all: Vec<u8> = (1..=CALLS).flat_map(call).collect();
    let mut sender = Client(client.0.try_clone().expect("a second descriptor"));
    let sending = std::thread::spawn(move || sender.send(&all));
    let mut balance = 1000;
    for amount in 1..=CALLS {
        balance += amount;
        let messages = client.until_ready();
        let kinds: Vec<u8> = messages.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, b"12DCZ", "call {amount}");
        assert!(messages[2].1.ends_with(balance.to_string().as_bytes()), "call {amount}");
    }
    sending.join().expect("sent");
}

#[test]
fn a_failure_between_two_syncs_undoes_all_of_them_and_skips_the_rest() {
    let bank = Bank::open();
    let mut client = Client::session(&bank);
    let step = |text: &str| {
        [
            message(b'P', format!("\0{text}\0\0\0").as_bytes()),
            message(b'B', b"\0\0\0\0\0\0\0\0"),
            message(b'E', b"\0\0\0\0\0"),
        ]
        .concat()
    };
    let steps = ["SELECT deposit(1, 1)", "SELECT transfer(1, 2, 99999)", "SELECT deposit(1, 2)"].map(step).concat();
    client.send(&[steps, message(b'S', b"")].concat());
    let kinds: Vec<u8> = client.until_ready().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, b"12DC12EZ");
    assert_eq!(bank.psql(&["SELECT balance(1)"]), "1000\n");
}

#[test]
fn clients_that_hang_anywhere_keep_nobody_from_being_served() {
    let bank = Bank::open();
    let mut stuck = Vec::new();
    for round in 0..200 {
        let mut client = Client::connect(&bank);
        let bytes = match round % 5 {
            0 => Vec::new(),
            1 => startup()[..6].to_vec(),
            2 => startup(),
            3 => [startup(), query("SELECT deposit(1, 1)")[..9].to_vec()].concat(),
            _ => [startup(), query("BEGIN; SELECT balance(77)")].concat(),
        };
        client.send(&bytes);
        stuck.push(client);
    }
    // One that takes no replies, as long as the server lets it ask.
    let mut deaf = Client::session(&bank);
    deaf.0.set_nonblocking(true).expect("nonblocking");
    let many = query("SHOW ALL").repeat(1000);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        match deaf.0.write(&many) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    let start = Instant::now();
    is_served(&bank);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Resident memory that is not of the cache. Bytes.
fn anonymous(server: u32) -> u64 {
    memory(server, "RssAnon:")
}

/// As the host counts it. Bytes.
fn memory(server: u32, kind: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(kind)).expect("its memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn two_thousand_idle_terminals_take_at_most_64_mib() {
    const TERMINALS: usize = 2000;
    let bank = Bank::open_with("memory = \"64MiB\"\n[limits]\nconnections = 8192\n");
    let warm = Client::session(&bank);
    is_served(&bank);
    let before = anonymous(bank.server.id());
    let mut terminals: Vec<Client> = (0..TERMINALS).map(|_| Client::session(&bank)).collect();
    for client in &mut terminals {
        client.send(&query("SELECT balance(1)"));
        assert_eq!(client.until_ready().len(), 4);
    }
    let grown = anonymous(bank.server.id()).saturating_sub(before);
    assert!(grown <= 64 << 20, "{} KiB for each", grown / 1024 / TERMINALS as u64);
    is_served(&bank);
    drop(warm);
}

#[test]
fn one_connection_too_many_is_told_so_and_those_that_are_open_stay() {
    let bank = Bank::open_with("[limits]\nconnections = 16\n");
    let mut open: Vec<Client> = (0..8).map(|_| Client::session(&bank)).collect();
    // Thousands at once: some are told, all are closed, nobody is served beyond what there is.
    let mut told = 0;
    for _ in 0..2000 {
        let mut client = Client::connect(&bank);
        // The server may have closed it already.
        if client.0.write_all(&startup()).is_err() {
            continue;
        }
        match client.next() {
            Some((b'E', body)) => {
                assert_eq!(code(&body), "53300");
                told += 1;
            }
            None => {}
            Some((kind, _)) => panic!("a message {:?}", char::from(kind)),
        }
    }
    assert!(told > 1000, "{told} of 2000 were told");
    // Those that say nothing are not waited for, and keep nobody from being told.
    let silent: Vec<Client> = (0..100).map(|_| Client::connect(&bank)).collect();
    for mut client in silent {
        assert!(client.next().is_none());
    }
    let refusal = bank.refusal("SELECT balance(1)");
    assert!(refusal.contains("FATAL:  sorry, too many clients already"), "{refusal}");
    for client in &mut open {
        client.send(&query("SELECT balance(1)"));
        assert_eq!(client.until_ready().len(), 4);
    }
    open.pop();
    let start = Instant::now();
    while !bank.try_psql(&["SELECT balance(1)"]).status.success() {
        assert!(start.elapsed() < Duration::from_secs(10), "a place is free");
    }
}

/// 2,000 terminals: a fifth hang in the middle of a message or a block, a fifth never take a reply, a fifth send garbage,
/// and the others deposit.
#[test]
fn of_two_thousand_terminals_those_that_behave_are_served() {
    const TERMINALS: usize = 2000;
    let bank = Bank::open_with("memory = \"64MiB\"\n[limits]\nconnections = 8192\n");
    let mut terminals: Vec<Client> = (0..TERMINALS).map(|_| Client::session(&bank)).collect();
    let deposit = query("SELECT deposit(5, 1)");
    for (number, client) in terminals.iter_mut().enumerate() {
        match number % 5 {
            0 if number % 2 == 0 => client.send(&deposit[..9]),
            0 => client.send(&query("BEGIN; SELECT balance(77)")),
            1 => client.send(&query("SHOW ALL").repeat(20)),
            2 => client.send(&message(b'B', b"\0\0\xff\xff\0\0")),
            _ => client.send(&deposit),
        }
    }
    let start = Instant::now();
    for (_, client) in terminals.iter_mut().enumerate().filter(|(number, _)| number % 5 > 2) {
        let kinds: Vec<u8> = client.until_ready().iter().map(|(kind, _)| *kind).collect();
        assert!(kinds == b"TDCZ" || kinds == b"EZ", "{kinds:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    is_served(&bank);
    drop(terminals);
    is_served(&bank);
}

#[test]
fn a_cancel_request_ends_what_runs_and_needs_the_key() {
    let bank = Bank::open();
    let mut client = Client::connect(&bank);
    client.send(&startup());
    let begun = client.until_ready();
    let (_, key) = begun.iter().find(|(kind, _)| *kind == b'K').expect("a key");
    let request = |key: &[u8]| [&16_u32.to_be_bytes()[..], &80_877_102_u32.to_be_bytes(), key].concat();
    let mut wrong = key.clone();
    wrong[7] ^= 1;
    for key in [&wrong, key] {
        let mut canceller = Client::connect(&bank);
        canceller.send(&request(key));
        assert!(canceller.next().is_none(), "nothing is told");
    }
    // Nothing ran: the request was for nothing.
    client.send(&query("SELECT balance(1)"));
    assert_eq!(client.until_ready().len(), 4);
}
