use super::canvas::{At, Canvas};
use super::{Area, GROUND, Undrawn, colour_of, dashes, names};
use crate::report::style::Colour;
use crate::result::{Drawing, Plot, Series, Source};

pub(super) const LINE_WIDTH: f64 = 2.0;

/// Lines closer than this look like one. Pixels.
const SEEN: f64 = 1.0;

/// At most this many lines above broaden a line.
const COVERED_MAX: usize = 2;

/// With more points than these, marks would hide the line.
const MARKED_POINTS_MAX: usize = 40;

/// The paper's first, so that what is compared with them lies above.
pub(super) fn draw(canvas: &Canvas<'_>, area: &Area, plot: &Plot) -> Result<(), Undrawn> {
    let names = names(plot);
    let mut all: Vec<&Series> = plot.series.iter().collect();
    all.sort_by_key(|series| series.source);
    let drawn: Vec<(&Series, Vec<At>)> = all
        .iter()
        .map(|series| (*series, series.points.iter().filter_map(|point| area.point(*point)).collect()))
        .collect();
    for (index, (series, points)) in drawn.iter().enumerate() {
        let colour = colour_of(&names, series);
        let above = drawn[index + 1..].iter().filter(|(_, other)| covers(other, points)).count();
        // A line below others is broader, so that it shows on both sides.
        let more = above.min(COVERED_MAX) as f64;
        let path = if plot.drawing == Drawing::Steps { steps(points) } else { points.clone() };
        canvas.line(&path, colour, LINE_WIDTH + 1.5 * more, dashes(series.source))?;
        if has_marks(plot, series) {
            points.iter().try_for_each(|point| mark(canvas, *point, series.source, colour, more))?;
        }
    }
    Ok(())
}

/// Does a line hide another? They must be close at a third of the points.
fn covers(above: &[At], below: &[At]) -> bool {
    let mut others = above.iter().peekable();
    let mut together = 0;
    for (x, y) in below {
        while others.next_if(|other| other.0 < x - SEEN).is_some() {}
        let same = |other: &&At| (other.0 - x).abs() <= SEEN && (other.1 - y).abs() <= SEEN;
        together += usize::from(others.peek().is_some_and(same));
    }
    together > 1 && together * 3 >= below.len()
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

/// A point: hollow for the paper, full for the simulation, a square for this machine. `more` pixels larger than usual.
pub(super) fn mark(canvas: &Canvas<'_>, at: At, source: Source, colour: Colour, more: f64) -> Result<(), Undrawn> {
    match source {
        Source::Paper => {
            canvas.circle(at, 4.25 + more, colour)?;
            canvas.circle(at, 2.5 + more, GROUND)
        }
        Source::Simulated => canvas.circle(at, 3.5 + more, colour),
        Source::Local => {
            let half = 3.5 + more;
            canvas.rectangle((at.0 - half, at.1 - half), (at.0 + half, at.1 + half), colour)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_covers_another_where_they_run_together() {
        let below = [(0.0, 5.0), (10.0, 5.0), (20.0, 9.0)];
        assert!(covers(&[(0.0, 5.4), (10.0, 5.0), (20.0, 0.0)], &below));
        assert!(!covers(&[(0.0, 5.0), (10.0, 8.0), (20.0, 1.0)], &below));
        assert!(!covers(&[], &below));
    }

    #[test]
    fn a_step_goes_right_before_it_goes_up() {
        assert_eq!(steps(&[(0.0, 0.0), (2.0, 5.0)]), [(0.0, 0.0), (2.0, 0.0), (2.0, 5.0)]);
    }
}
