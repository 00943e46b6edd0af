//! Keys, rows and tables, against models.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::panic::AssertUnwindSafe;

use awase_program::{Bytes, Index, Key, Row, Table, row};
use proptest::prelude::*;

row! {
    #[derive(Clone, Debug, PartialEq)]
    struct Old { name: String, balance: i64 }
}

row! {
    #[derive(Clone, Debug, PartialEq)]
    struct New { name: String, balance: i64, note: Option<String>, flag: Option<bool> }
}

fn key_bytes(key: &impl Key) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode(&mut bytes);
    bytes
}

fn row_bytes(row: &impl Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    row.encode(&mut bytes);
    bytes
}

fn check_keys<K: Key + Ord + std::fmt::Debug>(a: &K, b: &K) -> Result<(), TestCaseError> {
    let (encoded_a, encoded_b) = (key_bytes(a), key_bytes(b));
    prop_assert_eq!(a.cmp(b), encoded_a.cmp(&encoded_b));
    let mut bytes = Bytes::new(&encoded_a);
    let decoded = K::decode(&mut bytes);
    prop_assert_eq!(decoded.as_ref(), Some(a));
    prop_assert!(bytes.is_empty());
    Ok(())
}

fn check_row<R: Row + PartialEq + std::fmt::Debug>(row: &R) -> Result<(), TestCaseError> {
    let encoded = row_bytes(row);
    let mut bytes = Bytes::new(&encoded);
    let decoded = R::decode(&mut bytes);
    prop_assert_eq!(decoded.as_ref(), Some(row));
    prop_assert!(bytes.is_empty());
    Ok(())
}

/// Bytes that come near each other: zeroes, and what zeroes are encoded as.
fn near_bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()], 0..6)
}

fn near_text() -> impl Strategy<Value = String> {
    "[\0\u{1}ab\u{ff}]{0,5}"
}

fn near_integer() -> impl Strategy<Value = i64> {
    prop_oneof![-3..3_i64, any::<i64>(), Just(i64::MIN), Just(i64::MAX)]
}

#[derive(Clone, Debug)]
enum Step {
    Put(i64, String, i64),
    Delete(i64),
    Range(Bound<i64>, Bound<i64>),
    Named(String),
    Names(Bound<String>, Bound<String>),
}

fn step() -> impl Strategy<Value = Step> {
    let name = || "[ab]{0,2}";
    let bound = || {
        prop_oneof![
            (-4..4_i64).prop_map(Bound::Included),
            (-4..4_i64).prop_map(Bound::Excluded),
            Just(Bound::Unbounded)
        ]
    };
    let name_bound =
        move || prop_oneof![name().prop_map(Bound::Included), name().prop_map(Bound::Excluded), Just(Bound::Unbounded)];
    prop_oneof![
        4 => (-4..4_i64, name(), any::<i64>()).prop_map(|(key, name, balance)| Step::Put(key, name, balance)),
        2 => (-4..4_i64).prop_map(Step::Delete),
        1 => (bound(), bound()).prop_map(|(low, high)| Step::Range(low, high)),
        1 => name().prop_map(Step::Named),
        1 => (name_bound(), name_bound()).prop_map(|(low, high)| Step::Names(low, high)),
    ]
}

static BY_NAME: Index<i64, Old, String> = Index::new("by_name", |_, row| row.name.clone());
static PEOPLE: Table<i64, Old> = Table::new("people").with_indexes(&[&BY_NAME]);
static PAIRS: Table<(i64, String), i64> = Table::new("pairs");

fn within<T: Ord>(range: (Bound<T>, Bound<T>)) -> impl Fn(&T) -> bool {
    move |value| std::ops::RangeBounds::contains(&range, value)
}

