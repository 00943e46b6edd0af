//! Statements about transactions and the session.

use super::lexer::Token;
use super::parser::Parser;
use super::{SavepointAction, Statement};
use crate::terminal::refusal::{Refusal, SqlState};
use crate::terminal::settings::{DEFAULT_READ_ONLY, READ_ONLY, switch, word};

impl Parser {
    /// What begins with `word`, which has been taken.
    pub fn session_statement(&mut self, word: &str) -> Result<Statement, Refusal> {
        match word {
            "begin" => {
                self.takes_any(&["work", "transaction"]);
                Ok(Statement::Begin { read_only: self.modes()? })
            }
            "start" if self.takes_word("transaction") => Ok(Statement::Begin { read_only: self.modes()? }),
            "commit" | "end" => self.ended().map(|()| Statement::Commit),
            "rollback" => self.rolled_back(),
            "abort" => self.ended().map(|()| Statement::Rollback),
            "savepoint" => self.savepoint(SavepointAction::Make),
            "release" => {
                self.takes_word("savepoint");
                self.savepoint(SavepointAction::Release)
            }
            "set" => self.set(),
            "reset" if self.takes_word("all") => Ok(Statement::ResetAll),
            "reset" => Ok(Statement::Set { name: self.setting()?, value: None, local: false }),
            "show" if self.takes_word("all") => Ok(Statement::Show(None)),
            "show" => Ok(Statement::Show(Some(self.setting()?))),
            "discard" if self.takes_word("all") => Ok(Statement::DiscardAll),
            "discard" if self.takes_any(&["plans", "sequences", "temp", "temporary"]) => {
                Ok(Statement::Nothing("DISCARD"))
            }
            "deallocate" => {
                self.takes_word("prepare");
                let name = if self.takes_word("all") { None } else { Some(self.name()?) };
                Ok(Statement::Deallocate(name))
            }
            "unlisten" if self.takes_symbol('*') => Ok(Statement::Nothing("UNLISTEN")),
            "unlisten" => self.name().map(|_| Statement::Nothing("UNLISTEN")),
            "close" if self.takes_word("all") => Ok(Statement::Nothing("CLOSE CURSOR ALL")),
            _ => Err(self.back().unexpected()),
        }
    }

    /// Of BEGIN. Every transaction is serializable, which is as strict as any level that is asked for. Returns whether it is
    /// to be read-only, if that is said.
    fn modes(&mut self) -> Result<Option<bool>, Refusal> {
        let mut read_only = None;
        while !self.is_over() {
            if self.takes_word("isolation") && self.takes_word("level") {
                self.level()?;
            } else if self.takes_word("read") {
                let is_only = self.takes_word("only");
                if !is_only && !self.takes_word("write") {
                    return Err(self.unexpected());
                }
                read_only = Some(is_only);
            } else {
                self.takes_word("not");
                if !self.takes_word("deferrable") {
                    return Err(self.unexpected());
                }
            }
            self.takes_symbol(',');
        }
        Ok(read_only)
    }

    fn level(&mut self) -> Result<(), Refusal> {
        let is_level = match self.peek() {
            Some(Token::Word(word)) if word == "serializable" => self.takes_word("serializable"),
            Some(Token::Word(word)) if word == "repeatable" => self.takes_word("repeatable") && self.takes_word("read"),
            _ => self.takes_word("read") && self.takes_any(&["committed", "uncommitted"]),
        };
        if is_level { Ok(()) } else { Err(self.unexpected()) }
    }

    fn rolled_back(&mut self) -> Result<Statement, Refusal> {
        self.takes_any(&["work", "transaction"]);
        if !self.takes_word("to") {
            return self.ended().map(|()| Statement::Rollback);
        }
        self.takes_word("savepoint");
        self.savepoint(SavepointAction::RollBackTo)
    }

    fn savepoint(&mut self, action: SavepointAction) -> Result<Statement, Refusal> {
        self.name().map(|name| Statement::Savepoint { action, name })
    }

    /// Of COMMIT and ROLLBACK.
    fn ended(&mut self) -> Result<(), Refusal> {
        self.takes_any(&["work", "transaction"]);
        let position = self.position();
        let not_served =
            |what: &str| Err(Refusal::new(SqlState::NOT_SUPPORTED, format!("{what} is not served")).at(position));
        if self.takes_any(&["prepared"]) {
            return not_served("two-phase commit");
        }
        if self.takes_word("and") {
            if self.takes_word("no") && self.takes_word("chain") {
                return Ok(());
            }
            return not_served("AND CHAIN");
        }
        Ok(())
    }

