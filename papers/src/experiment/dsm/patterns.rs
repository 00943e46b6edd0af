//! How pages are shared: the kinds that Bennett, Carter and Zwaenepoel found in programs (*Munin: Distributed Shared
//! Memory Based on Type-Specific Memory Coherence*, PPoPP 1990), a random one, and a harmful one.

use std::rc::Rc;

use policy::coherence::{Local, PageNo};

use super::cluster::Pattern;

/// All read a few pages; of a hundred accesses, one writes.
struct ReadMostly;
/// A page is read and then written by one node, then by another.
struct Migratory;
/// One of two nodes writes a page, the other reads it.
struct ProducerConsumer;
/// Four nodes write each its own part of the same page.
struct FalseSharing;
/// Any node any page, four for each node; one access in five writes.
struct Random;

/// Several nodes read and write the same few pages; `writes` of a hundred accesses write.
pub(super) struct Few {
    pub(super) pages: u64,
    pub(super) writes: u64,
}

pub(super) fn patterns() -> [(&'static str, Rc<dyn Pattern>); 5] {
    [
        ("read-mostly", Rc::new(ReadMostly)),
        ("migratory", Rc::new(Migratory)),
        ("producer/consumer", Rc::new(ProducerConsumer)),
        ("false sharing", Rc::new(FalseSharing)),
        ("random", Rc::new(Random)),
    ]
}

fn write_of(chance: &dyn Fn(u64) -> u64, percent: u64) -> Local {
    if chance(100) < percent { Local::Write } else { Local::Read }
}

impl Pattern for ReadMostly {
    fn next(&self, _: usize, _: u32, nodes: usize, chance: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        (PageNo(chance(self.pages(nodes))), write_of(chance, 1))
    }

    fn pages(&self, _: usize) -> u64 {
        16
    }
}

impl Pattern for Migratory {
    fn next(&self, node: usize, step: u32, nodes: usize, _: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        let want = if step % 2 == 1 { Local::Write } else { Local::Read };
        // After two accesses the node moves to the page that its neighbour had. The first has a remote home.
        (PageNo((node as u64 + u64::from(step / 2) + nodes as u64 / 2) % self.pages(nodes)), want)
    }

    fn pages(&self, nodes: usize) -> u64 {
        nodes as u64
    }
}

impl Pattern for ProducerConsumer {
    fn next(&self, node: usize, _: u32, _: usize, _: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        (PageNo(node as u64 / 2), if node % 2 == 1 { Local::Read } else { Local::Write })
    }

    fn pages(&self, nodes: usize) -> u64 {
        nodes as u64 / 2
    }
}

impl Pattern for FalseSharing {
    fn next(&self, node: usize, _: u32, _: usize, chance: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        (PageNo(node as u64 / 4), write_of(chance, 50))
    }

    fn pages(&self, nodes: usize) -> u64 {
        (nodes as u64).div_ceil(4)
    }
}

impl Pattern for Random {
    fn next(&self, _: usize, _: u32, nodes: usize, chance: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        (PageNo(chance(self.pages(nodes))), write_of(chance, 20))
    }

    fn pages(&self, nodes: usize) -> u64 {
        4 * nodes as u64
    }
}

impl Pattern for Few {
    fn next(&self, _: usize, _: u32, _: usize, chance: &dyn Fn(u64) -> u64) -> (PageNo, Local) {
        (PageNo(chance(self.pages)), write_of(chance, self.writes))
    }

    fn pages(&self, _: usize) -> u64 {
        self.pages
    }
}
