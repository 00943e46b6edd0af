//! Random transactions of one terminal, and what it is told of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use kernel::Processor;
use kernel::connection::Gone;
use sim::{HostId, World};
use testkit::random::Random;
use testkit::serial::{History, Key, Operation, Outcome, Transaction, Version};

use super::program::{entries, found};
use super::terminal::{Reply, Terminal, cancel, query, step, sync};

pub const ACCOUNTS: u64 = 6;
pub const BALANCE: u64 = 100;

/// What all terminals have done.
#[derive(Default)]
pub struct Record {
    pub history: History,
    pub versions: u64,
    /// Commits that a terminal was told of.
    pub told: u64,
    pub conflicts: u64,
    pub failures: u64,
    pub cancelled: u64,
}

/// How transactions are made.
#[derive(Clone, Copy)]
pub struct Plan {
    pub keys: u64,
    /// A row's length, at most.
    pub row_max: u64,
    /// Calls of a transaction, at most.
    pub calls: u64,
}

#[derive(Clone, Debug)]
enum Call {
    Look(Key),
    Write(Key, Version, u64),
    Remove(Key, Version),
    Scan(Key, Key),
    Transfer(u64, u64, u64),
    Total,
}

impl Call {
    fn drawn(random: &mut Random, plan: Plan, versions: &mut u64) -> Call {
        let key = random.below(plan.keys);
        let mut version = || {
            *versions += 1;
            Version(*versions)
        };
        match random.below(20) {
            0..4 => Call::Look(key),
            4..11 => Call::Write(key, version(), 16 + random.below(plan.row_max)),
            11 => Call::Remove(key, version()),
            12..16 => Call::Scan(key, (key + 1 + random.below(plan.keys)).min(plan.keys)),
            16..19 => Call::Transfer(random.below(ACCOUNTS), random.below(ACCOUNTS), random.below(40)),
            _ => Call::Total,
        }
    }

    fn sql(&self) -> String {
        match self {
            Call::Look(key) => format!("SELECT look({key})"),
            Call::Write(key, version, bytes) => format!("SELECT write({key}, {}, {bytes})", version.0),
            Call::Remove(key, _) => format!("SELECT remove({key})"),
            Call::Scan(low, high) => format!("SELECT scan({low}, {high})"),
            Call::Transfer(payer, payee, amount) => format!("SELECT transfer({payer}, {payee}, {amount})"),
            Call::Total => format!("SELECT total({ACCOUNTS})"),
        }
    }

    /// What it does if it is executed.
    fn intended(&self) -> Option<Operation> {
        match *self {
            Call::Write(key, version, _) => Some(Operation::Write { key, version }),
            Call::Remove(key, version) => Some(Operation::Delete { key, version }),
            _ => None,
        }
    }

    /// What it did, as it was told.
    fn done(&self, value: Option<&str>) -> Vec<Operation> {
        match *self {
            Call::Look(key) => vec![Operation::Read { key, saw: found(value) }],
            Call::Write(key, version, _) => {
                vec![Operation::Read { key, saw: found(value) }, Operation::Write { key, version }]
            }
            Call::Remove(key, version) => match found(value) {
                // Nothing was there: it has only read.
                None => vec![Operation::Read { key, saw: None }],
                saw => vec![Operation::Read { key, saw }, Operation::Delete { key, version }],
            },
            Call::Scan(low, high) => vec![Operation::Scan { range: low..high, saw: entries(value) }],
            Call::Transfer(..) | Call::Total => Vec::new(),
        }
    }
}

/// A client at a terminal.
pub struct Client {
    pub cpu: Processor,
    pub world: World,
    pub host: HostId,
    pub server: HostId,
    pub record: Rc<RefCell<Record>>,
    pub random: Random,
    pub plan: Plan,
}

/// One transaction while its end is not known.
struct Open {
    index: usize,
    calls: Vec<Call>,
    /// Of the calls that were answered.
    done: Vec<Vec<Operation>>,
    totals: Vec<String>,
}

impl Open {
    /// Of what was done since the first `before` calls, only what it read of others stays.
    fn undo(&mut self, before: usize) {
        let mut changed = Vec::new();
        for (call, done) in self.calls.iter().zip(&mut self.done).skip(before) {
            done.retain(|operation| matches!(operation, Operation::Read { key, .. } if !changed.contains(key)));
            if let Call::Write(key, ..) | Call::Remove(key, _) = call {
                changed.push(*key);
            }
        }
    }
}