proptest! {
    #[test]
    fn keys_are_in_the_order_of_their_values(
        integers in (near_integer(), near_integer()),
        small in (any::<(i8, u16)>(), any::<(i8, u16)>()),
        bytes in (near_bytes(), near_bytes()),
        texts in ((near_text(), any::<bool>()), (near_text(), any::<bool>())),
        pairs in ((near_bytes(), near_integer(), near_text()), (near_bytes(), near_integer(), near_text())),
    ) {
        check_keys(&integers.0, &integers.1)?;
        check_keys(&(integers.0 as u64), &(integers.1 as u64))?;
        check_keys(&i128::from(integers.0), &i128::from(integers.1))?;
        check_keys(&small.0, &small.1)?;
        check_keys(&bytes.0, &bytes.1)?;
        check_keys(&texts.0, &texts.1)?;
        check_keys(&pairs.0, &pairs.1)?;
    }

    #[test]
    fn rows_are_read_as_they_were_written(
        numbers in any::<(i64, u32, f64, bool)>(),
        texts in (any::<String>(), proptest::collection::vec(any::<u8>(), 0..300), any::<Option<String>>()),
        note in any::<Option<String>>(),
    ) {
        prop_assume!(!numbers.2.is_nan());
        check_row(&numbers)?;
        check_row(&texts)?;
        check_row(&Some(Some(numbers.0)))?;
        check_row(&New { name: texts.0, balance: numbers.0, note, flag: Some(true) })?;
    }

    #[test]
    fn what_is_no_row_and_no_key_is_told_and_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = New::decode(&mut Bytes::new(&bytes));
        let _ = <(String, Vec<u8>, Option<f64>)>::decode(&mut Bytes::new(&bytes));
        let _ = <(String, i64, bool)>::decode_key(&bytes);
    }

    #[test]
    fn fields_that_are_added_are_none_in_rows_of_before(name in any::<String>(), balance in any::<i64>()) {
        let encoded = row_bytes(&Old { name: name.clone(), balance });
        let new = New::decode(&mut Bytes::new(&encoded));
        prop_assert_eq!(new, Some(New { name, balance, note: None, flag: None }));
    }

    #[test]
    fn a_table_and_its_index_are_as_a_model(steps in proptest::collection::vec(step(), 1..60)) {
        let left: Vec<i64> = PEOPLE.range(..).map(|(key, _)| key).collect();
        left.iter().for_each(|key| PEOPLE.delete(key));
        let mut model: BTreeMap<i64, Old> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, name, balance) => {
                    let row = Old { name, balance };
                    PEOPLE.put(&key, &row);
                    model.insert(key, row);
                }
                Step::Delete(key) => {
                    PEOPLE.delete(&key);
                    model.remove(&key);
                }
                Step::Range(low, high) => {
                    let inside = within((low, high));
                    let expected: Vec<_> = model.clone().into_iter().filter(|(key, _)| inside(key)).collect();
                    prop_assert_eq!(PEOPLE.range((low, high)).collect::<Vec<_>>(), expected.clone());
                    let backwards: Vec<_> = expected.into_iter().rev().collect();
                    prop_assert_eq!(PEOPLE.range((low, high)).rev().collect::<Vec<_>>(), backwards);
                }
                Step::Named(name) => {
                    let expected: Vec<i64> =
                        model.iter().filter(|(_, row)| row.name == name).map(|(key, _)| *key).collect();
                    prop_assert_eq!(BY_NAME.keys(&name).collect::<Vec<_>>(), expected);
                }
                Step::Names(low, high) => {
                    let inside = within((low.clone(), high.clone()));
                    let all = model.iter().map(|(key, row)| (row.name.clone(), *key));
                    let expected: BTreeSet<_> = all.filter(|(name, _)| inside(name)).collect();
                    let found: Vec<_> = BY_NAME.range((low, high)).collect();
                    prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
                }
            }
        }
        for key in -4..4 {
            prop_assert_eq!(PEOPLE.get(&key), model.get(&key).cloned());
        }
    }

    #[test]
    fn keys_that_begin_alike_are_found(keys in proptest::collection::btree_set((near_integer(), near_text()), 0..20)) {
        let left: Vec<_> = PAIRS.range(..).map(|(key, _)| key).collect();
        left.iter().for_each(|key| PAIRS.delete(key));
        keys.iter().for_each(|key| PAIRS.put(key, &0));
        for first in keys.iter().map(|(first, _)| *first) {
            let expected: Vec<_> = keys.iter().filter(|key| key.0 == first).cloned().collect();
            let found: Vec<_> = PAIRS.beginning_with(&(first,)).map(|(key, _)| key).collect();
            prop_assert_eq!(found, expected);
        }
    }
}

trait DecodeKey: Key {
    fn decode_key(bytes: &[u8]) -> Option<Self> {
        Self::decode(&mut Bytes::new(bytes))
    }
}

impl<K: Key> DecodeKey for K {}

#[test]
#[should_panic(expected = "the table people_of_another_program has a row of another type than this program's")]
fn a_row_of_another_type_is_told() {
    static TEXTS: Table<i64, String> = Table::new("people_of_another_program");
    static NUMBERS: Table<i64, i64> = Table::new("people_of_another_program");
    TEXTS.put(&1, &"a".to_string());
    NUMBERS.get(&1);
}

/// How it fails, as in the database.
fn failure<T>(work: impl FnOnce() -> T) -> String {
    let failed = std::panic::catch_unwind(AssertUnwindSafe(work)).err().expect("it fails");
    failed.downcast_ref::<String>().cloned().unwrap_or_else(|| failed.downcast_ref::<&str>().unwrap().to_string())
}

#[test]
fn tables_in_memory_have_the_limits_of_a_database() {
    static TEXTS: Table<String, String> = Table::new("limits");
    // These texts are encoded with two bytes more.
    let (key, row) = ("k".repeat(510), "r".repeat(1022));
    TEXTS.put(&key, &row);
    assert_eq!(TEXTS.get(&key), Some(row.clone()));
    let (long_key, long_row) = (key.clone() + "k", row + "r");
    for told in [
        failure(|| TEXTS.put(&long_key, &String::new())),
        failure(|| TEXTS.get(&long_key)),
        failure(|| TEXTS.delete(&long_key)),
        failure(|| TEXTS.range(&long_key..).next()),
        failure(|| TEXTS.range(..=&long_key).next_back()),
    ] {
        assert_eq!(told, "a key has 513 bytes; at most 512 are possible");
    }
    assert_eq!(failure(|| TEXTS.put(&key, &long_row)), "a row has 1025 bytes; at most 1024 are possible");
    assert_eq!(TEXTS.range(..).count(), 1);
}

#[test]
fn names_of_tables_are_those_that_a_database_takes() {
    const LONG: &str = "abcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefgh_";
    for name in ["a", "awas", "awase_", "awasex.y", "Tabelle der Gäste", &LONG[1..]] {
        Table::<i64, i64>::new(name).put(&1, &1);
    }
    for name in ["", "awase", "awase.", "awase.programs", LONG] {
        let told = failure(|| Table::<i64, i64>::new(name));
        assert!(told.starts_with("the name of a table has 1 to 64 bytes"), "{name:?}: {told}");
    }
}

#[test]
fn the_program_of_the_documents_is_the_example() {
    let documents = include_str!("../../docs/programs.md");
    assert!(
        documents.contains(include_str!("../examples/stock.rs")),
        "docs/programs.md and program/examples/stock.rs differ"
    );
}
