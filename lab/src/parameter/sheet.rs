//! Sheets, `lab/parameters/NAME.toml`: the description of an experiment, and the numbers of its machine, each with its
//! source.
//!
//! A sheet may `include` others, whose parameters come before its own. A row with the name of an included one replaces
//! its properties; the table `value` changes values alone. The table `modern` has those of a machine of 2026.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use super::{Origin, Parameter, Text};

/// The description of an experiment and its parameters.
#[derive(Debug)]
pub struct Sheet {
    pub title: Text,
    pub about: Text,
    pub paper: Text,
    pub parameters: Vec<Parameter>,
    /// Values for a machine of 2026.
    pub modern: Vec<(Text, f64)>,
}

impl Sheet {
    /// # Panics
    /// When it has a mistake.
    pub fn parse(name: &str, text: &str) -> Sheet {
        File::whole(name, text).sheet(name)
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
    modern: BTreeMap<String, f64>,
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
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    /// The name of one of `sources`.
    Shared(String),
    Own(Origin),
}

/// Sheets are parsed once and live as long as the program.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
    String::deserialize(deserializer).map(|text| &*text.leak())
}

impl File {
    /// With the sheets that it includes.
    fn whole(name: &str, text: &str) -> File {
        let own: File = toml::from_str(text).unwrap_or_else(|error| panic!("{name}.toml: {error}"));
        let mut file = File { title: own.title, about: own.about, paper: own.paper, ..File::default() };
        for part in &own.include {
            let found = PARTS.iter().chain(COMPLETE).find(|(of, _)| of == part);
            let (part, text) = found.unwrap_or_else(|| panic!("{name}.toml: there is no {part}.toml"));
            let part = File::whole(part, text);
            file.rows.extend(part.rows);
            file.sources.extend(part.sources);
            file.modern.extend(part.modern);
        }
        file.sources.extend(own.sources);
        file.modern.extend(own.modern);
        own.rows.into_iter().for_each(|row| file.add(row));
        for (of, value) in own.value {
            let row = file.rows.iter_mut().find(|row| row.name == of);
            row.unwrap_or_else(|| panic!("{name}.toml: there is no parameter {of}")).value = Some(value);
        }
        file
    }

    fn add(&mut self, row: Row) {
        let Some(known) = self.rows.iter_mut().find(|known| known.name == row.name) else { return self.rows.push(row) };
        known.about = row.about.or(known.about.take());
        known.unit = row.unit.or(known.unit.take());
        known.value = row.value.or(known.value);
        known.range = row.range.or(known.range);
        known.source = row.source.or(known.source.take());
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
            Parameter {
                about: row.about.unwrap_or_else(|| panic!("{}", missing("about"))).leak(),
                unit: row.unit.unwrap_or_default().leak(),
                default: row.value.unwrap_or_else(|| panic!("{}", missing("value"))),
                range: min..=max,
                origin: origin.unwrap_or_else(|| panic!("{}", missing("source"))),
                name: row.name.leak(),
            }
        };
        let modern = self.modern.into_iter().map(|(name, value)| (&*name.leak(), value)).collect();
        let parameters = self.rows.into_iter().map(parameter).collect();
        Sheet { title: self.title, about: self.about, paper: self.paper, parameters, modern }
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
            for (of, value) in &sheet.modern {
                let parameter = sheet.parameters.iter().find(|parameter| parameter.name == *of);
                assert!(parameter.is_some_and(|parameter| parameter.range.contains(value)), "{name}: {of}");
            }
        }
    }

    #[test]
    fn what_a_sheet_says_of_an_included_parameter_holds_in_its_place() {
        let names = |sheet: &Sheet| sheet.parameters.iter().map(|of| of.name).collect::<Vec<_>>();
        let (drive, table) = (named("hd639"), named("ws-table2"));
        assert!(names(table).starts_with(&names(drive)), "{:?}", names(table));
        let bus = table.parameters.iter().find(|of| of.name == "disk.bus").expect("a bus");
        assert!(matches!(bus.origin, Origin::Fitted(_)) && bus.unit == "MB/s", "{bus:?}");
    }
}
