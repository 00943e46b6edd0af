//! How a running server is watched and told what to change: lines of JSON over a Unix socket, answered by threads of the
//! front end. Nothing of it is on the path of requests.
//!
//! A request is an object with `request`: `status`, `switches`, or `set` with `name` and `value`. The answer is an object
//! with `answer`, or with `error` (for people) and, where a value is to blame, `problem` (its parts). Who reads answers
//! must ignore what it does not know: there will be more.

pub mod client;
mod connected;
mod set;
mod socket;
mod status;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use kernel::{Kernel, Reach, Volume};
use serde_json::{Map, Value, json};

use crate::config::{Given, Place, Problem, SWITCHES, set_switch};
use crate::processors::Processors;
use kernel::connection::Acceptor;

pub use set::set;
pub use socket::ControlSocket;

/// What the front end knows of the server.
pub struct Board {
    kernel: Arc<Kernel>,
    acceptor: Arc<Acceptor>,
    machine: String,
    started: Instant,
    exports: Mutex<Vec<Shown>>,
}

/// An export, as it is shown.
pub struct Shown {
    /// Its name; of a directory, what clients mount.
    pub name: String,
    /// `disk` or `directory`.
    pub kind: &'static str,
    pub medium: String,
    pub read_only: bool,
    /// Of a disk. To be looked at does not keep it open.
    pub volume: Weak<Volume>,
}

/// Where values come from that are set over the socket.
const PLACE: &str = "set";

/// What is said when a request is not understood.
const REQUESTS: &str = "{\"request\": \"status\"}, {\"request\": \"switches\"}, \
                        {\"request\": \"set\", \"name\": NAME, \"value\": VALUE}";

/// Why a request is refused.
enum Refused {
    /// It was not understood.
    Request(String),
    /// A name or a value is not allowed.
    Value(Problem),
}

impl Board {
    /// Of a server that starts now.
    pub fn new(processors: &Processors, acceptor: &Arc<Acceptor>) -> Arc<Board> {
        Arc::new(Board {
            kernel: Arc::clone(processors.kernel()),
            acceptor: Arc::clone(acceptor),
            machine: processors.description(),
            started: Instant::now(),
            exports: Mutex::default(),
        })
    }

    /// These are served from now on.
    pub fn set_exports(&self, exports: Vec<Shown>) {
        *self.exports() = exports;
    }

    fn exports(&self) -> MutexGuard<'_, Vec<Shown>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a switch while everything runs; says what the change does not reach.
    ///
    /// # Errors
    /// As in the configuration: there is no such switch, or the value is not allowed.
    pub fn set_switch(&self, name: &str, given: &Given, place: &Place) -> Result<Vec<Reach>, Problem> {
        self.kernel.change_switches(|switches| set_switch(switches, name, given, place))
    }

    /// The answer to one line.
    fn answer(&self, line: &[u8]) -> Value {
        match self.try_answer(line) {
            Ok(answer) => json!({ "answer": answer }),
            Err(Refused::Request(error)) => json!({ "error": format!("{error}; allowed: {REQUESTS}") }),
            Err(Refused::Value(problem)) => json!({
                "error": problem.to_string(),
                "problem": { "key": problem.key, "what": problem.what, "allowed": problem.allowed },
            }),
        }
    }

    fn try_answer(&self, line: &[u8]) -> Result<Value, Refused> {
        let request: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|error| Refused::Request(format!("the request is not an object of JSON: {error}")))?;
        let text = |key: &str| request.get(key).and_then(Value::as_str);
        match text("request") {
            Some("status") => Ok(self.status()),
            Some("switches") => Ok(self.switches()),
            Some("set") => {
                let missing = |key: &str| Refused::Request(format!("{key:?} is missing"));
                let name = text("name").ok_or_else(|| missing("name"))?;
                let value = request.get("value").ok_or_else(|| missing("value"))?;
                let unreached =
                    self.set_switch(name, &given(value), &Place::Flag(PLACE.into())).map_err(Refused::Value)?;
                let notes: Vec<String> = unreached.iter().map(Reach::to_string).collect();
                Ok(json!({ "name": name, "value": self.shown(name), "notes": notes }))
            }
            Some(other) => Err(Refused::Request(format!("there is no request {other:?}"))),
            None => Err(Refused::Request("\"request\" is missing".into())),
        }
    }

    /// All switches, as they are now, in the order of the README.
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

    fn shown(&self, name: &str) -> String {
        let current = self.kernel.switches();
        bare(SWITCHES.iter().find(|key| key.name == name).and_then(|key| (key.show)(&current)))
    }
}

/// A value as it is written behind a flag.
fn bare(shown: Option<String>) -> String {
    shown.unwrap_or_default().trim_matches('"').to_owned()
}

/// A value of JSON, as the configuration's tables take it.
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
