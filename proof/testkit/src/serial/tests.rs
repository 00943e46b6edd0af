use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::Random;

fn seen(version: u64) -> Seen {
    Seen { version: Version(version), over: None }
}

fn read(key: Key, version: u64) -> Operation {
    Operation::Read { key, saw: (version != 0).then(|| seen(version)) }
}

fn scan(range: Range<Key>, saw: &[(Key, u64)]) -> Operation {
    Operation::Scan { range, saw: saw.iter().map(|(key, version)| (*key, seen(*version))).collect() }
}

fn write(key: Key, version: u64) -> Operation {
    Operation::Write { key, version: Version(version) }
}

fn delete(key: Key, version: u64) -> Operation {
    Operation::Delete { key, version: Version(version) }
}

fn transaction(begun: Time, told: Time, operations: &[Operation]) -> Transaction {
    Transaction { operations: operations.to_vec(), outcome: Outcome::Committed, begun, told }
}

/// All at the same time.
fn concurrent(all: &[&[Operation]]) -> History {
    let transactions = all.iter().map(|operations| transaction(0, 100, operations)).collect();
    History { transactions, ..History::default() }
}

fn kind(history: &History) -> Option<Kind> {
    history.check().err().map(|anomaly| anomaly.kind)
}

#[test]
fn what_was_done_one_after_the_other_is_right() {
    let history = History {
        transactions: vec![
            transaction(1, 2, &[read(1, 0), write(1, 11), scan(1..9, &[(1, 11)])]),
            transaction(3, 4, &[read(1, 11), write(1, 12), write(1, 13), read(1, 13), write(2, 21)]),
            transaction(5, 6, &[scan(0..9, &[(1, 13), (2, 21)]), read(1, 13), delete(1, 14), read(1, 0)]),
            transaction(7, 8, &[read(1, 0), scan(0..9, &[(2, 21)])]),
            transaction(9, 10, &[read(1, 0), write(1, 15)]),
            transaction(11, 12, &[read(1, 15)]),
        ],
        ..History::default()
    };
    assert_eq!(history.check().map(|checked| (checked.committed, checked.ambiguous)), Ok((6, 0)));
    assert_eq!(kind(&History::default()), None);
}

