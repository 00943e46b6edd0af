//! Who depends on whom.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Anomaly, History, Key, Kind, Operation, Outcome, Seen, Transaction, Version};

/// Index of a transaction in its history.
pub(super) type Node = usize;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dependency {
    /// It wrote what the other replaced.
    WriteWrite(Key),
    /// It wrote what the other read.
    WriteRead(Key),
    /// It read what the other replaced.
    ReadWrite(Key),
    /// Its range did not have what the other put there, or had what the other replaced.
    RangeWrite(Key),
    /// It had ended before the other began.
    RealTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: Node,
    pub to: Node,
    pub why: Dependency,
}

/// The state of a row: a version of it, or none yet.
pub(super) type State = Option<Version>;

/// One write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub by: Node,
    pub key: Key,
    pub is_deletion: bool,
    /// No other write of this key by the same transaction follows.
    pub is_last: bool,
}

/// A transaction has looked at a row that it had not written itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub by: Node,
    pub key: Key,
    /// `None`: there was no row.
    pub saw: Option<Seen>,
    pub is_range: bool,
}

pub(super) struct Graph {
    pub edges: Vec<Edge>,
    pub nodes: usize,
    pub written: HashMap<Version, Written>,
    /// Looks of committed transactions that found no row, where a deletion may be the reason.
    pub absent: Vec<Look>,
    /// Those of them whose state is known, and all others.
    looks: Vec<(Look, State)>,
    /// What replaced a state.
    pub next: BTreeMap<(Key, State), Version>,
    /// The last write of a transaction to a key.
    pub last: HashMap<(Node, Key), Version>,
    writers: BTreeMap<Key, Vec<Node>>,
    committed: BTreeSet<Node>,
    unknown: BTreeSet<Node>,
}

impl Graph {
    pub(super) fn new(history: &History) -> Result<Graph, Anomaly> {
        let written = written(history)?;
        let keys: BTreeSet<Key> = written.values().map(|written| written.key).collect();
        let mut looks = Vec::new();
        for (node, transaction) in history.transactions.iter().enumerate() {
            looks.extend(looks_of(node, transaction, &keys)?);
        }
        looks.iter().try_for_each(|look| check_look(history, &written, look))?;
        let committed = committed(history, &written, &looks);
        looks.retain(|look| committed.contains(&look.by));
        let last = written.iter().filter(|(_, of)| of.is_last).map(|(version, of)| ((of.by, of.key), *version));
        let last = last.collect();
        let unknown = history.transactions.iter().enumerate().filter(|(_, one)| one.outcome == Outcome::Unknown);
        let mut writers: BTreeMap<Key, Vec<Node>> = BTreeMap::new();
        written.values().filter(|of| of.is_last).for_each(|of| writers.entry(of.key).or_default().push(of.by));
        let mut graph = Graph {
            edges: Vec::new(),
            nodes: history.transactions.len(),
            written,
            absent: Vec::new(),
            looks: Vec::new(),
            next: BTreeMap::new(),
            last,
            writers,
            committed,
            unknown: unknown.map(|(node, _)| node).collect(),
        };
        graph.order_given(history)?;
        graph.order_seen(&looks)?;
        graph.add_looks(looks)?;
        graph.add_edges();
        graph.add_real_time(history);
        Ok(graph)
    }

    pub(super) fn committed(&self) -> usize {
        self.committed.len()
    }

    pub(super) fn is_committed(&self, node: Node) -> bool {
        self.committed.contains(&node)
    }

    /// Or nobody knows.
    pub(super) fn may_be_committed(&self, node: Node) -> bool {
        self.is_committed(node) || self.unknown.contains(&node)
    }

    /// One state was replaced by a version.
    pub(super) fn replace(&mut self, key: Key, state: State, by: Version) -> Result<(), Anomaly> {
        match self.next.insert((key, state), by) {
            Some(other) if other != by => {
                let (one, two) = (self.written[&other].by, self.written[&by].by);
                let what = format!("transactions {one} and {two} have both replaced {state:?} of key {key}");
                Err(Anomaly::new(Kind::LostUpdate, what))
            }
            _ => Ok(()),
        }
    }

    fn order_given(&mut self, history: &History) -> Result<(), Anomaly> {
        for (key, order) in &history.orders {
            let mut state = None;
            for version in order {
                let is_right = self.written.get(version).is_some_and(|written| written.key == *key && written.is_last);
                if !is_right {
                    return Err(Anomaly::new(Kind::NoHistory, format!("{version:?} is no last write to key {key}")));
                }
                self.replace(*key, state, *version)?;
                state = Some(*version);
            }
        }
        Ok(())
    }

