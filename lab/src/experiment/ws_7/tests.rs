use super::super::tests::{assert_findings, simulate};
use super::*;

#[test]
fn inheritance_keeps_what_it_promises() {
    for seed in 1..4 {
        assert_findings(&simulate(&Ws7, &[], seed));
    }
}

#[test]
fn one_seed_gives_one_result() {
    assert_eq!(simulate(&Ws7, &[], 5), simulate(&Ws7, &[], 5));
}
