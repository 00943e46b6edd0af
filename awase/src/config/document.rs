//! Reads a TOML file into entries with their lines, flat: `[listen] nbd` becomes `listen.nbd`.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::given::Given;
use super::key::Entry;
use super::problem::{Place, Problem};

#[derive(Debug, Default)]
pub struct Document {
    /// The keys outside of the arrays, in the order of the file.
    pub entries: Vec<Entry>,
    pub exports: Vec<TableEntries>,
    pub clients: Vec<TableEntries>,
    pub databases: Vec<TableEntries>,
    pub users: Vec<TableEntries>,
}

/// The keys of one `[[export]]` or other table of an array.
#[derive(Debug)]
pub struct TableEntries {
    pub place: Place,
    /// In the order of the file.
    pub entries: Vec<Entry>,
}

const EXPORT: &str = "export";

const CLIENT: &str = "client";

const DATABASE: &str = "database";

const USER: &str = "user";

/// Parses `text`; `file` is its name in messages.
///
/// # Errors
/// When it is not TOML, or `export` or another of these is not an array of tables.
pub fn parse(file: &str, text: &str) -> Result<Document, Problem> {
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let reader = Reader { file, newlines };
    let table = DeTable::parse(text).map_err(|error| {
        let place = reader.place(error.span().map_or(0, |span| span.start));
        Problem::new(&place, "", format!("is not valid TOML: {}", error.message()))
    })?;
    let mut document = Document::default();
    for (key, value) in table.get_ref() {
        match key.get_ref().as_ref() {
            EXPORT => document.exports = reader.tables(EXPORT, value)?,
            CLIENT => document.clients = reader.tables(CLIENT, value)?,
            DATABASE => document.databases = reader.tables(DATABASE, value)?,
            USER => document.users = reader.tables(USER, value)?,
            other => reader.flatten(other, key.span().start, value, &mut document.entries),
        }
    }
    document.entries.sort_by(|a, b| a.place.cmp(&b.place));
    Ok(document)
}

struct Reader<'a> {
    file: &'a str,
    /// Where the lines end.
    newlines: Vec<usize>,
}

impl Reader<'_> {
    fn tables(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<TableEntries>, Problem> {
        let place = self.place(value.span().start);
        let allowed = format!("[[{name}]] for each {name}");
        let wrong = || Problem::new(&place, name, "is not a list of tables").allowed(&*allowed);
        let DeValue::Array(items) = value.get_ref() else { return Err(wrong()) };
        let mut tables = Vec::new();
        for item in items.iter() {
            let DeValue::Table(table) = item.get_ref() else { return Err(wrong()) };
            let mut entries = Vec::new();
            for (key, value) in table {
                self.flatten(key.get_ref(), key.span().start, value, &mut entries);
            }
            entries.sort_by(|a, b| a.place.cmp(&b.place));
            tables.push(TableEntries { place: self.place(item.span().start), entries });
        }
        Ok(tables)
    }

    fn flatten(&self, key: &str, at: usize, value: &Spanned<DeValue<'_>>, into: &mut Vec<Entry>) {
        // One without keys is a value of its own: what takes no table must refuse it.
        if let DeValue::Table(table) = value.get_ref()
            && !table.is_empty()
        {
            for (inner, value) in table {
                self.flatten(&format!("{key}.{}", inner.get_ref()), inner.span().start, value, into);
            }
            return;
        }
        into.push(Entry { key: key.to_owned(), given: given(value.get_ref()), place: self.place(at) });
    }

    fn place(&self, at: usize) -> Place {
        let line = self.newlines.partition_point(|newline| *newline < at) + 1;
        Place::Line { file: self.file.to_owned(), line }
    }
}

fn given(value: &DeValue<'_>) -> Given {
    match value {
        DeValue::String(text) => Given::Text(text.to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Given::Integer(number),
            Err(_) => Given::Other("a number out of range"),
        },
        DeValue::Boolean(value) => Given::Boolean(*value),
        DeValue::Array(values) => Given::List(values.iter().map(|value| given(value.get_ref())).collect()),
        DeValue::Float(_) => Given::Other("a fraction"),
        DeValue::Datetime(_) => Given::Other("a date"),
        DeValue::Table(_) => Given::TABLE,
    }
}
