//! Which writes count after deaths: those that somebody still has.

use super::super::copies::Copy;
use super::super::{Message, Node, NodeId, PageNo, Storage, Version};
use super::world::{World, home_of, surveys};

impl World {
    /// A home is notified of a death: the dead node's writes are void unless they were given up before.
    pub(super) fn void_writes_of(&mut self, home: &Node, dead: NodeId) {
        if surveys(&home.directory, dead) {
            return self.void_lost_writes(home);
        }
        for entry in home.directory.entries.iter().filter(|entry| entry.is_exclusive) {
            if entry.holders.iter().any(|holder| holder.node == dead) {
                // Unless another node has it that was sent the page.
                let promised = entry.promise().and_then(|promise| {
                    let copy = self.nodes[usize::from(promise.node.0)].as_ref()?.copies.pages.get(entry.page)?;
                    let held = copy.held.map(|held| (held.serial, held.version));
                    let saving = copy.saving().map(|saving| (saving.serial, saving.version));
                    let own = [held, saving].into_iter().flatten().filter(|(serial, _)| *serial == promise.serial);
                    own.map(|(_, version)| version).max()
                });
                let index = entry.page.0 as usize;
                self.latest[index] = promised.unwrap_or_default().max(entry.stored);
                self.orphans[index] = self.forwarded(entry.page);
            } else if entry.promise().is_some_and(|promise| promise.node == dead) {
                // It may have been sent the page, and have written: then the last write is that of the one that sent it.
                let copies = self.nodes.iter().flatten().filter_map(|node| node.copies.pages.get(entry.page));
                let has = |copy: &Copy| {
                    let held = copy.held.map(|held| held.version);
                    held.max(copy.saving().map(|saving| saving.version)).unwrap_or_default()
                };
                self.latest[entry.page.0 as usize] = copies.map(has).max().unwrap_or_default().max(entry.stored);
            }
        }
        self.void_flushed();
    }

    /// What is on its way from one node that is not the page's home to another.
    pub(super) fn forwarded(&self, page: PageNo) -> Option<Version> {
        let home = home_of(&self.config, page);
        let others = self.network.iter().filter(|envelope| usize::from(envelope.from.node.0) != home);
        let grants = others.filter_map(|envelope| match envelope.message {
            Message::Grant { page: of, data, .. } if of == page => data,
            _ => None,
        });
        grants.max().filter(|version| *version > self.latest[page.0 as usize])
    }

    /// Nobody waits to see stored what is void.
    pub(super) fn void_flushed(&mut self) {
        for (flushing, latest) in self.flushing.iter_mut().zip(&self.latest) {
            flushing.iter_mut().for_each(|(_, version)| *version = (*version).min(*latest));
        }
    }

    /// A home returns: valid is what it had in storage, or a later write of a living node. Data given up are not, where
    /// storage has no versions, unless a copy was retained.
    pub(super) fn void_lost_writes(&mut self, home: &Node) {
        let config = self.config;
        for page in (0..config.pages).map(PageNo).filter(|page| config.home(*page) == Some(home.me.node)) {
            self.void_lost_writes_of(home, page);
        }
    }

    pub(super) fn void_lost_writes_of(&mut self, home: &Node, page: PageNo) {
        let written = self.nodes.iter().flatten().flat_map(|node| {
            // What a node gives up after it has heard of the new home is certain to be what it wrote last.
            let is_certain = self.config.storage == Storage::Versioned
                || node.places.members.of(home.me.node) == Some(home.me.incarnation);
            node.copies.pages.iter().filter(|copy| copy.page == page).flat_map(move |copy| {
                let saving = copy.saving().filter(|_| is_certain || copy.held.is_some());
                [copy.held.map(|held| held.version), saving.map(|saving| saving.version)].into_iter().flatten()
            })
        });
        self.latest[page.0 as usize] = written.max().unwrap_or_default().max(home.stored(page));
        self.orphans[page.0 as usize] = self.forwarded(page);
        self.void_flushed();
    }
}
