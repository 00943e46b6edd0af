use super::super::tests::{assert_findings, simulate};
use super::*;

#[test]
fn another_seed_finds_the_same_and_the_same_seed_the_same_bits() {
    let few = [("share.nodes", 256.0)];
    let (one, again, other) = (simulate(&Dsm, &few, 1), simulate(&Dsm, &few, 1), simulate(&Dsm, &few, 2));
    assert_eq!(one, again);
    assert_ne!(one.tables, other.tables);
    assert_findings(&other);
}

#[test]
fn on_a_machine_of_2026_the_network_is_no_longer_what_counts_and_mapping_still_pays() {
    let mut modern = Dsm.modern().to_vec();
    modern.push(("share.nodes", 256.0));
    let results = simulate(&Dsm, &modern, 1);
    assert!(results.findings[0].holds, "{}", results.findings[0].text);
}
