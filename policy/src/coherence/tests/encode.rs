//! Canonical form of states: states are equal if they differ only in how far numbers have been counted. The protocol
//! only compares numbers of the same page, so each number is encoded as its rank among those of its page. States are also
//! equal if they differ only in which of several nodes that are alike does what.

use super::super::copies::{Copy, Recalled};
use super::super::entry::{Entry, Holding};
use super::super::{Forward, Message, Node, NodeId, PageNo, Request, Serial, Version};
use super::world::World;

/// What the nodes and pages of a world are called where it is encoded: they are numbered in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    pub nodes: Vec<u8>,
    pub pages: Vec<u8>,
}

impl Names {
    /// Nodes and pages keep their numbers.
    fn own(world: &World) -> Self {
        Names { nodes: (0..world.nodes.len() as u8).collect(), pages: (0..world.latest.len() as u8).collect() }
    }

    fn node(&self, node: NodeId) -> u8 {
        name(&self.nodes, node.0 as u8)
    }

    fn page(&self, page: PageNo) -> u8 {
        name(&self.pages, page.0 as u8)
    }

    fn nodes(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().map(|node| usize::from(*node))
    }

    fn pages(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().map(|page| usize::from(*page))
    }
}

fn name(order: &[u8], number: u8) -> u8 {
    order.iter().position(|own| *own == number).unwrap_or(254) as u8
}

/// The numbers of one page, sorted.
#[derive(Default)]
struct Numbers {
    serials: Vec<Serial>,
    versions: Vec<Version>,
    requests: Vec<(NodeId, Request)>,
}

impl Numbers {
    fn clear(&mut self) {
        self.serials.clear();
        self.versions.clear();
        self.requests.clear();
    }

    fn add_copy(&mut self, node: NodeId, copy: &Copy) {
        if let Some(held) = copy.held {
            self.serials.push(held.serial);
            self.versions.push(held.version);
        }
        if let Some(saving) = copy.saving() {
            self.serials.push(saving.serial);
            self.versions.push(saving.version);
        }
        let waiting = copy.waiting();
        self.requests.extend(waiting.map(|waiting| (node, waiting.request)));
        if let Some(Recalled { serial, forward, .. }) = waiting.and_then(|waiting| waiting.recalled) {
            self.serials.push(serial);
            self.serials.extend(forward.map(|forward| forward.serial));
            self.requests.extend(forward.map(|forward| (forward.to.node, forward.request)));
        }
    }

    fn add_entry(&mut self, entry: &Entry) {
        self.versions.push(entry.stored);
        for holder in &entry.holders {
            self.serials.push(holder.serial);
            self.requests.push((holder.node, holder.request));
        }
        if let Some(promise) = entry.promise() {
            self.serials.push(promise.serial);
            self.requests.push((promise.node, promise.request));
        }
        self.requests.extend(entry.queue().iter().map(|asker| (asker.node, asker.request)));
    }

    fn add_message(&mut self, from: NodeId, message: &Message) {
        match *message {
            Message::Ask { request, .. } => self.requests.push((from, request)),
            Message::Grant { serial, data, .. } | Message::GaveUp { serial, data, .. } => {
                self.serials.push(serial);
                self.versions.extend(data);
            }
            Message::Recall { serial, forward, .. } => {
                self.serials.push(serial);
                self.serials.extend(forward.map(|forward| forward.serial));
                self.requests.extend(forward.map(|forward| (forward.to.node, forward.request)));
            }
            Message::Taken { serial, .. } | Message::Noted { serial, .. } | Message::Recorded { serial, .. } => {
                self.serials.push(serial);
            }
            Message::Survey { .. } | Message::Surveyed { .. } => {}
        }
    }

    fn order(&mut self) {
        self.serials.sort_unstable();
        self.serials.dedup();
        self.versions.sort_unstable();
        self.versions.dedup();
        self.requests.sort_unstable();
        self.requests.dedup();
    }

    /// With the home's incarnation: grants of an earlier one are treated differently.
    fn serial(&self, serial: Serial) -> [u8; 2] {
        let rank = self.serials.iter().position(|other| *other == serial).unwrap_or(254);
        [serial.incarnation.0 as u8, rank as u8 + 1]
    }

