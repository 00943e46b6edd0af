//! An estimate of what a client will send next. Many clients repeat a pattern: writes of one shape, then other requests
//! (a database: writes, then a flush). Without a pattern, a run of writes is expected to continue.

/// Of a payload: offset into the first block, and length.
pub(super) type Shape = (usize, usize);

/// Consecutive requests of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    now: usize,
    /// Length of the run before.
    before: usize,
}

impl Run {
    fn end(&mut self) {
        if self.now > 0 {
            self.before = std::mem::take(&mut self.now);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ArrivalEstimate {
    shape: Option<Shape>,
    writes: Run,
    others: Run,
    /// Writes to expect where the run before gives no estimate.
    onward: usize,
}

impl ArrivalEstimate {
    pub(super) fn on_write(&mut self, shape: Shape) {
        self.others.end();
        if self.shape != Some(shape) {
            *self = ArrivalEstimate { shape: Some(shape), others: self.others, ..ArrivalEstimate::default() };
        } else if self.writes.now > 0 {
            self.onward = self.onward.max(1);
        }
        self.writes.now += 1;
    }

    /// The header of a request that is not a write arrived.
    pub(super) fn on_other(&mut self) {
        self.writes.end();
        self.others.now += 1;
        self.onward = 0;
    }

    /// `used` of `expected` writes arrived: expects more while all arrive, fewer otherwise.
    pub(super) fn on_landed(&mut self, used: usize, expected: usize, most: usize) {
        if self.onward == 0 || expected == 0 {
            return;
        }
        if used == expected {
            self.onward = (expected * 2).min(most.max(1));
        } else if used * 2 < expected {
            self.onward = (expected / 2).max(1);
        }
    }

    /// The shape and number of the writes to expect next; `None` where other requests are more likely.
    pub(super) fn expected(&self) -> Option<(Shape, usize)> {
        let shape = self.shape?;
        if self.others.now > 0 {
            // Other requests since the last write.
            let is_turn = self.others.now >= self.others.before && self.others.before > 0;
            return (is_turn && self.writes.before > 0).then_some((shape, self.writes.before));
        }
        match self.writes.before.checked_sub(self.writes.now) {
            Some(0) if self.others.before > 0 => None,
            Some(left) if left > 0 => Some((shape, left)),
            _ => Some((shape, self.onward)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = (0, 8192);

    #[test]
    fn what_repeats_itself_is_expected_to_go_on() {
        let mut estimate = ArrivalEstimate::default();
        for round in 0..4 {
            for write in 0..16 {
                if round > 1 {
                    assert_eq!(estimate.expected(), Some((SHAPE, 16 - write)), "round {round}, write {write}");
                }
                estimate.on_write(SHAPE);
            }
            for other in 0..3 {
                if round > 0 {
                    assert_eq!(estimate.expected(), None, "round {round}, other {other}");
                }
                estimate.on_other();
            }
        }
    }

    #[test]
    fn a_run_without_an_example_is_expected_to_go_on_and_on() {
        let mut estimate = ArrivalEstimate::default();
        assert_eq!(estimate.expected(), None);
        estimate.on_write(SHAPE);
        assert_eq!(estimate.expected(), Some((SHAPE, 0)), "one may be all");
        estimate.on_write(SHAPE);
        let mut expected = 1;
        for _ in 0..6 {
            assert_eq!(estimate.expected(), Some((SHAPE, expected)));
            (0..expected).for_each(|_| estimate.on_write(SHAPE));
            estimate.on_landed(expected, expected, 16);
            expected = (2 * expected).min(16);
        }
        estimate.on_landed(3, 16, 16);
        assert_eq!(estimate.expected(), Some((SHAPE, 8)));
    }

    #[test]
    fn another_shape_begins_anew() {
        let mut estimate = ArrivalEstimate::default();
        for shape in [(0, 4096), (0, 8192), (512, 8192)] {
            estimate.on_write(shape);
            assert_eq!(estimate.expected(), Some((shape, 0)));
            (1..5).for_each(|_| estimate.on_write(shape));
            estimate.on_other();
        }
    }
}
