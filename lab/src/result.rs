//! What an experiment gives: tables, plots, findings.

/// Where a number of a table or plot comes from. Simulated and measured ones are never mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Paper,
    Simulated,
    /// Measured on this host, with the real kernel of Awase.
    Here,
}

/// What an experiment found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Numbers beside those of the paper.
    pub tables: Vec<Table>,
    /// The same, and more, to look at.
    pub plots: Vec<Plot>,
    /// What must be true, and whether it is.
    pub findings: Vec<Finding>,
    /// What a reader should know: what misses and why, what was left out.
    pub notes: Vec<String>,
}

/// A table: a grid of cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Short name, unique in its experiment, for files: `scsihd`.
    pub name: String,
    /// As a heading: `Table 1 (a): scsihd, improvement of symmetric over funnelled access`.
    pub title: String,
    pub unit: String,
    /// What the rows are: `wait count`.
    pub rows_are: String,
    pub rows: Vec<String>,
    /// What the columns are: `processes`.
    pub columns_are: String,
    pub columns: Vec<String>,
    pub cells: Vec<Vec<Cell>>,
    /// Do cells differ from the paper's in percent of it, or, as cells that are percentages themselves, in points?
    pub in_points: bool,
    /// Digits after the point.
    pub digits: usize,
}

/// One number of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    pub paper: Option<f64>,
    /// What the simulated machine gives.
    pub simulated: Option<f64>,
    pub here: Option<f64>,
    /// A parameter was fitted on this cell: it predicts nothing.
    pub fitted: bool,
    /// What it tells is less than repetitions of the same thing differ by.
    pub within_noise: bool,
}

impl Cell {
    /// A published cell and what was simulated for it.
    pub fn of(paper: f64, simulated: f64) -> Self {
        Cell { paper: Some(paper), simulated: Some(simulated), ..Cell::default() }
    }

    /// Simulated, with nothing published to compare.
    pub fn simulated(simulated: f64) -> Self {
        Cell { simulated: Some(simulated), ..Cell::default() }
    }

    /// Marks the cell as the one that a parameter was fitted on.
    #[must_use]
    pub fn fitted(self) -> Self {
        Cell { fitted: true, ..self }
    }

    /// What the cell holds of that source.
    pub fn from(&self, source: Source) -> Option<f64> {
        match source {
            Source::Paper => self.paper,
            Source::Simulated => self.simulated,
            Source::Here => self.here,
        }
    }

    /// How much more the simulated number is than the published one, in percent of it.
    pub fn difference_percent(&self) -> Option<f64> {
        let (paper, simulated) = (self.paper?, self.simulated?);
        (paper != 0.0).then(|| (simulated / paper - 1.0) * 100.0)
    }

    /// How much more the simulated number is than the published one.
    pub fn difference(&self) -> Option<f64> {
        Some(self.simulated? - self.paper?)
    }
}

impl Table {
    /// How much of the variance of the published cells the simulated ones explain, from 1 (all) downwards: one less the
    /// sum of squared differences over the sum of squared deviations from the mean. `None` with nothing published.
    pub fn variance_explained(&self) -> Option<f64> {
        let cells = self.cells.iter().flatten();
        let pairs: Vec<(f64, f64)> = cells.filter_map(|cell| Some((cell.paper?, cell.simulated?))).collect();
        let mean = pairs.iter().map(|(paper, _)| paper).sum::<f64>() / pairs.len() as f64;
        let total: f64 = pairs.iter().map(|(paper, _)| (paper - mean).powi(2)).sum();
        let missed: f64 = pairs.iter().map(|(paper, simulated)| (paper - simulated).powi(2)).sum();
        (total > 0.0).then(|| 1.0 - missed / total)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Short name, unique in its experiment, for files.
    pub name: String,
    pub title: String,
    pub drawing: Drawing,
    /// What lies to the right.
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

/// How a plot is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Drawing {
    Lines,
    /// Points joined by steps: each value holds until the next.
    Steps,
    /// Groups of bars, one group for each of these names; the x of a point is the number of its group.
    Bars(Vec<String>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it shows: `processes`, `throughput`.
    pub label: String,
    /// Such as `KB/s`; empty for a count.
    pub unit: String,
    pub logarithmic: bool,
}

impl Axis {
    pub fn linear(label: &str, unit: &str) -> Self {
        Axis { label: label.to_owned(), unit: unit.to_owned(), logarithmic: false }
    }

    pub fn logarithmic(label: &str, unit: &str) -> Self {
        Axis { logarithmic: true, ..Axis::linear(label, unit) }
    }
}

/// A line or a colour of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend: `wait 100`.
    pub name: String,
    /// Where it comes from: those of one name and different sources get one colour and different strokes.
    pub source: Source,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

/// Something that the paper found, or that a technique must keep, and whether it is so.
#[derive(Clone, Debug, PartialEq)]
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
    fn variance_is_explained_wholly_by_the_truth_and_not_at_all_by_the_mean() {
        let table = |simulated: [f64; 3]| Table {
            cells: vec![[1.0, 2.0, 6.0].into_iter().zip(simulated).map(|(p, s)| Cell::of(p, s)).collect()],
            ..Table::default()
        };
        assert_eq!(table([1.0, 2.0, 6.0]).variance_explained(), Some(1.0));
        assert_eq!(table([3.0, 3.0, 3.0]).variance_explained(), Some(0.0));
        assert_eq!(Table::default().variance_explained(), None);
    }

    #[test]
    fn differences_are_told_in_percent_of_the_paper_and_in_points() {
        let cell = Cell::of(200.0, 230.0);
        assert!((cell.difference_percent().expect("both") - 15.0).abs() < 1e-9);
        assert_eq!(cell.difference(), Some(30.0));
        assert_eq!(Cell::of(0.0, 1.0).difference_percent(), None);
    }
}
