//! Plots as SVG in the style of the papers' figures: published values hollow and dashed, simulated ones solid, those of
//! this machine dotted. The legend is above, so that it never covers data.

mod bars;
pub mod canvas;
mod curves;

use canvas::{At, Canvas, Side};
use thiserror::Error;

use super::escape::escaped;
use super::scale::Scale;
use super::style::{Colour, FAINT, GRID, GROUND, INK, PALETTE, dashes};
use super::{source_name, value};
use crate::result::{Axis, Drawing, Plot, Series, Source};

const WIDTH: f64 = 720.0;
const AREA_HEIGHT: f64 = 290.0;
const LEGEND_ROW: f64 = 22.0;
const MARK_SPACE: f64 = 24.0;
const LABEL_SPACE: f64 = 24.0;
const RIGHT: f64 = 36.0;
const TEXT: f64 = 13.0;
const SMALL_TEXT: f64 = 12.0;
/// Width of a letter of the larger text, slightly above the average.
const LETTER: f64 = 7.1;
const SWATCH: f64 = 26.0;

#[derive(Debug, Error)]
#[error("the plot cannot be drawn: {0}")]
pub struct Undrawn(String);

impl Undrawn {
    fn new(error: impl std::fmt::Display) -> Self {
        Undrawn(error.to_string())
    }
}

struct Area {
    x: Scale,
    y: Scale,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    fn across(&self, x: f64) -> Option<f64> {
        self.x.at(x).map(|at| self.left + at * (self.right - self.left))
    }

    fn up(&self, y: f64) -> Option<f64> {
        self.y.at(y).map(|at| self.bottom - at * (self.bottom - self.top))
    }

    fn point(&self, (x, y): (f64, f64)) -> Option<At> {
        Some((self.across(x)?, self.up(y)?))
    }
}

/// Draws a plot; `None` without data.
///
/// # Errors
/// When the drawing library fails.
pub fn svg(plot: &Plot) -> Result<Option<String>, Undrawn> {
    let Some(mut area) = area(plot) else { return Ok(None) };
    let legend = Legend::of(plot);
    let groups = match &plot.drawing {
        Drawing::Bars(groups) => bars::wrapped(groups, area.right - area.left),
        _ => Vec::new(),
    };
    let lines = groups.iter().map(Vec::len).max().unwrap_or(1) as f64;
    area.top = legend.height() + LABEL_SPACE + 6.0;
    area.bottom = area.top + AREA_HEIGHT;
    let label = if plot.x.label.is_empty() { 0.0 } else { LABEL_SPACE };
    let height = area.bottom + MARK_SPACE + (lines - 1.0) * bars::LINE + label + 2.0;
    let mut text = String::new();
    let canvas = Canvas::new(&mut text, (WIDTH, height));
    legend.draw(&canvas)?;
    let label_at = (4.0, legend.height() + LABEL_SPACE / 2.0);
    canvas.text(&label_of(&plot.y), label_at, TEXT, INK, Side::Left)?;
    grid(&canvas, &area, groups.is_empty())?;
    if groups.is_empty() {
        // A line that stays at zero lies on the frame, and must not be hidden by it.
        frame(&canvas, &area)?;
        curves::draw(&canvas, &area, plot)?;
    } else {
        bars::draw(&canvas, &area, plot, &groups)?;
        frame(&canvas, &area)?;
    }
    let middle = (area.left + area.right) / 2.0;
    canvas.text(&label_of(&plot.x), (middle, height - LABEL_SPACE / 2.0 - 2.0), TEXT, INK, Side::Centre)?;
    canvas.finish()?;
    Ok(Some(sized(&text, (WIDTH, height), &plot.title)))
}

/// The scales, and all places except vertical ones.
fn area(plot: &Plot) -> Option<Area> {
    let points = || plot.series.iter().flat_map(|series| series.points.iter());
    let ys: Vec<f64> = points().map(|(_, y)| *y).collect();
    let is_bars = matches!(plot.drawing, Drawing::Bars(_));
    let y = Scale::upward(&ys, plot.y.logarithmic, is_bars)?;
    let widest = y.marks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let left = 22.0 + widest as f64 * LETTER;
    let x = match &plot.drawing {
        Drawing::Bars(groups) if groups.is_empty() => return None,
        Drawing::Bars(groups) => Scale::rightward(&[-0.5, groups.len() as f64 - 0.5], false, 1)?,
        _ => {
            let xs: Vec<f64> = points().map(|(x, _)| *x).collect();
            Scale::rightward(&xs, plot.x.logarithmic, ((WIDTH - left) / 34.0) as usize)?
        }
    };
    Some(Area { x, y, left, top: 0.0, right: WIDTH - RIGHT, bottom: AREA_HEIGHT })
}

fn label_of(axis: &Axis) -> String {
    let unit = if axis.unit.is_empty() { String::new() } else { format!(" ({})", axis.unit) };
    let scale = if axis.logarithmic { ", logarithmic" } else { "" };
    format!("{}{unit}{scale}", axis.label)
}

