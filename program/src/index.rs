//! Secondary indexes.

use core::ops::RangeBounds;

use crate::{Key, Row, Table};

/// Finds the rows of a table by something else than their key: `I`, which a function makes of key and row. The table
/// keeps it in step.
///
/// ```
/// use awase_program::{Index, Table};
///
/// static BY_NAME: Index<i64, String, String> = Index::new("people_by_name", |_, name| name.clone());
/// static PEOPLE: Table<i64, String> = Table::new("people").with_indexes(&[&BY_NAME]);
/// PEOPLE.put(&1, &"Ada".to_string());
/// PEOPLE.put(&2, &"Grace".to_string());
/// assert_eq!(BY_NAME.keys(&"Grace".to_string()).next(), Some(2));
/// PEOPLE.delete(&2);
/// assert_eq!(BY_NAME.keys(&"Grace".to_string()).next(), None);
/// ```
pub struct Index<K: 'static, R: 'static, I: 'static> {
    entries: Table<(I, K), ()>,
    of: fn(&K, &R) -> I,
}

/// An index as its table sees it.
pub trait Maintained<K, R>: Sync {
    /// The row of `key` was `old` and will be `new`.
    fn change(&self, key: &K, old: Option<&R>, new: Option<&R>);
}

impl<K: Key + Clone, R: Row, I: Key + PartialEq> Index<K, R, I> {
    /// The index `name`, which is a table of its own.
    pub const fn new(name: &'static str, of: fn(&K, &R) -> I) -> Self {
        Index { entries: Table::new(name), of }
    }

    /// The keys of the rows of which `wanted` was made, in their order.
    pub fn keys(&self, wanted: &I) -> impl DoubleEndedIterator<Item = K> + '_ {
        self.entries.beginning(wanted).map(|((_, key), ())| key)
    }

    /// What was made of rows, within `range`, with their keys, in its order.
    pub fn range(&self, range: impl RangeBounds<I>) -> impl DoubleEndedIterator<Item = (I, K)> + '_ {
        self.entries.within(range).map(|(entry, ())| entry)
    }
}

impl<K: Key + Clone, R: Row, I: Key + PartialEq> Maintained<K, R> for Index<K, R, I> {
    fn change(&self, key: &K, old: Option<&R>, new: Option<&R>) {
        let old = old.map(|row| (self.of)(key, row));
        let new = new.map(|row| (self.of)(key, row));
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.entries.delete(&(old, key.clone()));
        }
        if let Some(new) = new {
            self.entries.put(&(new, key.clone()), &());
        }
    }
}
