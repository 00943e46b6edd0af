//! Where the password of a terminal comes from: as for psql, PGPASSWORD, or a line of a password file (PostgreSQL's
//! documentation, "The Password File").

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// `of`: host, port, database and user. `None`: there is none.
///
/// # Errors
/// If the password file cannot be read, or others may read it.
pub fn find(of: &[String; 4]) -> anyhow::Result<Option<String>> {
    if let Ok(password) = std::env::var("PGPASSWORD") {
        return Ok(Some(password));
    }
    let named = std::env::var_os("PGPASSFILE").map(PathBuf::from);
    let usual = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass"));
    let Some(path) = named.or_else(usual).filter(|path| path.is_file()) else { return Ok(None) };
    let at = || format!("the password file {}", path.display());
    if fs::metadata(&path).with_context(at)?.mode() & 0o077 != 0 {
        bail!("{} may be read by others: chmod 600 it", at());
    }
    let text = fs::read_to_string(&path).with_context(at)?;
    Ok(text.lines().find_map(|line| password(line, of)))
}

/// That of a line, if the line is about these.
fn password(line: &str, of: &[String; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = fields(line).into_iter();
    let is_about = of.iter().all(|wanted| fields.next().is_some_and(|field| field == "*" || field == *wanted));
    fields.next().filter(|_| is_about)
}

/// Between colons; a backslash before a character takes away its meaning.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (character, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(field)) => field.extend(characters.next()),
            (other, Some(field)) => field.push(other),
            (_, None) => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_is_about_a_server_and_a_user_counts() {
        let of = ["::1", "5433", "bank", "ann"].map(str::to_owned);
        for (line, found) in [
            ("*:*:*:*:pencil", Some("pencil")),
            (r"\:\:1:5433:bank:ann:with\:colon", Some("with:colon")),
            (r"\:\:1:5433:bank:bob:pencil", None),
            ("# *:*:*:*:pencil", None),
            ("*:*:*:pencil", None),
            ("", None),
        ] {
            assert_eq!(password(line, &of).as_deref(), found, "{line}");
        }
    }
}
