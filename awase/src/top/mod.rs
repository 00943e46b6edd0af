//! `awase top`: what a server is doing, live, with every switch, changeable by keys.

mod connections;
mod draw;
mod sections;
mod terminal;
mod view;

use std::io::{IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use anyhow::bail;

use crate::cli::TopArguments;
use crate::control::client::Client;
use connections::Order;
use view::View;

/// Between two looks at the server.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is a rate in one frame is taken over so long.
const ONCE_INTERVAL: Duration = Duration::from_millis(200);

/// Shows the server until told to end, or once.
///
/// # Errors
/// When no server is reached, or there is no terminal.
pub fn top(arguments: &TopArguments) -> anyhow::Result<()> {
    let path = arguments.server.control_socket();
    let mut client = Client::connect(&path)?;
    let mut view = View::default();
    view.look(&mut client)?;
    if arguments.once {
        thread::sleep(ONCE_INTERVAL);
        view.look(&mut client)?;
        let text = sections::page(&sections::sections(&view, Order::default()));
        let mut output = std::io::stdout().lock();
        return match output.write_all(text.as_bytes()) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            result => Ok(result?),
        };
    }
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("awase top needs a terminal; --once prints one frame");
    }
    terminal::run(&path, client, view)
}
