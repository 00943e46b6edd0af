use std::sync::atomic::AtomicU64;

use super::*;

fn simulate(settings: &[(&str, f64)], seed: u64) -> Results {
    let mut parameters = Dsm.parameters();
    for (name, value) in settings {
        parameters.set(name, *value).expect("in range");
    }
    let done = AtomicU64::new(0);
    let results = Dsm.simulate(&Run { parameters: &parameters, seed, done: &done });
    assert_eq!(done.into_inner(), Dsm.steps(&parameters));
    results
}

#[test]
fn another_seed_finds_the_same_and_the_same_seed_the_same_bits() {
    let few = [("share.nodes", 256.0)];
    let (one, again, other) = (simulate(&few, 1), simulate(&few, 1), simulate(&few, 2));
    assert_eq!(one, again);
    assert_ne!(one.tables, other.tables);
    assert!(other.findings.iter().all(|finding| finding.holds), "{:?}", other.findings);
}

#[test]
fn on_a_machine_of_2026_the_network_is_no_longer_what_counts_and_mapping_still_pays() {
    let mut modern = Dsm.modern().to_vec();
    modern.push(("share.nodes", 256.0));
    let results = simulate(&modern, 1);
    assert!(results.findings[0].holds, "{}", results.findings[0].text);
}