#[test]
fn each_anomaly_that_is_planted_is_found_and_called_by_its_name() {
    let aborted =
        |operations: &[Operation]| Transaction { outcome: Outcome::Aborted, ..transaction(0, 100, operations) };
    let mut writes = concurrent(&[&[write(1, 11), write(2, 21)], &[write(1, 12), write(2, 22)]]);
    writes.orders = BTreeMap::from([(1, vec![Version(11), Version(12)]), (2, vec![Version(22), Version(21)])]);
    let dirty = History {
        transactions: vec![aborted(&[read(1, 0), write(1, 11)]), transaction(0, 100, &[read(1, 11)])],
        ..History::default()
    };
    let told_by_aborted =
        History { transactions: vec![aborted(&[write(1, 11)]), aborted(&[read(1, 11)])], ..History::default() };
    for (expected, what, history) in [
        (Kind::G0, "writes in two orders", writes),
        (Kind::G1a, "a read of what was given up", dirty),
        (Kind::G1a, "the same by one that is given up itself", told_by_aborted),
        (Kind::G1b, "an intermediate read", concurrent(&[&[write(1, 11), write(1, 12)], &[read(1, 11)]])),
        (
            Kind::G1c,
            "two that saw each other",
            concurrent(&[&[write(1, 11), read(2, 21)], &[write(2, 21), read(1, 11)]]),
        ),
        (
            Kind::LostUpdate,
            "two that replaced the same version",
            concurrent(&[&[read(1, 0), write(1, 10)], &[read(1, 10), write(1, 11)], &[read(1, 10), write(1, 12)]]),
        ),
        (
            Kind::LostUpdate,
            "two that made the same row",
            concurrent(&[&[read(1, 0), write(1, 11)], &[read(1, 0), write(1, 12)]]),
        ),
        (
            Kind::GSingle,
            "read skew",
            concurrent(&[&[read(1, 0), write(1, 11), read(2, 0), write(2, 21)], &[read(1, 0), read(2, 21)]]),
        ),
        (
            Kind::G2Item,
            "write skew",
            concurrent(&[&[read(1, 0), read(2, 0), write(1, 11)], &[read(1, 0), read(2, 0), write(2, 21)]]),
        ),
        (
            Kind::G2Item,
            "the anomaly of a transaction that only reads (Fekete, O'Neil and O'Neil, 2004)",
            History {
                transactions: vec![
                    transaction(0, 100, &[read(1, 0), read(2, 0), write(1, 11)]),
                    transaction(0, 10, &[read(2, 0), write(2, 21)]),
                    transaction(0, 100, &[read(1, 0), read(2, 21)]),
                ],
                ..History::default()
            },
        ),
        (Kind::G2, "phantoms", concurrent(&[&[scan(0..10, &[]), write(20, 201)], &[scan(20..30, &[]), write(5, 51)]])),
        (
            Kind::G2,
            "a range that still has what was deleted",
            concurrent(&[
                &[write(1, 11), write(2, 21)],
                &[scan(1..2, &[(1, 11)]), read(2, 21), delete(2, 22)],
                &[scan(2..3, &[(2, 21)]), read(1, 11), delete(1, 12)],
            ]),
        ),
        (
            Kind::RealTime,
            "a stale read",
            History {
                transactions: vec![transaction(1, 2, &[write(1, 11)]), transaction(3, 4, &[read(1, 0)])],
                ..History::default()
            },
        ),
        (Kind::Unwritten, "a version from nowhere", concurrent(&[&[read(1, 11)]])),
        (Kind::Unwritten, "a version of another row", concurrent(&[&[write(1, 11)], &[read(2, 11)]])),
        (Kind::Internal, "a write that its writer does not see", concurrent(&[&[write(1, 11), read(1, 0)]])),
        (
            Kind::Internal,
            "a row that changed between two reads",
            concurrent(&[&[write(1, 11)], &[read(1, 0), scan(0..9, &[(1, 11)])]]),
        ),
        (Kind::NoHistory, "one version twice", concurrent(&[&[write(1, 11)], &[write(2, 11)]])),
    ] {
        let found = history.check().err();
        assert_eq!(found.as_ref().map(|anomaly| anomaly.kind), Some(expected), "{what}: {found:?}");
    }
}

#[test]
fn what_nobody_was_told_counts_once_it_was_seen() {
    let unknown = Transaction { outcome: Outcome::Unknown, ..transaction(1, 2, &[read(1, 0), write(1, 11)]) };
    let with = |more: &[Transaction]| {
        let transactions = [std::slice::from_ref(&unknown), more].concat();
        kind(&History { transactions, ..History::default() })
    };
    assert_eq!(with(&[transaction(3, 4, &[read(1, 0)])]), None, "it may never have been");
    assert_eq!(with(&[transaction(3, 4, &[read(1, 0), write(1, 12)]), transaction(5, 6, &[read(1, 12)])]), None);
    assert_eq!(with(&[transaction(3, 4, &[read(1, 0)]), transaction(5, 6, &[read(1, 11)])]), None, "or later");
    let lost = [transaction(3, 4, &[read(1, 11)]), transaction(5, 6, &[read(1, 0)])];
    assert_eq!(with(&lost), Some(Kind::RealTime), "what was seen does not go");
    let aborted = Transaction { outcome: Outcome::Aborted, ..transaction(3, 4, &[read(1, 11)]) };
    assert_eq!(with(&[aborted, transaction(5, 6, &[read(1, 0), write(1, 12)])]), Some(Kind::LostUpdate));
}

