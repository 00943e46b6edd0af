//! The settings that clients set and ask for by themselves. They change nothing but what is said here. One with a dot in its
//! name is a client's own, as in PostgreSQL.

use std::borrow::Cow;
use std::time::Duration;

use bytes::BytesMut;
use pgwire::messages::startup::ParameterStatus;

use super::refusal::{Refusal, SqlState};
use super::wire::put;

/// Longest value, in bytes.
const VALUE_BYTES_MAX: usize = 1024;

/// Bytes of a reply with all settings, at most: each with its name, lengths and the message's header.
pub const SHOWN_BYTES_MAX: usize = SETTINGS.len() * (VALUE_BYTES_MAX + 64);

/// What drivers expect of a server of the version that they were written for.
const SERVER_VERSION: &str = concat!("15.0 (Awase ", env!("CARGO_PKG_VERSION"), ")");

/// Settings of its own that a session has at most, and their longest name, in bytes.
const OWN_MAX: usize = 16;
const OWN_NAME_BYTES_MAX: usize = 127;

/// For how long a transaction may wait for its client by default.
const IDLE_TIMEOUT: &str = "60s";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Anything, without effect.
    Any,
    /// A length of time.
    Time,
    /// On or off.
    Switch,
    /// One of these, in any case; all mean its default.
    Only(&'static [&'static str]),
    /// The name of the only encoding. As in PostgreSQL only its letters and digits count: some clients send it in quotes.
    Encoding,
    /// It is the server's.
    Nothing,
}

struct Setting {
    /// As shown.
    name: &'static str,
    default: &'static str,
    takes: Takes,
    /// Clients are told of its value.
    reported: bool,
}

const fn setting(name: &'static str, default: &'static str, takes: Takes, reported: bool) -> Setting {
    Setting { name, default, takes, reported }
}

const ON: &[&str] = &["on", "true", "1", "yes"];
const OFF: &[&str] = &["off", "false", "0", "no"];

/// Whether the open transaction, or else the next one, is read-only.
pub const READ_ONLY: &str = "transaction_read_only";
/// Whether transactions begin so.
pub const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";

const SETTINGS: &[Setting] = &[
    setting("application_name", "", Takes::Any, true),
    setting("bytea_output", "hex", Takes::Only(&["hex"]), false),
    setting("client_encoding", "UTF8", Takes::Encoding, true),
    setting("client_min_messages", "notice", Takes::Any, false),
    setting("constraint_exclusion", "partition", Takes::Any, false),
    setting("DateStyle", "ISO, MDY", Takes::Any, true),
    setting("default_statistics_target", "100", Takes::Any, false),
    setting("default_transaction_deferrable", "off", Takes::Switch, false),
    setting("default_transaction_isolation", "serializable", Takes::Any, false),
    setting(DEFAULT_READ_ONLY, "off", Takes::Switch, true),
    setting("effective_cache_size", "4GB", Takes::Any, false),
    setting("escape_string_warning", "on", Takes::Switch, false),
    setting("extra_float_digits", "1", Takes::Any, false),
    setting("geqo", "on", Takes::Switch, false),
    setting("idle_in_transaction_session_timeout", IDLE_TIMEOUT, Takes::Time, false),
    // Sessions do not end by it.
    setting("idle_session_timeout", "0", Takes::Only(&["0"]), false),
    setting("in_hot_standby", "off", Takes::Nothing, true),
    setting("integer_datetimes", "on", Takes::Nothing, true),
    setting("IntervalStyle", "postgres", Takes::Any, true),
    setting("is_superuser", "off", Takes::Nothing, true),
    setting("jit", "on", Takes::Switch, false),
    setting("lc_messages", "C", Takes::Any, false),
    setting("lc_monetary", "C", Takes::Any, false),
    setting("lc_numeric", "C", Takes::Any, false),
    setting("lc_time", "C", Takes::Any, false),
    setting("lock_timeout", "0", Takes::Any, false),
    setting("maintenance_work_mem", "64MB", Takes::Any, false),
    setting("max_identifier_length", "63", Takes::Nothing, false),
    setting("max_parallel_workers_per_gather", "2", Takes::Any, false),
    setting("plan_cache_mode", "auto", Takes::Any, false),
    setting("random_page_cost", "4", Takes::Any, false),
    setting("row_security", "on", Takes::Any, false),
    setting("search_path", "public", Takes::Any, false),
    setting("server_encoding", "UTF8", Takes::Nothing, true),
    setting("server_version", SERVER_VERSION, Takes::Nothing, true),
    setting("server_version_num", "150000", Takes::Nothing, false),
    setting("standard_conforming_strings", "on", Takes::Only(ON), true),
    setting("statement_timeout", "0", Takes::Time, false),
    setting("synchronous_commit", "on", Takes::Any, false),
    setting("temp_buffers", "8MB", Takes::Any, false),
    setting("TimeZone", "UTC", Takes::Any, true),
    setting("transaction_isolation", "serializable", Takes::Any, false),
    setting(READ_ONLY, "off", Takes::Switch, false),
    setting("work_mem", "4MB", Takes::Any, false),
];

