//! `awase keep`: what went beside a disk is written into it.

use super::arguments::KeepArguments;
use super::client::Client;
use crate::config::show_bytes;
use crate::tell::print;

/// Has a running server keep what was written beside a disk or database.
///
/// # Errors
/// When no server is reached, or it refuses; when standard output cannot be written.
pub fn keep(arguments: &KeepArguments) -> anyhow::Result<()> {
    let mut client = Client::connect(&arguments.server.control_socket())?;
    let (bytes, path) = client.keep(&arguments.name)?;
    print(format!("{:?}: {} were written into {path}\n", arguments.name, show_bytes(bytes)))
}
