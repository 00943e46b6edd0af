use super::super::tests::{assert_findings, simulate};
use super::*;

#[test]
fn the_same_seed_gives_the_same_and_another_the_same_findings() {
    let few = [("transactions", 600.0)];
    let (one, same, other) = (simulate(&Oltp, &few, 1), simulate(&Oltp, &few, 1), simulate(&Oltp, &few, 2));
    assert_eq!(one, same);
    assert_ne!(one.tables[0], other.tables[0]);
    assert_findings(&other);
}

#[test]
fn all_techniques_help_a_machine_of_2026_too() {
    let results = simulate(&Oltp, Oltp.modern(), 1);
    assert_findings(&results);
}