impl Client {
    /// Transactions one after the other, until the server dies.
    pub async fn work(mut self, transactions: u64) {
        let mut terminal = None;
        for _ in 0..transactions {
            let session = match terminal.take() {
                Some(session) => session,
                None => match Terminal::open(&self.cpu, &self.world, self.host, self.server).await {
                    Some(session) => session,
                    None => return,
                },
            };
            if self.random.chance(20) {
                self.vanish(session).await;
                continue;
            }
            if self.random.chance(40) {
                self.cancel_later(&session);
            }
            let failures = self.record.borrow().failures;
            let done = match self.random.below(10) {
                _ if self.random.chance(10) => self.spin(&session).await,
                0..4 => self.query(&session).await,
                4..6 => self.pipeline(&session).await,
                _ => self.block(&session).await,
            };
            match done {
                Ok(()) => terminal = Some(session),
                Err(Gone) => return session.close(),
            }
            if self.record.borrow().failures > failures {
                // The store tries again after a second.
                self.cpu.sleep(Duration::from_millis(self.random.below(1500))).await;
            } else if self.random.chance(300) {
                self.cpu.sleep(Duration::from_micros(self.random.below(3000))).await;
            }
        }
        if let Some(session) = terminal {
            session.close();
        }
    }

    fn cancel_later(&mut self, session: &Terminal) {
        let (cpu, world, from, to) = (self.cpu.clone(), self.world.clone(), self.host, self.server);
        let (key, wait) = (session.key.clone(), Duration::from_micros(self.random.below(3000)));
        self.cpu.spawn(async move {
            cpu.sleep(wait).await;
            cancel(&cpu, &world, from, to, &key).await;
        });
    }

    fn begin(&mut self) -> Open {
        let record = &mut *self.record.borrow_mut();
        let count = 1 + self.random.below(self.plan.calls);
        let calls: Vec<Call> =
            (0..count).map(|_| Call::drawn(&mut self.random, self.plan, &mut record.versions)).collect();
        let now = self.cpu.now().ns();
        let operations = calls.iter().filter_map(Call::intended).collect();
        record.history.transactions.push(Transaction { operations, outcome: Outcome::Unknown, begun: now, told: now });
        Open { index: record.history.transactions.len() - 1, calls, done: Vec::new(), totals: Vec::new() }
    }

    /// The end of a transaction, or what is known of it so far.
    fn note(&self, open: &Open, outcome: Outcome) {
        let record = &mut *self.record.borrow_mut();
        let transaction = &mut record.history.transactions[open.index];
        let pending = open.calls.iter().skip(open.done.len()).filter_map(Call::intended);
        transaction.operations = open.done.iter().flatten().cloned().chain(pending).collect();
        transaction.outcome = outcome;
        transaction.told = self.cpu.now().ns();
        if outcome == Outcome::Committed {
            record.told += 1;
            let expected = (ACCOUNTS * BALANCE).to_string();
            assert!(open.totals.iter().all(|total| *total == expected), "{:?} is not the sum", open.totals);
        }
    }

    /// What a reply says of calls.
    fn answered(&self, open: &mut Open, reply: &Reply) {
        for value in &reply.values {
            let call = &open.calls[open.done.len()];
            if matches!(call, Call::Total) {
                open.totals.extend(value.clone());
            }
            let done = call.done(value.as_deref());
            open.done.push(done);
        }
    }

    /// What an error says of the transaction that it ends.
    fn failed(&self, code: &str) -> Outcome {
        let record = &mut *self.record.borrow_mut();
        match code {
            "40001" => record.conflicts += 1,
            "57014" => record.cancelled += 1,
            "P0001" | "25P02" | "53100" => {}
            // The volume had failed before the commit.
            "58030" => record.failures += 1,
            // It failed after the commit.
            "08007" => {
                record.failures += 1;
                return Outcome::Unknown;
            }
            code => panic!("SQLSTATE {code}"),
        }
        Outcome::Aborted
    }

    fn whole(&self, mut open: Open, reply: &Reply) {
        match &reply.error {
            None => {
                self.answered(&mut open, reply);
                self.note(&open, Outcome::Committed);
            }
            Some(code) => {
                let outcome = self.failed(code);
                self.answered(&mut open, reply);
                self.note(&open, outcome);
            }
        }
    }

    /// Calls in one query: a transaction that is repeated until it does not conflict.
    async fn query(&mut self, session: &Terminal) -> Result<(), Gone> {
        let open = self.begin();
        let calls: Vec<String> = open.calls.iter().map(Call::sql).collect();
        let reply = session.ask(&calls.join("; ")).await?;
        self.whole(open, &reply);
        Ok(())
    }

