use std::sync::atomic::AtomicU64;

use super::*;

fn simulated(seed: u64) -> Results {
    let (parameters, done) = (Ws7.parameters(), AtomicU64::new(0));
    let results = Ws7.simulate(&Run { parameters: &parameters, seed, done: &done });
    assert_eq!(done.into_inner(), Ws7.steps(&parameters));
    results
}

#[test]
fn inheritance_keeps_what_it_promises() {
    for seed in 1..4 {
        let results = simulated(seed);
        for finding in &results.findings {
            assert!(finding.holds, "seed {seed}: {}\n{:#?}", finding.text, results.tables);
        }
    }
}

#[test]
fn one_seed_gives_one_result() {
    assert_eq!(simulated(5), simulated(5));
}