/// Values that differ from their defaults, and a client's own settings.
type Changed = Vec<(Cow<'static, str>, String)>;

/// How long a change lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    Session,
    /// For the session, if the block in which it is made is committed.
    Committed,
    /// Until that block ends.
    Block,
}

/// Those of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    changed: Changed,
    /// As the client chose them when it began, to which they are reset.
    initial: Changed,
    /// If the block has changed some.
    after: Option<Box<After>>,
    /// Whether the block is read-only. `None`: there is none.
    read_only: Option<bool>,
}

/// What they are when the block is over.
#[derive(Clone, Debug, PartialEq)]
struct After {
    commit: Changed,
    rollback: Changed,
}

fn find_in<'a>(changed: &'a Changed, name: &str) -> Option<&'a str> {
    changed.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str())
}

fn find(name: &str) -> Result<&'static Setting, Refusal> {
    SETTINGS.iter().find(|setting| setting.name.eq_ignore_ascii_case(name)).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(SqlState::UNKNOWN_NAME, format!("unrecognized configuration parameter {:?}", start_of(name)))
        .hint("SHOW ALL lists those that there are.")
}

/// As much of what a client has sent as is quoted.
fn start_of(text: &str) -> String {
    text.chars().take(80).collect()
}

fn is_own(name: &str) -> bool {
    name.contains('.')
}

/// As it is compared. `None`: it is not one of names with dots between them, as in PostgreSQL (`valid_custom_variable_name`).
fn own_name(name: &str) -> Option<String> {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
    };
    (name.len() <= OWN_NAME_BYTES_MAX && name.split('.').all(is_name)).then(|| name.to_lowercase())
}

impl Settings {
    /// The client has said what it chooses when it begins.
    pub fn begin(&mut self) {
        self.initial = self.changed.clone();
    }

