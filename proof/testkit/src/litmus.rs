//! Litmus tests: small programs of threads that share memory, and all that sequential consistency allows them to see
//! (Lamport, *How to Make a Multiprocessor Computer That Correctly Executes Multiprocess Programs*, IEEE Trans. Computers
//! C-28, 1979; names as in Alglave, Maranget, Tautschnig, *Herding Cats*, ACM TOPLAS 36, 2014).

use std::collections::BTreeSet;

use Access::{Add, Load, Store};

/// What a thread does with a variable; all are 0 at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load(usize),
    Store(usize, u64),
    /// Atomic; reads what was there before.
    Add(usize, u64),
}

impl Access {
    pub fn variable(self) -> usize {
        match self {
            Load(variable) | Store(variable, _) | Add(variable, _) => variable,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    pub name: &'static str,
    pub threads: &'static [&'static [Access]],
}

/// Variables of a test, at most.
pub const VARIABLES: usize = 2;

pub const ALL: [Litmus; 9] = [
    Litmus { name: "store buffering", threads: &[&[Store(0, 1), Load(1)], &[Store(1, 1), Load(0)]] },
    Litmus { name: "message passing", threads: &[&[Store(0, 1), Store(1, 1)], &[Load(1), Load(0)]] },
    Litmus { name: "load buffering", threads: &[&[Load(0), Store(1, 1)], &[Load(1), Store(0, 1)]] },
    Litmus {
        name: "independent reads of independent writes",
        threads: &[&[Store(0, 1)], &[Store(1, 1)], &[Load(0), Load(1)], &[Load(1), Load(0)]],
    },
    Litmus {
        name: "write-to-read causality",
        threads: &[&[Store(0, 1)], &[Load(0), Store(1, 1)], &[Load(1), Load(0)]],
    },
    Litmus { name: "2+2W", threads: &[&[Store(0, 1), Store(1, 2)], &[Store(1, 1), Store(0, 2)]] },
    Litmus {
        name: "coherence of reads",
        threads: &[&[Store(0, 1)], &[Store(0, 2)], &[Load(0), Load(0)], &[Load(0), Load(0)]],
    },
    Litmus { name: "coherence of writes", threads: &[&[Store(0, 1), Store(0, 2)], &[Load(0), Load(0)]] },
    Litmus { name: "atomic addition", threads: &[&[Add(0, 1), Add(0, 1)], &[Add(0, 1)], &[Add(0, 1)]] },
];

/// What was seen of a test.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// What each thread has read, in its order.
    pub read: Vec<Vec<u64>>,
    /// What the variables were when all threads had ended.
    pub last: [u64; VARIABLES],
}

/// A crash under a test: not all was done, and what was written may be undone.
pub struct Crash {
    /// Accesses that each thread has done.
    pub done: Vec<usize>,
    /// The node of each thread, and whether it is alive. What another node has seen that is alive is not undone.
    pub nodes: Vec<(usize, bool)>,
    /// How often the last stores to each variable may be undone: once for each node that died.
    pub undone: [usize; VARIABLES],
}

impl Litmus {
    /// All outcomes that sequential consistency allows.
    pub fn outcomes(&self) -> BTreeSet<Outcome> {
        let threads = self.threads;
        let done = threads.iter().map(|accesses| accesses.len()).collect();
        self.outcomes_after(&Crash {
            done,
            nodes: (0..threads.len()).map(|node| (node, true)).collect(),
            undone: [0; VARIABLES],
        })
    }

    /// The same with a crash.
    pub fn outcomes_after(&self, crash: &Crash) -> BTreeSet<Outcome> {
        let first = Write { value: 0, node: None, is_seen: true };
        let begin = State {
            next: vec![0; self.threads.len()],
            read: vec![Vec::new(); self.threads.len()],
            memory: [vec![first], vec![first]],
            undoable: crash.undone,
        };
        let mut outcomes = BTreeSet::new();
        self.go_on(crash, begin, &mut outcomes);
        outcomes
    }

    /// Every next step, in every order.
    fn go_on(&self, crash: &Crash, state: State, outcomes: &mut BTreeSet<Outcome>) {
        for variable in (0..VARIABLES).filter(|variable| state.undoable[*variable] > 0) {
            let mut undone = state.clone();
            undone.undoable[variable] -= 1;
            while undone.memory[variable].pop_if(|last| !last.is_seen).is_some() {
                self.go_on(crash, undone.clone(), outcomes);
            }
        }
        let mut has_ended = true;
        for thread in 0..self.threads.len() {
            let next = state.next[thread];
            if next < crash.done[thread] {
                has_ended = false;
                let mut state = state.clone();
                state.perform(thread, crash.nodes[thread], self.threads[thread][next]);
                self.go_on(crash, state, outcomes);
            }
        }
        if has_ended {
            outcomes.insert(Outcome { last: state.last(), read: state.read });
        }
    }
}

#[derive(Clone, Copy)]
struct Write {
    value: u64,
    node: Option<usize>,
    /// By another node that is alive: then it is not lost.
    is_seen: bool,
}

