//! `awase check` of large configurations.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::server::{AWASE, Sandbox};

const NOWHERE: &str = "data = \"data\"\n[listen]\nmetrics = []\npostgres = []\nnfs = []\n";
const SOCKET: &str = "nbd = []\nnbd_unix = [\"nbd.sock\"]\npostgres_unix = [\"postgres.sock\"]\n";

/// Far more than it takes.
const LONG: Duration = Duration::from_secs(20);

fn run(sandbox: &Sandbox, command: &str, configuration: &str) -> Output {
    sandbox.write("awase.toml", configuration);
    // A server that accepts it would run on.
    let mut program = Command::new("timeout");
    program.args(["30", &AWASE, command, "--config", "awase.toml"]).current_dir(sandbox.path());
    program.env_remove("NOTIFY_SOCKET").env("TMPDIR", sandbox.file("temporary")).output().expect("run awase")
}

#[test]
fn thousands_of_exports_are_read_at_once() {
    let sandbox = Sandbox::new();
    let one = |number| {
        format!("[[export]]\nname = \"{number}\"\nkind = \"file\"\npath = \"{number}\"\nsize = 512\ncreate = true\n")
    };
    let all: String = (0..10_000).map(one).collect();
    let began = Instant::now();
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{all}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    // Each is compared with all before it.
    let output = run(&sandbox, "check", &format!("{NOWHERE}{SOCKET}{all}{}", one(3)));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("awase.toml:60009: export \"3\" name is taken already by the export of awase.toml:27"),
        "{errors}"
    );
}