    fn version(&self, version: Option<Version>) -> u8 {
        version.map_or(0, |version| self.versions.iter().position(|other| *other == version).unwrap_or(254) as u8 + 1)
    }

    /// Ranked among those of the same node: requests of different nodes are never compared.
    fn request(&self, node: NodeId, request: Request) -> u8 {
        self.requests.iter().filter(|(other, number)| *other == node && *number < request).count() as u8
    }
}

fn numbers(world: &World, all: &mut Vec<Numbers>) {
    all.resize_with(world.latest.len(), Numbers::default);
    all.iter_mut().for_each(Numbers::clear);
    for (numbers, latest) in all.iter_mut().zip(&world.latest) {
        numbers.versions.push(*latest);
    }
    for (numbers, orphan) in all.iter_mut().zip(&world.orphans) {
        numbers.versions.extend(orphan);
    }
    for (numbers, (serial, version)) in
        all.iter_mut().zip(&world.flushing).filter_map(|(all, some)| Some((all, (*some)?)))
    {
        numbers.serials.push(serial);
        numbers.versions.push(version);
    }
    for (page, version) in world.stored.iter().flatten() {
        all[page.0 as usize].versions.push(*version);
    }
    for node in world.nodes.iter().flatten() {
        for copy in &node.copies.pages {
            all[copy.page.0 as usize].add_copy(node.me.node, copy);
        }
        for entry in &node.directory.entries {
            all[entry.page.0 as usize].add_entry(entry);
        }
    }
    for envelope in &world.network {
        if let Some(page) = envelope.message.page() {
            all[page.0 as usize].add_message(envelope.from.node, &envelope.message);
        }
    }
    all.iter_mut().for_each(Numbers::order);
}

fn put_node(world: &World, node: &Node, (names, all): (&Names, &[Numbers]), out: &mut Vec<u8>) {
    for page in names.pages() {
        let numbers = &all[page];
        let copy = node.copies.pages.iter().find(|copy| copy.page.0 as usize == page);
        let (held, waiting, saving) =
            copy.map_or((None, None, None), |copy| (copy.held, copy.waiting(), copy.saving()));
        let flags = held
            .map_or(0, |held| 1 + held.mode as u8 * 2 + u8::from(held.is_dirty) * 4 + u8::from(held.is_forwarded) * 8)
            + waiting.map_or(0, |waiting| 16 + waiting.mode as u8 * 32 + u8::from(waiting.blank) * 128)
            + saving.map_or(0, |_| 64);
        out.push(flags);
        if let Some(held) = held {
            out.extend(numbers.serial(held.serial));
            out.push(numbers.version(Some(held.version)));
        }
        if let Some(waiting) = waiting {
            out.push(numbers.request(node.me.node, waiting.request));
            out.push(waiting.recalled.map_or(0, |recalled| 1 + u8::from(recalled.retain)));
            if let Some(recalled) = waiting.recalled {
                out.extend(numbers.serial(recalled.serial));
                out.extend(forward_bytes(names, numbers, recalled.forward));
            }
        }
        if let Some(saving) = saving {
            out.extend(numbers.serial(saving.serial));
            out.push(numbers.version(Some(saving.version)));
            out.push(saving.forwarded.map_or(0, |node| names.node(node) + 1));
        }
    }
    for index in names.pages() {
        if world.config.home(PageNo(index as u64)) != Some(node.me.node) {
            continue;
        }
        let entry = node.directory.entries.iter().find(|entry| entry.page.0 as usize == index);
        put_entry(entry, (names, &all[index]), node.stored(PageNo(index as u64)), out);
    }
    let surveying = node.directory.surveys.iter().flat_map(|survey| &survey.nodes);
    let surveying = surveying.fold(0, |mask: u8, other| mask | 1 << names.node(*other));
    out.push(surveying);
}

