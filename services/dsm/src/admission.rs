//! Which connections between nodes are accepted.

use policy::coherence::NodeId;

use crate::Shared;
use crate::hello::{First, Hello, Process};

/// Why this node refuses the connection of one with this hello.
pub(crate) fn refusal(shared: &Shared, hello: &Hello) -> Option<String> {
    let me = shared.name_of(shared.me.node);
    if let Some(why) = shared.config.terms().refuse(&hello.terms, &me) {
        return Some(why);
    }
    if hello.from == shared.me.node {
        return Some(format!("both are node {me:?} by their configurations"));
    }
    if usize::from(hello.from.0) >= shared.config.nodes.len() {
        return Some(format!("it is no peer of node {me:?}"));
    }
    if hello.to != shared.me.node {
        return Some(format!("this is node {me:?}, another one is meant"));
    }
    // Where members come and go, this node hears of its own end from elsewhere.
    let (their, own) = if shared.is_managed() { (None, None) } else { (met(shared, hello.from), hello.met) };
    let name = shared.name_of(hello.from);
    old(&name, their, hello.process).or_else(|| old(&me, own, shared.process()))
}

/// Why a process of a node cannot be one that was met.
fn old(name: &str, met: Option<Process>, now: Process) -> Option<String> {
    let met =
        met.filter(|met| met.incarnation > now.incarnation || (met.incarnation == now.incarnation && *met != now))?;
    let (met, now) = (met.incarnation.0, now.incarnation.0);
    Some(format!(
        "node {name:?} was number {met} already, so this number {now} is an old one: it was started with an old data \
         directory, or without its own (--data)"
    ))
}

fn met(shared: &Shared, node: NodeId) -> Option<Process> {
    let core = shared.core.lock();
    let (incarnation, id) = (core.met.get(usize::from(node.0)).copied().flatten()?, core.processes.get(&node).copied());
    Some(Process { incarnation, id: id.unwrap_or_default() })
}

/// Is the peer a member by all that this node has seen? If not, it is one no more, or this node has not seen it yet:
/// it tries again.
pub(crate) fn is_member(shared: &Shared, hello: &Hello) -> bool {
    !shared.is_managed() || (!shared.has_ended() && shared.met(hello.from) == Some(hello.process.incarnation))
}

pub(crate) fn hello(shared: &Shared, to: NodeId) -> First {
    First::Hello(Hello {
        from: shared.me.node,
        to,
        process: shared.process(),
        first: shared.first,
        met: if shared.is_managed() { None } else { met(shared, to) },
        terms: shared.config.terms(),
    })
}
