//! The spread of repeated measurements, and pseudo-random numbers.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Of an even count, the mean of the two middle values.
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub count: usize,
}

impl Spread {
    /// `None` without values.
    pub fn of_any(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        Spread::of_all(values.into_iter().collect())
    }

    /// Compiled once, not for each kind of values.
    fn of_all(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Some(Spread { median, least, most, count: values.len() })
    }

    /// Times a positive number.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Spread { median: self.median * factor, least: self.least * factor, most: self.most * factor, ..self }
    }

    /// The median, and in parentheses what it lies between.
    pub fn shown(self, number: impl Fn(f64) -> String) -> String {
        format!("{} ({} … {})", number(self.median), number(self.least), number(self.most))
    }

    /// Do they have values in common?
    pub fn overlaps(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }

    /// All zero without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Spread::of_any(values).unwrap_or_default()
    }
}

/// xorshift64 (Marsaglia 2003).
#[derive(Clone, Copy, Debug)]
pub struct XorShift(pub u64);

impl XorShift {
    /// A fixed seed, so that runs are repeatable.
    pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_what_it_lies_between() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, least: 1.0, most: 3.0, count: 3 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
        assert_eq!(Spread::of_any([]), None);
    }
}
