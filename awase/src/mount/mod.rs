//! `awase mount`: an export of any NFSv3 server as a directory of this host, without root and without a kernel module.
//!
//! A mount is a process of its own, as a server that mounted itself could wait for itself. In the background it is a second
//! process that this one starts and that says when it is ready.

pub mod arguments;
mod background;
mod control;
mod dial;
mod fuse;
mod host;
mod messages;
mod mounts;
mod options;
mod session;
mod umount;
mod url;

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::config::Problems;
use crate::tell::print;
use arguments::MountArguments;
use messages::Messages;
use options::MountOptions;
pub use umount::umount;
use url::Url;

/// Does what the command line says.
///
/// # Errors
/// When nothing could be mounted.
pub fn mount(arguments: &MountArguments) -> anyhow::Result<ExitCode> {
    let wrong = |error: &dyn std::error::Error| Problems::of_command("mount", error);
    let url = Url::parse(&arguments.url).map_err(|error| wrong(&error))?;
    let options = MountOptions::parse(arguments.options.iter().map(String::as_str));
    let mut options = options.map_err(|error| wrong(&error))?;
    if options.privileged {
        dial::check_privileged()?;
    }
    options.ports.nfs = url.ports.nfs.or(options.ports.nfs);
    options.ports.mount = url.ports.mount.or(options.ports.mount);
    check_directory(arguments)?;
    let is_background_child = background::is_child();
    if !arguments.foreground && !is_background_child {
        return background::start();
    }
    let log = arguments.log.as_ref().map(|path| {
        let file = File::options().create(true).append(true).open(path);
        file.with_context(|| format!("cannot write to {}", path.display()))
    });
    let messages = Arc::new(Messages::new(url.to_string(), log.transpose()?, is_background_child));
    session::run(&url, &options, &arguments.directory, &messages, || {
        if is_background_child {
            background::report_ready()
        } else {
            // It serves whether or not anybody reads this.
            let _ = print(format!("mounted {url} on {}\n", arguments.directory.display()));
            // Nothing unless systemd started it.
            if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
                messages.line(&format!("cannot tell systemd that it is ready: {error}"));
            }
            Ok(())
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether something can be mounted there, for an error before anything is tried.
fn check_directory(arguments: &MountArguments) -> anyhow::Result<()> {
    let directory = &arguments.directory;
    match std::fs::metadata(directory) {
        Ok(found) if !found.is_dir() => bail!("{} is no directory", directory.display()),
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => bail!(
            "{} is a mount whose process has ended; awase umount {} takes it away",
            directory.display(),
            directory.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("cannot mount on {}", directory.display())),
    }
    if mounts::own_mount(directory)?.is_some() {
        bail!("something is already mounted on {} by awase", directory.display());
    }
    Ok(())
}
