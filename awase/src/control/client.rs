//! The other end of the control socket: what `awase top` and `awase set` ask a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::config::{Place, Problem, Problems};

/// Longer answers come from something else than a server. Bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A server answers at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a server's control socket.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When no server listens there, or its user is another one.
    pub fn connect(path: &Path) -> anyhow::Result<Client> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!(
                "no server is reached at {}; --data DIR names a server's data directory, --socket PATH its control socket",
                path.display()
            )
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// What the server is doing.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&mut self) -> anyhow::Result<Value> {
        self.ask(&json!({ "request": "status" }))
    }

    /// Its switches.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn switches(&mut self) -> anyhow::Result<Value> {
        self.ask(&json!({ "request": "switches" }))
    }

    /// Sets a switch. Returns its value as it is now, and what the change does not reach.
    ///
    /// # Errors
    /// [`Problems`] when there is no such switch or the value is not allowed; others when it does not answer.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<(String, Vec<String>)> {
        let answer = self.ask(&json!({ "request": "set", "name": name, "value": value }))?;
        let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Ok((answer["value"].as_str().unwrap_or_default().to_owned(), notes.collect()))
    }

    fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        let mut line = request.to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).context("the server does not listen any more")?;
        let mut answer = Vec::new();
        self.stream.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer).context("no answer")?;
        if answer.is_empty() {
            bail!("the server has closed the connection");
        }
        let mut answer: Value = serde_json::from_slice(&answer).context("the answer is not JSON: is this a server?")?;
        if let Some(problem) = answer.get("problem") {
            let text = |key: &str| problem[key].as_str().unwrap_or_default();
            let told = Problem::new(&Place::Flag("set".into()), text("key"), text("what")).allowed(text("allowed"));
            return Err(Problems::from(told).into());
        }
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}");
        }
        Ok(answer["answer"].take())
    }
}
