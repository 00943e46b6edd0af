use super::canvas::{At, Canvas, Side};
use super::{Area, FAINT, GROUND, INK, SMALL_TEXT, Undrawn, colour_of, dashes, names, value};
use crate::report::style::Colour;
use crate::report::{number, wrap as wrapped_lines};
use crate::result::{Plot, Series, Source};

/// Distance between lines of a group's name.
pub(super) const LINE: f64 = 15.0;

const BAR_WIDTH_MAX: f64 = 54.0;
const LINES_MAX: usize = 3;

/// The names of groups, wrapped.
pub(super) fn wrapped(groups: &[String], width: f64) -> Vec<Vec<String>> {
    let letters = ((width / groups.len() as f64 - 6.0) / 6.4).max(4.0) as usize;
    groups.iter().map(|name| wrap(name, letters)).collect()
}

fn wrap(name: &str, letters: usize) -> Vec<String> {
    let mut lines = wrapped_lines(name, letters);
    lines.retain(|line| !line.is_empty());
    if lines.len() > LINES_MAX {
        lines.truncate(LINES_MAX);
        if let Some(last) = lines.last_mut() {
            last.push('…');
        }
    }
    lines
}

pub(super) fn draw(canvas: &Canvas<'_>, area: &Area, plot: &Plot, groups: &[Vec<String>]) -> Result<(), Undrawn> {
    let names = names(plot);
    let mut all: Vec<&Series> = plot.series.iter().collect();
    all.sort_by_key(|series| (names.iter().position(|name| *name == series.name), series.source));
    let group_width = (area.right - area.left) / groups.len() as f64;
    let width = (group_width * 0.8 / all.len().max(1) as f64).min(BAR_WIDTH_MAX);
    // Either all series have their values written at the bars, or none.
    let has_room =
        |series: &Series| series.points.iter().all(|(_, y)| short(*y).chars().count() as f64 * 6.2 <= width + 3.0);
    let with_values = plot.series.iter().all(has_room);
    for (number, lines) in groups.iter().enumerate() {
        let middle = area.left + (number as f64 + 0.5) * group_width;
        for (index, series) in all.iter().enumerate() {
            let Some((_, y)) = series.points.iter().find(|(x, _)| *x == number as f64) else { continue };
            let left = middle + (index as f64 - all.len() as f64 / 2.0) * width;
            let colour = colour_of(&names, series);
            let sides = (left + 1.5, left + width - 1.5);
            one(canvas, area, sides, *y, (series.source, colour), with_values)?;
        }
        for (index, line) in lines.iter().enumerate() {
            let at = (middle, area.bottom + 15.0 + index as f64 * LINE);
            canvas.text(line, at, SMALL_TEXT, INK, Side::Centre)?;
        }
    }
    Ok(())
}

/// A bar, optionally with its value at its end.
fn one(
    canvas: &Canvas<'_>,
    area: &Area,
    (left, right): (f64, f64),
    y: f64,
    (source, colour): (Source, Colour),
    with_value: bool,
) -> Result<(), Undrawn> {
    let (Some(end), Some(ground)) = (area.up(y), area.up(area.y.ground())) else { return Ok(()) };
    bar(canvas, (left, end.min(ground)), (right, end.max(ground)), source, colour)?;
    if with_value {
        let text = short(y);
        let at = ((left + right) / 2.0, if y < 0.0 { end + 8.0 } else { end - 8.0 });
        canvas.text(&text, at, 11.0, if source == Source::Paper { FAINT } else { INK }, Side::Centre)?;
    }
    Ok(())
}

/// About three digits.
fn short(y: f64) -> String {
    match y.abs() {
        _ if y.fract() == 0.0 => value(y),
        0.0..1.0 => number(y, 2),
        1.0..100.0 => number(y, 1),
        _ => number(y, 0),
    }
}

/// Hollow and dashed for the paper, full for the simulation, striped for this machine.
pub(super) fn bar(
    canvas: &Canvas<'_>,
    (left, top): At,
    (right, bottom): At,
    source: Source,
    colour: Colour,
) -> Result<(), Undrawn> {
    if source == Source::Simulated {
        return canvas.rectangle((left, top), (right, bottom), colour);
    }
    let edge = [(left + 0.75, bottom), (left + 0.75, top), (right - 0.75, top), (right - 0.75, bottom)];
    canvas.rectangle((left, top), (right, bottom), GROUND)?;
    if source == Source::Local {
        let mut stripe = bottom - 3.0;
        while stripe > top {
            canvas.line(&[(left, stripe), (right, stripe)], colour, 2.0, None)?;
            stripe -= 5.0;
        }
        return canvas.line(&edge, colour, 1.5, None);
    }
    canvas.line(&edge, colour, 1.5, dashes(source))?;
    canvas.line(&[edge[0], edge[3]], colour, 1.5, dashes(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_are_wrapped_between_words_and_cut_at_three_lines() {
        assert_eq!(wrap("write returns after", 8), ["write", "returns", "after"]);
        assert_eq!(wrap("write returns after", 13), ["write returns", "after"]);
        assert_eq!(wrap("a bb cc dd ee", 3), ["a", "bb", "cc…"]);
        assert!(wrap("", 8).is_empty());
    }

    #[test]
    fn values_at_bars_are_short() {
        assert_eq!([827.5, 4.9, 0.123, 12.0, -7.75].map(short), ["828", "4.9", "0.12", "12", "-7.8"]);
    }
}