fn put_entry(entry: Option<&Entry>, (names, numbers): (&Names, &Numbers), stored: Version, out: &mut Vec<u8>) {
    out.push(numbers.version(Some(stored)));
    let Some(entry) = entry else { return out.push(255) };
    out.push(entry.holders.len() as u8 * 16 + entry.queue().len() as u8 * 2 + u8::from(entry.is_exclusive));
    out.push(u8::from(entry.is_to_store));
    let of = |node| entry.holders.iter().find(move |holder| usize::from(holder.node.0) == node);
    for holder in names.nodes().filter_map(of) {
        let step = match holder.step {
            Holding::Held => 0,
            Holding::Recalled => 1,
            Holding::Stored => 2,
            Holding::Orphaned => 3,
        };
        out.push(names.node(holder.node) * 8 + step * 2 + u8::from(holder.with_data));
        out.extend(numbers.serial(holder.serial));
        out.push(numbers.request(holder.node, holder.request));
    }
    out.push(entry.promise().map_or(0, |promise| 1 + names.node(promise.node) * 2 + promise.mode as u8));
    if let Some(promise) = entry.promise() {
        out.extend(numbers.serial(promise.serial));
        out.push(numbers.request(promise.node, promise.request) * 2 + u8::from(promise.is_lost));
    }
    for asker in entry.queue() {
        out.push(names.node(asker.node) * 4 + asker.mode as u8 * 2 + u8::from(asker.blank));
        out.push(numbers.request(asker.node, asker.request) * 2 + u8::from(has(entry, asker.node, asker.have)));
    }
}

/// Whether the asker needs no data. Its copy counts only while the directory knows it.
fn has(entry: &Entry, node: NodeId, have: Option<Serial>) -> bool {
    entry.holders.iter().any(|holder| holder.node == node && Some(holder.serial) == have)
}

/// Whether this is the node's current request. A grant for another is declined, whatever it grants; and the recall of such
/// a grant has not overtaken it.
fn is_present(world: &World, node: NodeId, page: PageNo, request: Request) -> bool {
    let copies = world.nodes[usize::from(node.0)].iter().flat_map(|node| &node.copies.pages);
    let mut waiting = copies.filter(|copy| copy.page == page).filter_map(|copy| copy.waiting());
    waiting.any(|waiting| waiting.request == request)
}

fn forward_bytes(names: &Names, numbers: &Numbers, forward: Option<Forward>) -> [u8; 4] {
    let Some(Forward { to, request, serial }) = forward else { return [0; 4] };
    let [incarnation, rank] = numbers.serial(serial);
    [names.node(to.node) * 16 + to.incarnation.0 as u8, numbers.request(to.node, request) + 1, incarnation, rank]
}

fn message_bytes(world: &World, index: usize, (names, all): (&Names, &[Numbers])) -> [u8; 16] {
    let envelope = &world.network[index];
    let (from, to) = (envelope.from, envelope.to);
    let lives = from.incarnation.0 as u8 * 16 + to.incarnation.0 as u8;
    let ends = names.node(from.node) * 16 + names.node(to.node);
    let page = envelope.message.page();
    let mut bytes = [0; 16];
    bytes[..3].copy_from_slice(&[ends, lives, page.map_or(255, |page| names.page(page))]);
    let numbers = &all[page.map_or(0, |page| page.0 as usize)];
    let (kind, mode, request, serial, version) = match envelope.message {
        Message::Ask { page, mode, request, have, blank } => {
            let mut entries = world.nodes[usize::from(to.node.0)].iter().flat_map(|home| &home.directory.entries);
            let has = entries.any(|entry| entry.page == page && has(entry, from.node, have));
            (0, mode as u8, numbers.request(from.node, request), [u8::from(blank), u8::from(has)], 0)
        }
        Message::Grant { page, mode, request, serial, data } if is_present(world, to.node, page, request) => {
            (1, mode as u8, 1, numbers.serial(serial), numbers.version(data))
        }
        Message::Grant { serial, .. } => (1, 0, 0, numbers.serial(serial), 0),
        Message::Recall { page, serial, request, retain, forward } => {
            let is_present = is_present(world, to.node, page, request);
            bytes[9..13].copy_from_slice(&forward_bytes(names, numbers, forward));
            (3, u8::from(retain), u8::from(is_present), numbers.serial(serial), 0)
        }
        Message::GaveUp { serial, retained, data, forwarded, .. } => {
            bytes[9] = forwarded.map_or(0, |node| names.node(node) + 1);
            (4, u8::from(retained), 0, numbers.serial(serial), numbers.version(data))
        }
        Message::Recorded { serial, .. } => (9, 0, 0, numbers.serial(serial), 0),
        Message::Taken { serial, .. } => (5, 0, 0, numbers.serial(serial), 0),
        Message::Noted { serial, .. } => (8, 0, 0, numbers.serial(serial), 0),
        Message::Survey { .. } => (6, 0, 0, [0; 2], 0),
        Message::Surveyed { .. } => (7, 0, 0, [0; 2], 0),
    };
    bytes[3..9].copy_from_slice(&[kind, mode, request, serial[0], serial[1], version]);
    bytes
}

