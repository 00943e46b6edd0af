//! What is recorded of shared pages takes little memory.

use std::time::Duration;

use super::super::{Action, Address, Config, Homes, Incarnation, Local, Node, NodeId, PageNo, Storage};
use super::world::NOW;

const PAGES: u64 = 10_000;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

fn address(node: u16) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation::FIRST }
}

/// A home and a node that holds pages of it: every `stride`th one.
fn sharing(want: Local, stride: u64) -> [Node; 2] {
    let config = Config {
        nodes: 2,
        pages: PAGES * stride,
        homes: Homes::Of(1),
        shard: 256,
        storage: Storage::Volatile,
        pages_max: usize::MAX,
        timeout: Duration::from_secs(1),
    };
    let mut nodes = [0, 1].map(|node| Node::new(config, address(node), [], []));
    for page in (0..PAGES).map(|page| PageNo(page * stride)) {
        let mut actions = nodes[1].on_local(NOW, want, page).expect("it is taken");
        while let Some(envelope) = actions.iter().find_map(|action| match action {
            Action::Send(envelope) => Some(*envelope),
            _ => None,
        }) {
            actions = nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
        }
        assert!(nodes[1].holds(page).is_some());
    }
    nodes
}

#[test]
fn what_each_node_records_of_a_page_that_it_shares_is_less_than_two_percent_of_it() {
    for want in [Local::Read, Local::Write] {
        let [home, holder] = sharing(want, 1);
        let exclusive = home.directory.exclusive_bytes();
        let bytes = [home.directory.entries.bytes() + exclusive, holder.copies.pages.bytes()];
        let each = bytes.map(|bytes| bytes / PAGES as usize);
        println!("{want:?}: {} bytes a page at the home, {} at the holder", each[0], each[1]);
        assert!(each.iter().all(|bytes| *bytes * 50 < PAGE_BYTES), "{want:?}: {each:?} bytes a page");
    }
}

#[test]
fn a_page_far_from_all_others_takes_no_more_than_some_of_them() {
    let [home, holder] = sharing(Local::Read, 1000);
    let each = [home.directory.entries.bytes(), holder.copies.pages.bytes()].map(|bytes| bytes / PAGES as usize);
    assert!(each.iter().all(|bytes| *bytes <= 4 * 82), "{each:?} bytes a page");
}
