//! Which connections between nodes are accepted.

use policy::coherence::{Incarnation, NodeId};

use crate::Shared;
use crate::hello::{First, Hello};

/// Why this node refuses the connection of one with this hello.
pub(crate) fn refusal(shared: &Shared, hello: &Hello) -> Option<String> {
    let is_known = usize::from(hello.from.0) < shared.config.nodes.len() && hello.from != shared.me.node;
    if !is_known {
        return Some("it is no peer of this node".into());
    }
    let name = shared.name_of(hello.from);
    if let Some(why) = shared.config.terms().refuse(&hello.terms) {
        return Some(why);
    }
    if hello.to != shared.me.node {
        return Some(format!("this is node {:?}, another one is meant", shared.name_of(shared.me.node)));
    }
    let is_old = |name: &str, met: Option<Incarnation>, now: Incarnation| {
        let met = met.filter(|met| *met > now)?.0;
        Some(format!("node {name:?} has returned as number {met} already: number {} is an old one", now.0))
    };
    // Where members come and go, this node hears of its own end from elsewhere.
    let met_here = hello.met.filter(|_| !shared.is_managed());
    let own = || is_old(&shared.name_of(shared.me.node), met_here, shared.me.incarnation);
    is_old(&name, shared.met(hello.from), hello.incarnation).or_else(own)
}

/// Is the peer a member by all that this node has seen? If not, it is one no more, or this node has not seen it yet:
/// it tries again.
pub(crate) fn is_member(shared: &Shared, hello: &Hello) -> bool {
    !shared.is_managed() || (!shared.has_ended() && shared.met(hello.from) == Some(hello.incarnation))
}

pub(crate) fn hello(shared: &Shared, to: NodeId) -> First {
    First::Hello(Hello {
        from: shared.me.node,
        to,
        incarnation: shared.me.incarnation,
        met: shared.met(to),
        terms: shared.config.terms(),
    })
}
