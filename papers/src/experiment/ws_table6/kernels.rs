//! Loops with other uses of memory than Linpack's.

use super::program::{Cycles, Memory, Program};

const ELEMENT: u64 = 8;

/// `b = transpose(a)`, square matrices one behind the other.
pub struct Transpose {
    pub n: u64,
}

impl Program for Transpose {
    fn name(&self) -> &'static str {
        "matrix transpose"
    }

    fn bytes(&self) -> u64 {
        2 * self.n * self.n * ELEMENT
    }

    fn run(&self, cycles: Cycles, memory: &mut dyn Memory) {
        let second = self.n * self.n * ELEMENT;
        for row in 0..self.n {
            memory.compute(cycles.start + cycles.move_one * self.n as f64);
            for column in 0..self.n {
                memory.read((row * self.n + column) * ELEMENT);
                memory.write(second + (column * self.n + row) * ELEMENT);
            }
        }
    }
}

/// A hash join: a table of buckets is built and then probed by rows that are read in order.
pub struct HashJoin {
    /// Buckets of two elements: key and value.
    pub buckets: u64,
    pub probes: u64,
}

impl Program for HashJoin {
    fn name(&self) -> &'static str {
        "hash join"
    }

    fn bytes(&self) -> u64 {
        (2 * self.buckets + self.probes) * ELEMENT
    }

    fn run(&self, cycles: Cycles, memory: &mut dyn Memory) {
        let rows = 2 * self.buckets * ELEMENT;
        memory.compute(cycles.start + 2.0 * cycles.move_one * self.probes as f64);
        for row in 0..self.probes {
            memory.read(rows + row * ELEMENT);
            // Fibonacci hashing: the high half of the product.
            let hash = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let bucket = (hash * self.buckets) >> 32;
            memory.read(2 * bucket * ELEMENT);
            memory.read((2 * bucket + 1) * ELEMENT);
        }
    }
}

/// `a[i] += b[i]`, with the second vector exactly a cache's size behind the first: the hint puts each pair of elements
/// on the same line of a direct-mapped cache, for certain, where chance would do so seldom.
pub struct Aligned {
    pub n: u64,
    /// From the first vector to the second. Bytes.
    pub apart: u64,
}

impl Program for Aligned {
    fn name(&self) -> &'static str {
        "vectors a cache apart"
    }

    fn bytes(&self) -> u64 {
        self.apart + self.n * ELEMENT
    }

    fn run(&self, cycles: Cycles, memory: &mut dyn Memory) {
        memory.compute(cycles.start + cycles.multiply_add * self.n as f64);
        for element in 0..self.n {
            memory.read(self.apart + element * ELEMENT);
            memory.read(element * ELEMENT);
            memory.write(element * ELEMENT);
        }
    }
}

/// A five-point stencil from one square grid into another.
pub struct Stencil {
    pub n: u64,
}

impl Program for Stencil {
    fn name(&self) -> &'static str {
        "stencil"
    }

    fn bytes(&self) -> u64 {
        2 * self.n * self.n * ELEMENT
    }

    fn run(&self, cycles: Cycles, memory: &mut dyn Memory) {
        let at = |row: u64, column: u64| (row * self.n + column) * ELEMENT;
        let second = self.n * self.n * ELEMENT;
        for row in 1..self.n - 1 {
            memory.compute(cycles.start + 2.0 * cycles.multiply_add * (self.n - 2) as f64);
            for column in 1..self.n - 1 {
                memory.read(at(row - 1, column));
                memory.read(at(row + 1, column));
                memory.read(at(row, column + 1));
                memory.write(second + at(row, column));
            }
        }
    }
}
