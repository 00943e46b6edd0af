//! What transactions read and wrote, in the order of their commits, and what that order allows.

use std::collections::BTreeMap;

use transactions::store::{Sequence, TableNo};

/// Table and key.
pub type Name = (TableNo, Vec<u8>);
pub type Rows = BTreeMap<Name, Vec<u8>>;

#[derive(Clone, Debug)]
pub enum Read {
    Key(Name, Option<Vec<u8>>),
    /// The first (or, backwards, the last) row from one key up to another of a table.
    Next {
        table: TableNo,
        from: Vec<u8>,
        to: Vec<u8>,
        backwards: bool,
        found: Option<(Vec<u8>, Vec<u8>)>,
    },
}

#[derive(Clone, Debug)]
pub struct Committed {
    /// After this many commits, its own included.
    pub at: Sequence,
    pub reads: Vec<Read>,
    pub writes: Vec<(Name, Option<Vec<u8>>)>,
}

#[derive(Debug, Default)]
pub struct History {
    pub committed: Vec<Committed>,
    /// The newest commit that somebody was told of.
    pub told: Sequence,
    pub conflicts: u64,
}

impl History {
    pub fn commits(&self) -> Sequence {
        self.committed.iter().rev().find(|done| !done.writes.is_empty()).map_or(Sequence(0), |done| done.at)
    }

    /// Replays all: every transaction must have read what those before it left. Returns the rows after the last.
    pub fn check(&self) -> Rows {
        let mut rows = Rows::new();
        for done in &self.committed {
            for read in &done.reads {
                check_read(&rows, read, done);
            }
            for (name, row) in &done.writes {
                match row {
                    Some(row) => rows.insert(name.clone(), row.clone()),
                    None => rows.remove(name),
                };
            }
        }
        rows
    }

    /// After a crash the database has the first `commits`: all that was told must be among them.
    pub fn cut(&mut self, commits: Sequence) {
        assert!(commits >= self.told, "{commits:?} were recovered, {:?} was acknowledged", self.told);
        let known = self.commits();
        assert!(commits <= known, "{commits:?} were recovered, of {known:?}");
        self.committed.retain(|done| done.at <= commits);
        self.told = commits;
    }
}

fn check_read(rows: &Rows, read: &Read, by: &Committed) {
    match read {
        Read::Key(name, found) => {
            assert_eq!(rows.get(name), found.as_ref(), "{name:?} as read by {:?}", by.at);
        }
        Read::Next { table, from, to, backwards, found } => {
            let mut within = rows.range((*table, from.clone())..(*table, to.clone()));
            let expected = if *backwards { within.next_back() } else { within.next() };
            let expected = expected.map(|((_, key), row)| (key.clone(), row.clone()));
            assert_eq!(expected, *found, "{from:?} to {to:?} (backwards: {backwards}) as read by {:?}", by.at);
        }
    }
}
