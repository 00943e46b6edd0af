//! `awase set`: changes switches of a running server.

use kernel::Switches;

use super::arguments::SetArguments;
use super::client::Client;
use crate::config::{Given, Place, Problems, set_switch};
use crate::tell::print;

/// Sets switches one by one, and prints the new value of each.
///
/// # Errors
/// When a name or value is wrong, and then none is set; when no server is reached, or it refuses one; then those before
/// that are set. When standard output cannot be written; then all are set.
pub fn set(arguments: &SetArguments) -> anyhow::Result<()> {
    let mut problems = Problems::default();
    for (name, value) in &arguments.switches {
        let given = Given::Text(value.clone());
        problems.note(set_switch(&mut Switches::default(), name, &given, &Place::Flag("set".into())));
    }
    problems.or(())?;
    let mut client = Client::connect(&arguments.server.control_socket())?;
    let mut printed = Ok(());
    for (name, value) in &arguments.switches {
        let (value, notes) = client.set(name, value)?;
        let notes: String = notes.iter().map(|note| format!("  {note}\n")).collect();
        printed = printed.and(print(format!("{name} = {value}\n{notes}")));
    }
    printed
}
