//! Sheets, `papers/parameters/NAME.toml`: the description of an experiment, and the numbers of its machine, each with its
//! source.
//!
//! It also has all that its results say beside what was simulated: titles and labels of tables (`table`) and plots
//! (`plot`), the paper's numbers (`published`), which cells were `fitted` or are an `input`, `notes`, who makes the
//! decisions (`decision`), and the `target`.
//!
//! A sheet may `include` others, whose parameters come before its own. A row with the name of an included one replaces
//! its properties; the tables `value`, `plausible` and `origin` change these alone. The table `modern` has the values of
//! a machine of 2026, `modern_origin` where they come from.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use super::{Origin, Parameter, Text};
use crate::agreement::Target;
use crate::result::{Cell, Plot, Series, Table};

/// The description of an experiment and its parameters.
#[derive(Debug)]
pub struct Sheet {
    pub title: Text,
    pub about: Text,
    pub paper: Text,
    pub parameters: Vec<Parameter>,
    /// Values for a machine of 2026.
    pub modern: Vec<(Text, f64)>,
    /// Where those come from, as far as that was looked up or judged one by one.
    modern_origins: BTreeMap<String, Origin>,
    tables: BTreeMap<String, Table>,
    plots: BTreeMap<String, Plot>,
    /// The paper's numbers in tables, row by row; not a number where none is published.
    published: BTreeMap<String, Vec<Vec<f64>>>,
    /// Row and column of the cell of a table that a parameter was fitted on.
    fitted: BTreeMap<String, (usize, usize)>,
    /// Rows and columns of cells that an input determines: they predict nothing.
    inputs: BTreeMap<String, Vec<(usize, usize)>>,
    pub notes: Notes,
    pub decisions: Vec<Decision>,
    /// What it should reach beside the paper.
    pub target: Option<Target>,
}

/// Who decides something in an experiment: code that serves real disks, or the lab's own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    pub what: String,
    /// The file that decides.
    pub by: String,
    /// The server's file that uses it. None for the lab's own.
    #[serde(default)]
    pub server: Option<String>,
}

impl Decision {
    /// One sentence for a report.
    pub fn sentence(&self) -> String {
        let Decision { what, by, .. } = self;
        match &self.server {
            Some(server) => format!("{what}: the server's own code, {by}, as {server} uses it."),
            None => format!("{what}: the lab's own model, {by}."),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notes {
    /// Where the machine is comparable with the paper's.
    pub paper: Vec<String>,
    /// Where it is not.
    pub modern: Vec<String>,
    /// After those.
    pub both: Vec<String>,
}

impl Sheet {
    /// # Panics
    /// When it has a mistake.
    pub fn parse(name: &str, text: &str) -> Sheet {
        File::whole(name, text).sheet(name)
    }

    /// A table without its cells.
    ///
    /// # Panics
    /// When it has no such table: a bug of the experiment, which its first run shows.
    pub fn form(&self, name: &str) -> Table {
        let form = self.tables.get(name).unwrap_or_else(|| panic!("the sheet has no table {name}"));
        Table { name: name.to_owned(), ..form.clone() }
    }

    /// A table with these simulated numbers, beside the published ones.
    ///
    /// # Panics
    /// As [`form`](Self::form).
    pub fn table(&self, name: &str, rows: impl IntoIterator<Item: IntoIterator<Item = f64>>) -> Table {
        let mut simulated = Vec::new();
        for row in rows {
            let mut numbers = Vec::new();
            for number in row {
                numbers.push(number);
            }
            simulated.push(numbers);
        }
        self.table_of(name, &simulated)
    }

    /// Compiled once, not for each kind of rows.
    fn table_of(&self, name: &str, simulated: &[Vec<f64>]) -> Table {
        let (published, fitted) = (self.published(name), self.fitted.get(name));
        let inputs = self.inputs.get(name).map_or(&[][..], Vec::as_slice);
        let cell = |row: usize, (column, simulated): (usize, &f64)| Cell {
            paper: published.get(row).and_then(|row| row.get(column)).copied().filter(|number| !number.is_nan()),
            fitted: fitted == Some(&(row, column)),
            input: inputs.contains(&(row, column)),
            ..Cell::simulated(*simulated)
        };
        let rows = simulated.iter().enumerate();
        let cells = rows.map(|(row, numbers)| numbers.iter().enumerate().map(|at| cell(row, at)).collect());
        Table { cells: cells.collect(), ..self.form(name) }
    }

    /// Of a parameter, if a machine of 2026 has another value.
    pub fn modern_value(&self, name: &str) -> Option<f64> {
        self.modern.iter().find(|(of, _)| *of == name).map(|(_, value)| *value)
    }

    /// Where a value of a machine of 2026 comes from.
    pub fn modern_origin(&self, name: &str) -> Origin {
        self.modern_origins
            .get(name)
            .copied()
            .unwrap_or(Origin::Judged("of a machine of 2026, as a whole: see the notes"))
    }

    /// The numbers that somebody else could have taken otherwise.
    pub fn free(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|parameter| parameter.origin.is_free())
    }

    /// Names of its tables, and of its plots.
    pub fn forms(&self) -> [Vec<&str>; 2] {
        [self.tables.keys().map(String::as_str).collect(), self.plots.keys().map(String::as_str).collect()]
    }

    /// What the paper published of a table.
    pub fn published(&self, table: &str) -> &[Vec<f64>] {
        self.published.get(table).map_or(&[], Vec::as_slice)
    }

    /// # Panics
    /// When it has no such plot.
    pub fn plot(&self, name: &str, series: Vec<Series>) -> Plot {
        let form = self.plots.get(name).unwrap_or_else(|| panic!("the sheet has no plot {name}")).clone();
        Plot { name: name.to_owned(), series, ..form }
    }
}

/// # Panics
/// When there is no sheet of that name, or when it has a mistake.
pub fn named(name: &str) -> &'static Sheet {
    static SHEETS: LazyLock<BTreeMap<Text, Sheet>> =
        LazyLock::new(|| COMPLETE.iter().map(|(name, text)| (*name, Sheet::parse(name, text))).collect());
    SHEETS.get(name).unwrap_or_else(|| panic!("there is no sheet {name}"))
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../parameters/", $name, ".toml")))),*]
    };
}

