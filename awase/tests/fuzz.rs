//! Damaged configurations and traces are read or refused.

use std::sync::atomic::AtomicU64;

use awase::config::Config;
use kernel::trace::Trace;
use testkit::mutate;
use testkit::random::Random;
use testkit::rounds::Rounds;
use testkit::server::Sandbox;

#[test]
fn damaged_configurations_are_read_or_refused() {
    let example = include_str!("../../packaging/awase.toml");
    let more = "[limits]\nstall_timeout = \"2s\"\n[switches]\nquantum = \"24ms\"\n[[export]]\nname = \"d\"\n\
                kind = \"file\"\npath = \"x\"\nsize = \"1GiB\"\nfaults.seed = 7\n[[client]]\nname = \"c\"\nuid = [1, 2]\n\
                address = [\"10.0.0.0/8\", \"fd00::1\"]\n";
    let lines = |text: &str| text.split_inclusive('\n').map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>();
    let texts = [lines(example), lines(more)];
    let (mut valid, mut refused) = (0u64, 0u64);
    for seed in Rounds::new("damaged_configurations_are_read_or_refused", 500) {
        let random = &mut Random(seed << 32);
        let text = random.index(texts.len());
        let bytes = mutate::conversation(random, &texts[text]);
        match Config::parse("damaged.toml", &String::from_utf8_lossy(&bytes)) {
            Ok(_) => valid += 1,
            Err(problems) => {
                refused += 1;
                assert!(!problems.to_string().is_empty(), "seed {seed}: no message");
            }
        }
    }
    assert!(valid > 0 && refused > 0, "{valid} valid, {refused} refused");
}

#[test]
fn damaged_traces_are_read_or_refused() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&["--export", "name=d,kind=ram,size=16MiB"]);
    let mut client = testkit::nbd::Client::connect(&server.socket(), "d").expect("connect");
    for block in 0..200 {
        client.read(block * 4096, 4096).expect("read");
    }
    server.crash();
    let trace = std::fs::read(sandbox.file("awase-data/trace")).expect("a trace");
    let words: Vec<u64> = trace.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let read = |words: &[u64]| Trace::read(&words.iter().copied().map(AtomicU64::new).collect::<Vec<_>>());
    assert!(read(&words).is_ok_and(|trace| !trace.moments.is_empty()), "a trace that is whole");
    let used: Vec<usize> = (0..words.len()).filter(|&at| words[at] != 0).collect();
    for seed in Rounds::new("damaged_traces_are_read_or_refused", 5) {
        let random = &mut Random(seed << 32);
        let mut words = words.clone();
        for _ in 0..1 + random.below(20) {
            // The head is where the lengths are.
            let at = if random.chance(500) { random.index(32) } else { *random.pick(&used) };
            words[at] = match random.below(4) {
                0 => random.next(),
                1 => words[at] ^ 1 << random.below(64),
                2 => words[at].wrapping_add(1),
                _ => random.below(70_000),
            };
        }
        if random.chance(100) {
            words.truncate(random.index(words.len()));
        }
        // Either result is right; it must not panic.
        drop(read(&words));
    }
}