fn grid(canvas: &Canvas<'_>, area: &Area, with_x: bool) -> Result<(), Undrawn> {
    for (mark, label) in &area.y.marks {
        let Some(at) = area.up(*mark) else { continue };
        canvas.line(&[(area.left, at), (area.right, at)], GRID, 1.0, None)?;
        canvas.text(label, (area.left - 8.0, at), SMALL_TEXT, FAINT, Side::Right)?;
    }
    for (mark, label) in area.x.marks.iter().filter(|_| with_x) {
        let Some(at) = area.across(*mark) else { continue };
        canvas.line(&[(at, area.bottom), (at, area.bottom + 5.0)], FAINT, 1.0, None)?;
        canvas.text(label, (at, area.bottom + 15.0), SMALL_TEXT, FAINT, Side::Centre)?;
    }
    Ok(())
}

/// The base line.
fn frame(canvas: &Canvas<'_>, area: &Area) -> Result<(), Undrawn> {
    let ground = area.up(area.y.ground()).unwrap_or(area.bottom);
    canvas.line(&[(area.left, ground), (area.right, ground)], FAINT, 1.25, None)?;
    canvas.line(&[(area.left, area.bottom), (area.right, area.bottom)], FAINT, 1.25, None)
}

/// As wide as the page allows, at most as wide as it was drawn; with the title for screen readers.
pub fn sized(svg: &str, (width, height): At, title: &str) -> String {
    let drawing = svg.split_once("viewBox=").map_or("", |(_, rest)| rest);
    let title = escaped(title);
    format!("<svg role=\"img\" aria-label=\"{title}\" width=\"{width}\" height=\"{height}\" viewBox={drawing}")
}

/// The names of series, each once, in order.
fn names(plot: &Plot) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for series in &plot.series {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    names
}

fn colour_of(names: &[&str], series: &Series) -> Colour {
    let index = names.iter().position(|name| *name == series.name).unwrap_or(0);
    PALETTE[index % PALETTE.len()]
}

/// The legend above the plot: sources by their strokes, names by their colours.
struct Legend {
    entries: Vec<Entry>,
    bars: bool,
    marks: bool,
    rows: usize,
}

struct Entry {
    text: String,
    stroke: Stroke,
    at: (f64, usize),
}

#[derive(Clone, Copy)]
enum Stroke {
    Of(Source),
    In(Colour),
}

impl Legend {
    fn of(plot: &Plot) -> Self {
        let mut sources: Vec<Source> = plot.series.iter().map(|series| series.source).collect();
        sources.sort_unstable();
        sources.dedup();
        let names = names(plot);
        let by_source = sources.into_iter().map(|source| (source_name(source).to_owned(), Stroke::Of(source)));
        let by_name = names.iter().enumerate().filter(|(_, name)| !name.is_empty() && names.len() > 1);
        let by_name = by_name.map(|(index, name)| ((*name).to_owned(), Stroke::In(PALETTE[index % PALETTE.len()])));
        let (mut left, mut row) = (4.0, 0);
        let entries = by_source.chain(by_name).map(|(text, stroke)| {
            let width = SWATCH + 8.0 + text.chars().count() as f64 * LETTER + 16.0;
            if left + width > WIDTH && left > 4.0 {
                (left, row) = (4.0, row + 1);
            }
            left += width;
            Entry { text, stroke, at: (left - width, row) }
        });
        let entries: Vec<Entry> = entries.collect();
        let rows = entries.last().map_or(0, |entry| entry.at.1 + 1);
        let marks = plot.series.iter().any(|series| curves::has_marks(plot, series));
        Legend { entries, bars: matches!(plot.drawing, Drawing::Bars(_)), marks, rows }
    }

    fn height(&self) -> f64 {
        self.rows as f64 * LEGEND_ROW
    }

    fn draw(&self, canvas: &Canvas<'_>) -> Result<(), Undrawn> {
        for Entry { text, stroke, at: (left, row) } in &self.entries {
            let middle = (*row as f64 + 0.5) * LEGEND_ROW;
            let (from, to) = ((*left, middle - 6.0), (left + SWATCH, middle + 6.0));
            match *stroke {
                Stroke::In(colour) => canvas.rectangle((from.0 + 6.0, from.1), (to.0 - 6.0, to.1), colour)?,
                Stroke::Of(source) if self.bars => bars::bar(canvas, from, to, source, FAINT)?,
                Stroke::Of(source) => {
                    canvas.line(&[(from.0, middle), (to.0, middle)], FAINT, curves::LINE_WIDTH, dashes(source))?;
                    if self.marks {
                        curves::mark(canvas, ((from.0 + to.0) / 2.0, middle), source, FAINT, 0.0)?;
                    }
                }
            }
            canvas.text(text, (to.0 + 8.0, middle), TEXT, INK, Side::Left)?;
        }
        Ok(())
    }
}