#[test]
fn a_deletion_that_nobody_was_told_may_explain_that_a_row_is_gone() {
    let unknown = Transaction { outcome: Outcome::Unknown, ..transaction(3, 4, &[delete(1, 12)]) };
    let made = transaction(1, 2, &[read(1, 0), write(1, 11)]);
    let gone = transaction(5, 6, &[read(1, 0)]);
    let check =
        |transactions: &[Transaction]| kind(&History { transactions: transactions.to_vec(), ..History::default() });
    assert_eq!(check(&[made.clone(), unknown.clone(), gone.clone()]), None);
    assert_eq!(check(&[made.clone(), gone.clone()]), Some(Kind::RealTime));
    let aborted = Transaction { outcome: Outcome::Aborted, ..unknown };
    assert_eq!(check(&[made, aborted, gone]), Some(Kind::Absent));
}

#[test]
fn rows_that_say_what_they_replaced_give_the_order() {
    let saw = |version, over| Operation::Read {
        key: 1,
        saw: Some(Seen { version: Version(version), over: Some(Version(over)) }),
    };
    let all = |last: Operation| {
        let mut history = concurrent(&[&[write(1, 11)], &[write(1, 12)], &[saw(12, 11)], &[last]]);
        (history.transactions[3].begun, history.transactions[3].told) = (101, 102);
        history
    };
    assert_eq!(kind(&all(saw(12, 11))), None);
    assert_eq!(kind(&all(read(1, 11))), Some(Kind::RealTime), "12 had replaced it");
    assert_eq!(kind(&all(saw(12, 13))), Some(Kind::Unwritten));
}

#[test]
fn a_row_that_was_not_there_is_told_apart_where_it_can_be() {
    let life = [
        transaction(1, 2, &[read(1, 0), write(1, 11)]),
        transaction(3, 4, &[read(1, 11), delete(1, 12)]),
        transaction(5, 6, &[read(1, 0), write(1, 13)]),
        transaction(7, 8, &[read(1, 13), delete(1, 14)]),
    ];
    let with = |begun, told| {
        let transactions = [&life[..], &[transaction(begun, told, &[read(1, 0)])]].concat();
        History { transactions, ..History::default() }.check()
    };
    for (begun, told) in [(0, 1), (4, 5), (9, 10)] {
        assert_eq!(with(begun, told).map(|checked| checked.ambiguous), Ok(0), "{begun}");
    }
    assert_eq!(with(1, 5).map(|checked| checked.ambiguous), Ok(1), "before it was made, or after it was deleted");
}

/// How transactions are kept apart.
#[derive(Clone, Copy, PartialEq)]
enum Control {
    /// All reads are validated at the commit.
    Optimistic,
    /// Those of ranges are not.
    WithoutRanges,
    /// They read as of their begin, and the first to write a row wins.
    Snapshot,
    Nothing,
}

type Rows = BTreeMap<Key, Version>;
/// When each row was changed last.
type Changed = BTreeMap<Key, Time>;

/// One that is being executed.
struct Running {
    transaction: Transaction,
    snapshot: Rows,
    writes: BTreeMap<Key, Option<Version>>,
    keys: BTreeSet<Key>,
    ranges: Vec<Range<Key>>,
    steps: u64,
    deletes: bool,
}

impl Running {
    fn view(&self, rows: &Rows, control: Control) -> Rows {
        let mut view = if control == Control::Snapshot { self.snapshot.clone() } else { rows.clone() };
        for (key, version) in &self.writes {
            match version {
                Some(version) => view.insert(*key, *version),
                None => view.remove(key),
            };
        }
        view
    }

    fn step(&mut self, rows: &Rows, control: Control, random: &mut Random, version: &mut u64) {
        let (view, key) = (self.view(rows, control), random.below(8));
        let found = |key: &Key| view.get(key).map(|version| Seen { version: *version, over: None });
        let operations = &mut self.transaction.operations;
        if random.chance(300) {
            let range = key..key + 1 + random.below(4);
            let saw = view.range(range.clone()).map(|(key, version)| (*key, seen(version.0))).collect();
            operations.push(Operation::Scan { range: range.clone(), saw });
            return self.ranges.push(range);
        }
        operations.push(Operation::Read { key, saw: found(&key) });
        self.keys.insert(key);
        if random.chance(500) {
            *version += 1;
            let version = Version(*version);
            let is_deletion = self.deletes && view.contains_key(&key) && random.chance(300);
            operations.push(match is_deletion {
                true => Operation::Delete { key, version },
                false => Operation::Write { key, version },
            });
            self.writes.insert(key, (!is_deletion).then_some(version));
        }
    }

