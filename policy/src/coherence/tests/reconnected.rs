//! What is repeated on a new connection.

use std::time::Duration;

use super::super::{
    Action, Actions, Address, Config, Homes, Incarnation, Local, Message, Node, NodeId, PageNo, Storage,
};
use super::world::NOW;

fn asks(actions: &Actions) -> usize {
    let is_ask =
        |action: &&Action| matches!(action, Action::Send(envelope) if matches!(envelope.message, Message::Ask { .. }));
    actions.iter().filter(is_ask).count()
}

#[test]
fn what_was_sent_before_a_connection_was_made_is_repeated_on_it_and_what_was_sent_since_is_not() {
    let timeout = Duration::from_secs(1);
    let config = Config {
        nodes: 2,
        pages: 2,
        homes: Homes::Of(1),
        shard: 1,
        storage: Storage::Volatile,
        pages_max: usize::MAX,
        timeout,
    };
    let me = Address { node: NodeId(1), incarnation: Incarnation::FIRST };
    let mut node = Node::new(config, me, [], []);
    let made = NOW + Duration::from_millis(5);
    let now = made + Duration::from_millis(5);
    assert_eq!(asks(&node.on_local(NOW, Local::Read, PageNo(0)).expect("it is taken")), 1);
    assert_eq!(asks(&node.on_local(made, Local::Read, PageNo(1)).expect("it is taken")), 1);
    assert_eq!(asks(&node.on_reconnected(now, made)), 1, "the first");
    assert_eq!(asks(&node.on_tick(made + timeout)), 1, "the second, which is still not answered");
    assert_eq!(asks(&node.on_tick(now + timeout)), 1, "the first");
}
