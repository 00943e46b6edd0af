//! Guarantees of coherence to its users. That they hold whatever the network does is tested next to the code.

use std::collections::VecDeque;
use std::time::Duration;

use policy::coherence::{
    Action, Actions, Address, Config, Envelope, Home, Homes, Incarnation, Local, LocalError, Message, Mode, Node,
    NodeId, PageNo, ShardNo, Storage, Version,
};
use policy::unit::Instant;

const NOW: Instant = Instant::ZERO;
const PAGE: PageNo = PageNo(0);

fn config(nodes: u16) -> Config {
    Config {
        nodes,
        pages: 8,
        homes: Homes::All,
        shard: 1,
        storage: Storage::Versioned,
        pages_max: 2,
        timeout: Duration::from_millis(5),
    }
}

fn address(node: u16, incarnation: u32) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

/// Nodes, and a network that delivers all in order.
struct Orderly {
    nodes: Vec<Node>,
    network: VecDeque<Envelope>,
    /// Node, mode and version of each grant.
    granted: Vec<(u16, Mode, Version)>,
    sent: Vec<Message>,
}

impl Orderly {
    fn new(nodes: u16) -> Self {
        Orderly::with(config(nodes))
    }

    fn with(config: Config) -> Self {
        let node = |index| Node::new(config, address(index, 1), [], []);
        let nodes = (0..config.nodes).map(node).collect();
        Orderly { nodes, network: VecDeque::new(), granted: Vec::new(), sent: Vec::new() }
    }

    fn act(&mut self, node: u16, actions: &Actions) {
        for action in actions {
            match *action {
                Action::Send(envelope) => {
                    self.sent.push(envelope.message);
                    self.network.push_back(envelope);
                }
                Action::Access { mode, version, .. } => self.granted.push((node, mode, version)),
                _ => {}
            }
        }
    }

    fn want(&mut self, node: u16, want: Local) -> Actions {
        let actions = self.nodes[usize::from(node)].on_local(NOW, want, PAGE).expect("it is taken");
        self.act(node, &actions);
        actions
    }

    fn settle(&mut self) {
        while let Some(envelope) = self.network.pop_front() {
            let actions = self.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
            self.act(envelope.to.node.0, &actions);
        }
    }

    fn done(&mut self, node: u16, want: Local) {
        self.want(node, want);
        self.settle();
    }
}

#[test]
fn other_nodes_read_what_one_wrote_and_it_retains_a_copy() {
    let mut all = Orderly::new(3);
    all.done(1, Local::Write);
    let written = all.granted[0].2;
    all.done(2, Local::Read);
    assert_eq!(all.granted[1], (2, Mode::Read, written));
    assert_eq!(all.nodes[1].holds(PAGE), Some((Mode::Read, written)));
    assert_eq!(all.nodes[0].stored(PAGE), written, "it is at its home too");
}

#[test]
fn access_to_a_held_page_sends_no_message_and_an_upgrade_to_write_no_data() {
    let mut all = Orderly::new(3);
    all.done(1, Local::Read);
    assert_eq!(all.sent.len(), 2, "ask, grant");
    all.done(1, Local::Read);
    assert_eq!(all.sent.len(), 2);
    all.done(1, Local::Write);
    assert_eq!(all.sent.iter().filter(|message| message.data().is_some()).count(), 1, "{:?}", all.sent);
    all.done(1, Local::Write);
    assert_eq!(all.sent.len(), 4);
}

#[test]
fn a_recall_that_overtakes_a_forwarded_page_is_answered_when_that_comes() {
    for first in [Local::Read, Local::Write] {
        let mut all = Orderly::new(4);
        all.nodes.iter_mut().for_each(|node| node.set_forwarding(true));
        all.done(1, Local::Write);
        all.want(2, first);
        all.want(3, Local::Write);
        let mut late = Vec::new();
        while let Some(envelope) = all.network.pop_front() {
            let is_late = matches!(envelope.message, Message::Grant { .. }) && envelope.from == address(1, 1);
            if is_late {
                late.push(envelope);
            } else {
                let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
                all.act(envelope.to.node.0, &actions);
            }
        }
        assert_eq!(late.len(), 1, "straight to node 2");
        all.network.extend(late);
        all.settle();
        let nodes: Vec<u16> = all.granted.iter().map(|granted| granted.0).collect();
        assert_eq!(nodes, [1, 2, 3], "{first:?}: nothing was asked again");
        assert!(all.nodes.iter().all(Node::is_quiet), "{first:?}");
    }
}

