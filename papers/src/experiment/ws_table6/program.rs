//! Programs whose memory references are simulated: their loops run on addresses.

pub trait Memory {
    fn read(&mut self, address: u64);
    fn write(&mut self, address: u64);
    /// The processor computes for that many cycles, without waits for memory.
    fn compute(&mut self, cycles: f64);
}

/// Processor cycles for one element of each loop, when all hits the cache.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// `y += a * x` (`axpy`), also one element of a dot product or of a matrix product.
    pub multiply_add: f64,
    /// One element examined, scaled or moved.
    pub move_one: f64,
    pub start: f64,
}

pub trait Program {
    fn name(&self) -> &'static str;
    /// Bytes of virtual memory that it uses, from address 0.
    fn bytes(&self) -> u64;
    fn run(&self, cycles: Cycles, memory: &mut dyn Memory);
}

/// Linpack: solves a dense system of equations (Dongarra, Bunch, Moler, Stewart: *LINPACK Users' Guide*, 1979, `SGEFA`
/// and `SGESL` with the unrolled `SAXPY`; Dongarra, *Performance of Various Computers Using Standard Linear Equations
/// Software*, CS-89-85).
pub struct Linpack {
    /// Equations: 100 in the benchmark.
    pub n: usize,
    /// Elements from one column to the next: 201 in the benchmark.
    pub lda: usize,
    pub element: u64,
}

impl Linpack {
    /// Floating-point operations of one run, as the benchmark counts them.
    pub fn work(&self) -> f64 {
        let n = self.n as f64;
        2.0 * n * n * n / 3.0 + 2.0 * n * n
    }

    fn at(&self, row: usize, column: usize) -> u64 {
        (column * self.lda + row) as u64 * self.element
    }

    fn b(&self, row: usize) -> u64 {
        (self.n * self.lda + row) as u64 * self.element
    }

    /// The matrix of the benchmark's `MATGEN`, column by column.
    fn matrix(&self) -> Vec<Vec<f64>> {
        let mut seed = 1325_u32;
        let mut next = || {
            seed = 3125 * seed % 65536;
            (f64::from(seed) - 32768.0) / 16384.0
        };
        (0..self.n).map(|_| (0..self.n).map(|_| next()).collect()).collect()
    }

    /// `SAXPY`: adds a multiple of one column to another or to the right-hand side. Addresses of the first elements.
    fn axpy(&self, cycles: Cycles, memory: &mut dyn Memory, from: u64, to: u64, count: usize) {
        memory.compute(cycles.start + cycles.multiply_add * count as f64);
        for index in 0..count as u64 {
            memory.read(from + index * self.element);
            memory.read(to + index * self.element);
            memory.write(to + index * self.element);
        }
    }

    fn touch(&self, cycles: Cycles, memory: &mut dyn Memory, first: u64, count: usize, writes: bool) {
        memory.compute(cycles.start + cycles.move_one * count as f64);
        for index in 0..count as u64 {
            memory.read(first + index * self.element);
            if writes {
                memory.write(first + index * self.element);
            }
        }
    }

    fn swap(&self, cycles: Cycles, memory: &mut dyn Memory, one: u64, other: u64) {
        memory.compute(2.0 * cycles.move_one);
        for address in [one, other] {
            memory.read(address);
            memory.write(address);
        }
    }

    /// `SGEFA`: the pivots are those of the real matrix.
    fn factor(&self, cycles: Cycles, memory: &mut dyn Memory) -> Vec<usize> {
        let mut a = self.matrix();
        let n = self.n;
        let mut pivots = vec![0; n];
        for k in 0..n - 1 {
            self.touch(cycles, memory, self.at(k, k), n - k, false);
            let pivot = (k..n).fold(k, |best, row| if a[k][row].abs() > a[k][best].abs() { row } else { best });
            pivots[k] = pivot;
            if pivot != k {
                self.swap(cycles, memory, self.at(pivot, k), self.at(k, k));
                a[k].swap(pivot, k);
            }
            self.touch(cycles, memory, self.at(k + 1, k), n - k - 1, true);
            let scale = -1.0 / a[k][k];
            a[k][k + 1..].iter_mut().for_each(|element| *element *= scale);
            let (left, right) = a.split_at_mut(k + 1);
            for (j, column) in right.iter_mut().enumerate() {
                let j = k + 1 + j;
                if pivot != k {
                    self.swap(cycles, memory, self.at(pivot, j), self.at(k, j));
                    column.swap(pivot, k);
                }
                self.axpy(cycles, memory, self.at(k + 1, k), self.at(k + 1, j), n - k - 1);
                let factor = column[k];
                for row in k + 1..n {
                    column[row] += factor * left[k][row];
                }
            }
        }
        pivots
    }

    fn solve(&self, cycles: Cycles, memory: &mut dyn Memory, pivots: &[usize]) {
        let n = self.n;
        for (k, &pivot) in pivots.iter().enumerate().take(n - 1) {
            if pivot != k {
                self.swap(cycles, memory, self.b(pivot), self.b(k));
            }
            self.axpy(cycles, memory, self.at(k + 1, k), self.b(k + 1), n - k - 1);
        }
        for k in (0..n).rev() {
            self.touch(cycles, memory, self.b(k), 1, true);
            self.axpy(cycles, memory, self.at(0, k), self.b(0), k);
        }
    }
}

impl Program for Linpack {
    fn name(&self) -> &'static str {
        "Linpack"
    }

    fn bytes(&self) -> u64 {
        self.b(self.n)
    }

    fn run(&self, cycles: Cycles, memory: &mut dyn Memory) {
        let pivots = self.factor(cycles, memory);
        self.solve(cycles, memory, &pivots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linpack_does_the_work_that_is_counted() {
        #[derive(Default)]
        struct Counts(u64, u64);
        impl Memory for Counts {
            fn read(&mut self, _: u64) {
                self.0 += 1;
            }
            fn write(&mut self, _: u64) {
                self.1 += 1;
            }
            fn compute(&mut self, _: f64) {}
        }
        let linpack = Linpack { n: 100, lda: 201, element: 4 };
        let mut counts = Counts::default();
        linpack.run(Cycles { multiply_add: 0.0, move_one: 0.0, start: 0.0 }, &mut counts);
        // Each multiplication and addition writes one element; other writes are few.
        let elements = linpack.work() / 2.0;
        assert!((counts.1 as f64 / elements - 1.0).abs() < 0.05, "{} writes for {elements}", counts.1);
    }
}