    fn set(&mut self) -> Result<Statement, Refusal> {
        if self.takes_word("transaction") {
            return Ok(self.modes()?.map_or(Statement::Nothing("SET"), Statement::ReadOnly));
        }
        let local = self.takes_word("local");
        if !local && self.takes_word("session") && self.takes_word("characteristics") {
            if !self.takes_word("as") || !self.takes_word("transaction") {
                return Err(self.unexpected());
            }
            let name = DEFAULT_READ_ONLY.to_owned();
            let set = |read_only| Statement::Set { name, value: Some(word(read_only).to_owned()), local: false };
            return Ok(self.modes()?.map_or(Statement::Nothing("SET"), set));
        }
        if self.takes_word("time") {
            return if self.takes_word("zone") { self.set_zone(local) } else { Err(self.unexpected()) };
        }
        if self.takes_word("names") {
            return self.set_to("client_encoding".into(), local);
        }
        let name = self.setting()?;
        if !self.takes_symbol('=') && !self.takes_word("to") {
            return Err(self.unexpected());
        }
        self.set_to(name, local)
    }

    /// `LOCAL` is its default, as `DEFAULT`; an interval is shown as the name of the zone that is so far from UTC, as by PostgreSQL.
    fn set_zone(&mut self, local: bool) -> Result<Statement, Refusal> {
        let name = "timezone".to_owned();
        if self.takes_word("local") {
            return Ok(Statement::Set { name, value: None, local });
        }
        if !self.takes_word("interval") {
            return self.set_to(name, local);
        }
        let position = self.position();
        let Some(Token::Text(text)) = self.next() else { return Err(self.back().unexpected()) };
        let has_unit = self.takes_word("hour");
        if has_unit && self.takes_word("to") && !self.takes_word("minute") {
            return Err(self.unexpected());
        }
        let value = zone(&text, has_unit).ok_or_else(|| {
            let refusal = Refusal::new(SqlState::NOT_SUPPORTED, "this interval is not served as a time zone");
            refusal.hint("Served: '+hh:mm'.").at(position)
        })?;
        Ok(Statement::Set { name, value: Some(value), local })
    }

    /// The name of a setting; those of two words are shown as one.
    fn setting(&mut self) -> Result<String, Refusal> {
        let mut name = self.name()?.to_lowercase();
        if name == "transaction" && self.takes_word("isolation") && self.takes_word("level") {
            return Ok("transaction_isolation".into());
        }
        if name == "time" && self.takes_word("zone") {
            return Ok("timezone".into());
        }
        while self.takes_symbol('.') {
            name.push('.');
            name += &self.name()?.to_lowercase();
        }
        Ok(name)
    }

    /// A value, or several with commas between them.
    fn set_to(&mut self, name: String, local: bool) -> Result<Statement, Refusal> {
        if self.takes_word("default") {
            return Ok(Statement::Set { name, value: None, local });
        }
        let mut values = Vec::new();
        loop {
            let sign = if self.takes_symbol('-') { "-" } else { "" };
            let position = self.position();
            match self.next() {
                Some(Token::Word(text) | Token::Quoted(text) | Token::Text(text) | Token::Number(text)) => {
                    values.push(format!("{sign}{text}"));
                }
                Some(Token::Refused(refusal)) => return Err(*refusal),
                _ => {
                    let message = format!("the value of {name} is missing");
                    return Err(Refusal::new(SqlState::SYNTAX, message).at(position));
                }
            }
            if !self.takes_symbol(',') {
                let value = values.join(", ");
                return Ok(match switch(&value).filter(|_| name == READ_ONLY) {
                    Some(read_only) => Statement::ReadOnly(read_only),
                    None => Statement::Set { name, value: Some(value), local },
                });
            }
        }
    }
}

/// Of an interval `[+-]hh:mm`, or of hours alone: POSIX's name of the zone, whose sign is the other one.
fn zone(interval: &str, may_be_hours: bool) -> Option<String> {
    let (sign, opposite, digits) = match interval.trim().strip_prefix('-') {
        Some(digits) => ('-', '+', digits),
        None => ('+', '-', interval.trim().trim_start_matches('+')),
    };
    let (hours, minutes) = digits.split_once(':').or_else(|| may_be_hours.then_some((digits, "0")))?;
    let number = |text: &str| {
        let is_number = matches!(text.len(), 1..=2) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u8>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes).filter(|minutes| *minutes < 60)?);
    let offset = if minutes == 0 { format!("{hours:02}") } else { format!("{hours:02}:{minutes:02}") };
    Some(format!("<{sign}{offset}>{opposite}{offset}"))
}
