//! A book of guests: texts, a structure as row, an index, NULL.

use awase_program::{Index, Table, functions, row};

row! {
    /// An entry of the book.
    #[derive(Debug, PartialEq)]
    pub struct Entry { name: String, words: Option<String> }
}

static BY_NAME: Index<i64, Entry, String> = Index::new("guests_by_name", |_, entry| entry.name.clone());
static BOOK: Table<i64, Entry> = Table::new("guests").with_indexes(&[&BY_NAME]);

functions! {
    /// Writes an entry. Returns its number.
    fn sign(name: String, words: Option<String>) -> i64 {
        let number = BOOK.range(..).next_back().map_or(1, |(last, _)| last + 1);
        BOOK.put(&number, &Entry { name, words });
        number
    }

    /// What a guest wrote last; NULL if nothing.
    fn last_words(name: String) -> Option<String> {
        BOOK.get(&BY_NAME.keys(&name).next_back()?)?.words
    }

    /// Removes the entries of a guest. Returns how many there were.
    fn forget(name: String) -> i64 {
        let numbers: Vec<i64> = BY_NAME.keys(&name).collect();
        numbers.iter().for_each(|number| BOOK.delete(number));
        numbers.len() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_found_by_name() {
        sign("Ada".into(), Some("lovely".into()));
        sign("Grace".into(), None);
        assert_eq!(sign("Ada".into(), Some("again".into())), 3);
        assert_eq!(last_words("Ada".into()).as_deref(), Some("again"));
        assert_eq!(last_words("Grace".into()), None);
        assert_eq!(forget("Ada".into()), 2);
        assert_eq!(last_words("Ada".into()), None);
    }
}
