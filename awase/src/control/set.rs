//! `awase set`: changes switches of a running server.

use super::arguments::SetArguments;
use super::client::Client;

/// Sets switches one by one, and prints the new value of each.
///
/// # Errors
/// When no server is reached, or it refuses a value; the switches before it are set.
pub fn set(arguments: &SetArguments) -> anyhow::Result<()> {
    let mut client = Client::connect(&arguments.server.control_socket())?;
    for (name, value) in &arguments.switches {
        let (value, notes) = client.set(name, value)?;
        println!("{name} = {value}");
        notes.iter().for_each(|note| println!("  {note}"));
    }
    Ok(())
}
