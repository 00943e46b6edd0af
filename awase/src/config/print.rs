//! Prints the configuration: as a file, as help, as reference.

use std::fmt::Write as _;

use kernel::Switches;

use super::Config;
use super::client::{CLIENT_KEYS, ClientDraft};
use super::draft::Draft;
use super::export_keys::EXPORT_KEYS;
use super::key::Key;
use super::settings::{SETTINGS, Settings};
use super::switches::SWITCHES;

/// A file of the same meaning, with an explanation of each key.
pub fn toml(config: &Config) -> String {
    let mut text = String::from("# Awase's configuration, complete. Keys that are left out have their defaults.\n");
    let mut section = "";
    for key in SETTINGS {
        let (of, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if of != section {
            section = of;
            text += &format!("\n[{section}]\n");
        }
        line(&mut text, key, name, &config.settings);
    }
    text += "\n# One switch for each technique.\n[switches]\n";
    for key in SWITCHES {
        line(&mut text, key, key.name, &config.switches);
    }
    let drafts = config.exports.iter().map(Draft::from).chain(config.directories.iter().map(Draft::from));
    for draft in drafts {
        text += "\n[[export]]\n";
        for key in EXPORT_KEYS {
            if let Some(value) = (key.show)(&draft) {
                text += &format!("{} = {value}\n", key.name);
            }
        }
    }
    for draft in config.clients.iter().map(ClientDraft::from) {
        text += "\n[[client]]\n";
        for key in CLIENT_KEYS {
            if let Some(value) = (key.show)(&draft) {
                text += &format!("{} = {value}\n", key.name);
            }
        }
    }
    text
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
    for key in SWITCHES {
        let default = (key.show)(&defaults).unwrap_or_default();
        text += &format!("  {} [{}; default {default}]\n          {}\n", key.name, key.paper, key.about);
    }
    text
}

pub fn switch_table() -> String {
    let defaults = Switches::default();
    let mut text = String::from("| switch | default | what it does | technique |\n|---|---|---|---|\n");
    for key in SWITCHES {
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
    rows(&mut text, SETTINGS, "", &Settings::default());
    text += "\n## Switches\n\nOne for each technique, so that its effect can be measured.\n\n\
             | key | default | allowed | meaning |\n|---|---|---|---|\n";
    rows(&mut text, SWITCHES, "switches.", &Switches::default());
    text += "\n## Exports\n\nA table `[[export]]` for each. Without any, a sparse disk image of 1 GiB is created in `data` \
             and served as `disk`, and a directory `files` in `data`, writable for every user as `/tmp` is, as `/files`.\n\n| key | allowed | meaning |\n|---|---|---|\n";
    for key in EXPORT_KEYS {
        text += &format!("| `{}` | {} | {} |\n", key.name, key.allowed, key.about);
    }
    text += "\n## Clients\n\nProcessors and disks are shared among clients by their recent usage (`switches.usage`). A \
             client counts once, however many connections it has: a host by its address (in NFS each of its users, up \
             to 16 at a time), a user of this host by its number. A table `[[client]]` counts several as one, under a \
             name. The first that matches applies.\n\n| key | allowed | meaning |\n|---|---|---|\n";
    for key in CLIENT_KEYS {
        text += &format!("| `{}` | {} | {} |\n", key.name, key.allowed, key.about);
    }
    text
}

fn rows<T>(text: &mut String, keys: &[Key<T>], prefix: &str, defaults: &T) {
    for key in keys {
        let default = (key.show)(defaults).unwrap_or_default();
        *text += &format!("| `{prefix}{}` | `{default}` | {} | {} |\n", key.name, key.allowed, key.about);
    }
}
