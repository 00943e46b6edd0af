use super::super::tests::{assert_findings, simulate};
use super::*;

fn rates(results: &Results) -> [f64; 2] {
    [0, 1].map(|row| results.tables[0].cells[row][0].simulated.expect("simulated"))
}

#[test]
fn what_nobody_published_decides_nothing_on_40_processors() {
    for (name, value) in [("cpu.io", 5.0), ("cpu.io", 20.0), ("ipi.deliver", 200.0), ("ipi.deliver", 1000.0)] {
        let [mapped, unmapped] = rates(&simulate(&Uio, &[(name, value)], 1));
        assert!((mapped / 300.0 - 1.0).abs() < 0.2, "{name} = {value}: {mapped}");
        assert!((unmapped / 1000.0 - 1.0).abs() < 0.2, "{name} = {value}: {unmapped}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let short = [("rounds", 2.0)];
    assert_eq!(simulate(&Uio, &short, 3), simulate(&Uio, &short, 3));
}

#[test]
fn unmapped_buffers_are_worth_more_on_a_machine_of_2026() {
    let results = simulate(&Uio, Uio.modern(), 1);
    let [mapped, unmapped] = rates(&results);
    assert!(unmapped > mapped * 10.0, "{mapped} {unmapped}");
    assert_findings(&results);
}
