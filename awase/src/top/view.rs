//! The last status of the server, and the rates since the one before.

use std::time::Instant;

use serde_json::Value;

use crate::control::client::Client;

#[derive(Default)]
pub(super) struct View {
    pub status: Value,
    pub switches: Vec<Switch>,
    /// The previous status, and the seconds since.
    before: Option<(Value, f64)>,
    sampled: Option<Instant>,
}

pub(super) struct Switch {
    pub name: String,
    pub value: String,
    pub allowed: String,
    pub about: String,
    pub technique: String,
}

impl Switch {
    /// The allowed values that are words, through which keys cycle.
    pub fn choices(&self) -> Vec<String> {
        let words = self.allowed.split([' ', ',']).filter(|word| !word.is_empty());
        let named = words.filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
        named.map(|word| word.trim_matches('"').to_owned()).collect()
    }

    /// The choice `by` positions after the value, cyclically.
    pub fn neighbour(&self, by: isize) -> Option<String> {
        let choices = self.choices();
        let at = choices.iter().position(|choice| *choice == self.value);
        let next = match at {
            Some(at) => (at as isize + by).rem_euclid(choices.len() as isize) as usize,
            None => 0,
        };
        choices.into_iter().nth(next)
    }
}

impl View {
    /// # Errors
    /// When it does not answer.
    pub fn sample(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let (status, switches) = (client.status()?, client.switches()?);
        let now = Instant::now();
        let passed = self.sampled.replace(now).map(|then| now.duration_since(then).as_secs_f64());
        let before = std::mem::replace(&mut self.status, status);
        self.before = passed.filter(|passed| *passed > 0.0).map(|passed| (before, passed));
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let switch = |row: &Value| Switch {
            name: text(row, "name"),
            value: text(row, "value"),
            allowed: text(row, "allowed"),
            about: text(row, "about"),
            technique: text(row, "technique"),
        };
        self.switches = switches.as_array().into_iter().flatten().map(switch).collect();
        Ok(())
    }

    /// The previous status and the seconds since; `None` if it was of another server process.
    pub fn before(&self) -> Option<(&Value, f64)> {
        let (before, passed) = self.before.as_ref()?;
        (before["process"] == self.status["process"]).then_some((before, *passed))
    }

    /// `status` was sampled `passed` seconds after `before`.
    #[cfg(test)]
    pub fn between(before: Value, status: Value, passed: f64) -> View {
        View { status, before: Some((before, passed)), ..View::default() }
    }

    /// Rate per second of the counter at `pointer` (RFC 6901); `None` before the second sample of a server process.
    pub fn rate(&self, pointer: &str) -> Option<f64> {
        let (before, passed) = self.before()?;
        let number = |status: &Value| status.pointer(pointer).and_then(Value::as_u64);
        let (then, now) = (number(before)?, number(&self.status)?);
        Some(now.checked_sub(then)? as f64 / passed)
    }

    /// The same for the counter `key` of the element of `list` whose `name` is this one: its position may have changed.
    pub fn rate_in(&self, list: &str, name: &str, is: &Value, key: &str) -> Option<f64> {
        let (before, passed) = self.before()?;
        let number = |status: &Value| status[list].as_array()?.iter().find(|one| one[name] == *is)?[key].as_u64();
        Some(number(&self.status)?.checked_sub(number(before)?)? as f64 / passed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn switch(value: &str, allowed: &str) -> Switch {
        let none = String::new;
        Switch { name: none(), value: value.into(), allowed: allowed.into(), about: none(), technique: none() }
    }

    #[test]
    fn keys_cycle_through_all_named_values() {
        let quantum = switch("24ms", "\"adaptive\", \"off\", or a time up to 100ms such as \"24ms\"");
        assert_eq!(quantum.choices(), ["adaptive", "off", "24ms"]);
        assert_eq!(quantum.neighbour(1).as_deref(), Some("adaptive"));
        assert_eq!(quantum.neighbour(-1).as_deref(), Some("off"));
        assert_eq!(switch("7ms", &quantum.allowed).neighbour(1).as_deref(), Some("adaptive"));
        assert_eq!(switch("true", "true, false").neighbour(1).as_deref(), Some("false"));
        for key in crate::config::SWITCHES.iter() {
            assert!(switch("", &key.allowed).choices().len() > 1, "{} can be changed by keys", key.name);
        }
    }

    #[test]
    fn there_is_no_rate_across_a_restart() {
        let status = |process: u32, requests: u64| json!({ "process": process, "requests": requests });
        let mut view = View { status: status(1, 300), before: Some((status(1, 100), 2.0)), ..View::default() };
        assert_eq!(view.rate("/requests"), Some(100.0));
        assert_eq!(view.rate("/nothing"), None);
        view.before = Some((status(2, 100), 2.0));
        assert_eq!(view.rate("/requests"), None, "restarted");
    }
}
