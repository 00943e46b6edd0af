//! Modules of the operating system that are not always in memory (the paper's 1.2 (4)): the most used ones are made
//! resident, as far as memory allows; others are loaded from the system's disk when they run.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub count: u64,
    /// So many of the most used ones stay in memory.
    pub resident: u64,
    /// Of the others, as many as were run last are still there.
    pub area: usize,
}

#[derive(Debug)]
pub struct Modules {
    config: Config,
    /// The module of rank n is run in proportion to 1/n (Zipf): sums of the shares, up to each.
    shares: Vec<f64>,
    /// Loaded, the last one first.
    area: VecDeque<u64>,
    loads: u64,
}

impl Modules {
    pub fn new(config: Config) -> Self {
        let mut sum = 0.0;
        let shares = (1..=config.count).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Modules { shares: shares.collect(), config, area: VecDeque::new(), loads: 0 }
    }

    /// Runs some module, drawn with `fraction`; must it be loaded first?
    pub fn run(&mut self, fraction: impl FnOnce() -> f64) -> bool {
        if self.config.resident >= self.config.count {
            return false;
        }
        let drawn = fraction() * self.shares.last().copied().unwrap_or_default();
        let module = self.shares.partition_point(|sum| *sum <= drawn) as u64;
        if module < self.config.resident {
            return false;
        }
        let place = self.area.iter().position(|loaded| *loaded == module);
        if let Some(place) = place {
            self.area.remove(place);
        }
        self.area.push_front(module);
        self.area.truncate(self.config.area);
        self.loads += u64::from(place.is_none());
        place.is_none()
    }

    /// So far.
    pub fn loads(&self) -> u64 {
        self.loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_modules_and_those_run_last_need_no_load() {
        let mut modules = Modules::new(Config { count: 4, resident: 1, area: 1 });
        // Shares of 12, 6, 4 and 3 of 25.
        let run = |modules: &mut Modules, part: f64| modules.run(|| part / 25.0);
        assert!(!run(&mut modules, 11.0), "resident");
        assert!(run(&mut modules, 13.0) && !run(&mut modules, 17.0), "the same module again");
        assert!(run(&mut modules, 19.0) && run(&mut modules, 13.0), "the area has room for one");
        assert_eq!(modules.loads(), 3);
        let mut all = Modules::new(Config { count: 4, resident: 4, area: 1 });
        assert!(!all.run(|| unreachable!("nothing is drawn")));
    }
}
