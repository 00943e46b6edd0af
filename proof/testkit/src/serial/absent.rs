//! Reads that found no row: before the first version, or after which deletion?

use super::graph::{Graph, Look, Node, State};
use super::{Anomaly, Kind};

/// Decides all that only one explanation is left of, until there is no more. Returns how many have several.
pub(super) fn resolve(graph: &mut Graph) -> Result<usize, Anomaly> {
    loop {
        let reached = Reached::new(graph);
        let (mut open, mut is_new) = (Vec::new(), false);
        for look in std::mem::take(&mut graph.absent) {
            let mut states = candidates(graph, &look);
            states.retain(|state| is_possible(graph, &reached, &look, *state));
            match states[..] {
                [] => {
                    let what = format!("transaction {} found no row of key {} while there was one", look.by, look.key);
                    return Err(Anomaly::new(Kind::Absent, what));
                }
                [state] if is_certain(graph, state) => {
                    graph.look(look, state)?;
                    is_new = true;
                }
                _ => open.push(look),
            }
        }
        graph.absent = open;
        graph.add_edges();
        if !is_new {
            return Ok(graph.absent.len());
        }
    }
}

/// Deletions of which nobody knows whether they were committed are among them: of these nothing is concluded.
fn candidates(graph: &Graph, look: &Look) -> Vec<State> {
    let deletions = graph.written.iter().filter(|(_, of)| {
        of.key == look.key && of.is_deletion && of.is_last && of.by != look.by && graph.may_be_committed(of.by)
    });
    let mut versions: Vec<_> = deletions.map(|(version, _)| *version).collect();
    versions.sort_unstable();
    std::iter::once(None).chain(versions.into_iter().map(Some)).collect()
}

fn is_certain(graph: &Graph, state: State) -> bool {
    state.is_none_or(|version| graph.is_committed(graph.written[&version].by))
}

fn is_possible(graph: &Graph, reached: &Reached, look: &Look, state: State) -> bool {
    let writer = |version| graph.written[version].by;
    if state.as_ref().is_some_and(|version| reached.is(look.by, writer(version))) {
        return false;
    }
    let own = graph.last.get(&(look.by, look.key));
    match graph.next.get(&(look.key, state)) {
        None => true,
        Some(next) if own.is_some() => own == Some(next),
        Some(next) => !reached.is(writer(next), look.by),
    }
}

/// Who comes after whom.
struct Reached(Vec<Vec<u64>>);

impl Reached {
    fn new(graph: &Graph) -> Reached {
        if graph.absent.is_empty() {
            return Reached(Vec::new());
        }
        let mut edges = vec![Vec::new(); graph.nodes];
        graph.edges.iter().for_each(|edge| edges[edge.from].push(edge.to));
        let mut all = vec![vec![0; graph.nodes.div_ceil(64)]; graph.nodes];
        for (from, reached) in all.iter_mut().enumerate() {
            let mut pending = vec![from];
            while let Some(node) = pending.pop() {
                for to in edges[node].iter().copied() {
                    let (word, bit) = (to / 64, 1_u64 << (to % 64));
                    if reached[word] & bit == 0 {
                        reached[word] |= bit;
                        pending.push(to);
                    }
                }
            }
        }
        Reached(all)
    }

    fn is(&self, from: Node, to: Node) -> bool {
        self.0[from][to / 64] & (1 << (to % 64)) != 0
    }
}
