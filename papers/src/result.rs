//! The results of an experiment: tables, plots, findings.

use serde::{Deserialize, Serialize};

/// Where a number of a table or plot comes from. Simulated and measured ones are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Paper,
    Simulated,
    /// Measured on this host, with the real kernel of Awase.
    #[serde(rename = "this machine")]
    Local,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Numbers next to those of the paper.
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    /// Statements that should hold, and whether they do.
    pub findings: Vec<Finding>,
    /// Remarks for the reader: what misses and why, what was left out.
    pub notes: Vec<String>,
}

impl Results {
    /// The paper's numbers are those of another machine.
    pub fn forget_the_paper(&mut self) {
        for cell in self.tables.iter_mut().flat_map(|table| table.cells.iter_mut().flatten()) {
            cell.paper = None;
            (cell.fitted, cell.input, cell.bound) = (false, false, None);
        }
        for plot in &mut self.plots {
            plot.series.retain(|series| series.source != Source::Paper);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Short name, unique in its experiment, for files: `scsihd`.
    #[serde(default)]
    pub name: String,
    /// As a heading: `Table 1 (a): scsihd, improvement of symmetric over funnelled access`.
    pub title: String,
    #[serde(default)]
    pub unit: String,
    /// What the rows are: `wait count`.
    #[serde(default)]
    pub rows_are: String,
    #[serde(default)]
    pub rows: Vec<String>,
    /// What the columns are: `processes`.
    #[serde(default)]
    pub columns_are: String,
    #[serde(default)]
    pub columns: Vec<String>,
    #[serde(default)]
    pub cells: Vec<Vec<Cell>>,
    /// Are differences from the paper in points, since the cells are percentages themselves? Otherwise in percent of
    /// the paper's cell.
    #[serde(default, rename = "differences_in_points")]
    pub in_points: bool,
    #[serde(default, skip_serializing)]
    pub digits: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    pub paper: Option<f64>,
    pub simulated: Option<f64>,
    #[serde(rename = "here")]
    pub local: Option<f64>,
    /// A parameter was fitted on this cell: it predicts nothing.
    pub fitted: bool,
    /// An input of the model determines it: it predicts nothing either.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub input: bool,
    /// What the devices' and processors' bounds alone would give: a rival without a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Its effect is smaller than the noise between repetitions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub within_noise: bool,
}

impl Cell {
    pub fn of(paper: f64, simulated: f64) -> Self {
        Cell { paper: Some(paper), simulated: Some(simulated), ..Cell::default() }
    }

    pub fn simulated(simulated: f64) -> Self {
        Cell { simulated: Some(simulated), ..Cell::default() }
    }

    pub fn from(&self, source: Source) -> Option<f64> {
        match source {
            Source::Paper => self.paper,
            Source::Simulated => self.simulated,
            Source::Local => self.local,
        }
    }

    /// The excess of the simulated number over the published one, in percent of the latter.
    pub fn difference_percent(&self) -> Option<f64> {
        let (paper, simulated) = (self.paper?, self.simulated?);
        (paper != 0.0).then(|| (simulated / paper - 1.0) * 100.0)
    }

    /// The excess of the simulated number over the published one.
    pub fn difference(&self) -> Option<f64> {
        Some(self.simulated? - self.paper?)
    }
}

/// A plain loop: less is compiled for each kind of names.
fn texts(names: impl IntoIterator<Item: ToString>) -> Vec<String> {
    let mut texts = Vec::new();
    for name in names {
        texts.push(name.to_string());
    }
    texts
}

impl Table {
    #[must_use]
    pub fn of_rows(self, names: impl IntoIterator<Item: ToString>) -> Self {
        Table { rows: texts(names), ..self }
    }

    /// With these numbers of the paper.
    #[must_use]
    pub fn beside(mut self, published: impl IntoIterator<Item: IntoIterator<Item = f64>>) -> Self {
        for (cells, numbers) in self.cells.iter_mut().zip(published) {
            cells.iter_mut().zip(numbers).for_each(|(cell, number)| cell.paper = Some(number));
        }
        self
    }

    #[must_use]
    pub fn of_columns(self, names: impl IntoIterator<Item: ToString>) -> Self {
        Table { columns: texts(names), ..self }
    }

    /// A line for each row and source, by the columns' names, which are numbers.
    pub fn lines(&self, name: impl Fn(&str) -> String) -> Vec<Series> {
        let mut series = Vec::new();
        for (row, cells) in self.rows.iter().zip(&self.cells) {
            for source in [Source::Paper, Source::Simulated] {
                let point = |(column, cell): (&String, &Cell)| Some((column.parse().ok()?, cell.from(source)?));
                let points: Vec<(f64, f64)> = self.columns.iter().zip(cells).filter_map(point).collect();
                series.extend((!points.is_empty()).then(|| Series::of(name(row), source, points)));
            }
        }
        series
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    #[serde(default)]
    pub name: String,
    pub title: String,
    #[serde(flatten)]
    pub drawing: Drawing,
    #[serde(default)]
    pub x: Axis,
    pub y: Axis,
    #[serde(default)]
    pub series: Vec<Series>,
}

impl Plot {
    pub fn lines(name: impl Into<String>, title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Plot { name: name.into(), title: title.into(), drawing: Drawing::Lines, x, y, series }
    }

    #[must_use]
    pub fn of_groups(self, names: impl IntoIterator<Item: ToString>) -> Self {
        Plot { drawing: Drawing::Bars(names.into_iter().map(|name| name.to_string()).collect()), ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "drawing", content = "groups", rename_all = "lowercase")]
pub enum Drawing {
    Lines,
    /// Points joined by steps: each value holds until the next.
    Steps,
    /// Groups of bars, one for each of these names; the x of a point is the number of its group.
    Bars(Vec<String>),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Axis {
    /// The quantity: `processes`, `throughput`.
    pub label: String,
    /// Such as `KB/s`; empty for a count.
    pub unit: String,
    pub logarithmic: bool,
}

impl Axis {
    pub fn linear(label: &str, unit: &str) -> Self {
        Axis { label: label.to_owned(), unit: unit.to_owned(), logarithmic: false }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// In the legend: `wait 100`.
    pub name: String,
    /// Series of one name and different sources get one colour and different strokes.
    pub source: Source,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn of(name: impl Into<String>, source: Source, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series { name: name.into(), source, points: points.into_iter().collect() }
    }

    pub fn paper(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series::of(name, Source::Paper, points)
    }

    pub fn simulated(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series::of(name, Source::Simulated, points)
    }

    pub fn local(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series::of(name, Source::Local, points)
    }

    /// A bar in each group, in their order.
    pub fn bars(name: impl Into<String>, source: Source, values: impl IntoIterator<Item = f64>) -> Self {
        Series::of(name, source, (0..).map(f64::from).zip(values))
    }
}

/// A result of the paper, or a property that a technique must have, and whether it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub text: String,
    pub holds: bool,
}

impl Finding {
    pub fn new(text: impl Into<String>, holds: bool) -> Self {
        Finding { text: text.into(), holds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_in_percent_of_the_paper_and_in_points() {
        let cell = Cell::of(200.0, 230.0);
        assert!((cell.difference_percent().expect("both") - 15.0).abs() < 1e-9);
        assert_eq!(cell.difference(), Some(30.0));
        assert_eq!(Cell::of(0.0, 1.0).difference_percent(), None);
    }
}
