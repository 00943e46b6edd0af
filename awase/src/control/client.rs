//! The client of the control socket, used by `awase top`, `awase set`, `awase program` and `awase keep`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::config::{Place, Problem, Problems};

/// No server's answer is longer. Bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Ample for what a server answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct Client {
    stream: BufReader<UnixStream>,
    timeout: Duration,
}

/// What a server has loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadedPrograms {
    pub databases: Vec<LoadedDatabase>,
    /// What is wrong with programs.
    pub faults: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct LoadedDatabase {
    pub name: String,
    /// Where its programs are; earlier servers do not say.
    pub directory: Option<PathBuf>,
    /// Otherwise it is open at another node perhaps, and loads its programs when it is opened.
    pub is_open: bool,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When no server listens at `path`, or the server's user is another one.
    pub fn connect(path: &Path) -> anyhow::Result<Client> {
        let stream = UnixStream::connect(path).with_context(|| {
            format!(
                "no server is reached at {}; --data DIR names a server's data directory, --socket PATH its control socket",
                path.display()
            )
        })?;
        Ok(Client::over(stream, TIMEOUT)?)
    }

    fn over(stream: UnixStream, timeout: Duration) -> io::Result<Client> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Client { stream: BufReader::new(stream), timeout })
    }

    /// # Errors
    /// When it does not answer.
    pub fn status(&mut self) -> anyhow::Result<Value> {
        self.ask(&json!({ "request": "status" }))
    }

    /// # Errors
    /// When it does not answer.
    pub fn switches(&mut self) -> anyhow::Result<Value> {
        self.ask(&json!({ "request": "switches" }))
    }

    /// Sets a switch. Returns its new value, and notes on what the change does not affect.
    ///
    /// # Errors
    /// [`Problems`] when there is no such switch or the value is not allowed; others when it does not answer.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<(String, Vec<String>)> {
        let answer = self.ask(&json!({ "request": "set", "name": name, "value": value }))?;
        let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Ok((answer["value"].as_str().unwrap_or_default().to_owned(), notes.collect()))
    }

    /// Has it load the programs of its databases, as long as it takes to compile them.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn load_programs(&mut self) -> anyhow::Result<LoadedPrograms> {
        Ok(LoadedPrograms::from(&self.ask_for_long(&json!({ "request": "programs" }))?))
    }

    /// Has it write what went beside the disk or database `name` into that. Returns how much it was, in bytes, and the
    /// path of the file.
    ///
    /// # Errors
    /// [`Problems`] when there is no such; others when it refuses or does not answer.
    pub fn keep(&mut self, name: &str) -> anyhow::Result<(u64, String)> {
        // As long as it takes the disk.
        let answer = self.ask_for_long(&json!({ "request": "keep", "name": name }))?;
        Ok((answer["bytes"].as_u64().unwrap_or(0), answer["path"].as_str().unwrap_or_default().to_owned()))
    }

    /// As [`Client::ask`], however long the answer takes.
    fn ask_for_long(&mut self, request: &Value) -> anyhow::Result<Value> {
        self.stream.get_ref().set_read_timeout(None)?;
        let answer = self.ask(request);
        self.stream.get_ref().set_read_timeout(Some(self.timeout))?;
        answer
    }

    fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        let mut line = request.to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes()).context("the server has closed the connection")?;
        let mut answer = Vec::new();
        let read = self.stream.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut answer);
        if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            bail!("the server has not answered within {:?}", self.timeout);
        }
        read.context("no answer")?;
        if answer.is_empty() {
            bail!("the server has closed the connection");
        }
        let mut answer: Value = serde_json::from_slice(&answer).context("the answer is not JSON: is this a server?")?;
        if let Some(problem) = answer.get("problem") {
            let text = |key: &str| problem[key].as_str().unwrap_or_default();
            let command = request["request"].as_str().unwrap_or_default();
            let problem =
                Problem::new(&Place::Flag(command.into()), text("key"), text("what")).allowed(text("allowed"));
            return Err(Problems::from(problem).into());
        }
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}");
        }
        Ok(answer["answer"].take())
    }
}

impl From<&Value> for LoadedPrograms {
    fn from(answer: &Value) -> LoadedPrograms {
        let items = |key: &str| answer[key].as_array().into_iter().flatten();
        // Of earlier servers an item is the name.
        let database = |of: &Value| {
            let name = of.as_str().or(of["name"].as_str())?.to_owned();
            let directory = of["directory"].as_str().map(PathBuf::from);
            Some(LoadedDatabase { name, directory, is_open: of["is_open"].as_bool().unwrap_or(true) })
        };
        LoadedPrograms {
            databases: items("databases").filter_map(database).collect(),
            faults: items("faults").filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_server_of_an_earlier_version_names_its_databases_without_their_directories() {
        let answer = json!({ "databases": ["bank"], "faults": ["a fault"] });
        let bank = LoadedDatabase { name: "bank".into(), directory: None, is_open: true };
        let loaded = LoadedPrograms { databases: vec![bank], faults: vec!["a fault".into()] };
        assert_eq!(LoadedPrograms::from(&answer), loaded);
    }

    #[test]
    fn what_a_server_does_at_once_has_a_timeout_and_what_takes_it_long_has_none() {
        let timeout = Duration::from_millis(50);
        let (stream, server) = UnixStream::pair().expect("a pair");
        let mut client = Client::over(stream, timeout).expect("a client");
        let slow = thread::spawn(move || {
            let mut lines = BufReader::new(&server).lines();
            while lines.next().is_some_and(|line| !line.expect("a request").contains("programs")) {}
            thread::sleep(timeout * 3);
            (&server).write_all(b"{\"answer\": {\"databases\": [\"bank\"], \"faults\": []}}\n").expect("answered");
        });
        let told = client.status().expect_err("no answer").to_string();
        assert_eq!(told, "the server has not answered within 50ms");
        assert_eq!(client.load_programs().expect("an answer").databases[0].name, "bank");
        slow.join().expect("it answered");
    }
}