/// Encodes states as bytes; equal states have equal bytes.
pub struct Encoder {
    /// All that a state may be called.
    names: Vec<Names>,
    numbers: Vec<Numbers>,
    messages: Vec<[u8; 16]>,
    bytes: Vec<u8>,
    /// The least of the encodings.
    least: Vec<u8>,
}

impl Encoder {
    /// With the ways to call nodes and pages, besides their own numbers, that make no difference.
    pub fn new(world: &World, alike: Option<Names>) -> Self {
        let names = [Names::own(world)].into_iter().chain(alike).collect();
        Encoder { names, numbers: Vec::new(), messages: Vec::new(), bytes: Vec::new(), least: Vec::new() }
    }

    pub fn hash(&mut self, world: &World) -> u128 {
        let Encoder { names, numbers: all, messages, bytes, least } = self;
        numbers(world, all);
        least.clear();
        for names in names.iter() {
            bytes.clear();
            if put_world(world, (names, all), least, messages, bytes) {
                std::mem::swap(bytes, least);
            }
        }
        hash(least)
    }
}

/// False if it gives up since the result is not less than `least`, unless that is empty.
fn put_world(
    world: &World,
    (names, all): (&Names, &[Numbers]),
    least: &[u8],
    messages: &mut Vec<[u8; 16]>,
    out: &mut Vec<u8>,
) -> bool {
    let is_less = |out: &[u8]| least.is_empty() || out <= &least[..out.len().min(least.len())];
    out.extend(names.nodes().map(|node| world.truth[node]));
    for index in names.nodes() {
        out.extend(names.nodes().map(|of| world.known_stage_and_whether_met(index, of)));
        if let Some(node) = &world.nodes[index] {
            put_node(world, node, (names, all), out);
        } else {
            out.push(254);
            for page in names.pages() {
                let stored = world.stored[index].iter().find(|(stored, _)| stored.0 as usize == page);
                let bytes = |(page, version): &(PageNo, Version)| {
                    [names.page(*page), all[page.0 as usize].version(Some(*version))]
                };
                out.extend(stored.map(bytes).into_iter().flatten());
            }
        }
        if !is_less(out) {
            return false;
        }
    }
    for page in names.pages() {
        let numbers = &all[page];
        out.push(u8::from(world.flushing[page].is_some()));
        if let Some((serial, version)) = world.flushing[page] {
            out.extend(numbers.serial(serial));
            out.push(numbers.version(Some(version)));
        }
        out.push(numbers.version(world.orphans[page]));
        out.push(numbers.version(Some(world.latest[page])));
    }
    messages.clear();
    messages.extend((0..world.network.len()).map(|index| message_bytes(world, index, (names, all))));
    messages.sort_unstable();
    out.push(messages.len() as u8);
    out.extend(messages.as_flattened());
    is_less(out)
}

/// 128 bits of the state: among a hundred million states, two collide with a probability of 10^-22.
fn hash(bytes: &[u8]) -> u128 {
    let (mut low, mut high) = (0x9e37_79b9_7f4a_7c15_u64, 0xc2b2_ae3d_27d4_eb4f_u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let word = u64::from_le_bytes(word);
        let product = u128::from(low ^ word) * 0xa076_1d64_78bd_642f;
        low = (product as u64) ^ ((product >> 64) as u64).rotate_left(23) ^ high;
        high = (high ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31).wrapping_add(low);
    }
    high ^= bytes.len() as u64;
    u128::from(high) << 64 | u128::from(low)
}
