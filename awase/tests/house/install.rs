//! `make install`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use testkit::server::{AWASE, Sandbox};

use crate::root;

/// Programs and files below `directory`.
fn installed(directory: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
        let (path, mode) = (entry.path(), entry.metadata().expect("it is there").permissions().mode() & 0o777);
        match path.is_dir() {
            true => found.extend(installed(&path)),
            false => found.push((path.display().to_string(), mode)),
        }
    }
    found
}

/// As root after `make build`, and again: without a Rust toolchain, and with a mask that would keep others from the files.
#[test]
fn what_is_built_is_installed_without_a_rust_toolchain_and_for_all_to_read() {
    let sandbox = Sandbox::new();
    let script = format!(
        "umask 022
        mkdir -p bin target/release target/completions
        cp {} target/release/awase
        target/release/awase man --directory target/man
        touch target/completions/bash target/completions/zsh target/completions/fish
        printf '#!/bin/sh\\nexit 1\\n' > bin/rustc
        chmod +x bin/rustc
        export PATH=$PWD/bin:$PATH CARGO_TARGET_DIR=$PWD/target
        destination=$PWD/root
        umask 077
        cd {}
        make install CARGO=false PREFIX=/usr DESTDIR=$destination
        make install CARGO=false PREFIX=/usr DESTDIR=$destination",
        *AWASE,
        root().display()
    );
    let reference =
        || fs::metadata(root().join("docs/configuration.md")).expect("it is there").modified().expect("a time");
    let before = reference();
    let output = Command::new("sh").args(["-ec", &script]).current_dir(sandbox.path()).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(reference(), before, "it wrote among the sources");
    let found = installed(&sandbox.file("root"));
    for name in ["usr/bin/awase", "awase-mount.1", "site-functions/_awase", "awase.service", "awase-mount@.service"] {
        let (path, mode) = found.iter().find(|(path, _)| path.ends_with(name)).expect(name);
        assert_eq!(mode & 0o044, 0o044, "{path} is of mode {mode:o}");
        if path.ends_with(".service") {
            assert!(fs::read_to_string(path).expect("a unit").contains("=/usr/bin/awase "));
        }
    }
}
