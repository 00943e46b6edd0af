//! `awase top`: live status of a server, with every switch, changeable by keys.

mod calls;
mod connections;
mod draw;
mod section;
mod sections;
mod terminal;
mod view;

use std::io::IsTerminal as _;
use std::thread;
use std::time::Duration;

use anyhow::bail;

use crate::cli::TopArguments;
use crate::control::client::Client;
use crate::tell::print;
use connections::SortKey;
use view::View;

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// Period of the rates of `--once`.
const ONCE_INTERVAL: Duration = Duration::from_millis(200);

/// Shows the server until a key or signal ends it, or once.
///
/// # Errors
/// When no server is reached, or there is no terminal.
pub fn top(arguments: &TopArguments) -> anyhow::Result<()> {
    let path = arguments.server.control_socket();
    let mut client = Client::connect(&path)?;
    let mut view = View::default();
    view.sample(&mut client)?;
    if arguments.once {
        thread::sleep(ONCE_INTERVAL);
        view.sample(&mut client)?;
        return print(sections::page(&sections::sections(&view, SortKey::default())));
    }
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("awase top needs a terminal; --once prints one frame");
    }
    terminal::run(&path, client, view)
}
