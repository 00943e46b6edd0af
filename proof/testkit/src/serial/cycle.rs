//! Cycles of dependencies, the gravest kind first.

use std::collections::VecDeque;

use super::graph::{Dependency, Edge, Graph, Node};
use super::{Anomaly, History, Kind};

type Allowed = fn(&Dependency) -> bool;

fn is_write(why: &Dependency) -> bool {
    matches!(why, Dependency::WriteWrite(_))
}

fn is_seen(why: &Dependency) -> bool {
    is_write(why) || matches!(why, Dependency::WriteRead(_))
}

fn is_item(why: &Dependency) -> bool {
    is_seen(why) || matches!(why, Dependency::ReadWrite(_))
}

fn is_data(why: &Dependency) -> bool {
    *why != Dependency::RealTime
}

/// # Errors
/// A cycle.
pub(super) fn search(graph: &Graph, history: &History) -> Result<(), Anomaly> {
    let all = |_: &Dependency| true;
    if on_cycle(&outgoing(graph, all)).is_none() {
        return Ok(());
    }
    let found = |kind, cycle: Vec<Edge>| Err(Anomaly::new(kind, describe(&cycle, history)));
    for (kind, allowed) in [(Kind::G0, is_write as Allowed), (Kind::G1c, is_seen)] {
        if let Some(cycle) = any_cycle(graph, allowed) {
            return found(kind, cycle);
        }
    }
    if let Some(cycle) = single(graph) {
        return found(Kind::GSingle, cycle);
    }
    for (kind, allowed) in [(Kind::G2Item, is_item as Allowed), (Kind::G2, is_data), (Kind::RealTime, all)] {
        if let Some(cycle) = any_cycle(graph, allowed) {
            return found(kind, cycle);
        }
    }
    Ok(())
}

/// A cycle with one edge from a read to a write.
fn single(graph: &Graph) -> Option<Vec<Edge>> {
    let edges = outgoing(graph, is_seen);
    let missed = graph.edges.iter().filter(|edge| matches!(edge.why, Dependency::ReadWrite(_)));
    missed.copied().find_map(|edge| {
        let mut cycle = path(&edges, edge.to, edge.from)?;
        cycle.insert(0, edge);
        Some(cycle)
    })
}

fn outgoing(graph: &Graph, allowed: Allowed) -> Vec<Vec<Edge>> {
    let mut edges = vec![Vec::new(); graph.nodes];
    graph.edges.iter().filter(|edge| allowed(&edge.why)).for_each(|edge| edges[edge.from].push(*edge));
    edges
}

/// A shortest cycle through the first node that has one.
fn any_cycle(graph: &Graph, allowed: Allowed) -> Option<Vec<Edge>> {
    let edges = outgoing(graph, allowed);
    let node = on_cycle(&edges)?;
    let steps = edges[node].iter();
    let cycles = steps.filter_map(|edge| {
        let mut cycle = path(&edges, edge.to, node)?;
        cycle.insert(0, *edge);
        Some(cycle)
    });
    cycles.min_by_key(Vec::len)
}

/// A node that is on a cycle (depth first, without recursion: chains are long).
fn on_cycle(edges: &[Vec<Edge>]) -> Option<Node> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; edges.len()];
    for start in 0..edges.len() {
        if marks[start] != Mark::New {
            continue;
        }
        let mut stack = vec![(start, 0)];
        marks[start] = Mark::Open;
        while let Some((node, index)) = stack.pop() {
            let Some(edge) = edges[node].get(index) else {
                marks[node] = Mark::Done;
                continue;
            };
            stack.push((node, index + 1));
            match marks[edge.to] {
                Mark::New => {
                    marks[edge.to] = Mark::Open;
                    stack.push((edge.to, 0));
                }
                Mark::Open => return Some(edge.to),
                Mark::Done => {}
            }
        }
    }
    None
}

/// A shortest path; none is needed from a node to itself.
fn path(edges: &[Vec<Edge>], from: Node, to: Node) -> Option<Vec<Edge>> {
    let mut came: Vec<Option<Edge>> = vec![None; edges.len()];
    let mut pending = VecDeque::from([from]);
    while let Some(node) = pending.pop_front() {
        if node == to {
            let mut way = Vec::new();
            let mut at = to;
            while at != from {
                let edge = came[at]?;
                way.push(edge);
                at = edge.from;
            }
            way.reverse();
            return Some(way);
        }
        for edge in &edges[node] {
            if edge.to != from && came[edge.to].is_none() {
                came[edge.to] = Some(*edge);
                pending.push_back(edge.to);
            }
        }
    }
    None
}

fn describe(cycle: &[Edge], history: &History) -> String {
    let mut text = String::new();
    for Edge { from, to, why } in cycle {
        text += &format!("{from} before {to} ({why:?}); ");
    }
    for Edge { from, .. } in cycle {
        text += &format!("\n{from}: {:?}", history.transactions[*from]);
    }
    text
}