/// Sheets that are only included by others.
const PARTS: &[(Text, Text)] = files!["disk" "nfs" "system" "top1"];

const COMPLETE: &[(Text, Text)] = files![
    "dsm" "hd1280" "hd639" "live" "mo-1990" "mp-table1" "mp-table2" "oltp" "scsi-1990" "uio" "ws-2" "ws-5" "ws-7"
    "ws-table2" "ws-table3" "ws-table4" "ws-table5" "ws-table6"
];

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "text")]
    title: Text,
    #[serde(deserialize_with = "text")]
    about: Text,
    #[serde(deserialize_with = "text")]
    paper: Text,
    include: Vec<String>,
    /// Sources that several rows share.
    sources: BTreeMap<String, Origin>,
    #[serde(rename = "parameter")]
    rows: Vec<Row>,
    value: BTreeMap<String, f64>,
    plausible: BTreeMap<String, [f64; 2]>,
    origin: BTreeMap<String, Source>,
    modern: BTreeMap<String, f64>,
    modern_origin: BTreeMap<String, Source>,
    table: BTreeMap<String, Table>,
    plot: BTreeMap<String, Plot>,
    published: BTreeMap<String, Vec<Vec<f64>>>,
    fitted: BTreeMap<String, (usize, usize)>,
    input: BTreeMap<String, Vec<(usize, usize)>>,
    notes: Notes,
    decision: Vec<Decision>,
    target: Option<Target>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    about: Option<String>,
    unit: Option<String>,
    value: Option<f64>,
    range: Option<[f64; 2]>,
    source: Option<Source>,
    plausible: Option<[f64; 2]>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Source {
    /// The name of one of `sources`.
    Shared(String),
    Own(Origin),
}

/// Sheets are parsed once and live as long as the program.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
    String::deserialize(deserializer).map(|text| &*text.leak())
}

impl File {
    /// With the sheets that it includes.
    fn whole(name: &str, text: &str) -> File {
        let own: File = toml::from_str(text).unwrap_or_else(|error| panic!("{name}.toml: {error}"));
        let File { title, about, paper, published, fitted, input, notes, decision, target, .. } = own;
        let mut file =
            File { title, about, paper, published, fitted, input, notes, decision, target, ..File::default() };
        for part in &own.include {
            let found = PARTS.iter().chain(COMPLETE).find(|(of, _)| of == part);
            let (part, text) = found.unwrap_or_else(|| panic!("{name}.toml: there is no {part}.toml"));
            let part = File::whole(part, text);
            file.rows.extend(part.rows);
            file.sources.extend(part.sources);
            file.modern.extend(part.modern);
            file.modern_origin.extend(part.modern_origin);
            file.table.extend(part.table);
            file.notes.modern.extend(part.notes.modern);
        }
        file.table.extend(own.table);
        file.plot = own.plot;
        file.sources.extend(own.sources);
        file.modern.extend(own.modern);
        file.modern_origin.extend(own.modern_origin);
        own.rows.into_iter().for_each(|row| file.add(row));
        for (of, value) in own.value {
            file.row(name, &of).value = Some(value);
        }
        for (of, ends) in own.plausible {
            file.row(name, &of).plausible = Some(ends);
        }
        for (of, source) in own.origin {
            file.row(name, &of).source = Some(source);
        }
        file
    }

