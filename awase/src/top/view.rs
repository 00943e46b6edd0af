//! What is known of the server: the last answers, and the rates between the last two.

use std::time::Instant;

use serde_json::Value;

use crate::control::client::Client;

#[derive(Default)]
pub(super) struct View {
    pub status: Value,
    /// All switches, as they are.
    pub switches: Vec<Switch>,
    /// The answer before, and how long before. Seconds.
    before: Option<(Value, f64)>,
    looked: Option<Instant>,
}

pub(super) struct Switch {
    pub name: String,
    pub value: String,
    pub allowed: String,
    pub about: String,
    pub technique: String,
}

impl Switch {
    /// The values that are named among those allowed: what keys go through.
    pub fn choices(&self) -> Vec<String> {
        let words = self.allowed.split([' ', ',']).filter(|word| !word.is_empty());
        let named = words.filter(|word| word.starts_with('"') || ["true", "false"].contains(word));
        named.map(|word| word.trim_matches('"').to_owned()).collect()
    }

    /// The choice that is `by` places behind the value.
    pub fn choice_beside(&self, by: isize) -> Option<String> {
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
    /// Asks the server.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn look(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let (status, switches) = (client.status()?, client.switches()?);
        let now = Instant::now();
        let passed = self.looked.replace(now).map(|then| now.duration_since(then).as_secs_f64());
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

    /// The answer before, and how many seconds before; `None` where there is none of this server.
    pub fn before(&self) -> Option<(&Value, f64)> {
        let (before, passed) = self.before.as_ref()?;
        (before["process"] == self.status["process"]).then_some((before, *passed))
    }

    /// Two answers, one so many seconds after the other.
    #[cfg(test)]
    pub fn between(before: Value, status: Value, passed: f64) -> View {
        View { status, before: Some((before, passed)), ..View::default() }
    }

    /// By how much a second the number at `pointer` (RFC 6901) grew; `None` where that is not known yet. A server that
    /// was started anew counts from 0: then nothing is known, either.
    pub fn rate(&self, pointer: &str) -> Option<f64> {
        let (before, passed) = self.before()?;
        let number = |status: &Value| status.pointer(pointer).and_then(Value::as_u64);
        let (then, now) = (number(before)?, number(&self.status)?);
        Some(now.checked_sub(then)? as f64 / passed)
    }

    /// The same for the number `key` of that one in the list `list` whose `id` it is, wherever in the list it was before.
    pub fn rate_in(&self, list: &str, id: &Value, key: &str) -> Option<f64> {
        let (before, passed) =
            self.before.as_ref().filter(|(before, _)| before["process"] == self.status["process"])?;
        let number = |status: &Value| status[list].as_array()?.iter().find(|one| one["id"] == *id)?[key].as_u64();
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
    fn keys_go_through_all_named_values_and_round() {
        let quantum = switch("24ms", "\"adaptive\", \"off\", or a time up to 100ms such as \"24ms\"");
        assert_eq!(quantum.choices(), ["adaptive", "off", "24ms"]);
        assert_eq!(quantum.choice_beside(1).as_deref(), Some("adaptive"));
        assert_eq!(quantum.choice_beside(-1).as_deref(), Some("off"));
        assert_eq!(switch("7ms", &quantum.allowed).choice_beside(1).as_deref(), Some("adaptive"));
        assert_eq!(switch("true", "true, false").choice_beside(1).as_deref(), Some("false"));
        for key in crate::config::SWITCHES {
            assert!(switch("", key.allowed).choices().len() > 1, "{} can be changed by keys", key.name);
        }
    }

    #[test]
    fn rates_are_of_one_server_only() {
        let status = |process: u32, requests: u64| json!({ "process": process, "requests": requests });
        let mut view = View { status: status(1, 300), before: Some((status(1, 100), 2.0)), ..View::default() };
        assert_eq!(view.rate("/requests"), Some(100.0));
        assert_eq!(view.rate("/nothing"), None);
        view.before = Some((status(2, 100), 2.0));
        assert_eq!(view.rate("/requests"), None, "it was started anew");
    }
}
