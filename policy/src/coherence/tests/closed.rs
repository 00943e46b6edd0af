//! A home that ends.

use std::time::Duration;

use super::super::{
    Action, Actions, Address, Config, Envelope, Homes, Incarnation, Message, Mode, Node, NodeId, PageNo, Request,
    Storage,
};
use super::world::NOW;

const PAGE: PageNo = PageNo(0);

fn address(node: u16) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation::FIRST }
}

fn home() -> Node {
    let config = Config {
        nodes: 3,
        pages: 1,
        homes: Homes::Of(1),
        shard: 1,
        storage: Storage::Volatile,
        pages_max: usize::MAX,
        timeout: Duration::from_secs(1),
    };
    let others = [1, 2].map(|node| (NodeId(node), Some(Incarnation::FIRST)));
    Node::new(config, address(0), [], others)
}

fn take(home: &mut Node, from: u16, message: Message) -> Actions {
    home.on_message(NOW, Envelope { from: address(from), to: address(0), message })
}

fn ask(home: &mut Node, from: u16, mode: Mode, request: u64) -> Actions {
    take(home, from, Message::Ask { page: PAGE, mode, request: Request(request), have: None, blank: false })
}

fn granted(actions: &Actions) -> Vec<(NodeId, Mode)> {
    let grant = |action: &Action| match action {
        Action::Send(Envelope { to, message: Message::Grant { mode, .. }, .. }) => Some((to.node, *mode)),
        _ => None,
    };
    actions.iter().filter_map(grant).collect()
}

#[test]
fn who_waits_to_write_behind_a_reader_is_not_granted_the_page_after_the_home_was_closed() {
    for closes in [false, true] {
        let mut home = home();
        let first = ask(&mut home, 1, Mode::Read, 1);
        assert_eq!(granted(&first), [(NodeId(1), Mode::Read)]);
        let serial = first.iter().find_map(|action| match action {
            Action::Send(Envelope { message: Message::Grant { serial, .. }, .. }) => Some(*serial),
            _ => None,
        });
        let serial = serial.expect("it was granted");
        assert_eq!(granted(&ask(&mut home, 2, Mode::Write, 1)), [], "it is recalled first");
        if closes {
            home.close();
        }
        let to = Incarnation::FIRST;
        let gave_up = Message::GaveUp { page: PAGE, serial, retained: false, data: None, to, forwarded: None };
        let expected = if closes { vec![] } else { vec![(NodeId(2), Mode::Write)] };
        assert_eq!(granted(&take(&mut home, 1, gave_up)), expected);
        assert_eq!(home.written_by(NodeId(2)), expected.len());
        if closes {
            assert_eq!(granted(&ask(&mut home, 2, Mode::Write, 2)), []);
            assert_eq!(granted(&ask(&mut home, 1, Mode::Read, 2)), [(NodeId(1), Mode::Read)]);
            assert!(home.is_quiet());
        }
    }
}
