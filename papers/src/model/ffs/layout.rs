//! Where a Berkeley Fast File System puts the blocks of a file.
//!
//! McKusick, Joy, Leffler, Fabry, "A fast file system for UNIX", ACM TOCS 2(3), 1984, and the 4.3BSD kernel
//! (`ufs_alloc.c`: `blkpref`, `hashalloc`, `alloccg`; `mkfs.c`: the layout of a cylinder group), as described by
//! Leffler, McKusick, Karels and Quarterman, 1989, chapter 7. Whole blocks only: what the tables measure has no
//! fragments.

use std::collections::BTreeMap;

/// Pointers to data in an inode.
pub const DIRECT: u64 = 12;
/// Bytes of an inode and of a block pointer on the disk.
const INODE_BYTES: u64 = 128;
const POINTER_BYTES: u64 = 4;
/// Boot block and superblock: this size each, at the start of every group.
const SUPERBLOCK_BYTES: u64 = 8192;
/// A group's counts and bitmaps (`struct cg` and the bits of its fragments, rounded up).
pub const BITMAP_BYTES: u64 = 2048;

/// The arguments of `newfs` and `tunefs`. The disk's geometry is the driver's, and decides the groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    pub block_bytes: u64,
    /// Bytes in a fragment: the unit in which rotational delay is rounded.
    pub fragment_bytes: u64,
    pub sector_bytes: u64,
    pub sectors_per_track: u64,
    pub heads: u64,
    pub cylinders: u64,
    pub rotations_per_second: f64,
    /// Cylinders in a group; `newfs` makes it 16.
    pub cylinders_per_group: u64,
    /// Bytes of disk for each inode; `newfs` makes it 2,048.
    pub bytes_per_inode: u64,
    /// Milliseconds that the system is assumed to need between two blocks; `newfs` makes it 4 (`tunefs -d`).
    pub rotdelay_ms: f64,
    /// Contiguous blocks before such a gap; `newfs` makes it 1 (`tunefs -a`).
    pub maxcontig: u64,
    /// Blocks of one file in a group before it goes to another one (`tunefs -e`).
    pub maxbpg: u64,
}

impl Format {
    /// What `newfs` makes of a disk whose geometry is still to be told.
    pub const NEWFS: Format = Format {
        block_bytes: 8192,
        fragment_bytes: 1024,
        sector_bytes: 512,
        sectors_per_track: 1,
        heads: 1,
        cylinders: 1,
        rotations_per_second: 60.0,
        cylinders_per_group: 16,
        bytes_per_inode: 2048,
        rotdelay_ms: 4.0,
        maxcontig: 1,
        maxbpg: 256,
    };
}

/// The free blocks of a file system. Blocks are counted from its start.
#[derive(Clone, Debug)]
pub struct Layout {
    format: Format,
    group_blocks: u64,
    groups: u64,
    /// Of groups with allocated blocks: what is free in each of their blocks, and how many are.
    touched: BTreeMap<u64, Group>,
}

#[derive(Clone, Debug)]
struct Group {
    free: Vec<bool>,
    count: u64,
}

