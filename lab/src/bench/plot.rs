//! The plot: a panel of bars for each workload, and one for the techniques.

use papers::report::plot::canvas::{At, Canvas, Side};
use papers::report::plot::{Undrawn, sized};
use papers::report::style::{Colour, FAINT, GROUND, INK, PALETTE, colour};

use crate::bench::results::Result as Measured;
use crate::bench::sample::show;

const AWASE: Colour = PALETTE[0];
const WORSE: Colour = PALETTE[1];
const OTHER: Colour = colour(0xABABAB, 0x6B6B6B);

const TITLE: f64 = 13.0;
const TEXT: f64 = 11.5;
const SMALL_TEXT: f64 = 10.5;

const PANEL_WIDTH: f64 = 560.0;
const BAR_HEIGHT: f64 = 18.0;
const BAR_PITCH: f64 = 26.0;
const HEAD_HEIGHT: f64 = 52.0;
const LABEL_WIDTH: f64 = 150.0;
const VALUE_WIDTH: f64 = 150.0;
const LEGEND_HEIGHT: f64 = 34.0;
const MARGIN: f64 = 14.0;

struct Bar {
    label: String,
    value: f64,
    spread: Option<(f64, f64)>,
    note: String,
    colour: Colour,
}

struct Panel {
    title: String,
    unit: String,
    bars: Vec<Bar>,
    /// Where a line is drawn across all bars.
    mark: Option<f64>,
}

pub fn svg(comparison: &[Measured], switches: &[Measured]) -> Result<String, Undrawn> {
    let mut panels: Vec<Panel> = comparison.iter().filter_map(panel).collect();
    panels.extend(technique_panel(switches));
    let rows: Vec<&[Panel]> = panels.chunks(2).collect();
    let row_height = |row: &[Panel]| row.iter().map(Panel::height).fold(0.0, f64::max);
    let height = LEGEND_HEIGHT + rows.iter().map(|row| row_height(row)).sum::<f64>() + MARGIN;
    let size = (2.0 * PANEL_WIDTH, height);
    let mut text = String::new();
    let canvas = Canvas::new(&mut text, size);
    canvas.rectangle((0.0, 0.0), size, GROUND)?;
    let legend = "Bars are medians, lines the smallest to the largest of all repetitions.";
    canvas.text(legend, (MARGIN, 20.0), TEXT, FAINT, Side::Left)?;
    let mut top = LEGEND_HEIGHT;
    for row in rows {
        for (column, panel) in row.iter().enumerate() {
            panel.draw(&canvas, (column as f64 * PANEL_WIDTH + MARGIN, top))?;
        }
        top += row_height(row);
    }
    canvas.finish()?;
    Ok(sized(&text, size, "Benchmarks"))
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
                colour: if contender.label == "Awase" { AWASE } else { OTHER },
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
                colour: if gain >= 1.0 { AWASE } else { WORSE },
            })
        })
        .collect();
    let unit = "times better on than off, each on its own workload; the line is 1: no difference".into();
    (!bars.is_empty()).then(|| Panel { title: "Each technique of Awase".into(), unit, bars, mark: Some(1.0) })
}

impl Panel {
    fn height(&self) -> f64 {
        HEAD_HEIGHT + self.bars.len() as f64 * BAR_PITCH + MARGIN
    }

    fn draw(&self, canvas: &Canvas<'_>, (left, top): At) -> Result<(), Undrawn> {
        canvas.text(&self.title, (left, top + 14.0), TITLE, INK, Side::Left)?;
        canvas.text(&self.unit, (left, top + 34.0), SMALL_TEXT, FAINT, Side::Left)?;
        let first = left + LABEL_WIDTH;
        let width = PANEL_WIDTH - 2.0 * MARGIN - LABEL_WIDTH - VALUE_WIDTH;
        let reach = |bar: &Bar| bar.spread.map_or(bar.value, |(_, max)| max.max(bar.value));
        let most = self.bars.iter().map(reach).chain(self.mark).fold(f64::MIN_POSITIVE, f64::max);
        let at = |value: f64| first + value.max(0.0) / most * width;
        let line = |from, to| canvas.line(&[from, to], INK, 1.0, None);
        for (index, bar) in self.bars.iter().enumerate() {
            let upper = top + HEAD_HEIGHT + index as f64 * BAR_PITCH;
            let middle = upper + BAR_HEIGHT / 2.0;
            canvas.text(&bar.label, (first - 8.0, middle), TEXT, INK, Side::Right)?;
            canvas.rectangle((first, upper), (at(bar.value), upper + BAR_HEIGHT), bar.colour)?;
            if let Some((min, max)) = bar.spread {
                line((at(min), middle), (at(max), middle))?;
                line((at(min), middle - 4.0), (at(min), middle + 4.0))?;
                line((at(max), middle - 4.0), (at(max), middle + 4.0))?;
            }
            canvas.text(&bar.note, (at(reach(bar)) + 8.0, middle), TEXT, INK, Side::Left)?;
        }
        let bottom = top + HEAD_HEIGHT + self.bars.len() as f64 * BAR_PITCH - (BAR_PITCH - BAR_HEIGHT) + 3.0;
        line((first, top + HEAD_HEIGHT - 3.0), (first, bottom))?;
        match self.mark {
            Some(mark) => line((at(mark), top + HEAD_HEIGHT - 6.0), (at(mark), bottom + 3.0)),
            None => Ok(()),
        }
    }
}
