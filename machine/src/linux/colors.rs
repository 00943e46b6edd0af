//! Are there cache colours on this machine? (WS-6; `policy/src/color.rs`)
//!
//! Frames whose addresses within a huge page are equal modulo one way of the second-level cache share its sets. So one
//! line in each of twice as many such frames as there are ways does not fit, and each access misses; of frames of all
//! colours it fits. Where the two take equally long, the address within the page does not tell the cache's set: the host
//! of a virtual machine has scattered the page, or the processor hashes addresses.
//!
//! All these lines have one set of the first-level cache, which may keep as few as those of a second level with four
//! ways, and keeps some better than others (AMD predicts ways by a hash of the address). So others are read with them.

use std::fs;
use std::hint::black_box;
use std::ptr;
use std::time::{Duration, Instant};

use policy::color::{Found, conflicts};

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Four huge pages: twice the ways of a cache of 4 MiB.
const BYTES: usize = 4 * HUGE_PAGE;

/// Numbers of ways that are tried: the processor that a virtual machine states need not be the real one.
const WAYS: [usize; 4] = [4, 8, 16, 32];

/// Measurements of each kind, alternately; the medians count.
const REPETITIONS: usize = 9;
/// Accesses of each.
const ACCESSES: usize = 4000;
/// Lines of other colours among them: more than the first-level cache has ways.
const OTHERS: usize = 16;
const LINE: usize = 64;

/// Second-level cache of the first processor, as Linux describes it.
struct Geometry {
    bytes: usize,
    ways: Option<usize>,
}

fn geometry() -> Option<Geometry> {
    let directory = "/sys/devices/system/cpu/cpu0/cache/index2";
    let read = |name: &str| fs::read_to_string(format!("{directory}/{name}")).ok();
    let size = read("size")?;
    let bytes = size.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)?;
    let ways = read("ways_of_associativity").and_then(|ways| ways.trim().parse().ok()).filter(|ways| *ways > 0);
    Some(Geometry { bytes, ways })
}

/// Measures for a few milliseconds. Finds nothing where the host does not tell the cache's size.
pub fn find() -> Found {
    let Some(Geometry { bytes, ways }) = geometry() else { return Found::default() };
    let colors = |ways: usize| bytes / PAGE / ways;
    let stated = ways.map(|ways| colors(ways) as u32);
    let Some(memory) = Memory::new() else { return Found { stated, measured: None } };
    // Fewer ways are more colours: the most at which there are conflicts is the number.
    let conflict = |ways: &usize| {
        (2..=BYTES / PAGE / (2 * ways)).contains(&colors(*ways)) && memory.conflict(*ways, colors(*ways))
    };
    let measured = WAYS.into_iter().find(conflict).map(|ways| colors(ways) as u32);
    Found { stated, measured }
}

/// Pages that are neither of the colour of this repetition, also where the processor has half or a quarter of the colours that
/// are tried, nor among those of all colours.
fn others(pages: usize, colors: usize, repetition: usize) -> impl Iterator<Item = usize> {
    let apart = if colors < 8 { colors } else { 4 };
    let of = move |number: usize| {
        let (row, from) = (number % pages, (number % pages + 1 + number / pages) % colors);
        (!from.is_multiple_of(apart) && from != row % colors).then_some(row * colors + (repetition + from) % colors)
    };
    (0..pages * (colors - 1)).filter_map(of).take(OTHERS)
}

/// Huge pages, if the host gives them.
struct Memory {
    raw: *mut libc::c_void,
    base: *mut u8,
}

impl Memory {
    fn new() -> Option<Memory> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping does not overlap other memory.
        let raw = unsafe { libc::mmap(ptr::null_mut(), BYTES + HUGE_PAGE, prot, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return None;
        }
        let skip = raw.addr().next_multiple_of(HUGE_PAGE) - raw.addr();
        let base = raw.cast::<u8>().wrapping_add(skip);
        // SAFETY: within the mapping. Failure only means small pages.
        unsafe { libc::madvise(base.cast(), BYTES, libc::MADV_HUGEPAGE) };
        Some(Memory { raw, base })
    }

    fn conflict(&self, ways: usize, colors: usize) -> bool {
        let pages = 2 * ways;
        let same = |repetition: usize| (0..pages).map(move |at| at * colors + repetition % colors);
        let spread = |repetition: usize| (0..pages).map(move |at| at * colors + (repetition + at) % colors);
        let others = |repetition: usize| others(pages, colors, repetition);
        if others(0).count() < OTHERS {
            return false;
        }
        let mut times = (Vec::new(), Vec::new());
        for repetition in 0..REPETITIONS {
            let line = repetition * 7 * LINE % PAGE;
            times.0.push(self.time(same(repetition).chain(others(repetition)), line));
            times.1.push(self.time(spread(repetition).chain(others(repetition)), line));
        }
        conflicts(median(times.0), median(times.1))
    }

    /// The time of [`ACCESSES`] accesses, each of which depends on the one before, to byte `at` of these pages in turn.
    fn time(&self, pages: impl Iterator<Item = usize>, at: usize) -> Duration {
        let mut order: Vec<*mut usize> = pages.map(|page| self.base.wrapping_add(page * PAGE + at).cast()).collect();
        // No stride that the processor could foresee.
        let len = order.len();
        (0..len).for_each(|step| order.swap(step, (step * 7 + 3) % len));
        for (step, place) in order.iter().enumerate() {
            let next = order[(step + 1) % len];
            // SAFETY: within the mapping (pages are below `BYTES / PAGE`), and aligned.
            unsafe { place.write(next.expose_provenance()) };
        }
        let mut place = order[0];
        let mut chase = |accesses: usize| {
            for _ in 0..accesses {
                // SAFETY: every place has the address of the next one, which is ours.
                place = ptr::with_exposed_provenance_mut(unsafe { place.read_volatile() });
            }
        };
        chase(4 * len);
        let began = Instant::now();
        chase(ACCESSES);
        let took = began.elapsed();
        black_box(place);
        took
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.raw, BYTES + HUGE_PAGE) };
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_a_number_of_colours() {
        let found = find();
        assert!([found.stated, found.measured].into_iter().flatten().all(|colors| (1..=1024).contains(&colors)));
    }

    #[test]
    fn what_is_read_besides_has_other_colours_and_is_no_page_twice() {
        for (ways, colors) in [(4, 32), (8, 16), (16, 8), (32, 2)] {
            for repetition in 0..REPETITIONS {
                let pages = 2 * ways;
                let mut all: Vec<usize> = others(pages, colors, repetition).collect();
                assert!(all.len() == OTHERS || colors == 2);
                let is_other = |page: &usize| !(page + colors - repetition % colors).is_multiple_of(colors.min(4));
                assert!(all.iter().all(|page| page / colors < pages && is_other(page)));
                all.extend((0..pages).map(|at| at * colors + (repetition + at) % colors));
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), count, "{ways} ways, {colors} colours");
            }
        }
    }
}