#[test]
fn a_writer_waits_until_each_reader_has_given_up_its_copy() {
    let mut all = Orderly::new(4);
    all.done(1, Local::Read);
    all.done(2, Local::Read);
    all.want(3, Local::Write);
    while let Some(envelope) = all.network.pop_front() {
        let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
        all.act(envelope.to.node.0, &actions);
        let readers = [1, 2].iter().filter(|node| all.nodes[**node].holds(PAGE).is_some()).count();
        assert!(readers == 0 || all.nodes[3].holds(PAGE).is_none_or(|(mode, _)| mode != Mode::Write));
    }
    assert_eq!(all.granted.last().map(|granted| granted.0), Some(3));
}

#[test]
fn writers_are_served_once_each_in_order_of_arrival() {
    let mut all = Orderly::new(64);
    (0..64).for_each(|node| drop(all.want(node, Local::Write)));
    all.settle();
    let order: Vec<u16> = all.granted.iter().map(|granted| granted.0).collect();
    assert_eq!(order, (0..64).collect::<Vec<_>>());
}

#[test]
fn lost_messages_are_retransmitted_after_the_timeout_and_not_before() {
    let mut all = Orderly::new(2);
    all.want(1, Local::Write);
    let asked = all.network.pop_front();
    assert!(all.nodes[1].on_tick(NOW + Duration::from_millis(4)).is_empty());
    let again = all.nodes[1].on_tick(NOW + Duration::from_millis(5));
    assert_eq!(again.first().copied(), asked.map(Action::Send));
    assert!(all.nodes[1].on_tick(NOW + Duration::from_millis(6)).is_empty());
}

#[test]
fn a_written_back_page_survives_its_node_and_later_writes_do_not() {
    let mut all = Orderly::new(3);
    all.done(1, Local::Write);
    let saved = all.granted[0].2;
    all.done(1, Local::WriteBack);
    all.done(1, Local::Write);
    let actions = all.nodes[0].on_dead(NOW, address(1, 1));
    all.act(0, &actions);
    all.done(2, Local::Read);
    assert_eq!(all.granted.last(), Some(&(2, Mode::Read, saved)));
}

#[test]
fn a_home_that_returns_collects_dirty_pages_before_it_grants() {
    let mut all = Orderly::new(3);
    all.done(1, Local::Write);
    let written = all.granted[0].2;
    let stored: Vec<_> = all.nodes[0].all_stored().collect();
    assert_eq!(stored, [], "nothing was written back");
    all.nodes[0] = Node::new(config(3), address(0, 2), stored, []);
    for node in [1, 2] {
        let actions = all.nodes[usize::from(node)].on_alive(NOW, address(0, 2));
        all.act(node, &actions);
    }
    all.want(2, Local::Read);
    all.settle();
    assert_eq!(all.granted.len(), 1, "not before all have answered");
    let actions = all.nodes[0].on_tick(NOW + Duration::from_millis(5));
    all.act(0, &actions);
    all.settle();
    assert_eq!(all.granted.last(), Some(&(2, Mode::Read, written)));
}

#[test]
fn who_has_given_up_all_that_a_returning_home_surveys_says_so_without_being_asked_again() {
    let mut all = Orderly::new(2);
    all.done(1, Local::Write);
    let written = all.granted[0].2;
    all.nodes[0] = Node::returning(config(2), address(0, 2), []);
    let actions = all.nodes[1].on_alive(NOW, address(0, 2));
    all.act(1, &actions);
    let actions = all.nodes[0].on_alive(NOW, address(1, 1));
    all.act(0, &actions);
    all.want(0, Local::Read);
    all.settle();
    assert_eq!(all.granted.last(), Some(&(0, Mode::Read, written)), "{:?}", all.sent);
}

/// Two nodes whose homes move, with one shard.
fn mapped() -> Orderly {
    Orderly::with(Config { homes: Homes::Mapped { shards: 1 }, storage: Storage::Shared, ..config(2) })
}

impl Orderly {
    /// A node sees that another one is the home since a term.
    fn see(&mut self, node: u16, home: u16, since: u32) {
        let home = Home { at: address(home, 1), since: Incarnation(since) };
        let actions = self.nodes[usize::from(node)].on_homes(NOW, [(ShardNo(0), home)], [], |_| false);
        self.act(node, &actions);
    }
}

#[test]
fn what_a_new_home_ignored_before_it_saw_the_map_is_asked_again_when_it_surveys() {
    let mut all = mapped();
    (0..2).for_each(|node| all.see(node, 1, 2));
    all.settle();
    all.done(1, Local::Write);
    // The writer sees first that the other node is the home.
    all.see(1, 0, 3);
    all.want(1, Local::Read);
    all.settle();
    assert_eq!(all.granted.len(), 1, "it does not know that it is the home");
    all.see(0, 0, 3);
    all.settle();
    assert_eq!(all.granted.len(), 2, "{:?}", all.sent);
    assert_eq!(all.granted[1].2, all.granted[0].2);
}

