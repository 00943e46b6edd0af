use std::sync::atomic::AtomicU64;

use super::*;

fn simulate(seed: u64, set: &[(&str, f64)]) -> Results {
    let (mut parameters, done) = (Oltp.parameters(), AtomicU64::new(0));
    for (name, value) in set {
        parameters.set(name, *value).expect("in range");
    }
    let results = Oltp.simulate(&Run { parameters: &parameters, seed, done: &done });
    assert_eq!(done.into_inner(), Oltp.steps(&parameters));
    results
}

#[test]
fn the_same_seed_gives_the_same_and_another_the_same_findings() {
    let few = [("transactions", 600.0)];
    let (one, same, other) = (simulate(1, &few), simulate(1, &few), simulate(2, &few));
    assert_eq!(one, same);
    assert_ne!(one.tables[0], other.tables[0]);
    assert!(other.findings.iter().all(|finding| finding.holds), "{:?}", other.findings);
}

#[test]
fn all_techniques_help_a_machine_of_2026_too() {
    let results = simulate(1, Oltp.modern());
    assert!(results.findings.iter().all(|finding| finding.holds), "{:?}", results.findings);
}
