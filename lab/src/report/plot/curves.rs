//! Lines and steps.

use super::canvas::{At, Canvas};
use super::{Area, GROUND, Undrawn, colour_of, dashes, names};
use crate::report::style::Colour;
use crate::result::{Drawing, Plot, Series, Source};

pub(super) const LINE_WIDTH: f64 = 2.0;

/// With more points than these, marks would hide the line.
const MARKED_POINTS_MAX: usize = 40;

/// Those of the paper first, so that what is compared with them lies above.
pub(super) fn draw(canvas: &Canvas<'_>, area: &Area, plot: &Plot) -> Result<(), Undrawn> {
    let names = names(plot);
    let mut all: Vec<&Series> = plot.series.iter().collect();
    all.sort_by_key(|series| series.source);
    for series in all {
        let colour = colour_of(&names, series);
        let points: Vec<At> = series.points.iter().filter_map(|point| area.point(*point)).collect();
        let path = if plot.drawing == Drawing::Steps { steps(&points) } else { points.clone() };
        canvas.line(&path, colour, LINE_WIDTH, dashes(series.source))?;
        if has_marks(plot, series) {
            points.iter().try_for_each(|point| mark(canvas, *point, series.source, colour))?;
        }
    }
    Ok(())
}

pub(super) fn has_marks(plot: &Plot, series: &Series) -> bool {
    plot.drawing == Drawing::Lines && series.points.len() <= MARKED_POINTS_MAX
}

/// Each value holds until the next.
fn steps(points: &[At]) -> Vec<At> {
    let mut path: Vec<At> = points.first().copied().into_iter().collect();
    for pair in points.windows(2) {
        path.extend([(pair[1].0, pair[0].1), pair[1]]);
    }
    path
}

/// A point: hollow for the paper, full for the simulation, a square for this machine.
pub(super) fn mark(canvas: &Canvas<'_>, at: At, source: Source, colour: Colour) -> Result<(), Undrawn> {
    match source {
        Source::Paper => {
            canvas.circle(at, 4.25, colour)?;
            canvas.circle(at, 2.5, GROUND)
        }
        Source::Simulated => canvas.circle(at, 3.5, colour),
        Source::Here => canvas.rectangle((at.0 - 3.5, at.1 - 3.5), (at.0 + 3.5, at.1 + 3.5), colour),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_goes_right_before_it_goes_up() {
        assert_eq!(steps(&[(0.0, 0.0), (2.0, 5.0)]), [(0.0, 0.0), (2.0, 0.0), (2.0, 5.0)]);
    }
}
