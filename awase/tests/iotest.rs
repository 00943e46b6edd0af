//! `awase iotest`: every device, both engines, and its messages.

use testkit::server::Sandbox;

/// The number of a field of the JSON object on `line`.
fn field(line: &str, name: &str) -> f64 {
    let rest = line.split(&format!("\"{name}\":")).nth(1).unwrap_or_else(|| panic!("{name} is missing in {line}"));
    let end = rest.find([',', '}']).expect("the end of a field");
    rest[..end].parse().unwrap_or_else(|error| panic!("{name} in {line}: {error}"))
}

#[test]
fn every_process_does_the_configured_number_of_reads() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("disk.img"), vec![1; 1 << 20]).expect("file");
    for engine in ["auto", "threads"] {
        for device in ["ramdisk", "testdev", "disk.img"] {
            let arguments = format!(
                "iotest --device {device} --engine {engine} -n 1,3 --count 4 --latency 1ms --wait 1 --wait-unit 1us \
                 --random --json"
            );
            let output = sandbox.run(&arguments.split(' ').collect::<Vec<_>>());
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{device}: {output:?}");
            let reads: Vec<_> = text.lines().map(|line| field(line, "reads")).collect();
            assert_eq!(reads, [4.0, 12.0], "{device} with {engine}: {text}");
            for line in text.lines() {
                assert!(field(line, "p50") > 0.0 && field(line, "p50") <= field(line, "max"), "{line}");
            }
        }
    }
}

#[test]
fn a_testdev_takes_at_least_its_latency() {
    let output = Sandbox::new().run(&["iotest", "--device", "testdev", "--latency", "5ms", "--count", "3", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(field(&text, "p50") >= 5000.0, "{text}");
}

#[test]
fn spinning_processes_use_the_processor() {
    let output =
        Sandbox::new().run(&["iotest", "-n", "2", "--count", "5", "--wait", "10", "--wait-unit", "1ms", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    // Two processes, five times 10 ms each, on up to two processors.
    assert!(field(&text, "elapsed_s") >= 0.05, "{text}");
    assert!(field(&text, "cpu_s") > 0.0, "{text}");
}

#[test]
fn a_wrong_device_or_flag_is_refused_with_exit_code_2() {
    for (arguments, message) in [
        (["--device", "none.img"], "--device: none.img does not exist"),
        (["--device", "mechanical"], "disks of 1990 are modelled in the laboratory"),
        (["--processors", "0"], "--processors: processors = \"0\" is not between 1 and 1024"),
        (["--engine", "steam"], "--engine: engine = \"steam\" is not allowed"),
    ] {
        let output = Sandbox::new().run(&[&["iotest"], &arguments[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(message), "{errors}");
    }
}
