//! Monitoring and control of a running server: lines of JSON over a Unix socket, answered by threads of the front end, off
//! the I/O path.
//!
//! A request is an object with `request`: `status`, `switches`, `programs` (the databases load theirs again), `keep`
//! with `name` (of a disk or database whose changes go beside), or `set` with `name` and `value`. The answer is an object
//! with `answer`, or with `error` (text) and, if a value is not allowed, `problem` (its parts). Clients must ignore keys
//! that they do not know: more will be added.

pub mod arguments;
pub mod client;
mod connected;
pub mod keep;
pub mod set;
mod socket;
mod status;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use kernel::{Kernel, Reach, Volume};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use transactions::terminal::Terminals;

use crate::config::{Given, Place, Problem, SWITCHES, set_switch};
use crate::databases;
use crate::metrics::View;
use crate::overlaid::Overlaid;
use crate::processors::Processors;
use kernel::connection::Acceptor;

pub use socket::ControlSocket;

/// What clients of the control socket see and change.
pub struct ControlPanel {
    kernel: Arc<Kernel>,
    acceptor: Arc<Acceptor>,
    machine: String,
    started: Instant,
    exports: Mutex<Vec<ExportInfo>>,
    overlaid: Mutex<Vec<OverlaidInfo>>,
    /// All that are configured, each with the directory of its programs.
    databases: Mutex<Vec<(String, PathBuf)>>,
    terminals: Arc<Terminals>,
    latencies: View,
}

/// A disk or database whose changes go beside; weak, as in [`ExportInfo`].
pub struct OverlaidInfo {
    pub name: String,
    pub volume: Weak<Volume>,
    pub overlaid: Weak<Overlaid>,
}

pub struct ExportInfo {
    /// Of a directory, the path by which clients mount it.
    pub name: String,
    /// `disk` or `directory`.
    pub kind: &'static str,
    pub medium: String,
    pub read_only: bool,
    /// Of a disk; weak, so that monitoring does not keep it open.
    pub volume: Weak<Volume>,
    /// Of a shared disk.
    pub shared: Weak<dsm::Shared>,
}

const PLACE: &str = "set";

const REQUESTS: &str = "{\"request\": \"status\"}, {\"request\": \"switches\"}, {\"request\": \"programs\"}, \
                        {\"request\": \"keep\", \"name\": NAME}, {\"request\": \"set\", \"name\": NAME, \"value\": VALUE}";

enum Refused {
    /// It is malformed.
    Request(String),
    /// It was tried, and failed.
    Failed(String),
    /// A name or a value is not allowed.
    Value(Problem),
}

fn missing(key: &str) -> Refused {
    Refused::Request(format!("{key:?} is missing"))
}

impl ControlPanel {
    pub fn new(processors: &Processors, acceptor: &Arc<Acceptor>, terminals: &Arc<Terminals>) -> Arc<ControlPanel> {
        Arc::new(ControlPanel {
            kernel: Arc::clone(processors.kernel()),
            acceptor: Arc::clone(acceptor),
            machine: processors.description(),
            started: Instant::now(),
            exports: Mutex::default(),
            overlaid: Mutex::default(),
            databases: Mutex::default(),
            terminals: Arc::clone(terminals),
            latencies: View::new(processors.kernel(), acceptor, None, terminals),
        })
    }

    pub fn set_exports(&self, exports: Vec<ExportInfo>) {
        *self.exports.lock() = exports;
    }

    pub fn set_overlaid(&self, overlaid: Vec<OverlaidInfo>) {
        *self.overlaid.lock() = overlaid;
    }

    pub fn set_databases(&self, databases: Vec<(String, PathBuf)>) {
        *self.databases.lock() = databases;
    }

    /// An export has another volume by now.
    pub fn replace_volume(&self, name: &str, volume: &Arc<Volume>, shared: &Arc<dsm::Shared>) {
        for export in self.exports.lock().iter_mut().filter(|export| export.name == name) {
            (export.volume, export.shared) = (Arc::downgrade(volume), Arc::downgrade(shared));
        }
    }

    /// Changes a switch of the running server; returns what the change does not affect.
    ///
    /// # Errors
    /// When there is no such switch, or the value is not allowed.
    pub fn set_switch(&self, name: &str, given: &Given, place: &Place) -> Result<Vec<Reach>, Problem> {
        self.kernel.change_switches(|switches| set_switch(switches, name, given, place))
    }

