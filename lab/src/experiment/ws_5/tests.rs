//! What the map of gathering shows.

use super::super::tests::{assert_findings, simulate};
use super::Ws5;

#[test]
fn no_closed_loop_is_far_below_the_best_constant_wait_and_a_lone_writer_is_never_delayed() {
    assert_findings(&simulate(&Ws5, &[], 1));
}
