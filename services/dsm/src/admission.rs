//! Which connections between nodes are accepted.

use policy::coherence::NodeId;

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
    let met = shared.met(hello.from).filter(|met| *met > hello.incarnation)?;
    let (met, now) = (met.0, hello.incarnation.0);
    Some(format!("node {name:?} has returned as number {met} already: number {now} is an old one"))
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