    fn answer(&self, line: &[u8]) -> Value {
        match self.try_answer(line) {
            Ok(answer) => json!({ "answer": answer }),
            Err(Refused::Request(error)) => json!({ "error": format!("{error}; allowed: {REQUESTS}") }),
            Err(Refused::Failed(error)) => json!({ "error": error }),
            Err(Refused::Value(problem)) => json!({
                "error": problem.to_string(),
                "problem": { "key": problem.key, "what": problem.what, "allowed": problem.allowed },
            }),
        }
    }

    fn try_answer(&self, line: &[u8]) -> Result<Value, Refused> {
        let request: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|error| Refused::Request(format!("the request is not a JSON object: {error}")))?;
        let text = |key: &str| request.get(key).and_then(Value::as_str);
        let needed = |key: &str| text(key).ok_or_else(|| missing(key));
        match text("request") {
            Some("status") => Ok(self.status()),
            Some("switches") => Ok(self.switches()),
            Some("programs") => Ok(self.load_programs()),
            Some("keep") => self.keep(needed("name")?),
            Some("set") => {
                let name = needed("name")?;
                let value = request.get("value").ok_or_else(|| missing("value"))?;
                let unreached =
                    self.set_switch(name, &given(value), &Place::Flag(PLACE.into())).map_err(Refused::Value)?;
                let notes: Vec<String> = unreached.iter().map(Reach::to_string).collect();
                Ok(json!({ "name": name, "value": self.value_of(name), "notes": notes }))
            }
            Some(other) => Err(Refused::Request(format!("there is no request {other:?}"))),
            None => Err(missing("request")),
        }
    }

    /// Writes what went beside the disk or database `name` into it.
    fn keep(&self, name: &str) -> Result<Value, Refused> {
        let (mut found, names): (Vec<_>, Vec<String>) = {
            let known = self.overlaid.lock();
            let found = known.iter().filter(|info| info.name == name);
            let found = found.filter_map(|info| Some((info.volume.upgrade()?, info.overlaid.upgrade()?)));
            (found.collect(), known.iter().map(|info| format!("{:?}", info.name)).collect())
        };
        if found.len() > 1 {
            return Err(Refused::Failed(format!("{name:?} is a disk and a database: not kept; rename one of them")));
        }
        let Some((volume, overlaid)) = found.pop() else {
            let allowed =
                if names.is_empty() { "none: nothing here has overlay = true".into() } else { names.join(", ") };
            let place = Place::Flag("keep".into());
            return Err(Refused::Value(Problem::new(&place, "", format!("{name:?} has no overlay")).allowed(allowed)));
        };
        match overlaid.keep(&self.kernel, &volume) {
            Ok(bytes) => Ok(json!({ "name": name, "bytes": bytes, "path": overlaid.path() })),
            Err(error) => Err(Refused::Failed(format!("{name:?} is not kept: {error}"))),
        }
    }

    /// Loads the programs of all databases again; those that are open elsewhere load theirs when they are opened here.
    fn load_programs(&self) -> Value {
        let open = self.terminals.databases();
        let directory = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let database = |(name, programs): &(String, PathBuf)| {
            let is_open = open.iter().any(|monitor| monitor.name() == name);
            json!({ "name": name, "directory": directory(programs), "is_open": is_open })
        };
        let databases: Value = self.databases.lock().iter().map(database).collect();
        json!({ "databases": databases, "faults": databases::load_programs(&self.terminals) })
    }

    /// All switches, in the order of the README.
    fn switches(&self) -> Value {
        let current = self.kernel.switches();
        let row = |key: &crate::config::Key<kernel::Switches>| {
            json!({
                "name": key.name,
                "value": bare((key.show)(&current)),
                "allowed": key.allowed,
                "about": key.about,
                "technique": key.paper,
            })
        };
        SWITCHES.iter().map(row).collect()
    }

    fn value_of(&self, name: &str) -> String {
        let current = self.kernel.switches();
        bare(SWITCHES.iter().find(|key| key.name == name).and_then(|key| (key.show)(&current)))
    }
}

/// A value as in a flag, without quotes.
fn bare(shown: Option<String>) -> String {
    shown.unwrap_or_default().trim_matches('"').to_owned()
}

/// A JSON value for the configuration's tables.
fn given(value: &Value) -> Given {
    match value {
        Value::Bool(value) => Given::Boolean(*value),
        Value::String(text) => Given::Text(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Given::Integer(number.into()),
            (None, Some(number)) => Given::Integer(number.into()),
            (None, None) => Given::Other("a fraction"),
        },
        Value::Array(values) => Given::List(values.iter().map(given).collect()),
        Value::Null => Given::Other("null"),
        Value::Object(_) => Given::Other("an object"),
    }
}
