//! The plot: a panel of bars for each workload, and one for the techniques.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::bench::results::Result as Measured;
use crate::bench::sample::show;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const AWASE: RGBColor = RGBColor(0, 107, 164);
const OTHER: RGBColor = RGBColor(171, 171, 171);
const WORSE: RGBColor = RGBColor(200, 82, 0);

const PANEL_WIDTH: i32 = 560;
const BAR_HEIGHT: i32 = 18;
const BAR_PITCH: i32 = 26;
const HEAD_HEIGHT: i32 = 52;
const LABEL_WIDTH: i32 = 150;
const VALUE_WIDTH: i32 = 150;
const LEGEND_HEIGHT: i32 = 34;
const MARGIN: i32 = 14;

struct Bar {
    label: String,
    value: f64,
    spread: Option<(f64, f64)>,
    note: String,
    color: RGBColor,
}

struct Panel {
    title: String,
    unit: String,
    bars: Vec<Bar>,
    /// Where a line is drawn across all bars.
    mark: Option<f64>,
}

pub fn svg(comparison: &[Measured], switches: &[Measured]) -> Result<String> {
    let mut panels: Vec<Panel> = comparison.iter().filter_map(panel).collect();
    panels.extend(technique_panel(switches));
    let rows: Vec<&[Panel]> = panels.chunks(2).collect();
    let row_height = |row: &[Panel]| row.iter().map(Panel::height).max().unwrap_or(0);
    let height = LEGEND_HEIGHT + rows.iter().map(|row| row_height(row)).sum::<i32>() + MARGIN;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (2 * PANEL_WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        write(
            &root,
            "Bars are medians, lines the smallest to the largest of all repetitions.",
            (MARGIN, 20),
            14,
            FAINT,
            HPos::Left,
        )?;
        let mut top = LEGEND_HEIGHT;
        for row in rows {
            for (column, panel) in row.iter().enumerate() {
                panel.draw(&root, (column as i32 * PANEL_WIDTH + MARGIN, top))?;
            }
            top += row_height(row);
        }
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

fn panel(result: &Measured) -> Option<Panel> {
    let bars: Vec<Bar> = result
        .subject
        .contenders
        .iter()
        .enumerate()
        .filter_map(|(index, contender)| {
            let value = result.value(index)?;
            Some(Bar {
                label: contender.label.into(),
                value: value.median,
                spread: Some((value.least, value.most)),
                note: show(value.median),
                color: if contender.label == "Awase" { AWASE } else { OTHER },
            })
        })
        .collect();
    let direction = if result.subject.unit.more_is_better() { "more is better" } else { "less is better" };
    let unit = format!("{} ({direction})", result.subject.unit.name());
    (!bars.is_empty()).then(|| Panel { title: result.subject.title.clone(), unit, bars, mark: None })
}

fn technique_panel(switches: &[Measured]) -> Option<Panel> {
    let bars: Vec<Bar> = switches
        .iter()
        .filter_map(|result| {
            let gain = result.gain()?;
            Some(Bar {
                label: result.subject.name.trim_start_matches("switch_").into(),
                value: gain,
                spread: None,
                note: format!("{gain:.2} ×"),
                color: if gain >= 1.0 { AWASE } else { WORSE },
            })
        })
        .collect();
    let unit = "times better on than off, each on its own workload; the line is 1: no difference".into();
    (!bars.is_empty()).then(|| Panel { title: "Each technique of Awase".into(), unit, bars, mark: Some(1.0) })
}

impl Panel {
    fn height(&self) -> i32 {
        HEAD_HEIGHT + self.bars.len() as i32 * BAR_PITCH + MARGIN
    }

    fn draw(&self, root: &Area<'_>, (left, top): (i32, i32)) -> Result<()> {
        write(root, &self.title, (left, top + 14), 16, INK, HPos::Left)?;
        write(root, &self.unit, (left, top + 34), 13, FAINT, HPos::Left)?;
        let first = left + LABEL_WIDTH;
        let width = PANEL_WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH;
        let reach = |bar: &Bar| bar.spread.map_or(bar.value, |(_, max)| max.max(bar.value));
        let most = self.bars.iter().map(reach).chain(self.mark).fold(f64::MIN_POSITIVE, f64::max);
        let at = |value: f64| first + (value.max(0.0) / most * f64::from(width)).round() as i32;
        for (index, bar) in self.bars.iter().enumerate() {
            let upper = top + HEAD_HEIGHT + index as i32 * BAR_PITCH;
            let middle = upper + BAR_HEIGHT / 2;
            write(root, &bar.label, (first - 8, middle), 14, INK, HPos::Right)?;
            let corners = [(first, upper), (at(bar.value), upper + BAR_HEIGHT)];
            root.draw(&Rectangle::new(corners, bar.color.filled())).map_err(drawing)?;
            if let Some((min, max)) = bar.spread {
                line(root, (at(min), middle), (at(max), middle))?;
                line(root, (at(min), middle - 4), (at(min), middle + 4))?;
                line(root, (at(max), middle - 4), (at(max), middle + 4))?;
            }
            write(root, &bar.note, (at(reach(bar)) + 8, middle), 14, INK, HPos::Left)?;
        }
        let bottom = top + HEAD_HEIGHT + self.bars.len() as i32 * BAR_PITCH - (BAR_PITCH - BAR_HEIGHT) + 3;
        line(root, (first, top + HEAD_HEIGHT - 3), (first, bottom))?;
        match self.mark {
            Some(mark) => line(root, (at(mark), top + HEAD_HEIGHT - 6), (at(mark), bottom + 3)),
            None => Ok(()),
        }
    }
}

fn line(root: &Area<'_>, from: (i32, i32), to: (i32, i32)) -> Result<()> {
    root.draw(&PathElement::new([from, to], INK.stroke_width(1))).map_err(drawing)
}

fn write(root: &Area<'_>, text: &str, at: (i32, i32), size: u32, color: RGBColor, side: HPos) -> Result<()> {
    let style = (FONT, size).into_font().color(&color).pos(Pos::new(side, VPos::Center));
    root.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the plot: {error}")
}
