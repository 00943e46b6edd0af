//! Lines for people about a mount: to standard error or a file.

use std::fs::File;
use std::io::Write;

use parking_lot::Mutex;

pub struct Messages {
    export: String,
    log: Option<Mutex<File>>,
    /// Has it gone to the background, where nobody reads standard error?
    is_silent: bool,
}

impl Messages {
    pub fn new(export: String, log: Option<File>, is_silent: bool) -> Self {
        Messages { export, log: log.map(Mutex::new), is_silent }
    }

    pub fn line(&self, line: &str) {
        let line = format!("awase: {}: {line}\n", self.export);
        // Nobody can be told where this fails.
        let _ = match &self.log {
            Some(log) => log.lock().write_all(line.as_bytes()),
            None if self.is_silent => Ok(()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}
