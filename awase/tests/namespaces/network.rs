//! Hosts in network namespaces without names, which end with this process, and a switch between them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::server::is_root;

/// Where no host is.
const NOWHERE: &str = "02:00:00:00:00:ff";

/// Why there can be no namespaces.
pub fn lacks() -> Option<String> {
    if !is_root() {
        return Some("network namespaces need root".into());
    }
    let is_there = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        directories.any(|directory| directory.join(program).exists())
    };
    let absent = ["unshare", "nsenter", "ip", "etcd"].into_iter().find(|program| !is_there(program));
    if let Some(absent) = absent {
        return Some(format!("{absent} is not installed (`make test` installs it)"));
    }
    let made = Command::new("unshare").args(["--net", "true"]).status();
    (!made.is_ok_and(|status| status.success())).then(|| "this host gives no network namespaces".into())
}

/// A process that does nothing but hold a namespace, as long as this process lives.
struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo made; exec cat"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, "made\n", "no namespace");
        Namespace(holder)
    }

    /// What starts a program in it, before the program.
    fn enter(&self) -> Vec<OsString> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.0.id()).into()]
    }

    fn ip(&self, arguments: &str) {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        command.arg(&enter[1]).arg("ip").args(arguments.split(' '));
        command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
        let output = command.output().expect("nsenter");
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hosts, numbered from 0, on one network.
pub struct Network {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

pub fn address(host: usize) -> String {
    format!("10.0.0.{}", host + 1)
}

impl Network {
    pub fn new(hosts: usize) -> Network {
        let switch = Namespace::new();
        switch.ip("link add bridge type bridge");
        switch.ip("link set bridge up");
        let hosts = (0..hosts).map(|host| {
            let namespace = Namespace::new();
            switch.ip(&format!("link add port{host} type veth peer name eth0 netns {}", namespace.0.id()));
            switch.ip(&format!("link set port{host} master bridge up"));
            namespace.ip(&format!("address add {}/24 dev eth0", address(host)));
            namespace.ip("link set eth0 up");
            namespace.ip("link set lo up");
            namespace
        });
        let hosts = hosts.collect();
        Network { switch, hosts }
    }

    /// A program on a host, with its first arguments.
    pub fn at(&self, host: usize, program: impl AsRef<Path>) -> Vec<OsString> {
        let mut words = self.hosts[host].enter();
        words.push(program.as_ref().into());
        words
    }

    /// The cable of a host.
    pub fn plug(&self, host: usize, is_in: bool) {
        self.switch.ip(&format!("link set port{host} {}", if is_in { "up" } else { "down" }));
    }

    /// What a host sends to another one gets lost, without notice to either; or does so no more.
    pub fn lose(&self, from: usize, to: usize, is_lost: bool) {
        let to = address(to);
        if is_lost {
            self.hosts[from].ip(&format!("neighbour replace {to} lladdr {NOWHERE} nud permanent dev eth0"));
        } else {
            self.hosts[from].ip(&format!("neighbour delete {to} dev eth0"));
        }
    }
}