#[derive(Clone)]
struct State {
    next: Vec<usize>,
    read: Vec<Vec<u64>>,
    /// All writes to each variable that were not undone.
    memory: [Vec<Write>; VARIABLES],
    undoable: [usize; VARIABLES],
}

impl State {
    fn last(&self) -> [u64; VARIABLES] {
        self.memory.each_ref().map(|writes| writes.last().map_or(0, |last| last.value))
    }

    fn perform(&mut self, thread: usize, (node, is_alive): (usize, bool), access: Access) {
        self.next[thread] += 1;
        let before = self.last()[access.variable()];
        let writes = &mut self.memory[access.variable()];
        // Also a page that is only written comes from who wrote it before, by way of its home.
        writes.iter_mut().for_each(|write| write.is_seen |= is_alive && write.node != Some(node));
        let write = |value| Write { value, node: Some(node), is_seen: false };
        match access {
            Load(_) => self.read[thread].push(before),
            Store(_, value) => writes.push(write(value)),
            Add(_, value) => {
                self.read[thread].push(before);
                writes.push(write(before + value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(name: &str, read: &[&[u64]], last: [u64; VARIABLES]) -> bool {
        let test = ALL.iter().find(|test| test.name == name).expect("a test");
        let outcomes = test.outcomes();
        outcomes.contains(&Outcome { read: read.iter().map(|read| read.to_vec()).collect(), last })
    }

    #[test]
    fn the_outcome_that_names_each_test_is_forbidden_and_its_neighbours_are_not() {
        assert!(!allows("store buffering", &[&[0], &[0]], [1, 1]));
        assert!(allows("store buffering", &[&[0], &[1]], [1, 1]));
        assert!(!allows("message passing", &[&[], &[1, 0]], [1, 1]));
        assert!(allows("message passing", &[&[], &[0, 1]], [1, 1]));
        assert!(!allows("load buffering", &[&[1], &[1]], [1, 1]));
        assert!(allows("load buffering", &[&[0], &[1]], [1, 1]));
        let iriw = "independent reads of independent writes";
        assert!(!allows(iriw, &[&[], &[], &[1, 0], &[1, 0]], [1, 1]));
        assert!(allows(iriw, &[&[], &[], &[1, 0], &[1, 1]], [1, 1]));
        assert!(!allows("write-to-read causality", &[&[], &[1], &[1, 0]], [1, 1]));
        assert!(allows("write-to-read causality", &[&[], &[0], &[1, 0]], [1, 1]));
        assert!(!allows("2+2W", &[&[], &[]], [1, 1]));
        assert!(allows("2+2W", &[&[], &[]], [2, 1]));
        assert!(!allows("coherence of reads", &[&[], &[], &[1, 2], &[2, 1]], [1, 0]));
        assert!(!allows("coherence of reads", &[&[], &[], &[1, 2], &[0, 1]], [1, 0]));
        assert!(allows("coherence of reads", &[&[], &[], &[1, 2], &[0, 2]], [2, 0]));
        assert!(!allows("coherence of writes", &[&[], &[2, 1]], [2, 0]));
        assert!(!allows("coherence of writes", &[&[], &[1, 2]], [1, 0]));
        assert!(allows("coherence of writes", &[&[], &[1, 2]], [2, 0]));
        assert!(!allows("atomic addition", &[&[0, 1], &[1], &[2]], [3, 0]));
        assert!(allows("atomic addition", &[&[0, 3], &[1], &[2]], [4, 0]));
        assert_eq!(ALL.map(|test| test.outcomes().len()), [3, 3, 3, 15, 7, 3, 72, 6, 12]);
    }

    #[test]
    fn a_crash_undoes_what_no_other_node_has_seen_and_only_that() {
        let test = &ALL[1];
        let allows = |read: &[u64], last| {
            let crash = Crash { done: vec![2, 2], nodes: vec![(0, false), (1, true)], undone: [1, 0] };
            test.outcomes_after(&crash).contains(&Outcome { read: vec![vec![], read.to_vec()], last })
        };
        assert!(allows(&[1, 0], [0, 1]), "the data was undone before it was read");
        assert!(!allows(&[1, 1], [0, 1]), "it was read");
        assert!(!allows(&[0, 1], [1, 0]), "the flag is not undone");
    }

    #[test]
    fn each_crash_undoes_for_itself_also_what_only_nodes_that_died_have_seen() {
        let test = ALL.iter().find(|test| test.name == "coherence of reads").expect("a test");
        let allows = |deaths, is_alive| {
            let nodes = vec![(0, false), (1, false), (2, is_alive), (2, is_alive)];
            let crash = Crash { done: vec![1, 1, 1, 0], nodes, undone: [deaths, 0] };
            let read = [vec![], vec![], vec![1], vec![]].to_vec();
            test.outcomes_after(&crash).contains(&Outcome { read, last: [0, 0] })
        };
        assert!(!allows(0, false) && allows(2, false));
        assert!(!allows(2, true), "a node that lives has seen it");
    }
}