#[test]
fn answers_to_a_survey_of_who_knows_a_later_map_do_not_count() {
    let mut all = mapped();
    all.see(0, 0, 2);
    let answer = |seen| {
        let message = Message::Surveyed { since: Incarnation(2), seen: Incarnation(seen) };
        Envelope { from: address(1, 1), to: address(0, 1), message }
    };
    all.nodes[0].on_message(NOW, answer(3));
    assert!(all.nodes[0].is_surveying(), "it may be the home no more");
    all.nodes[0].on_message(NOW, answer(2));
    assert!(!all.nodes[0].is_surveying());
}

#[test]
fn what_was_given_up_to_a_home_of_an_earlier_term_is_not_stored_by_the_present_one() {
    let mut all = mapped();
    (0..2).for_each(|node| all.see(node, 0, 2));
    all.settle();
    all.done(1, Local::Write);
    all.want(0, Local::Write);
    let is_given_up = |envelope: &Envelope| matches!(envelope.message, Message::GaveUp { data: Some(_), .. });
    let mut late = None;
    while let Some(envelope) = all.network.pop_front() {
        late = late.or(Some(envelope).filter(is_given_up));
        let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
        all.act(envelope.to.node.0, &actions);
    }
    // The same node, in another term, which has stored a later write.
    all.done(0, Local::WriteBack);
    all.see(0, 0, 3);
    let actions = all.nodes[0].on_message(NOW, late.expect("it was given up"));
    assert_eq!(actions, Actions::new());
}

/// Node 1 has written, and its home forwards what node 2 wants. Returned: what was written.
fn forwarding(want: Local) -> (Orderly, Version) {
    let mut all = Orderly::new(3);
    all.nodes[0].set_forwarding(true);
    all.done(1, Local::Write);
    let written = all.granted[0].2;
    all.want(2, want);
    (all, written)
}

#[test]
fn a_forwarded_page_that_cannot_be_taken_in_comes_from_its_home_when_that_is_asked_before_or_after_it_has_it() {
    for (want, is_before) in [(Local::Read, false), (Local::Read, true), (Local::Write, false), (Local::Write, true)] {
        let (mut all, written) = forwarding(want);
        let is_forwarded = |envelope: &Envelope| (envelope.from, envelope.to) == (address(1, 1), address(2, 1));
        while !all.network.iter().any(is_forwarded) {
            let envelope = all.network.pop_front().expect("it is on its way");
            let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
            all.act(envelope.to.node.0, &actions);
        }
        all.network.retain(|envelope| !is_forwarded(envelope));
        let gave_up = std::mem::take(&mut all.network);
        if !is_before {
            all.network.extend(gave_up.iter().copied());
            all.settle();
        }
        let actions = all.nodes[2].ask_again(NOW, PAGE);
        assert_eq!(actions.len(), 1, "{actions:?}");
        all.act(2, &actions);
        all.settle();
        if is_before {
            all.network.extend(gave_up);
            all.settle();
        }
        assert_eq!(all.granted.len(), 2, "{want:?}, {is_before}");
        assert_eq!(all.nodes[0].stored(PAGE), written);
        assert!(!all.nodes[2].copied(PAGE).is_forwarded, "it is from the home");
        assert!(all.nodes[2].ask_again(NOW, PAGE).is_empty(), "nothing is waited for");
    }
}

#[test]
fn a_forwarded_page_whose_home_does_not_say_that_it_has_it_is_written_back_at_once() {
    for (want, save) in [
        (Local::Read, Local::WriteBack),
        (Local::Read, Local::Drop),
        (Local::Write, Local::WriteBack),
        (Local::Write, Local::Drop),
    ] {
        let (mut all, _) = forwarding(want);
        while let Some(envelope) = all.network.pop_front() {
            if !matches!(envelope.message, Message::Recorded { .. }) {
                let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
                all.act(envelope.to.node.0, &actions);
            }
        }
        let (_, held) = all.nodes[2].holds(PAGE).expect("it was granted");
        all.nodes[2].unwritten(PAGE, held);
        assert!(all.nodes[2].copied(PAGE).is_forwarded);
        let actions = all.want(2, save);
        let gave_up = |action: &Action| {
            matches!(action, Action::Send(Envelope { message: Message::GaveUp { data: Some(_), .. }, .. }))
        };
        assert!(actions.iter().any(gave_up), "{want:?}, {save:?}: {actions:?}");
        all.nodes[2].unwritten(PAGE, held);
        assert!(all.nodes[2].retains(PAGE, held), "its home does not have it");
        all.settle();
        assert!(!all.nodes[2].copied(PAGE).is_forwarded && !all.nodes[2].is_saving(PAGE));
        assert_eq!(all.nodes[0].stored(PAGE), held);
    }
}

