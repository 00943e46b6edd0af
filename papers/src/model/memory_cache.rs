//! A processor's data cache, physically tagged: which accesses miss.

/// Geometry of a cache. Sizes in bytes, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    pub bytes: u64,
    pub line_bytes: u64,
    /// Associativity: 1 is direct-mapped.
    pub ways: u32,
    /// Does a write miss fetch the line? (The R3000 writes words through and fetches nothing: Kane, *MIPS RISC
    /// Architecture*, 1988, chapter 5.)
    pub write_allocates: bool,
}

impl CacheShape {
    /// Frames that do not conflict with each other: bytes of one way by bytes of a page.
    pub fn colors(&self, page_bytes: u64) -> u32 {
        (self.bytes / u64::from(self.ways) / page_bytes).max(1) as u32
    }
}

/// A cache and its content; the least recently used line of a set is replaced.
#[derive(Clone, Debug)]
pub struct MemoryCache {
    shape: CacheShape,
    line_shift: u32,
    set_mask: u64,
    /// `ways` lines for each set, the most recently used first. `u64::MAX` is none.
    lines: Vec<u64>,
    accesses: u64,
    misses: u64,
}

const NONE: u64 = u64::MAX;

impl MemoryCache {
    pub fn new(shape: CacheShape) -> Self {
        let lines = shape.bytes / shape.line_bytes;
        let sets = lines / u64::from(shape.ways);
        MemoryCache {
            shape,
            line_shift: shape.line_bytes.trailing_zeros(),
            set_mask: sets - 1,
            lines: vec![NONE; lines as usize],
            accesses: 0,
            misses: 0,
        }
    }

    /// Reads at a physical address; true if the line had to be fetched.
    pub fn read(&mut self, address: u64) -> bool {
        self.access(address, true)
    }

    /// Writes at a physical address; true if the line had to be fetched.
    pub fn write(&mut self, address: u64) -> bool {
        self.access(address, self.shape.write_allocates)
    }

    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    pub fn misses(&self) -> u64 {
        self.misses
    }

    fn access(&mut self, address: u64, fetch: bool) -> bool {
        self.accesses += 1;
        let line = address >> self.line_shift;
        let ways = self.shape.ways as usize;
        let first = (line & self.set_mask) as usize * ways;
        let set = &mut self.lines[first..first + ways];
        if set[0] == line {
            return false;
        }
        if let Some(way) = set.iter().position(|held| *held == line) {
            set[..=way].rotate_right(1);
            return false;
        }
        if fetch {
            set.rotate_right(1);
            set[0] = line;
            self.misses += 1;
        }
        fetch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(ways: u32, write_allocates: bool) -> MemoryCache {
        MemoryCache::new(CacheShape { bytes: 1024, line_bytes: 16, ways, write_allocates })
    }

    #[test]
    fn a_range_as_large_as_the_cache_stays_and_one_byte_more_does_not() {
        for ways in [1, 2, 4] {
            let mut cache = cache(ways, true);
            for round in 0..3 {
                let missed = (0..1024).step_by(16).filter(|at| cache.read(*at)).count();
                assert_eq!(missed, if round == 0 { 64 } else { 0 });
            }
            assert!(cache.read(1024));
            assert!(!cache.read(1039));
            assert_eq!(cache.misses(), 65);
        }
    }

    #[test]
    fn two_lines_of_one_place_push_each_other_out_unless_there_are_two_ways() {
        for (ways, misses) in [(1, 10), (2, 2)] {
            let mut cache = cache(ways, true);
            for _ in 0..5 {
                cache.read(0);
                cache.read(1024);
            }
            assert_eq!(cache.misses(), misses);
        }
    }

    #[test]
    fn a_write_that_goes_through_fetches_nothing() {
        let mut cache = cache(1, false);
        assert!(!cache.write(0));
        assert!(cache.read(0));
        assert!(!cache.write(0) && !cache.read(4));
        assert_eq!((cache.accesses(), cache.misses()), (4, 1));
    }
}
