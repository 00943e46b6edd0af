//! The scale of an axis: its range, its marks and their labels.

use super::number;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    min: f64,
    max: f64,
    logarithmic: bool,
    pub marks: Vec<(f64, String)>,
}

impl Scale {
    /// A vertical scale: from 0 if the values are not far from it, so that lengths are comparable.
    pub(super) fn upward(values: &[f64], logarithmic: bool, from_zero: bool) -> Option<Self> {
        if logarithmic {
            return Scale::logarithmic(values);
        }
        let (mut min, mut max) = span(values.iter().copied())?;
        if from_zero || (min > 0.0 && min < 0.6 * max) {
            min = min.min(0.0);
        }
        if from_zero || (max < 0.0 && max > 0.6 * min) {
            max = max.max(0.0);
        }
        if min == max {
            (min, max) = (min - 1.0, max + 1.0);
        }
        let step = step((max - min) / 5.0);
        // Whole steps, so that the highest mark is above all data.
        let (min, max) = ((min / step).floor() * step, (max / step - 1e-9).ceil() * step);
        Some(Scale { marks: linear_marks(min, max, step), min, max, logarithmic })
    }

    /// A horizontal scale: as wide as the values, with a mark at each if at most `room` marks are needed.
    pub(super) fn rightward(values: &[f64], logarithmic: bool, room: usize) -> Option<Self> {
        let mut scale = if logarithmic {
            let (min, max) = span(values.iter().copied().filter(|value| *value > 0.0))?;
            let scale = Scale::logarithmic(values)?;
            let marks = scale.marks.iter().filter(|(mark, _)| (min..=max).contains(mark)).cloned().collect();
            if min < max { Scale { min, max, marks, logarithmic } } else { scale }
        } else {
            let (min, max) = span(values.iter().copied())?;
            let (min, max) = if min > 0.0 && min < 0.3 * max { (0.0, max) } else { (min, max) };
            let (min, max) = if min == max { (min - 1.0, max + 1.0) } else { (min, max) };
            let step = step((max - min) / 8.0);
            // Integer values have no marks between integers.
            let step = if values.iter().all(|value| value.fract() == 0.0) { step.ceil() } else { step };
            Scale { marks: linear_marks(min, max, step), min, max, logarithmic }
        };
        let mut each: Vec<f64> = values.iter().copied().filter(|value| scale.at(*value).is_some()).collect();
        each.sort_by(f64::total_cmp);
        each.dedup();
        let far_apart = each.windows(2).all(|pair| match (scale.at(pair[0]), scale.at(pair[1])) {
            (Some(a), Some(b)) => (b - a) * room as f64 > 1.0,
            _ => false,
        });
        if far_apart {
            scale.marks = each.into_iter().map(|value| (value, super::value(value))).collect();
        }
        Some(scale)
    }

    fn logarithmic(values: &[f64]) -> Option<Self> {
        let (least, most) = span(values.iter().copied().filter(|value| *value > 0.0))?;
        let mut decade = 1.0;
        while decade > least {
            decade /= 10.0;
        }
        while decade * 10.0 <= least {
            decade *= 10.0;
        }
        let few = most / least <= 200.0;
        let mut marks = Vec::new();
        'all: loop {
            for factor in if few { &[1.0, 2.0, 5.0][..] } else { &[1.0] } {
                let mark = decade * factor;
                marks.push((mark, plain(mark)));
                if mark >= most {
                    break 'all;
                }
            }
            decade *= 10.0;
        }
        // Only the last mark below the data is needed.
        while marks.get(1).is_some_and(|(mark, _)| *mark <= least) {
            marks.remove(0);
        }
        let (min, max) = (marks.first()?.0, marks.last()?.0);
        if min == max {
            return Some(Scale { min: min / 2.0, max: max * 2.0, logarithmic: true, marks });
        }
        Some(Scale { min, max, logarithmic: true, marks })
    }

    /// Position of a value along the axis, from 0 to 1; `None` where a logarithmic axis has no place for it.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.logarithmic && value <= 0.0) {
            return None;
        }
        let place = |value: f64| if self.logarithmic { value.log10() } else { value };
        Some((place(value) - place(self.min)) / (place(self.max) - place(self.min)))
    }

    pub(super) fn ground(&self) -> f64 {
        if self.logarithmic { self.min } else { 0.0_f64.clamp(self.min, self.max) }
    }
}

fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |span, value| match span {
        None => Some((value, value)),
        Some((min, max)) => Some((f64::min(min, value), f64::max(max, value))),
    })
}

/// The least of 1, 2, 2.5, 5 times a power of ten that is not less.
fn step(least: f64) -> f64 {
    let mut decade = 1.0;
    while decade > least && decade > 1e-12 {
        decade /= 10.0;
    }
    while decade * 10.0 <= least {
        decade *= 10.0;
    }
    [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| *step >= least).unwrap_or(decade)
}

fn linear_marks(min: f64, max: f64, step: f64) -> Vec<(f64, String)> {
    let mut digits = 0;
    let mut finer = step;
    while (finer - finer.round()).abs() > 1e-6 * finer && digits < 9 {
        finer *= 10.0;
        digits += 1;
    }
    let first = (min / step - 1e-9).ceil();
    let marks = (0..100).map(|index| (first + f64::from(index)) * step);
    marks.take_while(|mark| *mark <= max + 1e-9 * step).map(|mark| (mark, number(mark, digits))).collect()
}

fn plain(mark: f64) -> String {
    let mut digits = 0;
    let mut finer = mark;
    while finer < 0.99 && digits < 12 {
        finer *= 10.0;
        digits += 1;
    }
    number(mark, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.marks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn an_upward_scale_starts_at_zero_and_ends_above_the_data() {
        let scale = Scale::upward(&[327.7, 827.5], false, true).expect("values");
        assert_eq!(labels(&scale), ["0", "200", "400", "600", "800", "1000"]);
        assert_eq!(scale.at(500.0), Some(0.5));
        let scale = Scale::upward(&[-3.0, 26.7], false, false).expect("values");
        assert_eq!(labels(&scale), ["-10", "0", "10", "20", "30"]);
        let scale = Scale::upward(&[0.12, 0.31], false, true).expect("values");
        assert_eq!(labels(&scale), ["0.0", "0.1", "0.2", "0.3", "0.4"]);
    }

    #[test]
    fn a_logarithmic_scale_has_no_place_for_zero() {
        let scale = Scale::upward(&[0.0, 3.0, 40_000.0], true, false).expect("values");
        assert_eq!(labels(&scale), ["1", "10", "100", "1000", "10,000", "100,000"]);
        assert_eq!(scale.at(0.0), None);
        assert_eq!(scale.at(10.0).map(|at| (at * 5.0).round()), Some(1.0));
    }

    #[test]
    fn few_values_to_the_right_have_a_mark_each() {
        let scale = Scale::rightward(&[1.0, 2.0, 4.0, 9.0, 16.0], false, 20).expect("values");
        assert_eq!(labels(&scale), ["1", "2", "4", "9", "16"]);
        let many: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(Scale::rightward(&many, false, 20).expect("values").marks.len(), 5);
    }

    #[test]
    fn equal_no_and_odd_values_make_no_endless_scale() {
        assert!(Scale::upward(&[5.0, 5.0], false, false).is_some());
        assert!(Scale::upward(&[0.0], false, true).is_some());
        assert!(Scale::rightward(&[5.0], true, 10).is_some_and(|scale| scale.at(5.0).is_some()));
        assert_eq!(Scale::upward(&[], false, true), None);
        assert_eq!(Scale::upward(&[f64::NAN, f64::INFINITY], false, true), None);
        assert_eq!(Scale::upward(&[-1.0], true, true), None);
    }
}