#[test]
fn what_was_recalled_before_its_grant_came_and_not_written_then_has_no_data() {
    for (want, next) in [Local::Write, Local::Overwrite]
        .into_iter()
        .flat_map(|want| [Local::Read, Local::Write].map(|next| (want, next)))
    {
        let mut all = Orderly::new(3);
        all.want(1, want);
        all.want(2, next);
        let mut to_first = Vec::new();
        while let Some(envelope) = all.network.pop_front() {
            if envelope.to.node == NodeId(1) {
                to_first.push(envelope);
            } else {
                let actions = all.nodes[0].on_message(NOW, envelope);
                all.act(0, &actions);
            }
        }
        let [grant, recall] = to_first[..] else { panic!("{to_first:?}") };
        assert!(all.nodes[1].on_message(NOW, recall).is_empty(), "its grant is still to come");
        let actions = all.nodes[1].on_message(NOW, grant);
        let Some(Action::Access { version, .. }) = actions.first().copied() else { panic!("{actions:?}") };
        assert!(all.nodes[1].retains(PAGE, version), "if it is written");
        all.nodes[1].unwritten(PAGE, version);
        assert!(!all.nodes[1].retains(PAGE, version) && all.nodes[1].is_quiet(), "{want:?}, {next:?}");
        let Some(Action::Send(mut gave_up)) = actions.last().copied() else { panic!("{actions:?}") };
        let Message::GaveUp { data, .. } = &mut gave_up.message else { panic!("{gave_up:?}") };
        assert_eq!(data.take(), Some(version));
        all.network.push_back(gave_up);
        all.settle();
        assert_eq!(all.nodes[0].stored(PAGE), Version::default(), "{want:?}, {next:?}");
        assert_eq!(all.granted.last().map(|granted| granted.0), Some(2), "{want:?}, {next:?}");
    }
}

#[test]
fn a_page_is_revoked_before_its_data_are_sent_and_discarded_after() {
    let mut all = Orderly::new(3);
    all.done(1, Local::Write);
    all.want(2, Local::Write);
    let mut of_the_first = Actions::new();
    while let Some(envelope) = all.network.pop_front() {
        let actions = all.nodes[usize::from(envelope.to.node.0)].on_message(NOW, envelope);
        if envelope.to.node == NodeId(1) {
            of_the_first.extend(actions.iter().copied());
        }
        all.act(envelope.to.node.0, &actions);
    }
    let at = |found: &dyn Fn(&Action) -> bool| of_the_first.iter().position(found).expect("it is done");
    let revoked = at(&|action| *action == Action::Revoke(PAGE));
    let sent = at(&|action| matches!(action, Action::Send(envelope) if envelope.message.data().is_some()));
    let discarded = at(&|action| *action == Action::Discard(PAGE));
    assert!(revoked < sent && sent < discarded, "{of_the_first:?}");
}

#[test]
fn invalid_requests_are_rejected_with_their_reason() {
    let mut node = Node::new(config(2), address(1, 1), [], []);
    assert_eq!(node.on_local(NOW, Local::Read, PageNo(8)), Err(LocalError::NoSuchPage(8)));
    assert!(node.on_local(NOW, Local::Read, PageNo(0)).is_ok());
    assert_eq!(node.on_local(NOW, Local::Write, PageNo(0)), Err(LocalError::Busy(0)));
    assert!(node.on_local(NOW, Local::Read, PageNo(2)).is_ok());
    assert_eq!(node.on_local(NOW, Local::Read, PageNo(4)), Err(LocalError::Full));
}

#[test]
fn shards_go_to_the_homes_in_turn() {
    let homes_of = |homes, shard| {
        let config = Config { pages: 12, homes, shard, ..config(4) };
        (0..12).map(|page| config.home(PageNo(page)).expect("fixed").0).collect::<Vec<_>>()
    };
    assert_eq!(homes_of(Homes::All, 1), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(homes_of(Homes::All, 2), [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]);
    assert_eq!(homes_of(Homes::Of(0b1010), 3), [1, 1, 1, 3, 3, 3, 1, 1, 1, 3, 3, 3]);
}

#[test]
fn a_page_that_is_overwritten_is_granted_without_data() {
    let mut all = Orderly::new(2);
    all.done(1, Local::Overwrite);
    let is_without = |message: &Message| matches!(message, Message::Grant { data: None, .. });
    assert!(all.sent.iter().any(is_without));
    assert_eq!(all.nodes[1].held(), [0, 1]);
    all.done(0, Local::Read);
    assert_eq!(all.granted[1].2, all.granted[0].2, "what was written is read");
    assert_eq!(all.nodes[1].held(), [1, 0]);
}
