//! The arguments of commands that reach a running server by its control socket.

use std::path::PathBuf;

use clap::Args;

use crate::config::CONTROL_NAME;

#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// The server's data directory, where its control socket is.
    #[arg(long, value_name = "DIR", default_value = "awase-data")]
    pub data: PathBuf,
    /// Its control socket, if not in the data directory (listen.control).
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl ServerArguments {
    pub fn control_socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.data.join(CONTROL_NAME))
    }
}

pub const SET_EXAMPLES: &str = "\
Examples:
  awase set priority=off
  awase set --data /var/lib/awase read_ahead=64 quantum=adaptive";

/// Arguments of `set`.
#[derive(Args, Clone, Debug)]
pub struct SetArguments {
    #[command(flatten)]
    pub server: ServerArguments,
    /// The switches and their new values.
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = assignment)]
    pub switches: Vec<(String, String)>,
}

pub fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not of the form KEY=VALUE"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub const KEEP_HELP: &str = "\
The file is then as one who had flushed at that moment would have found it, and the server goes on:
what is written later goes beside again. Clients' writes wait until it is done. A crash of the host
leaves all of it or nothing: what is being written is first stored as FILE.awase-keep, and whichever
awase serves the file next finishes it; other programs must not use the file before. No other server
may have the file open.

Examples:
  awase keep trial
  awase keep --data /var/lib/awase trial";

/// Arguments of `keep`.
#[derive(Args, Clone, Debug)]
pub struct KeepArguments {
    #[command(flatten)]
    pub server: ServerArguments,
    /// The disk or database.
    #[arg(value_name = "NAME")]
    pub name: String,
}
