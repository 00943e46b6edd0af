//! What the second table of the multiprocessor paper promises.

use super::simulate;

#[test]
fn the_same_seed_gives_the_same_bits() {
    let few = [("run.reads", 100.0), ("run.runs", 1.0)];
    assert_eq!(simulate("mp-table2", &few, 7), simulate("mp-table2", &few, 7));
}
