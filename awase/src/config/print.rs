//! Prints the configuration: as a file, as help, as reference.

use std::fmt::Write as _;

use kernel::Switches;

use super::Config;
use super::client::CLIENT_KEYS;
use super::database::{DATABASE_KEYS, USER_KEYS, user_draft};
use super::draft::Draft;
use super::export_keys::EXPORT_KEYS;
use super::key::Key;
use super::settings::{SETTINGS, Settings};
use super::switches::SWITCHES;

/// A file of the same meaning, with an explanation of each key.
pub fn toml(config: &Config) -> String {
    let mut text = String::from("# Awase's configuration, complete. Keys that are left out have their defaults.\n");
    let mut section = "";
    for key in SETTINGS.iter() {
        let (of, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if of != section {
            section = of;
            text += &format!("\n[{section}]\n");
        }
        line(&mut text, key, name, &config.settings);
    }
    text += "\n# One switch for each technique.\n[switches]\n";
    for key in SWITCHES.iter() {
        line(&mut text, key, key.name, &config.switches);
    }
    let drafts = config.exports.iter().map(Draft::from).chain(config.directories.iter().map(Draft::from));
    drafts.for_each(|draft| table(&mut text, "export", &EXPORT_KEYS, &draft));
    let databases = config.databases.iter().map(Draft::from);
    databases.for_each(|draft| table(&mut text, "database", &DATABASE_KEYS, &draft));
    config.users.iter().for_each(|user| table(&mut text, "user", &USER_KEYS, &user_draft(user)));
    config.clients.iter().for_each(|group| table(&mut text, "client", &CLIENT_KEYS, group));
    text
}

fn table<T>(text: &mut String, name: &str, keys: &[Key<T>], target: &T) {
    *text += &format!("\n[[{name}]]\n");
    for key in keys {
        if let Some(value) = (key.show)(target) {
            *text += &format!("{} = {value}\n", key.name);
        }
    }
}

fn line<T>(text: &mut String, key: &Key<T>, name: &str, target: &T) {
    if let Some(value) = (key.show)(target) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {}. Allowed: {}.\n{name} = {value}", key.about, key.allowed);
    }
}

pub fn switches_help() -> String {
    let defaults = Switches::default();
    let mut text = String::from("Switches (--switch NAME=VALUE), one for each technique:\n");
    for key in SWITCHES.iter() {
        let default = (key.show)(&defaults).unwrap_or_default();
        text += &format!("  {} [{}; default {default}]\n          {}\n", key.name, key.paper, key.about);
    }
    text
}

pub fn switch_table() -> String {
    let defaults = Switches::default();
    let mut text = String::from("| switch | default | what it does | technique |\n|---|---|---|---|\n");
    for key in SWITCHES.iter() {
        let default = (key.show)(&defaults).unwrap_or_default();
        text += &format!("| `{}` | `{default}` | {} | {} |\n", key.name, key.about, key.paper);
    }
    text
}

pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration reference\n\n\
         `awase serve --config FILE` reads a TOML file, which flags override; `awase check --config FILE` lists all its\n\
         problems; `awase config` prints what is in effect. Sizes take the units KiB to EiB (also k, M, \
         G, T;\nall powers of 1024), times ns, us, ms, s and min. This page is printed by `awase config --reference`.\n",
    );
    text += "\n## The server\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n";
    let settings = Settings::default();
    rows(&mut text, &SETTINGS, |key| named_default(key, "", &settings));
    text += "\n## Switches\n\nOne for each technique, so that its effect can be measured.\n\n\
             | key | default | allowed | meaning |\n|---|---|---|---|\n";
    let switches = Switches::default();
    rows(&mut text, &SWITCHES, |key| named_default(key, "switches.", &switches));
    text += "\n## Exports\n\nA table `[[export]]` for each. Without any, a sparse disk image of 1 GiB is created in `data` \
             and served as `disk`, and a directory `files` in `data`, writable for every user as `/tmp` is, as `/files`; and there is a database `bank`, in a sparse file of 1 GiB.\n\n| key | allowed | meaning |\n|---|---|---|\n";
    rows(&mut text, &EXPORT_KEYS, |key| format!("`{}`", key.name));
    text += "\n## Databases\n\nA table `[[database]]` for each: durable transactions of programs, called with PostgreSQL's \
             protocol at `listen.postgres`.\n\n| key | allowed | meaning |\n|---|---|---|\n";
    rows(&mut text, &DATABASE_KEYS, |key| format!("`{}`", key.name));
    text += "\n## Users of databases\n\nA table `[[user]]` for each. Without any, everybody on this host may connect to \
             databases, under any name and without a password. With some, everybody who connects must be one of them; \
             sessions that have begun go on when SIGHUP changes that. A file that holds a password should not be readable \
             for everybody: the server's start and `awase check` tell.\n\n\
             | key | allowed | meaning |\n|---|---|---|\n";
    rows(&mut text, &USER_KEYS, |key| format!("`{}`", key.name));
    text += "\n## Clients\n\nProcessors and disks are shared among clients by their recent usage (`switches.usage`). A \
             client counts once, however many connections it has: a host by its address (in NFS each of its users, up \
             to 16 at a time), a user of this host by its number. A table `[[client]]` counts several as one, under a \
             name. The first that matches applies.\n\n| key | allowed | meaning |\n|---|---|---|\n";
    rows(&mut text, &CLIENT_KEYS, |key| format!("`{}`", key.name));
    text
}

/// Rows of keys: the first columns, the values allowed, and the meaning.
fn rows<T>(text: &mut String, keys: &[Key<T>], first: impl Fn(&Key<T>) -> String) {
    for key in keys {
        *text += &format!("| {} | {} | {} |\n", first(key), key.allowed, key.about);
    }
}

fn named_default<T>(key: &Key<T>, prefix: &str, defaults: &T) -> String {
    format!("`{prefix}{}` | `{}`", key.name, (key.show)(defaults).unwrap_or_default())
}
