//! Random operations and power cuts against a simple model: what was synced exists, and nothing exists that never did.

use std::collections::{BTreeMap, BTreeSet};

use machine::tree::{Creation, Kind, Node, OpenNode};
use policy::unit::Stability;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sim::TreeConfig;

use super::rig::{TreeRig, mode, size};
use crate::rig::{stamp_of, stamped};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const SECTORS: u64 = 24;

type Names = BTreeMap<String, Node>;

/// A directory: its entries after each change since the last power cut.
struct Dir {
    versions: Vec<Names>,
    /// The first version that may be restored.
    synced: usize,
    live: bool,
}

impl Dir {
    fn new(names: Names) -> Self {
        Dir { versions: vec![names], synced: 0, live: true }
    }

    fn names(&self) -> &Names {
        &self.versions[self.versions.len() - 1]
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Names) -> T) -> usize {
        let mut names = self.names().clone();
        change(&mut names);
        self.versions.push(names);
        self.versions.len() - 1
    }
}

#[derive(Clone)]
enum Change {
    /// Writes sectors filled with a stamp.
    Write { sectors: std::ops::Range<u64>, stamp: u64, stable: bool },
    /// Sets the size in sectors.
    Size(u64),
}

/// A regular file: its sectors at the last power cut and the changes since.
struct File {
    base: Vec<u64>,
    changes: Vec<Change>,
    /// Number of durable changes.
    synced: usize,
    modes: Vec<u32>,
    mode_synced: usize,
    links: usize,
    /// It had a durable name, and always one since.
    must_exist: bool,
}

impl File {
    fn new(base: Vec<u64>, mode: u32) -> Self {
        File { base, changes: Vec::new(), synced: 0, modes: vec![mode], mode_synced: 0, links: 1, must_exist: false }
    }

    /// The size in sectors after the first `count` changes.
    fn size(&self, count: usize) -> u64 {
        self.changes[..count].iter().fold(self.base.len() as u64, |size, change| match change {
            Change::Write { sectors, .. } => size.max(sectors.end),
            Change::Size(size) => *size,
        })
    }

    /// The number of changes whose sizes were durable after the first `count`.
    fn durable_sizes(&self, count: usize) -> usize {
        (self.synced..count).fold(self.synced, |durable, i| {
            let is_stable = matches!(self.changes[i], Change::Write { stable: true, .. });
            let mut sizes = (durable..i).rev().map(|earlier| (self.size(earlier), self.size(earlier + 1)));
            let has_grown = sizes.find(|(before, after)| before != after).is_some_and(|(before, after)| before < after);
            if is_stable && !has_grown { i + 1 } else { durable }
        })
    }

    /// Up to which sector the `i`th change was durable if it was a stable write.
    fn forced_up_to(&self, i: usize) -> u64 {
        let durable = self.durable_sizes(i + 1);
        (durable.min(i)..=i).map(|count| self.size(count)).min().filter(|_| durable <= i).unwrap_or(u64::MAX)
    }

    /// Whether a power cut may leave these stamps when it retains the sizes of the first `sizes` changes.
    fn may_be(&self, stamps: &[u64], sizes: usize) -> bool {
        self.size(sizes) == stamps.len() as u64
            && (0..stamps.len()).all(|sector| self.possible(sector as u64, sizes).contains(&stamps[sector]))
    }

    fn possible(&self, sector: u64, sizes: usize) -> BTreeSet<u64> {
        let mut possible = BTreeSet::from([self.base.get(sector as usize).copied().unwrap_or(0)]);
        let mut below_lost_cut = true;
        for (i, change) in self.changes.iter().enumerate() {
            match change {
                Change::Write { sectors, stamp, stable } if sectors.contains(&sector) && below_lost_cut => {
                    if i < self.synced || *stable && sector < self.forced_up_to(i) {
                        possible.clear();
                    }
                    possible.insert(*stamp);
                }
                Change::Size(size) if *size <= sector && *size < self.size(i) => {
                    if i < sizes {
                        possible = BTreeSet::from([0]);
                    } else {
                        below_lost_cut = false;
                    }
                }
                _ => {}
            }
        }
        possible
    }

    /// The fewest changes whose sizes a power cut may leave.
    fn sizes_min(&self) -> usize {
        self.durable_sizes(self.changes.len())
    }