    /// The order that rows tell of.
    fn order_seen(&mut self, looks: &[Look]) -> Result<(), Anomaly> {
        for look in looks {
            let Some(Seen { version, over: Some(over) }) = look.saw else { continue };
            let Some(before) = self.written.get(&over).copied() else {
                return Err(Anomaly::new(
                    Kind::Unwritten,
                    format!("{version:?} has replaced {over:?}, which is nowhere"),
                ));
            };
            if before.key != look.key {
                let what = format!("{version:?} of {:?} has replaced {over:?}, which is of {:?}", look.key, before.key);
                return Err(Anomaly::new(Kind::Unwritten, what));
            }
            if before.by != self.written[&version].by {
                self.replace(look.key, Some(over), version)?;
            }
        }
        Ok(())
    }

    fn add_looks(&mut self, looks: Vec<Look>) -> Result<(), Anomaly> {
        let deleted: BTreeSet<Key> =
            self.written.values().filter(|written| written.is_deletion).map(|written| written.key).collect();
        for look in looks {
            match look.saw {
                None if deleted.contains(&look.key) => self.absent.push(look),
                saw => self.look(look, saw.map(|seen| seen.version))?,
            }
        }
        Ok(())
    }

    /// It is known what a look saw. [`Graph::add_edges`] takes note of it.
    pub(super) fn look(&mut self, look: Look, state: State) -> Result<(), Anomaly> {
        if let Some(version) = self.last.get(&(look.by, look.key)).copied() {
            self.replace(look.key, state, version)?;
        }
        self.looks.push((look, state));
        Ok(())
    }

    /// All edges that follow from what is known of looks and orders, anew.
    pub(super) fn add_edges(&mut self) {
        self.edges.retain(|edge| edge.why == Dependency::RealTime);
        let by = |version: &Version| self.written[version].by;
        let mut edges = Vec::new();
        for ((key, state), after) in &self.next {
            edges.extend(state.map(|version| (by(&version), by(after), Dependency::WriteWrite(*key))));
        }
        for (look, state) in &self.looks {
            edges.extend(state.map(|version| (by(&version), look.by, Dependency::WriteRead(look.key))));
            let why = if look.is_range { Dependency::RangeWrite } else { Dependency::ReadWrite };
            match self.next.get(&(look.key, *state)) {
                Some(next) => edges.push((look.by, by(next), why(look.key))),
                // Whichever was the first, it came later.
                None if state.is_none() => {
                    let writers = self.writers.get(&look.key).into_iter().flatten();
                    edges.extend(writers.map(|writer| (look.by, *writer, why(look.key))));
                }
                None => {}
            }
        }
        edges.retain(|(from, to, _)| from != to && self.is_committed(*from) && self.is_committed(*to));
        self.edges.extend(edges.into_iter().map(|(from, to, why)| Edge { from, to, why }));
    }

    /// As few as say the same.
    fn add_real_time(&mut self, history: &History) {
        let all = &history.transactions;
        let mut by_begin: Vec<Node> = self.committed.iter().copied().collect();
        by_begin.sort_by_key(|node| all[*node].begun);
        for from in self.committed.iter().copied().filter(|node| all[*node].outcome == Outcome::Committed) {
            let mut first_told = u64::MAX;
            let first = by_begin.partition_point(|node| all[*node].begun <= all[from].told);
            for to in by_begin[first..].iter().copied() {
                if all[to].begun > first_told {
                    break;
                }
                self.edges.push(Edge { from, to, why: Dependency::RealTime });
                if all[to].outcome == Outcome::Committed {
                    first_told = first_told.min(all[to].told);
                }
            }
        }
    }
}

fn written(history: &History) -> Result<HashMap<Version, Written>, Anomaly> {
    let mut all = HashMap::new();
    for (by, transaction) in history.transactions.iter().enumerate() {
        let mut last: HashMap<Key, Version> = HashMap::new();
        for operation in &transaction.operations {
            let (key, version, is_deletion) = match *operation {
                Operation::Write { key, version } => (key, version, false),
                Operation::Delete { key, version } => (key, version, true),
                _ => continue,
            };
            if all.insert(version, Written { by, key, is_deletion, is_last: true }).is_some() {
                return Err(Anomaly::new(Kind::NoHistory, format!("{version:?} was written twice")));
            }
            if let Some(before) = last.insert(key, version).and_then(|before| all.get_mut(&before)) {
                before.is_last = false;
            }
        }
    }
    Ok(all)
}