    fn row(&mut self, sheet: &str, name: &str) -> &mut Row {
        let row = self.rows.iter_mut().find(|row| row.name == name);
        row.unwrap_or_else(|| panic!("{sheet}.toml: there is no parameter {name}"))
    }

    fn add(&mut self, row: Row) {
        let Some(known) = self.rows.iter_mut().find(|known| known.name == row.name) else { return self.rows.push(row) };
        known.about = row.about.or(known.about.take());
        known.unit = row.unit.or(known.unit.take());
        known.value = row.value.or(known.value);
        known.range = row.range.or(known.range);
        known.source = row.source.or(known.source.take());
        known.plausible = row.plausible.or(known.plausible);
    }

    fn sheet(self, name: &str) -> Sheet {
        let parameter = |row: Row| {
            let missing = |what| format!("{name}.toml: {}: no {what}", row.name);
            let [min, max] = row.range.unwrap_or_else(|| panic!("{}", missing("range")));
            let origin = match row.source {
                Some(Source::Shared(source)) => self.sources.get(&source).copied(),
                Some(Source::Own(origin)) => Some(origin),
                None => None,
            };
            let origin = origin.unwrap_or_else(|| panic!("{}", missing("source")));
            let default = row.value.unwrap_or_else(|| panic!("{}", missing("value")));
            let plausible = match row.plausible.filter(|_| origin.is_free()) {
                None if origin.is_free() => panic!("{}", missing("plausible range")),
                None => default..=default,
                Some([least, most]) => least..=most,
            };
            Parameter {
                about: row.about.unwrap_or_else(|| panic!("{}", missing("about"))).leak(),
                unit: row.unit.unwrap_or_default().leak(),
                default,
                range: min..=max,
                origin,
                plausible,
                name: row.name.leak(),
            }
        };
        let modern_origins = self.modern_origin.into_iter().map(|(of, source)| {
            let origin = match source {
                Source::Own(origin) => origin,
                Source::Shared(shared) => *self.sources.get(&shared).unwrap_or_else(|| panic!("{name}.toml: {shared}")),
            };
            (of, origin)
        });
        let modern_origins = modern_origins.collect();
        let modern = self.modern.into_iter().map(|(name, value)| (&*name.leak(), value)).collect();
        let parameters = self.rows.into_iter().map(parameter).collect();
        let File { title, about, paper, published, fitted, input: inputs, notes, target, .. } = self;
        let (tables, plots, decisions) = (self.table, self.plot, self.decision);
        Sheet {
            title,
            about,
            paper,
            parameters,
            modern,
            modern_origins,
            tables,
            plots,
            published,
            fitted,
            inputs,
            notes,
            decisions,
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_its_range_and_every_modern_one_is_of_a_parameter() {
        for (name, _) in COMPLETE {
            let sheet = named(name);
            assert!(sheet.parameters.iter().all(|of| of.range.contains(&of.default)), "{name}");
            for of in &sheet.parameters {
                let (least, most) = (*of.plausible.start(), *of.plausible.end());
                let possible = least < most || !of.origin.is_free();
                let inside =
                    of.plausible.contains(&of.default) && of.range.contains(&least) && of.range.contains(&most);
                assert!(possible && inside, "{name}: {} = {} is outside of {:?}", of.name, of.default, of.plausible);
            }
            let of_none = sheet.modern_origins.keys().find(|of| sheet.modern_value(of).is_none());
            assert_eq!(of_none, None, "{name}: the origin of a value that is not there");
            for (of, value) in &sheet.modern {
                let parameter = sheet.parameters.iter().find(|parameter| parameter.name == *of);
                assert!(parameter.is_some_and(|parameter| parameter.range.contains(value)), "{name}: {of}");
            }
        }
    }

    #[test]
    fn what_is_fitted_is_a_cell_of_a_table() {
        for (name, _) in COMPLETE {
            let sheet = named(name);
            assert!(sheet.fitted.keys().all(|table| sheet.tables.contains_key(table)), "{name}: {:?}", sheet.fitted);
        }
    }

    #[test]
    fn what_a_sheet_says_of_an_included_parameter_holds_in_its_place() {
        let names = |sheet: &Sheet| sheet.parameters.iter().map(|of| of.name).collect::<Vec<_>>();
        let (drive, table) = (named("hd1280"), named("ws-table2"));
        assert!(names(table).starts_with(&names(drive)), "{:?}", names(table));
        let bus = table.parameters.iter().find(|of| of.name == "disk.bus").expect("a bus");
        assert!(matches!(bus.origin, Origin::Fitted(_)) && bus.unit == "MB/s", "{bus:?}");
    }
}