    /// Calls, and one that is ended because it takes too long or is cancelled.
    async fn spin(&mut self, session: &Terminal) -> Result<(), Gone> {
        let open = self.begin();
        self.note(&open, Outcome::Aborted);
        let calls: Vec<String> = open.calls.iter().map(Call::sql).collect();
        self.cancel_later(session);
        let reply = session.ask(&format!("{}; SELECT spin()", calls.join("; "))).await?;
        assert!(reply.error.is_some(), "it never ends by itself");
        self.whole(open, &reply);
        Ok(())
    }

    /// Several transactions, sent at once.
    async fn pipeline(&mut self, session: &Terminal) -> Result<(), Gone> {
        let opens: Vec<Open> = (0..1 + self.random.below(4)).map(|_| self.begin()).collect();
        let mut bytes = Vec::new();
        for open in &opens {
            open.calls.iter().for_each(|call| bytes.extend(step(&call.sql())));
            bytes.extend(sync());
        }
        session.send(bytes).await?;
        for open in opens {
            let reply = session.reply().await?;
            self.whole(open, &reply);
        }
        Ok(())
    }

    /// BEGIN, calls with think times, and COMMIT or ROLLBACK; often with savepoints, to which it returns.
    async fn block(&mut self, session: &Terminal) -> Result<(), Gone> {
        let mut open = self.begin();
        // What is not asked to be committed is not.
        self.note(&open, Outcome::Aborted);
        session.ask("BEGIN").await?;
        let has_savepoints = self.random.chance(500);
        // The calls before each, all of one name.
        let mut savepoints = Vec::new();
        let (mut failed, mut conflicts) = (None, false);
        for index in 0..open.calls.len() {
            if has_savepoints && self.random.chance(300) {
                let reply = session.ask("SAVEPOINT s").await?;
                assert_eq!((reply.error, reply.status), (None, b'T'));
                savepoints.push(index);
            }
            let reply = session.ask(&open.calls[index].sql()).await?;
            failed = reply.error.as_ref().map(|code| {
                conflicts |= code == "40001";
                self.failed(code)
            });
            match failed {
                Some(_) => open.done.push(Vec::new()),
                None => self.answered(&mut open, &reply),
            }
            let returns = self.random.chance(if failed.is_some() { 800 } else { 200 });
            match savepoints.last() {
                Some(&before) if returns => {
                    let returned = session.ask("ROLLBACK TO s").await?;
                    if returned.error.is_none() {
                        assert_eq!(returned.status, b'T');
                        open.undo(before);
                        failed = None;
                    } else {
                        // What was executed could not be told.
                        assert_eq!(reply.error.as_deref(), Some("58030"), "{returned:?}");
                    }
                }
                Some(_) if failed.is_none() && self.random.chance(100) => {
                    savepoints.pop();
                    assert_eq!(session.ask("RELEASE s").await?.error, None);
                }
                _ => {}
            }
            self.note(&open, Outcome::Aborted);
            if failed.is_some() {
                break;
            }
            if self.random.chance(300) {
                self.cpu.sleep(Duration::from_micros(self.random.below(2000))).await;
            }
        }
        let commits = self.random.chance(850);
        if commits && failed.is_none() {
            self.note(&open, Outcome::Unknown);
        }
        let reply = session.ask(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
        let outcome = match &reply.error {
            Some(code) => self.failed(code),
            None if reply.tags == ["COMMIT"] => Outcome::Committed,
            None => Outcome::Aborted,
        };
        let must_fail = failed.is_some() || conflicts;
        assert!(!must_fail || outcome != Outcome::Committed, "a block that failed was committed");
        self.note(&open, outcome);
        Ok(())
    }

    /// Hangs up without waiting for what it has asked for; now and then it first waits long without taking a reply.
    async fn vanish(&mut self, session: Terminal) {
        let open = self.begin();
        let calls: Vec<String> = open.calls.iter().map(Call::sql).collect();
        let _ = session.send(query(&calls.join("; "))).await;
        let wait = if self.random.chance(100) { 100_000 } else { self.random.below(2000) };
        self.cpu.sleep(Duration::from_micros(wait)).await;
        session.close();
    }
}

/// All rows and the sum, as a transaction of the history.
pub async fn look_at_all(client: &mut Client) {
    let session = Terminal::open(&client.cpu, &client.world, client.host, client.server).await.expect("a server");
    let mut open = client.begin();
    client.note(&open, Outcome::Aborted);
    open.calls = vec![Call::Scan(0, client.plan.keys), Call::Total];
    client.note(&open, Outcome::Unknown);
    let calls: Vec<String> = open.calls.iter().map(Call::sql).collect();
    let reply = session.ask(&calls.join("; ")).await.expect("a server that lives");
    assert_eq!(reply.error, None);
    client.whole(open, &reply);
    session.close();
}
