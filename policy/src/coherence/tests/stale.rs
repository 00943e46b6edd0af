//! Stale messages: those that can never change anything. An exploration loses them at once; whatever could follow with
//! them in the network follows without them too, as the network may lose any message.

use std::rc::Rc;

use super::super::directory::Directory;
use super::super::entry::Holding;
use super::super::{Action, Envelope, Message, Node, NodeId, PageNo, Request, Serial, Storage};
use super::encode::Encoder;
use super::world::{NOW, World, surveys};

fn holding(directory: &Directory, page: PageNo, node: NodeId, serial: Serial) -> Option<Holding> {
    let entry = directory.entries.iter().find(|entry| entry.page == page)?;
    entry.holders.iter().find(|holder| holder.node == node && holder.serial == serial).map(|holder| holder.step)
}

fn waits(node: &Node, page: PageNo, request: Request) -> bool {
    let copy = node.copies.pages.iter().find(|copy| copy.page == page);
    copy.and_then(|copy| copy.waiting()).is_some_and(|waiting| waiting.request == request)
}

fn is_saving(node: &Node, page: PageNo, serial: Serial) -> bool {
    let copy = node.copies.pages.iter().find(|copy| copy.page == page);
    copy.and_then(|copy| copy.saving()).is_some_and(|saving| saving.serial == serial)
}

fn has(node: &Node, page: PageNo, serial: Serial) -> bool {
    let copy = node.copies.pages.iter().find(|copy| copy.page == page);
    copy.and_then(|copy| copy.held).is_some_and(|held| held.serial == serial) || is_saving(node, page, serial)
}

/// Whether it is and remains ignored, or is answered only by messages that are.
pub fn is_stale(world: &World, envelope: &Envelope) -> bool {
    let (from, to) = (usize::from(envelope.from.node.0), usize::from(envelope.to.node.0));
    let Some(receiver) = world.nodes[to].as_deref().filter(|node| node.me == envelope.to) else { return true };
    if envelope.from.incarnation.0 * 2 - 2 < u32::from(world.known_stage(to, from)) {
        return true;
    }
    // The sender in the incarnation that sent it; a later one has nothing to do with it.
    let sender = world.nodes[from].as_deref().filter(|node| node.me == envelope.from);
    let granted =
        |page, serial| sender.is_some_and(|home| holding(&home.directory, page, envelope.to.node, serial).is_some());
    match envelope.message {
        Message::Ask { .. } => false,
        Message::Grant { page, request, serial, .. } => {
            // Also one that was forwarded: its home sends the same.
            let home = world.config.home(page).and_then(|home| world.nodes[usize::from(home.0)].as_deref());
            let is_known = |home: &Node| {
                let entry = home.directory.entries.iter().find(|entry| entry.page == page);
                let promise = entry.and_then(|entry| entry.promise());
                let is_promised = promise.is_some_and(|promise| promise.serial == serial);
                is_promised || holding(&home.directory, page, envelope.to.node, serial).is_some()
            };
            !waits(receiver, page, request) && !has(receiver, page, serial) && !home.is_some_and(is_known)
        }
        Message::Recall { page, serial, request, .. } => {
            !waits(receiver, page, request) && !has(receiver, page, serial) && !granted(page, serial)
        }
        Message::GaveUp { page, serial, .. } => {
            let waits = sender.is_some_and(|node| is_saving(node, page, serial));
            // Without versions, a duplicate is stored again.
            let is_stored = sender.is_none() || world.config.storage != Storage::Versioned;
            let surveyed = is_stored && surveys(&receiver.directory, envelope.from.node);
            !waits && !surveyed && holding(&receiver.directory, page, envelope.from.node, serial).is_none()
        }
        Message::Recorded { page, serial } => {
            let copy = receiver.copies.pages.iter().find(|copy| copy.page == page);
            let held = copy.and_then(|copy| copy.held);
            // It may overtake what is recorded.
            let is_granted =
                sender.is_some_and(|home| holding(&home.directory, page, envelope.to.node, serial).is_some());
            !is_granted && !held.is_some_and(|held| held.serial == serial && held.is_forwarded)
        }
        Message::Taken { page, serial } => !is_saving(receiver, page, serial),
        Message::Noted { page, serial } => {
            let holding = holding(&receiver.directory, page, envelope.from.node, serial);
            !matches!(holding, Some(Holding::Stored))
        }
        Message::Survey { .. } => {
            // Whoever waits asks again.
            receiver.copies.is_quiet() && !sender.is_some_and(|home| surveys(&home.directory, envelope.to.node))
        }
        Message::Surveyed { .. } => !surveys(&receiver.directory, envelope.from.node),
    }
}

/// Loses stale messages, and checks that they are: the receiver does not change, and sends only stale messages. Returns the
/// hash of the world then.
pub fn lose(world: &mut World, encoder: &mut Encoder) -> u128 {
    let (mut index, mut hash) = (0, None);
    while index < world.network.len() {
        let envelope = world.network[index];
        if is_stale(world, &envelope) {
            world.network.remove(index);
            let without = encoder.hash(world);
            assert!(does_nothing(world, envelope, encoder, without), "{envelope:?} is not stale");
            hash = Some(without);
        } else {
            index += 1;
        }
    }
    hash.unwrap_or_else(|| encoder.hash(world))
}

/// `hash`: the world's.
fn does_nothing(world: &World, envelope: Envelope, encoder: &mut Encoder, hash: u128) -> bool {
    let to = usize::from(envelope.to.node.0);
    let mut after = world.clone();
    let Some(receiver) = &mut after.nodes[to] else { return true };
    let answers = Rc::make_mut(receiver).on_message(NOW, envelope);
    let says_nothing = answers.iter().all(|action| match action {
        Action::Send(answer) => is_stale(world, answer),
        _ => false,
    });
    says_nothing && encoder.hash(&after) == hash
}