    fn check(&self, stamps: &[u64], mode: u32, context: &str) {
        let explained = (self.sizes_min()..=self.changes.len()).any(|sizes| self.may_be(stamps, sizes));
        assert!(explained, "{context}: {stamps:?} can't be left");
        assert!(self.modes[self.mode_synced..].contains(&mode), "{context}: mode {mode:o}");
    }
}

/// A rename between directories, with the version that it made in each.
struct Moved {
    from: (Node, usize),
    to: (Node, usize),
}

struct Model {
    rig: TreeRig,
    random: ChaCha8Rng,
    root: Node,
    dirs: BTreeMap<Node, Dir>,
    files: BTreeMap<Node, File>,
    moves: Vec<Moved>,
    stamps: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut rig = TreeRig::new(seed, TreeConfig::drawn(seed));
        let root = rig.root();
        let random = ChaCha8Rng::seed_from_u64(seed);
        let dirs = BTreeMap::from([(root, Dir::new(Names::new()))]);
        Model { rig, random, root, dirs, files: BTreeMap::new(), moves: Vec::new(), stamps: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound as u64) as usize
    }

    fn some_dir(&mut self) -> Node {
        let live: Vec<Node> = self.dirs.iter().filter(|(_, dir)| dir.live).map(|(node, _)| *node).collect();
        live[self.below(live.len())]
    }

    fn some_file(&mut self) -> Option<Node> {
        let live: Vec<Node> = self.files.iter().filter(|(_, file)| file.links > 0).map(|(node, _)| *node).collect();
        if live.is_empty() { None } else { Some(live[self.below(live.len())]) }
    }

    fn some_name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len())]
    }

    fn dir(&mut self, node: Node) -> &mut Dir {
        self.dirs.get_mut(&node).unwrap()
    }

    fn file(&mut self, node: Node) -> &mut File {
        self.files.get_mut(&node).unwrap()
    }

    fn act(&mut self) {
        let (dir, name) = (self.some_dir(), self.some_name());
        match self.below(16) {
            0..=2 => {
                if let Ok(node) = self.rig.create_as(dir, name, Creation::Guarded, mode(0o600)) {
                    self.files.insert(node, File::new(Vec::new(), 0o600));
                    self.dir(dir).change(|names| names.insert(name.into(), node));
                }
            }
            3 => {
                if let Ok(node) = self.rig.make_directory(dir, name) {
                    self.dirs.insert(node, Dir::new(Names::new()));
                    self.dir(dir).change(|names| names.insert(name.into(), node));
                }
            }
            4 => {
                if let Ok(node) = self.rig.remove(dir, name) {
                    self.dir(dir).change(|names| names.remove(name));
                    self.remove_link(node);
                }
            }
            5 => {
                if self.rig.remove_directory(dir, name).is_ok() {
                    let node = self.dir(dir).names()[name];
                    self.dir(dir).change(|names| names.remove(name));
                    self.dir(node).live = false;
                }
            }
            6 | 7 => self.rename(dir, name),
            8 => self.link(dir, name),
            9 | 10 => self.write(),
            11 => self.set(),
            _ => self.sync(dir),
        }
    }

    fn remove_link(&mut self, node: Node) {
        let file = self.file(node);
        file.links -= 1;
        file.must_exist &= file.links > 0;
    }

    fn rename(&mut self, from: Node, from_name: &'static str) {
        let (to, to_name) = (self.some_dir(), self.some_name());
        let Ok((moved, replaced)) = self.rig.rename((from, from_name), (to, to_name)) else {
            return;
        };
        if replaced.is_none() && self.dir(to).names().get(to_name) == Some(&moved) {
            return;
        }
        if from == to {
            self.dir(from).change(|names| {
                names.remove(from_name);
                names.insert(to_name.into(), moved)
            });
        } else {
            let left = self.dir(from).change(|names| names.remove(from_name));
            let arrived = self.dir(to).change(|names| names.insert(to_name.into(), moved));
            self.moves.push(Moved { from: (from, left), to: (to, arrived) });
        }
        match replaced {
            Some(node) if self.files.contains_key(&node) => self.remove_link(node),
            Some(node) => self.dir(node).live = false,
            None => {}
        }
    }

    fn link(&mut self, dir: Node, name: &'static str) {
        let Some(node) = self.some_file() else { return };
        if self.rig.link(node, dir, name).is_ok() {
            self.dir(dir).change(|names| names.insert(name.into(), node));
            self.file(node).links += 1;
        }
    }

    fn drawn_write(&mut self) -> Change {
        let from = self.below(SECTORS as usize) as u64;
        let to = (from + 1 + self.below(8) as u64).min(SECTORS);
        self.stamps += 1;
        Change::Write { sectors: from..to, stamp: self.stamps, stable: self.below(4) == 0 }
    }

    /// Writes through the host's page cache, so that any sector may be the end.
    fn write(&mut self) {
        let (Some(node), change) = (self.some_file(), self.drawn_write()) else { return };
        let _open = self.start_write(node, &change);
        self.rig.run();
        self.file(node).changes.push(change);
    }

    /// The file stays open until the write has ended.
    fn start_write(&mut self, node: Node, change: &Change) -> OpenNode {
        let open = self.rig.open(node).unwrap();
        let file = open.buffered.as_ref().unwrap_or(&open.direct).file;
        if let Change::Write { sectors, stamp, stable } = change {
            let bytes = stamped((sectors.end - sectors.start) as usize, *stamp);
            let stability = if *stable { Stability::Stable } else { Stability::Unstable };
            self.rig.side.write(file, sectors.start * 512, bytes, stability);
        }
        self.rig.side.run_slice();
        open
    }

    fn set(&mut self) {
        let Some(node) = self.some_file() else { return };
        if self.below(2) == 0 {
            let mode_set = 0o600 + self.below(8) as u32;
            self.rig.set(node, mode(mode_set)).unwrap();
            self.file(node).modes.push(mode_set);
        } else {
            let sectors = self.below(SECTORS as usize) as u64;
            self.rig.set(node, size(sectors * 512)).unwrap();
            self.file(node).changes.push(Change::Size(sectors));
        }
    }

    fn sync(&mut self, dir: Node) {
        match (self.below(6), self.some_file()) {
            (0 | 1, _) => self.sync_nodes(vec![dir]),
            (2, Some(file)) => self.sync_nodes(vec![dir, file]),
            (3, Some(file)) => self.sync_nodes(vec![file]),
            (4, Some(file)) => {
                let open = self.rig.open(file).unwrap();
                self.rig.flush(open.direct.file).unwrap();
                let file = self.file(file);
                file.synced = file.changes.len();
            }
            _ => {
                let dirs = self.dirs.iter().filter(|(_, dir)| dir.live).map(|(node, _)| *node);
                let files = self.files.iter().filter(|(_, file)| file.links > 0).map(|(node, _)| *node);
                self.sync_nodes(dirs.chain(files).collect());
                self.files.values_mut().for_each(|file| file.must_exist = file.links > 0);
            }
        }
    }

    fn sync_nodes(&mut self, nodes: Vec<Node>) {
        self.rig.sync(&nodes).unwrap();
        for node in nodes {
            if let Some(dir) = self.dirs.get_mut(&node) {
                dir.synced = dir.versions.len() - 1;
            }
            if let Some(file) = self.files.get_mut(&node) {
                (file.synced, file.mode_synced) = (file.changes.len(), file.modes.len() - 1);
            }
        }
        // What is durable in one directory of a rename is in the other, with all before it.
        for moved in self.moves.iter().rev() {
            if self.dirs[&moved.from.0].synced >= moved.from.1 || self.dirs[&moved.to.0].synced >= moved.to.1 {
                for (dir, version) in [moved.from, moved.to] {
                    let synced = &mut self.dirs.get_mut(&dir).unwrap().synced;
                    *synced = (*synced).max(version);
                }
            }
        }
    }

    fn power_cut(&mut self) {
        let mut open = None;
        if let (0, Some(node)) = (self.below(2), self.some_file()) {
            // In flight, it guarantees nothing.
            let Change::Write { sectors, stamp, .. } = self.drawn_write() else { unreachable!() };
            let change = Change::Write { sectors, stamp, stable: false };
            open = Some(self.start_write(node, &change));
            self.file(node).changes.push(change);
        }
        self.rig.power_cut();
        drop(open);
        self.check();
    }

    /// Checks the present state, and continues from it.
    fn check(&mut self) {
        let context = format!("{:?}", self.rig.world);
        let (dirs, files) = self.walk();
        for (node, names) in &dirs {
            let known = self.dirs.get(node).unwrap_or_else(|| panic!("{context}: {node:?} never existed"));
            let left = known.versions[known.synced..].contains(names);
            assert!(left, "{context}: {names:?} never was in {node:?} since the last sync");
        }
        self.check_moves(&dirs, &context);
        for (node, (stamps, mode, links)) in &files {
            let known = self.files.get(node).unwrap_or_else(|| panic!("{context}: {node:?} never existed"));
            known.check(stamps, *mode, &context);
            let names = dirs.values().flat_map(BTreeMap::values).filter(|named| *named == node).count();
            assert_eq!(*links as usize, names, "{context}: links of {node:?}");
        }
        for (node, known) in &self.files {
            assert!(!known.must_exist || files.contains_key(node), "{context}: {node:?} is lost");
            if !files.contains_key(node) {
                assert!(self.rig.attributes(*node).is_err(), "{context}: {node:?} has no name");
            }
        }
        self.moves.clear();
        self.dirs = dirs.into_iter().map(|(node, names)| (node, Dir::new(names))).collect();
        let again = |(node, (stamps, mode, links))| {
            let must_exist = true;
            (node, File { links: links as usize, must_exist, ..File::new(stamps, mode) })
        };
        self.files = files.into_iter().map(again).collect();
    }

    fn check_moves(&self, dirs: &BTreeMap<Node, Names>, context: &str) {
        let versions = |node: Node| {
            let (known, names) = (&self.dirs[&node], dirs.get(&node)?);
            let same = |i: &usize| known.versions[*i] == *names;
            Some((known.synced..known.versions.len()).filter(same).collect::<Vec<usize>>())
        };
        for Moved { from, to } in &self.moves {
            let (Some(left), Some(arrived)) = (versions(from.0), versions(to.0)) else { continue };
            let (Some(left), Some(arrived)) = (left.first().zip(left.last()), arrived.first().zip(arrived.last()))
            else {
                continue;
            };
            assert!(!(left.1 < &from.1 && arrived.0 >= &to.1), "{context}: a rename only added a name");
            assert!(!(arrived.1 < &to.1 && left.0 >= &from.1), "{context}: a rename only removed a name");
        }
    }

    /// The present state: directories with their names; files with their stamps, mode and links.
    #[allow(clippy::type_complexity)]
    fn walk(&mut self) -> (BTreeMap<Node, Names>, BTreeMap<Node, (Vec<u64>, u32, u32)>) {
        let (mut dirs, mut files) = (BTreeMap::new(), BTreeMap::new());
        let mut unvisited = vec![(self.root, String::new())];
        while let Some((dir, path)) = unvisited.pop() {
            let mut names = Names::new();
            for entry in self.rig.list(dir, 0, 100).unwrap().0 {
                let (name, (node, attributes)) = (String::from_utf8(entry.name).unwrap(), entry.node.unwrap());
                if name == "." || name == ".." {
                    continue;
                }
                let path = format!("{path}/{name}");
                names.insert(name, node);
                if attributes.kind == Kind::Directory {
                    unvisited.push((node, path));
                    continue;
                }
                let content = self.rig.content(&path).unwrap();
                assert_eq!(content.len() as u64, attributes.size);
                let stamps = content.chunks(512).map(|sector| stamp_of(sector).expect("a complete sector")).collect();
                files.insert(node, (stamps, attributes.mode, attributes.links));
            }
            assert!(dirs.insert(dir, names).is_none(), "{dir:?} is in two directories");
        }
        (dirs, files)
    }
}

#[test]
fn after_any_power_cut_synced_changes_survive_and_nothing_else_appears() {
    for seed in 0..150 {
        let mut model = Model::new(seed);
        for _ in 0..6 {
            for _ in 0..10 + model.below(50) {
                model.act();
            }
            model.power_cut();
        }
    }
}

#[test]
fn equal_seeds_leave_equal_trees_and_different_ones_different_trees() {
    let run = |seed| {
        let mut model = Model::new(seed);
        for _ in 0..3 {
            (0..40).for_each(|_| model.act());
            model.power_cut();
        }
        let left = format!("{:?}", model.walk());
        (model.rig.world.fingerprint(), left)
    };
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_ne!(run(seed).0, run(seed + 1).0, "seed {seed}");
    }
}