    fn may_commit(&self, changed: &Changed, control: Control) -> bool {
        let is_same = |key: &Key| changed.get(key).is_none_or(|at| *at < self.transaction.begun);
        let ranges = || self.ranges.iter().all(|range| range.clone().all(|key| is_same(&key)));
        match control {
            Control::Optimistic => self.keys.iter().all(is_same) && ranges(),
            Control::WithoutRanges => self.keys.iter().all(is_same),
            Control::Snapshot => self.writes.keys().all(is_same),
            Control::Nothing => true,
        }
    }
}

/// Transactions that are executed at once.
fn executed(control: Control, seed: u64) -> History {
    let (mut random, mut rows, mut version, mut history) = (Random(seed), Rows::new(), 0, History::default());
    let (mut running, mut changed): (Vec<Running>, Changed) = Default::default();
    for now in 0..600 {
        if running.len() < 4 {
            let transaction = transaction(now, now, &[]);
            let (snapshot, steps) = (rows.clone(), 1 + random.below(4));
            let (writes, keys, ranges) = Default::default();
            let deletes = seed.is_multiple_of(2);
            running.push(Running { transaction, snapshot, writes, keys, ranges, steps, deletes });
            continue;
        }
        let index = random.index(running.len());
        if running[index].steps > 0 {
            running[index].steps -= 1;
            running[index].step(&rows, control, &mut random, &mut version);
            continue;
        }
        let mut done = running.swap_remove(index);
        done.transaction.told = now;
        if done.may_commit(&changed, control) {
            for (key, version) in std::mem::take(&mut done.writes) {
                changed.insert(key, now);
                match version {
                    Some(version) => rows.insert(key, version),
                    None => rows.remove(&key),
                };
            }
        } else {
            done.transaction.outcome = Outcome::Aborted;
        }
        history.transactions.push(done.transaction);
    }
    let left = running.into_iter().map(|one| Transaction { outcome: Outcome::Unknown, ..one.transaction });
    history.transactions.extend(left);
    history
}

/// The kinds of anomalies that are found in many histories.
fn kinds(control: Control) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for seed in 0..150 {
        if let Err(anomaly) = executed(control, seed).check() {
            assert!(control != Control::Optimistic, "seed {seed}: {anomaly}");
            if !kinds.contains(&anomaly.kind) {
                kinds.push(anomaly.kind);
            }
        }
    }
    kinds
}

#[test]
fn optimistic_transactions_are_serializable_and_weaker_ones_have_their_anomalies() {
    assert_eq!(kinds(Control::Optimistic), []);
    let without_ranges = kinds(Control::WithoutRanges);
    assert!(without_ranges.contains(&Kind::G2), "{without_ranges:?}");
    let of_ranges = |kind: &Kind| matches!(kind, Kind::G2 | Kind::Internal | Kind::Absent | Kind::RealTime);
    assert!(without_ranges.iter().all(of_ranges), "{without_ranges:?}");
    let snapshot = kinds(Control::Snapshot);
    assert!(snapshot.contains(&Kind::G2Item), "{snapshot:?}");
    let of_snapshots = |kind: &Kind| matches!(kind, Kind::G2Item | Kind::G2 | Kind::Absent | Kind::RealTime);
    assert!(snapshot.iter().all(of_snapshots), "{snapshot:?}");
    let nothing = kinds(Control::Nothing);
    assert!(nothing.contains(&Kind::LostUpdate), "{nothing:?}");
}