/// What a transaction saw of others' writes.
fn looks_of(by: Node, transaction: &Transaction, keys: &BTreeSet<Key>) -> Result<Vec<Look>, Anomaly> {
    // What it must see: its own writes, and what it saw before.
    let mut known: BTreeMap<Key, (bool, Option<Version>)> = BTreeMap::new();
    let mut looks = Vec::new();
    let mut look = |key: Key, saw: Option<Seen>, is_range, known: &mut BTreeMap<Key, (bool, Option<Version>)>| {
        let version = saw.map(|seen| seen.version);
        match known.insert(key, (false, version)) {
            Some((is_own, expected)) if expected == version => {
                known.insert(key, (is_own, version));
                // A range is a look of its own: what it read by key does not protect it.
                if is_range && !is_own {
                    looks.push(Look { by, key, saw, is_range });
                }
                Ok(())
            }
            // Only what is committed was read at one time.
            Some((false, _)) if transaction.outcome != Outcome::Committed => Ok(()),
            Some((_, expected)) => {
                let what = format!("transaction {by} saw {version:?} of key {key} in place of {expected:?}");
                Err(Anomaly::new(Kind::Internal, what))
            }
            None => {
                looks.push(Look { by, key, saw, is_range });
                Ok(())
            }
        }
    };
    for operation in &transaction.operations {
        match operation {
            Operation::Read { key, saw } => look(*key, *saw, false, &mut known)?,
            Operation::Scan { range, saw } => {
                let saw: BTreeMap<Key, Seen> = saw.iter().copied().collect();
                let unknown = saw.keys().filter(|key| !keys.contains(key)).copied();
                for key in keys.range(range.clone()).copied().chain(unknown) {
                    look(key, saw.get(&key).copied(), true, &mut known)?;
                }
            }
            Operation::Write { key, version } => drop(known.insert(*key, (true, Some(*version)))),
            Operation::Delete { key, .. } => drop(known.insert(*key, (true, None))),
        }
    }
    Ok(looks)
}

fn check_look(history: &History, written: &HashMap<Version, Written>, look: &Look) -> Result<(), Anomaly> {
    let Some(Seen { version, .. }) = look.saw else { return Ok(()) };
    let anomaly = |kind, what: &str| {
        Err(Anomaly::new(kind, format!("transaction {} saw {version:?} of key {}, {what}", look.by, look.key)))
    };
    match written.get(&version) {
        None => anomaly(Kind::Unwritten, "which nobody wrote"),
        Some(of) if of.key != look.key || of.is_deletion => anomaly(Kind::Unwritten, "which is something else"),
        Some(of) if of.by == look.by => anomaly(Kind::Internal, "which it wrote later"),
        Some(of) if history.transactions[of.by].outcome == Outcome::Aborted => {
            anomaly(Kind::G1a, &format!("which transaction {} had given up", of.by))
        }
        Some(of) if !of.is_last => anomaly(Kind::G1b, &format!("which transaction {} itself replaced", of.by)),
        Some(_) => Ok(()),
    }
}

/// Also those whose end nobody was told, if somebody has seen what they wrote.
fn committed(history: &History, written: &HashMap<Version, Written>, looks: &[Look]) -> BTreeSet<Node> {
    let told = history.transactions.iter().enumerate().filter(|(_, one)| one.outcome == Outcome::Committed);
    let mut all: BTreeSet<Node> = told.map(|(node, _)| node).collect();
    let mut pending = Vec::new();
    for look in looks.iter().filter(|look| history.transactions[look.by].outcome != Outcome::Unknown) {
        pending.extend(look.saw.iter().flat_map(|seen| [Some(seen.version), seen.over]).flatten());
    }
    while let Some(version) = pending.pop() {
        let Some(of) = written.get(&version) else { continue };
        if history.transactions[of.by].outcome == Outcome::Unknown && all.insert(of.by) {
            let of_it = looks.iter().filter(|look| look.by == of.by);
            pending.extend(of_it.flat_map(|look| look.saw.iter().flat_map(|s| [Some(s.version), s.over]).flatten()));
        }
    }
    all
}