    /// Sets one, or with `None` resets it. Returns the name and value that the client must be told.
    ///
    /// # Errors
    /// If there is none of that name, or it does not take the value.
    pub fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        lasts: Lasts,
    ) -> Result<Option<(&'static str, String)>, Refusal> {
        if is_own(name) {
            return self.set_own(name, value, lasts).map(|()| None);
        }
        let setting = find(name)?;
        let invalid = || invalid(setting.name, value);
        let value = match (setting.takes, value) {
            (Takes::Nothing, _) => {
                let message = format!("parameter {:?} cannot be changed", setting.name);
                return Err(Refusal::new(SqlState("55P02"), message));
            }
            (_, None) => find_in(&self.initial, setting.name),
            (_, Some(text)) if text.len() > VALUE_BYTES_MAX => return Err(invalid()),
            (Takes::Only(all), Some(text)) => {
                let is_known = all.iter().any(|one| one.eq_ignore_ascii_case(text));
                if !is_known {
                    return Err(invalid().hint(format!("Served: {}.", setting.default)));
                }
                None
            }
            (Takes::Encoding, Some(text)) => {
                let name: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
                if !matches!(&*name.to_ascii_lowercase(), "utf8" | "unicode") {
                    return Err(invalid().hint(format!("Served: {}.", setting.default)));
                }
                None
            }
            (Takes::Time, Some(text)) => {
                time(text).ok_or_else(invalid)?;
                Some(text)
            }
            (Takes::Switch, Some(text)) => Some(word(switch(text).ok_or_else(invalid)?)),
            (Takes::Any, Some(text)) => Some(text),
        };
        let value = value.filter(|value| *value != setting.default).map(str::to_owned);
        self.put(setting.name.into(), value, lasts);
        Ok(setting.reported.then(|| (setting.name, self.value(setting).to_owned())))
    }

    fn set_own(&mut self, name: &str, value: Option<&str>, lasts: Lasts) -> Result<(), Refusal> {
        let name = own_name(name).ok_or_else(|| {
            let message = format!("invalid configuration parameter name {:?}", start_of(name));
            Refusal::new(SqlState::INVALID_NAME, message)
        })?;
        if value.is_some_and(|text| text.len() > VALUE_BYTES_MAX) {
            return Err(invalid(&name, value));
        }
        let others = |changed: &Changed| changed.iter().filter(|(own, _)| is_own(own) && *own != name).count();
        let after = self.after.iter().flat_map(|after| [&after.commit, &after.rollback]);
        let others = [&self.changed].into_iter().chain(after).map(others).max();
        if value.is_some() && others.is_some_and(|others| others >= OWN_MAX) {
            let message = format!("more than {OWN_MAX} parameters with a dot in their names");
            return Err(Refusal::new(SqlState::LIMIT_EXCEEDED, message));
        }
        let value = value.or_else(|| find_in(&self.initial, &name)).map(str::to_owned);
        self.put(name.into(), value, lasts);
        Ok(())
    }

    /// `None`: its default.
    fn put(&mut self, name: Cow<'static, str>, value: Option<String>, lasts: Lasts) {
        self.change(lasts, |changed| {
            changed.retain(|(own, _)| *own != name);
            changed.extend(value.clone().map(|value| (name.clone(), value)));
        });
    }

    pub fn reset_all(&mut self, lasts: Lasts) {
        let initial = self.initial.clone();
        self.change(lasts, |changed| changed.clone_from(&initial));
    }

    fn change(&mut self, lasts: Lasts, make: impl Fn(&mut Changed)) {
        if lasts != Lasts::Session {
            let now = &self.changed;
            let after = || Box::new(After { commit: now.clone(), rollback: now.clone() });
            let after = self.after.get_or_insert_with(after);
            if lasts == Lasts::Committed {
                make(&mut after.commit);
            }
        }
        make(&mut self.changed);
    }

    /// In memory, about.
    pub fn bytes(&self) -> usize {
        let after = self.after.iter().flat_map(|after| [&after.commit, &after.rollback]);
        let changed = [&self.changed, &self.initial].into_iter().chain(after).flatten();
        size_of::<Settings>() + changed.map(|own| size_of_val(own) + own.0.len() + own.1.len()).sum::<usize>()
    }

    /// As they were at a savepoint of this block. Appends what the client must be told.
    pub fn return_to(&mut self, earlier: &Settings, out: &mut BytesMut) {
        let before = std::mem::replace(self, earlier.clone());
        self.report_since(&before, out);
    }

    /// There is a block from now on, if there was none. `read_only`: `None`: as it would be, or is.
    pub fn begin_block(&mut self, read_only: Option<bool>) {
        self.read_only = Some(read_only.unwrap_or_else(|| self.is_read_only()));
    }

    /// May transactions only read?
    pub fn is_read_only(&self) -> bool {
        // What is off is not among those that differ from their defaults.
        self.read_only.unwrap_or_else(|| find_in(&self.changed, DEFAULT_READ_ONLY).is_some())
    }

    /// The block is over, if there is one. Appends what the client must be told.
    pub fn end_block(&mut self, is_committed: bool, out: &mut BytesMut) {
        self.read_only = None;
        let Some(after) = self.after.take() else { return };
        let before = self.clone();
        self.changed = if is_committed { after.commit } else { after.rollback };
        self.report_since(&before, out);
    }

    /// Its value.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &str) -> Result<&str, Refusal> {
        if is_own(name) {
            return own_name(name).and_then(|own| find_in(&self.changed, &own)).ok_or_else(|| unknown(name));
        }
        find(name).map(|setting| self.value(setting))
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SETTINGS.iter().map(|setting| (setting.name, self.value(setting)))
    }

    fn value(&self, setting: &Setting) -> &str {
        if setting.name == READ_ONLY {
            return word(self.is_read_only());
        }
        find_in(&self.changed, setting.name).unwrap_or(setting.default)
    }

    /// `None`: unlimited.
    pub fn statement_timeout(&self) -> Option<Duration> {
        find_in(&self.changed, "statement_timeout").and_then(timeout)
    }

    /// `None`: unlimited.
    pub fn idle_timeout(&self) -> Option<Duration> {
        timeout(find_in(&self.changed, "idle_in_transaction_session_timeout").unwrap_or(IDLE_TIMEOUT))
    }

    /// What a client is told when its session begins.
    pub fn report(&self, out: &mut BytesMut) {
        for setting in SETTINGS.iter().filter(|setting| setting.reported) {
            report(out, setting.name, self.value(setting));
        }
    }

    /// What it is told when many may have changed.
    pub fn report_since(&self, before: &Settings, out: &mut BytesMut) {
        for setting in SETTINGS.iter().filter(|setting| setting.reported) {
            if self.value(setting) != before.value(setting) {
                report(out, setting.name, self.value(setting));
            }
        }
    }
}

pub fn report(out: &mut BytesMut, name: &str, value: &str) {
    put(out, &ParameterStatus::new(name.to_owned(), value.to_owned()));
}

/// `None`: it is neither.
pub fn switch(text: &str) -> Option<bool> {
    let is_among = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is_among(ON) { Some(true) } else { is_among(OFF).then_some(false) }
}

/// As a value is shown.
pub fn word(is_on: bool) -> &'static str {
    if is_on { ON[0] } else { OFF[0] }
}

fn invalid(name: &str, value: Option<&str>) -> Refusal {
    let message = format!("invalid value for parameter {name:?}: {:?}", start_of(value.unwrap_or_default()));
    Refusal::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// `None`: unlimited.
fn timeout(value: &str) -> Option<Duration> {
    time(value).filter(|timeout| !timeout.is_zero())
}

/// Of a number without unit, milliseconds.
fn time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(ms).filter(|ms| *ms <= i32::MAX as u64).map(Duration::from_millis)
}

#[cfg(test)]
mod tests;