impl Layout {
    pub fn new(format: Format) -> Self {
        let cylinder_bytes = format.sectors_per_track * format.heads * format.sector_bytes;
        let group_bytes = cylinder_bytes * format.cylinders_per_group;
        let groups = (format.cylinders / format.cylinders_per_group.max(1)).max(1);
        let group_blocks = (group_bytes / format.block_bytes).max(8);
        Layout { format, group_blocks, groups, touched: BTreeMap::new() }
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    pub fn pointers(&self) -> u64 {
        self.format.block_bytes / POINTER_BYTES
    }

    pub fn groups(&self) -> u64 {
        self.groups
    }

    pub fn group_of(&self, block: u64) -> u64 {
        (block / self.group_blocks).min(self.groups - 1)
    }

    pub fn bitmap_block(&self, group: u64) -> u64 {
        self.header(group) + SUPERBLOCK_BYTES.div_ceil(self.format.block_bytes)
    }

    /// The first block with inodes of a group.
    pub fn inode_block(&self, group: u64) -> u64 {
        self.bitmap_block(group) + 1
    }

    /// Where the file's block `index` should go (`blkpref`): `before` has the blocks that the same inode or indirect
    /// block points to, in order; the file's inode is in `home`.
    pub fn preferred(&self, home: u64, index: u64, before: &[u64]) -> u64 {
        let position = before.len() as u64;
        let Some(&last) = before.last().filter(|_| !position.is_multiple_of(self.format.maxbpg.max(1))) else {
            return if index < DIRECT { self.first_of(home) } else { self.first_of(self.roomy_from(home, before)) };
        };
        let next = last + 1;
        let run = self.format.maxcontig.max(1) as usize;
        let run_is_short = before.len() > run && before[before.len() - run] + run as u64 != next;
        if run_is_short { next } else { next + self.gap_blocks() }
    }

    /// Blocks that pass under the head during the rotational delay.
    pub fn gap_blocks(&self) -> u64 {
        let Format { rotdelay_ms, rotations_per_second, sectors_per_track, sector_bytes, .. } = self.format;
        let sectors = rotdelay_ms * rotations_per_second * sectors_per_track as f64 / 1000.0;
        // Whole fragments, as in the kernel's integer arithmetic, rounded up to whole blocks.
        let fragments = (sectors * sector_bytes as f64 / self.format.fragment_bytes as f64).floor() as u64;
        (fragments * self.format.fragment_bytes).div_ceil(self.format.block_bytes)
    }

    /// Allocates the preferred block, or the next free one of its group, or one of the groups behind it.
    pub fn take(&mut self, preferred: u64) -> Option<u64> {
        let first = self.group_of(preferred);
        (0..self.groups).find_map(|step| {
            let group = (first + step) % self.groups;
            self.take_in(group, if step == 0 { preferred } else { self.first_of(group) })
        })
    }

    /// Allocates the first free block of a group from `preferred` on.
    fn take_in(&mut self, group: u64, preferred: u64) -> Option<u64> {
        let base = group * self.group_blocks;
        if !self.touched.contains_key(&group) {
            let fresh = self.fresh(group);
            self.touched.insert(group, fresh);
        }
        let state = self.touched.get_mut(&group)?;
        let wanted = preferred.saturating_sub(base) as usize % state.free.len();
        let found = (wanted..state.free.len()).chain(0..wanted).find(|offset| state.free[*offset])?;
        state.free[found] = false;
        state.count -= 1;
        Some(base + found as u64)
    }

    /// A group with more free blocks than the mean: the one after the file's last block, or its home, or further on.
    fn roomy_from(&self, home: u64, before: &[u64]) -> u64 {
        let start = before.last().map_or(home, |last| self.group_of(*last) + 1);
        let whole = self.fresh_count();
        let taken: u64 = self.touched.values().map(|group| whole - group.count.min(whole)).sum();
        let mean = (whole * self.groups - taken) / self.groups;
        let free = |group: &u64| self.touched.get(group).map_or(whole, |group| group.count);
        (0..self.groups).map(|step| (start + step) % self.groups).find(|group| free(group) >= mean).unwrap_or(home)
    }

    fn first_of(&self, group: u64) -> u64 {
        // The kernel asks for the block behind the first one, and gets the next free one.
        group * self.group_blocks + 1
    }

    /// The superblock's copy of a group: a track further on in each group, so that not all lie on one platter.
    fn header(&self, group: u64) -> u64 {
        let Format { sectors_per_track, sector_bytes, block_bytes, heads, .. } = self.format;
        let boot = SUPERBLOCK_BYTES.div_ceil(block_bytes);
        let track = (sectors_per_track * sector_bytes).div_ceil(block_bytes);
        let cycle = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
        let stagger = track * (group % cycle.max(1));
        group * self.group_blocks + (boot + stagger) % self.group_blocks
    }

    fn header_blocks(&self) -> u64 {
        let Format { block_bytes, bytes_per_inode, .. } = self.format;
        let inodes = self.group_blocks * block_bytes / bytes_per_inode.max(INODE_BYTES);
        SUPERBLOCK_BYTES.div_ceil(block_bytes) + 1 + (inodes * INODE_BYTES).div_ceil(block_bytes)
    }

    fn fresh_count(&self) -> u64 {
        self.group_blocks.saturating_sub(self.header_blocks())
    }

    fn fresh(&self, group: u64) -> Group {
        let header = self.header(group) - group * self.group_blocks;
        let mut free = vec![true; self.group_blocks as usize];
        for taken in (header..header + self.header_blocks()).take_while(|block| *block < self.group_blocks) {
            free[taken as usize] = false;
        }
        let count = free.iter().filter(|free| **free).count() as u64;
        Group { free, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The magneto-optical disk: one head, 31 sectors.
    fn optical() -> Format {
        Format {
            sectors_per_track: 31,
            cylinders: 18_646,
            rotations_per_second: 40.0,
            rotdelay_ms: 0.0,
            ..Format::NEWFS
        }
    }

    fn file(layout: &mut Layout, blocks: u64) -> Vec<u64> {
        let mut all: Vec<u64> = Vec::new();
        for index in 0..blocks {
            let start = if index < DIRECT { 0 } else { DIRECT as usize };
            let preferred = layout.preferred(0, index, &all[start..]);
            all.push(layout.take(preferred).expect("room"));
        }
        all
    }

    #[test]
    fn without_rotational_delay_blocks_lie_in_a_row_and_with_it_apart() {
        let disk =
            Format { sectors_per_track: 69, heads: 14, cylinders: 1356, rotations_per_second: 60.0, ..optical() };
        let row = file(&mut Layout::new(disk), 12);
        assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1), "{row:?}");
        let mut apart = Layout::new(Format { rotdelay_ms: 4.0, ..disk });
        assert_eq!(apart.gap_blocks(), 1);
        let apart = file(&mut apart, 12);
        assert!(apart.windows(2).all(|pair| pair[1] == pair[0] + 2), "{apart:?}");
        let pairs = file(&mut Layout::new(Format { rotdelay_ms: 4.0, maxcontig: 2, ..disk }), 12);
        let steps: Vec<u64> = pairs.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps[1..].chunks_exact(2).all(|chunk| chunk.iter().sum::<u64>() == 3), "{steps:?}");
    }

    #[test]
    fn groups_of_an_optical_disk_are_so_small_that_a_megabyte_lies_in_six_of_them() {
        let mut layout = Layout::new(optical());
        let blocks = file(&mut layout, 128);
        let mut groups: Vec<u64> = blocks.iter().map(|block| layout.group_of(*block)).collect();
        assert!(groups.is_sorted());
        groups.dedup();
        assert_eq!(groups, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn no_block_is_given_twice_and_none_that_holds_bitmaps_or_inodes() {
        let mut layout = Layout::new(Format { cylinders: 160, rotdelay_ms: 4.0, ..optical() });
        let mut taken = Vec::new();
        while let Some(block) = layout.take(taken.last().map_or(0, |last| last + 2)) {
            taken.push(block);
        }
        taken.sort_unstable();
        let count = taken.len();
        taken.dedup();
        assert_eq!(taken.len(), count);
        for group in 0..layout.groups() {
            assert!(!taken.contains(&layout.bitmap_block(group)) && !taken.contains(&layout.inode_block(group)));
        }
    }
}
