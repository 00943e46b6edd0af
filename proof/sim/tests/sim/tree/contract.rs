//! What every tree promises, of simulated trees.

macro_rules! of_the_simulated {
    ($suite:ident: $($name:ident),+) => {
        mod $suite {
            $(#[test] fn $name() { testkit::contract::$suite::$name(crate::tree::rig::TreeRig::of_all_trees()) })+
        }
    };
}

testkit::promises_of_handles!(of_the_simulated);
testkit::promises_of_listing!(of_the_simulated);
testkit::promises_of_names!(of_the_simulated);
testkit::promises_of_permissions!(of_the_simulated);
