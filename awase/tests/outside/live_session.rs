//! Sessions of a terminal whose valid messages, in any order, are mixed with damaged ones: each is answered, or ends its
//! session, and another terminal is served as if they were not there.

use testkit::mutate;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::Sandbox;

use crate::database::{ACCOUNTS, BALANCE, SMALL, configure};
use crate::terminal::{Terminal, message, query};

/// Messages between two answers, and answers in a session, at most.
const MESSAGES_MAX: u64 = 8;
const ANSWERS_MAX: u64 = 50;
const DAMAGED_PERMILLE: u64 = 100;
/// Of damaged messages, those whose length is wrong, too: what follows is lost in it.
const MISPLACED_PERMILLE: u64 = 50;
/// The other terminal's alone: valid messages name the first nine.
const ACCOUNT: i64 = 1000;

const STATEMENTS: [&str; 7] = [
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SHOW ALL",
    "",
    "BEGIN; SELECT transfer(1, 2, 3); COMMIT",
    "SELECT balance(1), balance(2); SELECT transfer(3, 4, 5)",
];

/// A message's kind and body.
type Message = (u8, Vec<u8>);

/// Of a session: no money is made or lost by any.
fn valid(random: &mut Random) -> Message {
    let [payer, payee, amount] = [(); 3].map(|()| 1 + random.below(9));
    let name = *random.pick(&["", "one", "two"]);
    let transfer = ["$1, $2, $3".to_owned(), format!("{payer}, {payee}, {amount}")];
    match random.below(12) {
        0 => (b'Q', format!("SELECT balance({payer})\0").into()),
        1 => (b'Q', format!("SELECT transfer({})\0", transfer[1]).into()),
        2 => (b'Q', format!("{}\0", random.pick(&STATEMENTS)).into()),
        3 => (b'P', format!("{name}\0{}\0\0\0", random.pick(&STATEMENTS)).into()),
        4 => (b'P', format!("{name}\0SELECT transfer({})\0\0\0", random.pick(&transfer)).into()),
        5 => (b'B', [format!("\0{name}\0").as_bytes(), &[0; 6]].concat()),
        6 | 7 => {
            let is_binary = random.chance(500);
            let values = [payer, payee, amount].map(|value| match is_binary {
                true => [&8_u32.to_be_bytes()[..], &value.to_be_bytes()].concat(),
                false => [&1_u32.to_be_bytes()[..], value.to_string().as_bytes()].concat(),
            });
            let format = [0, 1, 0, u8::from(is_binary), 0, 3];
            (b'B', [format!("\0{name}\0").as_bytes(), &format, &values.concat(), &[0, 0]].concat())
        }
        8 => (b'E', vec![0; 5]),
        9 => (if random.chance(700) { b'D' } else { b'C' }, format!("S{name}\0").into()),
        10 => (b'D', b"P\0".to_vec()),
        _ => (if random.chance(500) { b'H' } else { b'S' }, Vec::new()),
    }
}

/// What is sent until an answer is waited for; whether some of it is damaged, and whether lengths are.
struct Sent {
    bytes: Vec<u8>,
    is_damaged: bool,
    is_misplaced: bool,
}

fn drawn(random: &mut Random) -> Sent {
    let mut sent = Sent { bytes: Vec::new(), is_damaged: false, is_misplaced: false };
    for _ in 0..=random.below(MESSAGES_MAX) {
        let (mut kind, mut body) = valid(random);
        let is_damaged = random.chance(DAMAGED_PERMILLE);
        if is_damaged && random.chance(100) {
            kind = random.next() as u8;
        } else if is_damaged {
            mutate::message(random, &mut body);
        }
        let mut bytes = message(kind, &body);
        if is_damaged && random.chance(MISPLACED_PERMILLE) {
            sent.is_misplaced = true;
            mutate::message(random, &mut bytes);
        }
        sent.is_damaged |= is_damaged;
        sent.bytes.extend(bytes);
    }
    sent
}

/// Whether the session has gone on up to the answer to the last question.
fn goes_on(session: &mut Terminal, sent: &Sent, mark: &str) -> bool {
    let end = [message(b'S', &[]), query("ROLLBACK"), query(&format!("SELECT '{mark}'"))].concat();
    let told = session.send_bytes(&[&sent.bytes[..], &end].concat());
    if sent.is_misplaced {
        // Perhaps it waits for the rest of a message.
        session.end_sending();
        while session.next().is_ok() {}
        return false;
    }
    let is_mark = |body: &[u8]| body.ends_with(mark.as_bytes());
    let mut is_answered = told.is_ok();
    let mut has_mark = false;
    while is_answered && !has_mark {
        match session.next() {
            Ok((kind, body)) => has_mark = kind == b'D' && is_mark(&body),
            Err(_) => is_answered = false,
        }
    }
    is_answered && (0..2).all(|_| session.next().is_ok())
}

#[test]
fn sessions_of_valid_and_damaged_messages_are_answered_or_ended_and_others_stay_right() {
    let name = "sessions_of_valid_and_damaged_messages_are_answered_or_ended_and_others_stay_right";
    let sandbox = Sandbox::new();
    let config = configure(&sandbox, "bank.db", SMALL);
    let server = sandbox.serve(&["--memory", "32MiB", "--config", &config]);
    let open = || Terminal::open(&sandbox.file("awase-data/.s.PGSQL.5433"), "bank").expect("a server");
    let mut other = open();
    let mut ask = |sql: &str| other.ask(sql).expect("the server goes on");
    let (mut deposits, mut damaged, mut ended) = (0, 0, 0);
    for seed in Rounds::new(name, 20) {
        let random = &mut Random(seed << 32);
        let mut session = open();
        for answer in 0..ANSWERS_MAX {
            let sent = drawn(random);
            damaged += u64::from(sent.is_damaged);
            let goes_on = goes_on(&mut session, &sent, &format!("mark {seed} {answer}"));
            assert!(goes_on || sent.is_damaged, "seed {seed}: nothing was wrong with {:?}", sent.bytes);
            deposits += 1;
            let found = ask(&format!("SELECT deposit({ACCOUNT}, 1)"));
            assert_eq!(found.value, Some((BALANCE + deposits).to_string()), "seed {seed}: {found:?}");
            if !goes_on {
                ended += 1;
                break;
            }
        }
    }
    assert_eq!(ask("SELECT total()").value, Some((ACCOUNTS * BALANCE + deposits).to_string()));
    assert!(damaged > ended && ended > 0, "{damaged} damaged, {ended} ended");
    println!("{name}: {deposits} answers, {damaged} to damaged messages, {ended} sessions ended by them");
    server.crash();
}
